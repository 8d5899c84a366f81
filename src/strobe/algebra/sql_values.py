"""What names, expressions and conditions of a view's SQL stand for, where they are.

A value is the user's own text, in which every name is replaced by what it stands for; the calls that look at many rows
are columns in it, which operators make.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sqlglot import TokenType

from strobe.algebra.schema import quoted
from strobe.algebra.sql_blocks import Blocks, Conjunct
from strobe.algebra.sql_calls import calls
from strobe.algebra.sql_drafts import (
    Grouped,
    Over,
)
from strobe.algebra.sql_expressions import ColumnName, Expression, Item, check_moments, read_expression, read_item
from strobe.algebra.sql_grammar import Select, closing, conjuncts
from strobe.algebra.sql_names import Column, Made, Named, Parts, Scope, Value, ends, listed
from strobe.algebra.sql_text import Consequence, Span, Text
from strobe.algebra.sql_types import infer


@dataclass
class Rows:
    """What a SELECT needs many rows for: its groups, and its windows."""

    grouped: Grouped | None = None
    groups: dict[Parts, Value] = field(default_factory=dict)
    """What is grouped by, with the columns that hold it."""
    written: list[tuple[list[str], Value]] = field(default_factory=list)
    """The same as it is written, word by word, where it is more than a column."""
    texts: dict[Column, Span] = field(default_factory=dict)
    """How the user writes what is grouped by."""
    computed: dict[Made, Value] = field(default_factory=dict)
    windows: list[tuple[Made, tuple[Column, ...], Over]] = field(default_factory=list)
    candidates: tuple[tuple[Column, str], ...] = ()
    """What can break the ties of a window."""
    unique: tuple[frozenset[Column], ...] = ()
    named: Mapping[str, Span] = field(default_factory=dict)
    """What its WINDOW clause defines."""
    ordered: set[tuple[object, ...]] = field(default_factory=set)
    """The orders of its windows in which ties were broken."""


@dataclass(frozen=True)
class Names:
    """What names and calls can mean at a place."""

    scope: Scope
    aliases: Mapping[str, list[Value]] = field(default_factory=dict)
    rows: Rows | None = None
    windows: bool = False
    after: bool = False
    """Whether the aliases are those of the whole SELECT: in HAVING and QUALIFY."""
    clause: str = "here"
    scalars: bool = False
    """Whether there may be scalar subqueries, whose values join the rows of the block."""


class Values(Blocks):
    def __init__(self, text: Text) -> None:
        super().__init__(text)
        self.edits: dict[int, tuple[int, str]] = {}
        """What is replaced in the text that Spark recomputes: by place, up to which, and by what."""
        self.inner: set[int] = set()
        """The parentheses before the queries in expressions."""

    def columns_for(self, span: Span, names: Names) -> dict[Span, Value]:
        """The parts of a text that stand for columns which operators make, and those columns."""
        raise NotImplementedError

    def user(self, span: Span) -> str:
        """The user's own text, as it is recomputed."""
        return "".join(piece for piece, _ in self.text.render(span, self.edits))

    # ── SELECT ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def items(
        self, query: Select, names: Names, aliases: dict[str, list[Value]] | None = None
    ) -> list[tuple[str | None, Value, Span]]:
        found: list[tuple[str | None, Value, Span]] = []
        aliases = {} if aliases is None else aliases
        names = replace(names, aliases=aliases)
        for span in query.items:
            count = len(found)
            with self.text.noting():
                found += self.item(span, names, aliases)
            if len(found) == count:  # it is refused
                found.append((self.text.tokens[span.end - 1].text, Value(("NULL",)), span))
        return found

    def item(self, span: Span, names: Names, aliases: dict[str, list[Value]]) -> list[tuple[str | None, Value, Span]]:
        masked, hidden = self.masked(span, names)
        item = read_item(masked, Span(0, len(masked.tokens)))
        if item.expression is None:
            starred = self.star(item, span, names.scope)
            return [(c.name, self.grouped(c.value, c.name, span, names), span) for c in starred]
        value = self.value(masked, item.expression, hidden, names)
        if item.alias:
            aliases.setdefault(item.alias.lower(), []).append(value)
        return [(item.alias or (self.own_name(span) if item.expression.column else None), value, span)]

    def own_name(self, span: Span) -> str | None:
        """The name that a column has without an alias, also where it is grouped by."""
        last = span.end - 1
        plain = all(self.text.is_name(i) for i in range(last, span.start - 1, -2))
        dots = all(self.text.type(i) == TokenType.DOT for i in range(last - 1, span.start - 1, -2))
        return self.text.tokens[last].text if plain and dots else None

    def star(self, item: Item, span: Span, scope: Scope) -> tuple[Named, ...]:
        if not item.star:
            return scope.output
        found = tuple(c for c in (*scope.hidden, *scope.output) if ends(c.qualifier, item.star))
        start = self.text.tokens[span.start].start
        if not found:
            fix = f"Known here: {listed(['.'.join(q) for q in scope.qualifiers])}."
            raise self.text.refuse_at(start, f"unknown alias {'.'.join(item.star)}", fix)
        if len(item.star) > 1:
            self.shorten(start, len(item.star), found[0].qualifier[-1])
        return found

    def shorten(self, start: int, parts: int, alias: str) -> None:
        """`shop.orders.id` becomes `orders.id` in the text that Spark recomputes."""
        first = next(i for i, token in enumerate(self.text.tokens) if token.start == start)
        self.edits[start] = (self.text.tokens[first + 2 * (parts - 1)].end, quoted(alias))

    # ── conditions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def condition(self, span: Span, names: Names) -> list[Conjunct]:
        found: list[Conjunct] = []
        with self.whole(self.text.masked(span, self.scalars(span))):
            for part in conjuncts(self.text, span):
                with self.text.noting():
                    found.append(self.conjunct(part, names))
        return found

    def scalars(self, span: Span) -> list[Span]:
        """The scalar subqueries and EXISTS in a text, without those inside of others."""
        found: list[Span] = []
        for opening in sorted(self.inner):
            outside = not found or found[-1].end <= opening
            if span.start <= opening < span.end and outside and self.text.word(opening - 1) != "IN":
                start = opening - 1 if self.text.word(opening - 1) == "EXISTS" else opening
                found.append(Span(start, closing(self.text, opening) + 1))
        return found

    @contextmanager
    def whole(self, condition: Text) -> Iterator[None]:
        """While the parts of a condition are read: it must be one as a whole too."""
        before = len(self.text.problems)
        yield
        found = calls(condition, Span(0, len(condition.tokens)))
        if len(self.text.problems) == before and not any(found):
            read_expression(condition, Span(0, len(condition.tokens)))

    def conjunct(self, part: Span, names: Names) -> Conjunct:
        masked, hidden = self.masked(part, names)
        expression = read_expression(masked, Span(0, len(masked.tokens)))
        value = self.value(masked, expression, hidden, names)
        columns = [c for c in expression.columns if c.start not in hidden]
        if expression.equated and len(columns) == 2:
            left, right = (self.resolve(c, names) for c in columns)
            return self.equal(left, right, value, null_safe=expression.equated == "<=>")
        sure = [self.resolve(c, names).parts for c in columns] if expression.not_null else []
        return Conjunct(value, None, frozenset(sure))

    # ── expressions and names ────────────────────────────────────────────────────────────────────────────────────────

    def expression(self, span: Span, names: Names) -> Value:
        masked, hidden = self.masked(span, names)
        return self.value(masked, read_expression(masked, Span(0, len(masked.tokens))), hidden, names)

    def masked(self, span: Span, names: Names) -> tuple[Text, dict[int, Value]]:
        """A text in which calls over many rows, and what is grouped by, stand as if they were columns; and their
        values by the place where they begin."""
        found = self.columns_for(span, names)
        ordered = sorted(found, key=lambda s: s.start)
        starts = {self.text.tokens[s.start].start: value for s, value in found.items()}
        return self.text.masked(span, ordered), starts

    def value(self, text: Text, expression: Expression, hidden: Mapping[int, Value], names: Names) -> Value:
        """The expression's text with every column replaced by what it stands for."""
        values = {c.start: hidden.get(c.start) or self.resolve(c, names) for c in expression.columns}

        def type_of(column: ColumnName) -> str | None:
            return values[column.start].type

        check_moments(text, expression, type_of)
        if expression.column:
            return values[expression.column.start]
        parts: list[str | Column] = []
        stretches = {c.start: (c.end, str(c.start)) for c in expression.columns}
        for piece, replaced in text.render(expression.span, stretches):
            if replaced:
                parts += values[int(piece)].embedded
            else:
                parts.append(piece)
        return Value(tuple(parts), infer(expression.tree, lambda node: type_of(expression.name_of(node))))

    def resolve(self, column: ColumnName, names: Names) -> Value:
        *qualifier, name = column.parts
        scope = names.scope
        found = scope.found(column.parts)
        aliased = names.aliases.get(name.lower(), []) if not qualifier else []
        if names.after and len(aliased) == 1:
            return self.after(column, found, aliased[0], names)
        if not found and len(aliased) == 1:
            return aliased[0]
        if not found and scope.outer:
            scope = scope.outer
            found = scope.found(column.parts)
            if not found:
                scope = names.scope
        if len(found) != 1:
            raise self.not_one(column.start, ".".join(column.parts), found, scope)
        if len(qualifier) > 1:
            self.shorten(column.start, len(qualifier), found[0].qualifier[-1])
        return self.grouped_at(found[0].value, ".".join(column.parts), column.start, names)

    def after(self, column: ColumnName, found: Sequence[Named], alias: Value, names: Names) -> Value:
        """What a name means in HAVING and QUALIFY that is an alias of the SELECT, and may be a column of FROM."""
        rows = names.rows
        if not found or (rows and rows.grouped and found[0].value.parts not in rows.groups):
            return alias
        value = rows.groups[found[0].value.parts] if rows and rows.grouped else found[0].value
        if len(found) == 1 and value.parts == alias.parts:
            return value
        message = f"{column.parts[-1]} is a column of FROM and another one of SELECT"
        raise self.text.refuse_at(column.start, message, "Give the one of SELECT another name.")

    def grouped(self, value: Value, name: str, span: Span, names: Names) -> Value:
        return self.grouped_at(value, name, self.text.tokens[span.start].start, names)

    def grouped_at(self, value: Value, name: str, offset: int, names: Names) -> Value:
        """A column as it is after GROUP BY."""
        if not names.rows or names.rows.grouped is None:
            return value
        if value.parts not in names.rows.groups:
            fix = "Add it to GROUP BY, or put it into an aggregate such as max()."
            raise self.text.refuse_at(offset, f"the column {name} is neither grouped by nor aggregated", fix)
        return names.rows.groups[value.parts]

    def not_one(self, offset: int, name: str, found: Sequence[Named], scope: Scope) -> Exception:
        if self.text.problems:
            return Consequence("a name that something refused may define")
        if found:
            candidates = [".".join((*c.qualifier, c.name)) for c in found]
            fix = f"It could be {listed(candidates, 'or')}: write which, or give them different names."
            return self.text.refuse_at(offset, f"the column {name} is ambiguous", fix)
        offered = list(dict.fromkeys(".".join((*c.qualifier, c.name)) for c in scope.output))
        last = name.split(".")[-1].lower()
        near = difflib.get_close_matches(last, [o.split(".")[-1].lower() for o in offered], n=5, cutoff=0.6)
        close = [o for o in offered if o.split(".")[-1].lower() in near]
        fix = f"Did you mean {listed(close, 'or')}?" if close else f"Known here: {listed(offered[:12])}."
        return self.text.refuse_at(offset, f"unknown column {name}", fix)
