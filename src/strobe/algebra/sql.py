"""Views from SQL: a SELECT over relations `source.table`, compiled to one flat join.

CTEs, subqueries and nested joins are inlined: names are resolved as Spark resolves them (`Scope`), each name stands for
an expression over raw columns of occurrences (`Value`), and all ON, USING and WHERE conditions become one list of
conjuncts. With inner joins only, the flat form means what the nested one means, except that Spark may evaluate an
expression on rows that an inner condition would have kept from it: under ANSI rules `1 / x` can then fail for a row
that the nested form drops.

`recompute_sql`, which Spark runs for loads and audits, is the user's own text with the relations' names replaced.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from strobe.algebra.schema import RelationSchema, joinable, quoted
from strobe.algebra.sql_expressions import ColumnName, Expression, Item, check_moments, read_expression, read_item
from strobe.algebra.sql_grammar import Alias, Join, Select, Source, Table, conditions, conjuncts, read, selects, tables
from strobe.algebra.sql_text import Span, Text, bounded
from strobe.algebra.view import Equality, Occurrence, Output, View, snapshot_name
from strobe.errors import UserError, suggestion

_MOST_LISTED = 5
"""Tables that a message offers in the place of one that is not there."""


def compile_view(name: str, sql: str, relations: Mapping[str, RelationSchema], *, where: str = "") -> View:
    """The view that a SQL text defines over the given relations, or a `UserError` with the place of what is wrong."""
    with bounded(where or f"view {name}"):
        text = Text(sql, where or f"view {name}")
        return _Compiler(name, text, relations).view(read(text))


def referenced_relations(sql: str, *, where: str = "") -> list[str]:
    """The relations `source.table` that a SQL text names, each once, in order of first mention."""
    with bounded(where or "view"):
        return _relations(read(Text(sql, where or "view")))


def check_syntax(sql: str, *, where: str) -> list[str]:
    """The same, after reading every expression: all that can be said of a view without its relations."""
    with bounded(where):
        text = Text(sql, where)
        query = read(text)
        for each in selects(query):
            for item in each.items:
                read_item(text, item)
        for condition in conditions(query):
            for part in conjuncts(text, condition):
                read_expression(text, part)
        return _relations(query)


def _relations(query: Select) -> list[str]:
    found = [".".join(t.parts) for t, ctes in tables(query) if len(t.parts) > 1 or t.parts[0].lower() not in ctes]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Ref:
    """A raw column of an occurrence."""

    occurrence: int
    column: str


Value = tuple[str | Ref, ...]
"""What a name stands for: Spark SQL text with raw columns in it."""


def _plain(value: Value) -> Ref | None:
    """The raw column, if the value is nothing else."""
    return value[0] if len(value) == 1 and isinstance(value[0], Ref) else None


def _embedded(value: Value) -> Value:
    """A value as an operand inside a larger expression."""
    return value if _plain(value) else ("(", *value, ")")


@dataclass(frozen=True)
class Named:
    """A column that a FROM clause offers."""

    name: str
    qualifier: tuple[str, ...]
    """What may stand before the name, and every shorter end of it: `("shop", "orders")` or `("o",)`."""
    value: Value


@dataclass(frozen=True)
class Scope:
    """What a FROM clause offers, modelled on Spark's plans: `output` is what `*` gives; `hidden` holds the right-hand
    columns of USING, which only their qualified names reach."""

    output: tuple[Named, ...]
    hidden: tuple[Named, ...] = ()

    @property
    def qualifiers(self) -> dict[tuple[str, ...], None]:
        return dict.fromkeys(c.qualifier for c in (*self.hidden, *self.output) if c.qualifier)


@dataclass(frozen=True)
class Cte:
    query: Select
    columns: tuple[str, ...]
    at: int
    visible: Mapping[str, Cte]


@dataclass
class _Flat:
    """The flat join as it grows: relations by occurrence, and conjuncts."""

    occurrences: list[tuple[str, RelationSchema]] = field(default_factory=list)
    conditions: list[Value] = field(default_factory=list)
    equalities: list[tuple[Ref, Ref]] = field(default_factory=list)


class _Compiler:
    def __init__(self, name: str, text: Text, relations: Mapping[str, RelationSchema]) -> None:
        self.name = name
        self.text = text
        self.relations = relations
        self.flat = _Flat()
        self.edits: dict[int, tuple[int, str]] = {}

    def view(self, query: Select) -> View:
        columns = self.select(query, {}, None, 0)
        self.check_outputs(query, columns)
        used = self.used_columns([c.value for c in columns])
        occurrences = tuple(
            Occurrence(i, alias, relation, used[i]) for i, (alias, relation) in enumerate(self.flat.occurrences)
        )
        conditions = [f"({_rendered(value, occurrences)})" for value in self.flat.conditions]
        return View(
            name=self.name,
            sql=self.text.sql,
            occurrences=occurrences,
            equalities=tuple(Equality(a.occurrence, a.column, b.occurrence, b.column) for a, b in self.flat.equalities),
            condition=" AND ".join(conditions) or None,
            outputs=tuple(Output(c.name, _rendered(c.value, occurrences)) for c in columns),
            key=self.key(columns),
            recompute_sql=self.recompute_sql(),
        )

    # ── queries ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def select(
        self, query: Select, visible: Mapping[str, Cte], alias: Alias | None, at: int, qualifier: tuple[str, ...] = ()
    ) -> tuple[Named, ...]:
        """The output columns of a query, whose occurrences and conditions join the flat form."""
        scope = self.source(query.source, self.with_ctes(query, visible))
        if query.where:
            self.condition(query.where, scope)
        found: list[tuple[str | None, Value, Span]] = []
        aliases: dict[str, list[Value]] = {}
        for span in query.items:
            item = read_item(self.text, span)
            if item.expression is None:
                found += [(c.name, c.value, span) for c in self.star(item, scope)]
                continue
            value = self.value(item.expression, scope, aliases)
            plain = item.expression.column
            found.append((item.alias or (plain.parts[-1] if plain else None), value, span))
            if item.alias:
                aliases.setdefault(item.alias.lower(), []).append(value)
        return self.named(found, alias, at, qualifier)

    def named(
        self, found: Sequence[tuple[str | None, Value, Span]], alias: Alias | None, at: int, qualifier: tuple[str, ...]
    ) -> tuple[Named, ...]:
        names = alias.columns if alias and alias.columns else tuple(name for name, _, _ in found)
        if len(names) != len(found):
            raise self.text.refuse(at, f"there are {len(names)} names for {len(found)} columns", "Name each once.")
        columns: list[Named] = []
        for name, (_, value, span) in zip(names, found, strict=True):
            if name is None:
                raise self.text.refuse(span.start, "this expression has no name", "Write AS and a name after it.")
            columns.append(Named(name, qualifier, value))
        return tuple(columns)

    def with_ctes(self, query: Select, visible: Mapping[str, Cte]) -> Mapping[str, Cte]:
        own: set[str] = set()
        for cte in query.ctes:
            if cte.name.lower() in own:
                raise self.text.refuse(cte.at, f"the WITH name {cte.name} is used twice", "Give each its own name.")
            own.add(cte.name.lower())
            defined = Cte(cte.query, cte.columns, cte.at, visible)
            kept, self.flat = self.flat, _Flat()
            self.cte(defined, cte.name, None)  # checked even if it is never used
            self.flat = kept
            visible = {**visible, cte.name.lower(): defined}
        return visible

    def cte(self, cte: Cte, name: str, alias: Alias | None) -> tuple[Named, ...]:
        qualifier = (alias.name if alias else name,)
        columns = self.select(cte.query, cte.visible, Alias(name, cte.columns), cte.at, qualifier)
        return self.relabelled(columns, alias, cte.at)

    def relabelled(self, columns: tuple[Named, ...], alias: Alias | None, at: int) -> tuple[Named, ...]:
        """Columns under an alias, which hides the qualifiers they had."""
        if alias is None:
            return columns
        return self.named([(c.name, c.value, Span(at, at)) for c in columns], alias, at, (alias.name,))

    # ── FROM ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def source(self, source: Source, visible: Mapping[str, Cte]) -> Scope:
        if isinstance(source, Join):
            return self.join(source, visible)
        if isinstance(source, Table):
            return Scope(self.table(source, visible))
        if isinstance(source.inner, Select):
            columns = self.select(source.inner, visible, None, source.at)
            return Scope(self.relabelled(columns, source.alias, source.at))
        scope = self.source(source.inner, visible)
        return Scope(self.relabelled(scope.output, source.alias, source.at)) if source.alias else scope

    def table(self, table: Table, visible: Mapping[str, Cte]) -> tuple[Named, ...]:
        at = table.span.start
        if len(table.parts) == 1:
            name = table.parts[0]
            if name.lower() not in visible:
                near = [r for r in self.relations if r.split(".")[-1].lower() == name.lower()]
                fix = f"Write {_listed(near)}." if near else "Write relations as source.table."
                raise self.text.refuse(at, f"the relation {name} has no source before it", fix)
            return self.cte(visible[name.lower()], name, table.alias)
        relation = self.relation(table)
        first, last = self.text.tokens[at], self.text.tokens[table.span.end - 1]
        alias = table.alias.name if table.alias else table.parts[-1]
        suffix = "" if table.alias else f" AS {quoted(alias)}"
        self.edits[first.start] = (last.end, snapshot_name(relation) + suffix)
        index = len(self.flat.occurrences)
        self.flat.occurrences.append((alias, relation))
        qualifier = (alias,) if table.alias else table.parts
        columns = tuple(Named(c.name, qualifier, (Ref(index, c.name),)) for c in relation.columns)
        return self.relabelled(columns, table.alias, at) if table.alias else columns

    def relation(self, table: Table) -> RelationSchema:
        at, id_ = table.span.start, ".".join(table.parts)
        if table.parts[0].lower() == "views":
            fix = "Write the other view's SQL as a CTE."
            raise self.text.refuse(at, f"{id_}: views on views are not supported yet", fix)
        matches = [r for key, r in self.relations.items() if key == id_]
        matches = matches or [r for key, r in self.relations.items() if key.lower() == id_.lower()]
        if len(matches) == 1:
            return matches[0]
        raise self.unknown(at, id_, sorted(self.relations))

    def unknown(self, at: int, id_: str, known: Sequence[str]) -> UserError:
        """For a relation that is not there: its source is not, or that has no such table."""
        source, _, table = id_.partition(".")
        found = [relation for relation in known if relation.lower().startswith(f"{source.lower()}.")]
        if not found:
            sources = dict.fromkeys(relation.partition(".")[0] for relation in known)
            fix = suggestion(source, sources, "Sources with tables:")
            return self.text.refuse(at, f"there is no source {source}, or it has no table that can be read", fix)
        near = difflib.get_close_matches(id_, found, n=_MOST_LISTED, cutoff=0.0)
        return self.text.refuse(at, f"source {source} has no table {table}", suggestion(id_, near))

    def join(self, join: Join, visible: Mapping[str, Cte]) -> Scope:
        left, right = self.source(join.left, visible), self.source(join.right, visible)
        taken = {q[-1].lower() for q in left.qualifiers} & {q[-1].lower() for q in right.qualifiers}
        if taken:
            at = self.first_token(join.right)
            fix = "Give each relation of a FROM its own alias: source.table AS name."
            raise self.text.refuse(at, f"the name {sorted(taken)[0]} is used twice in one FROM", fix)
        if join.using:
            return self.using(join, left, right)
        scope = Scope(left.output + right.output, left.hidden + right.hidden)
        if join.on:
            self.condition(join.on, scope)
        return scope

    def using(self, join: Join, left: Scope, right: Scope) -> Scope:
        pairs: list[tuple[Named, Named]] = []
        for name, at in join.using:
            sides = [[c for c in side.output if c.name.lower() == name.lower()] for side in (left, right)]
            for found, side in zip(sides, (left, right), strict=True):
                if len(found) != 1:
                    raise self.not_one(self.text.tokens[at].start, name, found, side)
            pairs.append((sides[0][0], sides[1][0]))
            self.conjunct_equal(sides[0][0].value, sides[1][0].value)
        keys, others = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
        rest = tuple(c for c in left.output if c not in keys) + tuple(c for c in right.output if c not in others)
        return Scope(keys + rest, others + left.hidden + right.hidden)

    def first_token(self, source: Source) -> int:
        if isinstance(source, Join):
            return self.first_token(source.left)
        return source.span.start if isinstance(source, Table) else source.at

    # ── conditions and values ────────────────────────────────────────────────────────────────────────────────────────

    def condition(self, span: Span, scope: Scope) -> None:
        read_expression(self.text, span)
        for part in conjuncts(self.text, span):
            expression = read_expression(self.text, part)
            value = self.value(expression, scope, {})
            if expression.equates_columns:
                left, right = (self.resolve(c, scope, {}) for c in expression.columns)
                self.conjunct_equal(left, right, value)
            else:
                self.flat.conditions.append(value)

    def conjunct_equal(self, left: Value, right: Value, text: Value = ()) -> None:
        """`left = right`, as an equality where both are raw columns that the driver compares as Spark does."""
        a, b = _plain(left), _plain(right)
        if a and b and a.occurrence != b.occurrence and joinable(self.type_of(a), self.type_of(b)):
            self.flat.equalities.append((a, b))
            return
        self.flat.conditions.append(text or (*_embedded(left), " = ", *_embedded(right)))

    def value(self, expression: Expression, scope: Scope, aliases: Mapping[str, list[Value]]) -> Value:
        """The expression's text with every column replaced by what it stands for."""
        values: dict[int, Value] = {}
        for column in expression.columns:
            values[column.start] = self.resolve(column, scope, aliases)

        def type_of(column: ColumnName) -> str | None:
            ref = _plain(self.resolve(column, scope, aliases))
            return self.type_of(ref) if ref else None

        check_moments(self.text, expression, type_of)
        if expression.column:
            return values[expression.column.start]
        parts: list[str | Ref] = []
        stretches = {c.start: (c.end, str(c.start)) for c in expression.columns}
        for piece, replaced in self.text.render(expression.span, stretches):
            if replaced:
                parts += _embedded(values[int(piece)])
            else:
                parts.append(piece)
        return tuple(parts)

    def resolve(self, column: ColumnName, scope: Scope, aliases: Mapping[str, list[Value]]) -> Value:
        *qualifier, name = column.parts
        if not qualifier:
            found = [c for c in scope.output if c.name.lower() == name.lower()]
            if not found and len(aliases.get(name.lower(), ())) == 1:
                return aliases[name.lower()][0]
        else:
            offered = (*scope.output, *scope.hidden)
            found = [c for c in offered if c.name.lower() == name.lower() and _ends(c.qualifier, qualifier)]
        if len(found) != 1:
            raise self.not_one(column.start, ".".join(column.parts), found, scope)
        if len(qualifier) > 1:
            self.shorten(column.start, len(qualifier), found[0].qualifier[-1])
        return found[0].value

    def star(self, item: Item, scope: Scope) -> tuple[Named, ...]:
        if not item.star:
            return scope.output
        found = tuple(c for c in (*scope.hidden, *scope.output) if _ends(c.qualifier, item.star))
        start = self.text.tokens[item.span.start].start
        if not found:
            fix = f"Known here: {_listed(['.'.join(q) for q in scope.qualifiers])}."
            raise self.text.refuse_at(start, f"unknown alias {'.'.join(item.star)}", fix)
        if len(item.star) > 1:
            self.shorten(start, len(item.star), found[0].qualifier[-1])
        return found

    def shorten(self, start: int, parts: int, alias: str) -> None:
        """`shop.orders.id` becomes `orders.id` in the text that Spark recomputes."""
        first = next(i for i, token in enumerate(self.text.tokens) if token.start == start)
        self.edits[start] = (self.text.tokens[first + 2 * (parts - 1)].end, quoted(alias))

    def not_one(self, offset: int, name: str, found: Sequence[Named], scope: Scope) -> Exception:
        if found:
            candidates = [".".join((*c.qualifier, c.name)) for c in found]
            fix = f"It could be {_listed(candidates, 'or')}: write which, or give them different names."
            return self.text.refuse_at(offset, f"the column {name} is ambiguous", fix)
        offered = list(dict.fromkeys(".".join((*c.qualifier, c.name)) for c in scope.output))
        last = name.split(".")[-1].lower()
        near = difflib.get_close_matches(last, [o.split(".")[-1].lower() for o in offered], n=5, cutoff=0.6)
        close = [o for o in offered if o.split(".")[-1].lower() in near]
        fix = f"Did you mean {_listed(close, 'or')}?" if close else f"Known here: {_listed(offered[:12])}."
        return self.text.refuse_at(offset, f"unknown column {name}", fix)

    # ── the result ───────────────────────────────────────────────────────────────────────────────────────────────────

    def type_of(self, ref: Ref) -> str:
        return self.flat.occurrences[ref.occurrence][1].column(ref.column).type

    def used_columns(self, outputs: Sequence[Value]) -> list[tuple[str, ...]]:
        used = {part for value in (*outputs, *self.flat.conditions) for part in value if isinstance(part, Ref)}
        used |= {ref for pair in self.flat.equalities for ref in pair}
        columns: list[tuple[str, ...]] = []
        for i, (_, relation) in enumerate(self.flat.occurrences):
            own = tuple(c.name for c in relation.columns if Ref(i, c.name) in used)
            columns.append(own or (relation.key or (relation.columns[0].name,))[:1])
        return columns

    def key(self, columns: Sequence[Named]) -> tuple[str, ...]:
        """The outputs that hold every occurrence's key, or a column that is always equal to it."""
        names: dict[Ref, str] = {}
        for column in columns:
            ref = _plain(column.value)
            if ref:
                names.setdefault(ref, column.name)
        same = [(a, b) for a, b in self.flat.equalities if self.type_of(a) == self.type_of(b)]
        found: dict[str, None] = {}
        for i, (_, relation) in enumerate(self.flat.occurrences):
            holders = [_holder(Ref(i, column), names, same) for column in relation.key]
            if not holders or None in holders:
                return ()
            found |= dict.fromkeys(h for h in holders if h)
        return tuple(c.name for c in columns if c.name in found)

    def check_outputs(self, query: Select, columns: Sequence[Named]) -> None:
        at, seen = query.items[0].start, set[str]()
        for column in columns:
            name = column.name
            item = next((s.start for s in query.items if self.text.tokens[s.end - 1].text == name), at)
            if name.lower() in seen:
                fix = "Names are compared without case: give each column its own with AS."
                raise self.text.refuse(item, f"the output column {name} is there twice", fix)
            seen.add(name.lower())
            if not name or set(name) & set(" ,;{}()\n\t="):
                fix = "Delta stores no empty name, and none with a space or one of ,;{}()= : write AS and another."
                raise self.text.refuse(item, f"the output column name {name!r} is not allowed", fix)
            if name.lower().startswith("_copy"):
                fix = "Names that begin with _copy are reserved: write AS and another."
                raise self.text.refuse(item, f"the output column name {name} is not allowed", fix)

    def recompute_sql(self) -> str:
        whole = Span(0, len(self.text.tokens))
        return "".join(piece for piece, _ in self.text.render(whole, self.edits)).rstrip("; \n\t\r")


def _holder(key: Ref, names: Mapping[Ref, str], same: Sequence[tuple[Ref, Ref]]) -> str | None:
    """The output that shows this column, or one reached from it through equalities."""
    reached, todo = {key}, [key]
    while todo:
        ref = todo.pop(0)
        if ref in names:
            return names[ref]
        for a, b in same:
            for other in (b,) if a == ref else (a,) if b == ref else ():
                if other not in reached:
                    reached.add(other)
                    todo.append(other)
    return None


def _rendered(value: Value, occurrences: Sequence[Occurrence]) -> str:
    return "".join(p if isinstance(p, str) else occurrences[p.occurrence].attribute(p.column) for p in value)


def _ends(qualifier: Sequence[str], written: Sequence[str]) -> bool:
    """Whether what the user wrote is the end of a qualifier, whatever the case."""
    tail = qualifier[-len(written) :]
    return len(tail) == len(written) and all(a.lower() == b.lower() for a, b in zip(tail, written, strict=True))


def _listed(names: Sequence[str], word: str = "and") -> str:
    return ", ".join(names[:-1]) + f" {word} {names[-1]}" if len(names) > 1 else "".join(names)
