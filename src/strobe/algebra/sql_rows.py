"""What a SELECT does with many rows at once: GROUP BY, aggregates, windows, generators and QUALIFY.

Where Spark needs other words than the user's for a certain answer, it gets them in what is recomputed too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sqlglot import TokenType

from strobe.algebra import sql_calls
from strobe.algebra.schema import quoted
from strobe.algebra.sql_calls import Call, Specification, calls, filled, specification
from strobe.algebra.sql_drafts import (
    Draft,
    Exploded,
    Filtered,
    Grouped,
    Over,
    Projected,
    Ties,
    Windowed,
    keys,
    placed,
)
from strobe.algebra.sql_expressions import read_expression, read_item
from strobe.algebra.sql_functions import AGGREGATES, GENERATORS
from strobe.algebra.sql_grammar import (
    Alias,
    Lateral,
    Select,
    closing,
    enclosed,
)
from strobe.algebra.sql_names import Column, Made, Named, Parts, Ref, Scope, Value, listed
from strobe.algebra.sql_text import Span, Text
from strobe.algebra.sql_values import Names, Rows, Values

EXPLODED = {
    **dict.fromkeys(("explode", "explode_outer"), ("col",)),
    **dict.fromkeys(("posexplode", "posexplode_outer"), ("pos", "col")),
    **dict.fromkeys(("inline", "inline_outer"), ()),
}
"""The generators that a view may use, with the names of their columns."""
_OVER = "\0"


class RowSets(Values):
    def __init__(self, text: Text) -> None:
        super().__init__(text)
        self.rewrites: list[Callable[[Mapping[int, Sequence[int]]], None]] = []
        """What changes in the text that Spark recomputes, once it is known which columns break ties."""

    def needs_rows(self, query: Select) -> bool:
        spans = [*query.items, *(s for s in (query.having, query.qualify) if s)]
        called = any(c.name not in GENERATORS for span in spans for c in calls(self.text, span))
        exploded = any(self.generator(item) for item in query.items)
        return called or exploded or query.group is not None or query.having is not None or query.qualify is not None

    def over_rows(
        self, query: Select, scope: Scope, draft: Draft
    ) -> tuple[list[tuple[str | None, Value, Span]], Draft]:
        """The columns of a SELECT with aggregates, windows or a generator, and the rows that have them."""
        spans = [*query.items, *(s for s in (query.having, query.qualify) if s)]
        found = [c for span in spans for c in calls(self.text, span)]
        windowed = any(c.windowed for c in found)
        inside = [c for f in found if f.windowed for c in calls(self.text, Span(f.span.start + 1, f.span.end))]
        grouped = query.group is not None or query.having is not None
        grouped |= any(c.name in AGGREGATES and not c.windowed for c in (*found, *inside))
        exploded = [(call, item) for item in query.items if (call := self.generator(item))]
        if exploded:
            return self.generated(query, exploded, scope, draft, grouped or windowed)
        rows = Rows(named=query.windows)
        if windowed and not grouped:
            draft, scope = self.columns(draft, scope)
            rows.unique = tuple(keys(draft))
            rows.candidates = self.candidates(scope)
        if grouped:
            rows.grouped = self.groups(query, scope, draft, rows)
            rows.unique = (frozenset(rows.grouped.by),)
            draft = rows.grouped
        names = Names(scope, rows=rows, windows=True, clause="here", scalars=True)
        aliases: dict[str, list[Value]] = {}
        with self.apart() as values:
            columns = self.items(query, names, aliases)
        later = replace(names, aliases=aliases, after=True)
        if query.having:
            with self.apart() as block:
                found_ = self.condition(query.having, replace(later, windows=False, clause="in HAVING"))
            draft = self.with_values(draft, block)
            for each in found_:
                draft = placed(draft, each.value, each.certain)
        conditions = self.condition(query.qualify, replace(later, scalars=False)) if query.qualify else []
        if rows.ordered and values.values:
            fix = "Compute the window in a subquery in FROM, or select from relations with keys."
            what = "a scalar subquery beside a window that orders rows without a key"
            raise self.text.unsupported(query.items[0].start, what, fix)
        draft = self.with_values(draft, values)
        if rows.computed:
            draft = Projected(draft, rows.computed)
        for by in dict.fromkeys(by for _, by, _ in rows.windows):
            draft = Windowed(draft, by, {made: over for made, of, over in rows.windows if of == by})
        for each in conditions:
            draft = Filtered(draft, each.value, each.certain)
        if query.qualify:
            span = query.qualify
            self.rewrites.append(lambda _: self.rewrite_qualify(query, span, set(aliases)))
        return columns, draft

    def columns_for(self, span: Span, names: Names) -> dict[Span, Value]:
        found = {call.span: self.called(call, names) for call in calls(self.text, span)}
        if names.rows and names.rows.written:
            found |= self.grouped_expressions(span, names.scope, names.rows.written, list(found))
        if names.scalars:
            for each in self.scalars(span):
                if not any(call.start <= each.start < call.end for call in found):
                    found[each] = self.scalar(each, names)
        return found

    def scalar(self, place: Span, names: Names) -> Value:
        """What a query in an expression yields, which is one value."""
        raise NotImplementedError

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def groups(self, query: Select, scope: Scope, draft: Draft, rows: Rows) -> Grouped:
        by: dict[Column, None] = {}
        computed: dict[Made, Value] = {}
        names = Names(scope, clause="in GROUP BY")
        for written in query.group or ():
            span = self.group_target(query, written, scope)
            value = self.expression(span, names)
            if value.parts in rows.groups:
                continue
            column = value.plain
            if column is None:
                computed[made := self.new()] = value
                column = made
            by[column] = None
            rows.groups[value.parts] = held = Value((column,), value.type)
            words = [word for word, _, _ in self.words(span, scope)]
            if len(words) > 1:
                rows.written.append((words, held))
            rows.texts[column] = span
        rows.written.sort(key=lambda each: -len(each[0]))
        return Grouped(Projected(draft, computed) if computed else draft, tuple(by))

    def group_target(self, query: Select, span: Span, scope: Scope) -> Span:
        """The expression that an item of GROUP BY means: itself, or that of a column of SELECT by number or name."""
        token, single = self.text.tokens[span.start], span.end - span.start == 1
        if single and token.token_type == TokenType.NUMBER and token.text.isdigit():
            number = int(token.text)
            items = query.items[:number]
            if not 1 <= number <= len(query.items) or any(self.text.type(i.end - 1) == TokenType.STAR for i in items):
                fix = f"Write a number from 1 to {len(query.items)}, or the column itself."
                raise self.text.refuse(span.start, f"there is no column {number} in this SELECT", fix)
            return self.unaliased(items[-1])[0]
        if single and self.text.is_name(span.start) and not scope.found((token.text,)):
            for item in query.items:
                inner, alias = self.unaliased(item)
                if alias and alias.lower() == token.text.lower():
                    return inner
        return span

    def unaliased(self, span: Span) -> tuple[Span, str | None]:
        """An item of SELECT without its alias, and the alias."""
        hidden = [call.span for call in calls(self.text, span)]
        hidden += [each for each in self.scalars(span) if not any(h.start <= each.start < h.end for h in hidden)]
        masked = self.text.masked(span, sorted(hidden, key=lambda s: s.start))
        item = read_item(masked, Span(0, len(masked.tokens)))
        if item.alias is None:
            return span, None
        end = span.end - 2 if self.text.word(span.end - 2) == "AS" else span.end - 1
        return Span(span.start, end), item.alias

    def words(self, span: Span, scope: Scope) -> list[tuple[str, int, int]]:
        """A text word by word, with columns as what they stand for: words, and the tokens from and to which they go."""
        found: list[tuple[str, int, int]] = []
        i = span.start
        while i < span.end:
            end = i + 1
            token = self.text.tokens[i]
            if self.text.is_name(i):
                while end + 1 < span.end and self.text.type(end) == TokenType.DOT and self.text.is_name(end + 1):
                    end += 2
                named = scope.found([self.text.tokens[j].text for j in range(i, end, 2)])
                if len(named) == 1 and self.text.type(end) != TokenType.L_PAREN:
                    found.append((repr(named[0].value.parts), i, end))
                    i = end
                    continue
                end = i + 1
            literal = token.token_type in (TokenType.STRING, TokenType.RAW_STRING)
            shown = self.text.sql[token.start : token.end + 1]
            found.append((shown if literal else shown.upper(), i, end))
            i = end
        return found

    def grouped_expressions(
        self, span: Span, scope: Scope, written: Sequence[tuple[list[str], Value]], hidden: Sequence[Span]
    ) -> dict[Span, Value]:
        """Where in a text there are the expressions that are grouped by."""
        words = self.words(span, scope)
        taken = [(s.start, s.end) for s in hidden]
        found: dict[Span, Value] = {}
        for wanted, value in written:
            for i in range(len(words) - len(wanted) + 1):
                if [word for word, _, _ in words[i : i + len(wanted)]] != wanted:
                    continue
                place = Span(words[i][1], words[i + len(wanted) - 1][2])
                free = all(place.end <= start or end <= place.start for start, end in taken)
                if free and self.stands_alone(place, span):
                    found[place] = value
                    taken.append((place.start, place.end))
        return found

    def stands_alone(self, place: Span, span: Span) -> bool:
        """Whether a stretch of an expression is one operand of it, whatever is around it."""
        text = self.text
        called = text.is_name(place.start) and text.type(place.start + 1) == TokenType.L_PAREN
        if called and closing(text, place.start + 1) == place.end - 1:
            return place.start == span.start or text.type(place.start - 1) != TokenType.DOT
        if enclosed(text, place):
            return place.start == span.start or not text.is_name(place.start - 1)
        before = place.start == span.start or text.type(place.start - 1) in (TokenType.L_PAREN, TokenType.COMMA)
        last = place.end in (span.end, span.end - 1) or text.word(place.end) == "AS"
        return before and (last or text.type(place.end) in (TokenType.R_PAREN, TokenType.COMMA))

    def called(self, call: Call, names: Names) -> Value:
        """What a call over many rows yields: a column that an operator makes."""
        sql_calls.check(self.text, call)
        rows = names.rows
        if rows is None or (call.windowed and not names.windows) or (not call.windowed and rows.grouped is None):
            what = f"the window function {call.name}()" if call.windowed else f"the aggregate {call.name}()"
            fix = "Compute it in a subquery in FROM, and use its column here."
            raise self.text.refuse(call.span.start, f"{what} cannot stand {names.clause}", fix)
        return (
            self.aggregate(call, names, rows.grouped)
            if not call.windowed and rows.grouped
            else self.window(call, names, rows)
        )

    def aggregate(self, call: Call, names: Names, grouped: Grouped) -> Value:
        inner = Names(names.scope, clause=f"inside {call.name}()")
        values = [self.expression(span, inner) for span in call.arguments]
        suffix: Parts = ()
        if call.filter:
            suffix = (" FILTER (WHERE ", *self.expression(call.filter, inner).parts, ")")
        words, type_ = sql_calls.template(self.text, call, [v.type for v in values])
        self.rewrite_call(call, words)
        parts = filled(words, {**self.slots(call), **{str(i): v.parts for i, v in enumerate(values)}, "s": suffix})
        same = next((made for made, value in grouped.outputs.items() if value.parts == parts), None)
        if same is None:
            grouped.outputs[same := self.new()] = Value(parts, type_)
        return Value((same,), type_)

    def slots(self, call: Call) -> dict[str, Parts]:
        return {"n": (call.name,), "d": ("DISTINCT ",) if call.distinct else ()}

    def rewrite_call(self, call: Call, words: str) -> None:
        """The same words in what is recomputed."""
        if words.startswith("{n}(") and "CASE" not in words:
            return

        def rewrite(_: Mapping[int, Sequence[int]]) -> None:
            close = closing(self.text, call.span.start + 1)
            suffix = " " + self.user(Span(close + 1, call.span.end)) if close + 1 < call.span.end else ""
            slots = {str(i): (self.user(span),) for i, span in enumerate(call.arguments)}
            parts = filled(words, {**self.slots(call), **slots, "s": (suffix,)})
            first, last = self.text.tokens[call.span.start], self.text.tokens[call.span.end - 1]
            self.edits[first.start] = (last.end, "".join(map(str, parts)))

        self.rewrites.append(rewrite)

    # ── windows ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def window(self, call: Call, names: Names, rows: Rows) -> Value:
        span = call.over or rows.named.get(call.window)
        if span is None:
            fix = f"Define it: WINDOW {call.window} AS (PARTITION BY … ORDER BY …)."
            raise self.text.refuse(call.span.end - 1, f"unknown window {call.window}", fix)
        spec = specification(self.text, span)
        inner = replace(names, windows=False, clause="inside a window function", scalars=False)
        values = [self.expression(each, inner) for each in call.arguments]
        by: dict[Column, None] = {}
        for each in spec.partition:
            value = self.expression(each, inner)
            known = next((m for m, v in rows.computed.items() if v.parts == value.parts), None)
            column = value.plain or known or self.new()
            if not value.plain and isinstance(column, Made):
                rows.computed[column] = value
            by[column] = None
        order = tuple(self.ordering(each, inner) for each in spec.order)
        frame = self.user(spec.frame) if spec.frame else ""
        if "(" in frame:
            raise self.text.unsupported(span.start, "a window frame with calls in it", "Write numbers or intervals.")
        words, type_ = sql_calls.template(self.text, call, [v.type for v in values])
        sensitive = sql_calls.sensitive(self.text, call, spec)
        ties = self.ties(call, span, tuple(by), order, rows) if sensitive else None
        if ties:
            self.rewrites.append(lambda chosen: self.rewrite_ties(call, spec, span, ties, rows, chosen))
        self.rewrite_call(call, words)
        slots = {**self.slots(call), **{str(i): v.parts for i, v in enumerate(values)}, "s": (call.nulls, _OVER)}
        pieces: list[list[str | Column]] = [[]]
        for part in filled(words, slots):
            if part == _OVER:
                pieces.append([])
            else:
                pieces[-1].append(part)
        rows.windows.append(
            (made := self.new(), tuple(by), Over(tuple(map(tuple, pieces)), order, (frame,) if frame else (), ties))
        )
        return Value((made,), type_)

    def ordering(self, span: Span, names: Names) -> Value:
        """An item of ORDER BY with its direction."""
        end = span.end
        while end > span.start + 1 and self.text.word(end - 1) in ("ASC", "DESC", "NULLS", "FIRST", "LAST"):
            end -= 1
        value = self.expression(Span(span.start, end), names)
        direction = "".join(f" {self.text.word(i)}" for i in range(end, span.end))
        return Value((*value.embedded, direction)) if direction else value

    def candidates(self, scope: Scope) -> tuple[tuple[Column, str], ...]:
        """The columns of a FROM, each with how it is written there."""
        found: dict[Column, str] = {}
        for c in (*scope.output, *scope.hidden):
            column = c.value.plain
            if column is None or column in found:
                continue
            for parts in ((*c.qualifier[-1:], c.name), (c.name,)):
                if len(scope.found(parts)) == 1:
                    found[column] = ".".join(map(quoted, parts))
                    break
        return tuple(found.items())

    def ties(self, call: Call, span: Span, by: tuple[Column, ...], order: Sequence[Value], rows: Rows) -> Ties | None:
        """What makes the order of a window total: a key of its rows, or all of their columns that are used."""
        fixed = {*by, *(c for value in order for c in [_ordered(value)] if c)}
        if rows.grouped is not None:
            candidates: tuple[Column, ...] = rows.grouped.by
        else:
            candidates = tuple(column for column, _ in rows.candidates)
        wanted = [key - fixed for key in rows.unique if key <= fixed | set(candidates)]
        place = self.text.tokens[call.span.start].start
        if wanted:
            key = min(wanted, key=lambda k: (len(k), [candidates.index(c) for c in candidates if c in k]))
            columns = tuple(c for c in candidates if c in key)
            return Ties(place, columns, whole=True) if columns else None
        rows.ordered.add((by, tuple(value.parts for value in order)))
        if len(rows.ordered) > 1:
            fix = "Compute one of them in a subquery in FROM, or select from relations with keys."
            message = f"{call.name}() and another window that orders rows otherwise, over rows without a key"
            raise self.text.refuse(call.span.start, message, fix)
        return Ties(place, tuple(c for c in candidates if c not in fixed), whole=False)

    def rewrite_ties(
        self, call: Call, spec: Specification, span: Span, ties: Ties, rows: Rows, chosen: Mapping[int, Sequence[int]]
    ) -> None:
        """The columns that break ties, in what is recomputed."""
        written = dict(rows.candidates)
        columns = [ties.columns[i] for i in chosen.get(ties.place, ())]
        texts = [f"({self.user(rows.texts[c])})" if c in rows.texts else written[c] for c in columns]
        if not texts:
            return
        added = (", " if spec.order else " ORDER BY ") + ", ".join(texts)
        if call.window:
            first = self.text.tokens[call.span.end - 1]
            rest = " " + self.user(spec.frame) if spec.frame else ""
            self.edits[first.start] = (first.end, f"({self.user(Span(span.start, spec.end))}{added}{rest})")
            return
        token = self.text.tokens[spec.end]
        shown = self.text.sql[token.start : token.end + 1]
        self.edits[token.start] = (token.end, f"{added}{' ' if spec.frame else ''}{shown}")

    def rewrite_qualify(self, query: Select, span: Span, aliases: set[str]) -> None:
        """QUALIFY as a subquery, since Spark cannot read it."""
        hidden = [call.span for call in calls(self.text, span)]
        masked = self.text.masked(span, hidden)
        expression = read_expression(masked, Span(0, len(masked.tokens)))
        inside: dict[int, tuple[int, str]] = {}
        extra: list[str] = []
        starts = {self.text.tokens[s.start].start for s in hidden}
        for column in expression.columns:
            name = column.parts[-1]
            if len(column.parts) == 1 and name.lower() in aliases and column.start not in starts:
                continue
            shown = quoted(f"_q{len(extra)}")
            first = next(i for i, t in enumerate(self.text.tokens) if t.start == column.start)
            last = next(i for i, t in enumerate(self.text.tokens) if t.end == column.end)
            extra.append(f"{self.user(Span(first, last + 1))} AS {shown}")
            inside[column.start] = (column.end, shown)
        condition = "".join(piece for piece, _ in masked.render(Span(0, len(masked.tokens)), inside))
        start, from_ = self.text.tokens[query.at], self.text.tokens[query.items[-1].end]
        hides = f"EXCEPT ({', '.join(quoted(f'_q{i}') for i in range(len(extra)))}) " if extra else ""
        end = start.end
        if query.distinct:
            end = self.text.tokens[query.at + 1].end
        distinct = "DISTINCT " if query.distinct else ""
        self.edits[start.start] = (end, f"SELECT {distinct}* {hides}FROM (SELECT")
        if extra:
            self.edits[from_.start] = (from_.end, f", {', '.join(extra)} FROM")
        clause, last_token = self.text.tokens[span.start - 1], self.text.tokens[span.end - 1]
        self.edits[clause.start] = (last_token.end, f") AS `_q` WHERE {condition}")

    # ── generators ───────────────────────────────────────────────────────────────────────────────────────────────────

    def generator(self, item: Span) -> Call | None:
        """The generator that an item of SELECT is."""
        found = next(calls(self.text, item), None)
        return found if found and found.name in GENERATORS and found.span.start == item.start else None

    def generated(
        self,
        query: Select,
        exploded: Sequence[tuple[Call, Span]],
        scope: Scope,
        draft: Draft,
        other: bool,
    ) -> tuple[list[tuple[str | None, Value, Span]], Draft]:
        """The columns of a SELECT of which one is a generator."""
        call, item = exploded[0]
        if other or len(exploded) > 1 or call.name not in EXPLODED:
            fix = f"Write LATERAL VIEW {call.name}(…) t AS x after FROM."
            raise self.text.unsupported(call.span.start, f"the generator {call.name}() beside other calls", fix)
        rest = [i for i in range(call.span.end, item.end) if self.text.is_name(i) and self.text.word(i) != "AS"]
        alias = Alias("", tuple(self.text.tokens[i].text for i in rest))
        draft, columns = self.exploded(draft, call, alias, scope, outer=False, at=item.start)
        at = query.items.index(item)
        before, after = query.items[:at], query.items[at + 1 :]
        found = self.items(replace(query, items=before), Names(scope))
        found += [(c.name, c.value, item) for c in columns]
        return found + self.items(replace(query, items=after), Names(scope)), draft

    def lateral(self, draft: Draft, lateral: Lateral, scope: Scope) -> tuple[Draft, tuple[Named, ...]]:
        found = next(calls(self.text, lateral.call), None)
        if found is None or found.name not in EXPLODED:
            shown = self.text.tokens[lateral.call.start].text
            fix = f"Use {listed(sorted(EXPLODED), 'or')}."
            raise self.text.unsupported(lateral.call.start, f"the generator {shown}()", fix)
        return self.exploded(draft, found, lateral.alias, scope, outer=lateral.outer, at=lateral.at)

    def exploded(
        self, draft: Draft, call: Call, alias: Alias, scope: Scope, *, outer: bool, at: int
    ) -> tuple[Draft, tuple[Named, ...]]:
        names = alias.columns or EXPLODED[call.name]
        if not names:
            raise self.text.refuse(at, f"the columns of {call.name}() have no names", "Write AS and their names.")
        arguments = [self.expression(span, Names(scope, clause=f"in {call.name}()")) for span in call.arguments]
        inside: list[str | Column] = [f"{call.name}("]
        for i, value in enumerate(arguments):
            inside += [", "] if i else []
            inside += value.parts
        made = tuple(self.new() for _ in names)
        qualifier = (alias.name,) if alias.name else ()
        columns = tuple(Named(name, qualifier, Value((m,))) for name, m in zip(names, made, strict=True))
        return Exploded(draft, Value((*inside, ")")), made, outer), columns


def _ordered(value: Value) -> Column | None:
    """The column that an item of ORDER BY sorts by, if it is nothing else."""
    return next(iter(value.columns)) if isinstance(value.parts[0], (Ref, Made)) and len(value.parts) <= 2 else None
