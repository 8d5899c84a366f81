"""Views from SQL: a query over relations `source.table`, compiled to one flat join or to a tree of operators.

CTEs, subqueries and nested joins that only join, filter and compute are inlined: names are resolved as Spark resolves
them (`Scope`), each name stands for an expression over columns (`Value`), and their conditions become conjuncts of one
block of inner joins. Everything else is an operator of its own (`sql_drafts`). A view of one block over relations alone
is a flat join; every other is a tree.

Inlined, a query means what it means nested, except that Spark may evaluate an expression on rows that an inner
condition would have kept from it: under ANSI rules `1 / x` can then fail for a row that the nested form drops.

`recompute_sql`, which Spark runs for loads and audits, is the user's own text with the relations' names replaced, and
with other words where Spark's answer would depend on the order in which it meets the rows (`sql_rows`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import TokenType

from strobe.algebra import sql_calls
from strobe.algebra.schema import RelationSchema, quoted
from strobe.algebra.sql_blocks import Block, Conjunct, Subquery
from strobe.algebra.sql_calls import calls
from strobe.algebra.sql_drafts import (
    Draft,
    Grouped,
    Joined,
    Kept,
    Match,
    Planter,
    Scanned,
    United,
    keys,
    offered,
    placed,
    scans,
    settled,
)
from strobe.algebra.sql_expressions import read_expression, read_item
from strobe.algebra.sql_functions import GENERATORS
from strobe.algebra.sql_grammar import (
    Alias,
    Combined,
    Join,
    Query,
    Select,
    Source,
    Table,
    closing,
    conditions,
    conjuncts,
    enclosed,
    read,
    selects,
    tables,
    top,
)
from strobe.algebra.sql_names import Column, Made, Named, Parts, Ref, Scope, Value, columns_of, listed, rendered
from strobe.algebra.sql_rows import RowSets
from strobe.algebra.sql_text import Consequence, Span, Text, bounded
from strobe.algebra.sql_types import common
from strobe.algebra.sql_values import Names, Rows
from strobe.algebra.tree import UNIT, JoinKind
from strobe.algebra.view import Equality, Occurrence, Output, View, snapshot_name
from strobe.errors import UserError, suggestion

_MOST_LISTED = 5
"""Tables that a message offers in the place of one that is not there."""


def compile_view(name: str, sql: str, relations: Mapping[str, RelationSchema], *, where: str = "") -> View:
    """The view that a SQL text defines over the given relations, or a `UserError` with the place of what is wrong."""
    with bounded(where or f"view {name}"):
        text = Text(sql, where or f"view {name}")
        with text.noting():
            view = _Compiler(name, text, relations).view(read(text))
        text.settle()
        return view


def referenced_relations(sql: str, *, where: str = "") -> list[str]:
    """The relations `source.table` that a SQL text names, each once, in order of first mention."""
    with bounded(where or "view"):
        return _relations(read(Text(sql, where or "view")))


def check_syntax(sql: str, *, where: str) -> list[str]:
    """The same, after reading every expression: all that can be said of a view without its relations."""
    with bounded(where):
        text = Text(sql, where)
        query = read(text)
        for select in selects(query):
            for item in select.items:
                with text.noting():
                    masked = _masked(text, item, select)
                    read_item(masked, Span(0, len(masked.tokens)))
            for condition in conditions(select):
                for part in conjuncts(text, condition):
                    if not any(part.start <= opening < part.end for opening in select.subqueries):
                        with text.noting():
                            masked = _masked(text, part, select)
                            read_expression(masked, Span(0, len(masked.tokens)))
        text.settle()
        return _relations(query)


def _masked(text: Text, span: Span, select: Select) -> Text:
    """Without what is inside of aggregates, windows, generators and subqueries."""
    found = list(calls(text, span))
    for call in found:
        if call.name not in GENERATORS or call.span.start != span.start:
            sql_calls.check(text, call)
    hidden = [call.span for call in found]
    for opening in select.subqueries:
        start = opening - 1 if text.word(opening - 1) == "EXISTS" else opening
        scalar = text.word(opening - 1) != "IN" and span.start <= start < span.end
        if scalar and not any(h.start <= opening < h.end for h in hidden):
            hidden.append(Span(start, closing(text, opening) + 1))
    return text.masked(span, sorted(hidden, key=lambda s: s.start))


def _relations(query: Query) -> list[str]:
    found = [".".join(t.parts) for t, ctes in tables(query) if len(t.parts) > 1 or t.parts[0].lower() not in ctes]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Cte:
    query: Query
    columns: tuple[str, ...]
    at: int
    visible: Mapping[str, Cte]


class _Compiler(RowSets):
    def __init__(self, name: str, text: Text, relations: Mapping[str, RelationSchema]) -> None:
        super().__init__(text)
        self.name = name
        self.relations = relations
        self.queries: dict[int, tuple[Query, Mapping[str, Cte]]] = {}
        """Those in expressions, by the parenthesis before them, with the CTEs that are visible there."""

    def view(self, query: Query) -> View:
        columns = self.query(query, {}, None, 0)
        if self.text.problems:
            raise Consequence("a view of which something is refused")
        self.check_outputs(query, columns)
        block = self.block
        if block.subqueries or block.values or not all(isinstance(part, Scanned) for part in block.parts):
            return self.tree(columns)
        return self.flat(columns)

    def flat(self, columns: Sequence[Named]) -> View:
        """One join of relations: equalities between different occurrences, and one condition."""
        equalities = [c.match for c in self.block.conjuncts if _equality(c)]
        conditions = [c.value for c in self.block.conjuncts if not _equality(c)]
        refs = [(m.left, m.right) for m in equalities if m]
        pairs = [(a, b) for a, b in refs if isinstance(a, Ref) and isinstance(b, Ref)]
        used = columns_of([c.value for c in columns] + conditions) | {ref for pair in pairs for ref in pair}
        occurrences = self.used(used)
        texts = [f"({rendered(value, occurrences, {})})" for value in conditions]
        return View(
            name=self.name,
            sql=self.text.sql,
            occurrences=occurrences,
            equalities=tuple(Equality(a.occurrence, a.column, b.occurrence, b.column) for a, b in pairs),
            condition=" AND ".join(texts) or None,
            outputs=tuple(Output(c.name, rendered(c.value, occurrences, {})) for c in columns),
            key=self.key(columns, pairs),
            recompute_sql=self.recompute_sql({}),
        )

    def tree(self, columns: Sequence[Named]) -> View:
        draft, found = self.materialized(self.built(), [c.value for c in columns])
        ties = settled(draft, columns_of(found))
        used = frozenset(c for scan in scans(draft) for c in scan.needed)
        occurrences = self.used(used)
        planter = Planter(occurrences, ties, UNIT)
        tree = planter.grown(draft)
        shown = {value.plain: c.name for c, value in reversed(list(zip(columns, found, strict=True)))}
        key = next((k for k in keys(draft) if k and all(c in shown for c in k)), frozenset())
        return View(
            name=self.name,
            sql=self.text.sql,
            occurrences=occurrences,
            equalities=(),
            condition=None,
            outputs=tuple(Output(c.name, planter.text(value)) for c, value in zip(columns, found, strict=True)),
            key=tuple(c.name for c in columns if c.name in {shown[k] for k in key}),
            recompute_sql=self.recompute_sql(ties),
            tree=tree,
        )

    def used(self, columns: frozenset[Column]) -> tuple[Occurrence, ...]:
        """The occurrences, each with the columns that are used of it, or one if none is."""
        found: list[Occurrence] = []
        for i, (alias, relation) in enumerate(self.occurrences):
            own = tuple(c.name for c in relation.columns if Ref(i, c.name) in columns)
            found.append(Occurrence(i, alias, relation, own or (relation.key or (relation.columns[0].name,))[:1]))
        return tuple(found)

    # ── queries ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def query(
        self, query: Query, visible: Mapping[str, Cte], alias: Alias | None, at: int, qualifier: tuple[str, ...] = ()
    ) -> tuple[Named, ...]:
        """The output columns of a query, whose rows join the block."""
        if isinstance(query, Combined):
            return self.combined(query, self.with_ctes(query, visible), alias, at, qualifier)
        return self.select(query, self.with_ctes(query, visible), alias, at, qualifier)

    def combined(
        self, query: Combined, visible: Mapping[str, Cte], alias: Alias | None, at: int, qualifier: tuple[str, ...]
    ) -> tuple[Named, ...]:
        if len(query.branches) == 1:
            return self.query(query.branches[0], visible, alias, at, qualifier)
        drafts: list[Draft] = []
        columns: list[Sequence[Named]] = []
        for i, branch in enumerate(query.branches):
            with self.apart():
                named = self.query(branch, visible, None, query.at) if not i else self.unnamed(branch, visible)
                draft, values = self.materialized(self.built(), [c.value for c in named])
            drafts.append(draft)
            columns.append([replace(c, value=value) for c, value in zip(named, values, strict=True)])
        counts = {len(named) for named in columns}
        if len(counts) > 1:
            fix = "Select as many columns in each; write NULL where one has none."
            shown = listed([str(len(named)) for named in columns])
            raise self.text.refuse(query.at, f"UNION of queries with {shown} columns", fix)
        outputs: dict[Made, tuple[Column, ...]] = {}
        cast: set[Made] = set()
        found: list[tuple[str | None, Value, Span]] = []
        for of in zip(*columns, strict=True):
            plain = [c.value.plain for c in of]
            outputs[made := self.new()] = tuple(p for p in plain if p)
            types = [c.value.type for c in of]
            if None not in types and len(set(types)) == 1 and all(p and self.raw_type(p) for p in plain):
                self.raw[made] = str(types[0])
            else:
                cast.add(made)
            found.append((of[0].name, Value((made,), common(types)), Span(query.at, query.at)))
        united: Draft = United(tuple(drafts), outputs, frozenset(cast))
        if query.distinct:
            united = Grouped(united, tuple(outputs))
        self.block.parts.append(united)
        return self.named(found, alias, at, qualifier)

    def unnamed(self, query: Query, visible: Mapping[str, Cte]) -> tuple[Named, ...]:
        """The columns of a query whose names do not matter."""
        if isinstance(query, Select):
            return self.select(query, self.with_ctes(query, visible), None, query.at, loose=True)
        return self.query(query, visible, None, query.at)

    def select(
        self,
        query: Select,
        visible: Mapping[str, Cte],
        alias: Alias | None,
        at: int,
        qualifier: tuple[str, ...] = (),
        *,
        loose: bool = False,
        outer: Scope | None = None,
    ) -> tuple[Named, ...]:
        """The output columns of one SELECT. If it only filters and computes, it is inlined into the block."""
        self.inner |= query.subqueries.keys()
        self.queries |= {opening: (inner, visible) for opening, inner in query.subqueries.items()}
        if not self.needs_rows(query) and not query.distinct:
            scope = self.laterals(query, visible)
            self.where(query, replace(scope, outer=outer), visible)
            return self.named(
                self.items(query, Names(scope, clause="in this SELECT", scalars=True)), alias, at, qualifier, loose
            )
        with self.apart():
            scope = self.laterals(query, visible)
            self.where(query, scope, visible)
            draft = self.built()
            found, draft = self.over_rows(query, scope, draft)
            if query.distinct:
                draft, values = self.materialized(draft, [value for _, value, _ in found])
                found = [(name, value, span) for (name, _, span), value in zip(found, values, strict=True)]
                draft = Grouped(draft, tuple(dict.fromkeys(v.plain for v in values if v.plain)))
        self.block.parts.append(draft)
        return self.named(found, alias, at, qualifier, loose)

    def named(
        self,
        found: Sequence[tuple[str | None, Value, Span]],
        alias: Alias | None,
        at: int,
        qualifier: tuple[str, ...],
        loose: bool = False,
    ) -> tuple[Named, ...]:
        names = alias.columns if alias and alias.columns else tuple(name for name, _, _ in found)
        if len(names) != len(found):
            raise self.text.refuse(at, f"there are {len(names)} names for {len(found)} columns", "Name each once.")
        columns: list[Named] = []
        for name, (_, value, span) in zip(names, found, strict=True):
            if name is None and not loose:
                raise self.text.refuse(span.start, "this expression has no name", "Write AS and a name after it.")
            columns.append(Named(name or "", qualifier, value))
        return tuple(columns)

    def with_ctes(self, query: Query, visible: Mapping[str, Cte]) -> Mapping[str, Cte]:
        own: set[str] = set()
        for cte in query.ctes:
            if cte.name.lower() in own:
                raise self.text.refuse(cte.at, f"the WITH name {cte.name} is used twice", "Give each its own name.")
            own.add(cte.name.lower())
            defined = Cte(cte.query, cte.columns, cte.at, visible)
            count, rewrites = len(self.occurrences), len(self.rewrites)
            with self.apart():
                self.cte(defined, cte.name, None)  # checked even if it is never used
                self.built()
            del self.occurrences[count:], self.rewrites[rewrites:]
            visible = {**visible, cte.name.lower(): defined}
        return visible

    def cte(self, cte: Cte, name: str, alias: Alias | None) -> tuple[Named, ...]:
        qualifier = (alias.name if alias else name,)
        columns = self.query(cte.query, cte.visible, Alias(name, cte.columns), cte.at, qualifier)
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
        if isinstance(source.inner, (Select, Combined)):
            columns = self.query(source.inner, visible, None, source.at)
            return Scope(self.relabelled(columns, source.alias, source.at))
        scope = self.source(source.inner, visible)
        return Scope(self.relabelled(scope.output, source.alias, source.at)) if source.alias else scope

    def table(self, table: Table, visible: Mapping[str, Cte]) -> tuple[Named, ...]:
        at = table.span.start
        if len(table.parts) == 1:
            name = table.parts[0]
            if name.lower() not in visible:
                near = [r for r in self.relations if r.split(".")[-1].lower() == name.lower()]
                fix = f"Write {listed(near)}." if near else "Write relations as source.table."
                raise self.text.refuse(at, f"the relation {name} has no source before it", fix)
            return self.cte(visible[name.lower()], name, table.alias)
        relation = self.relation(table)
        first, last = self.text.tokens[at], self.text.tokens[table.span.end - 1]
        alias = table.alias.name if table.alias else table.parts[-1]
        suffix = "" if table.alias else f" AS {quoted(alias)}"
        self.edits[first.start] = (last.end, snapshot_name(relation) + suffix)
        index = len(self.occurrences)
        self.occurrences.append((alias, relation))
        self.block.parts.append(Scanned(index, relation))
        qualifier = (alias,) if table.alias else table.parts
        columns = tuple(Named(c.name, qualifier, Value((Ref(index, c.name),), c.type)) for c in relation.columns)
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
        if join.kind != "INNER":
            return self.other_join(join, visible)
        left, right = self.source(join.left, visible), self.source(join.right, visible)
        scope, conjuncts_ = self.joined(join, left, right)
        self.block.conjuncts += conjuncts_
        return scope

    def joined(self, join: Join, left: Scope, right: Scope) -> tuple[Scope, list[Conjunct]]:
        """What an inner join offers, and its conditions."""
        taken = {q[-1].lower() for q in left.qualifiers} & {q[-1].lower() for q in right.qualifiers}
        if taken:
            at = self.first_token(join.right)
            fix = "Give each relation of a FROM its own alias: source.table AS name."
            raise self.text.refuse(at, f"the name {sorted(taken)[0]} is used twice in one FROM", fix)
        if join.using:
            pairs = self.using(join, left, right)
            keys_, others = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
            rest = tuple(c for c in left.output if c not in keys_) + tuple(c for c in right.output if c not in others)
            scope = Scope(keys_ + rest, others + left.hidden + right.hidden)
            return scope, [self.equal(a.value, b.value) for a, b in pairs]
        scope = Scope(left.output + right.output, left.hidden + right.hidden)
        return scope, self.condition(join.on, Names(scope, clause="in ON")) if join.on else []

    def using(self, join: Join, left: Scope, right: Scope) -> list[tuple[Named, Named]]:
        pairs: list[tuple[Named, Named]] = []
        for name, at in join.using:
            sides = [[c for c in side.output if c.name.lower() == name.lower()] for side in (left, right)]
            for found, side in zip(sides, (left, right), strict=True):
                if len(found) != 1:
                    raise self.not_one(self.text.tokens[at].start, name, found, side)
            pairs.append((sides[0][0], sides[1][0]))
        return pairs

    def other_join(self, join: Join, visible: Mapping[str, Cte]) -> Scope:
        """Outer, semi and anti joins, whose sides stay apart."""
        with self.apart():
            left = self.source(join.left, visible)
            a = self.built()
        with self.apart():
            right = self.source(join.right, visible)
            b = self.built()
        if join.kind in ("RIGHT", "FULL"):
            a, left = self.columns(a, left)
        if join.kind in ("LEFT", "FULL"):
            b, right = self.columns(b, right)
        scope, found = self.joined(join, left, right)
        pairs_of = self.using(join, left, right) if join.using else []
        if join.kind in ("SEMI", "ANTI"):
            pairs, conditions_ = self.partners(a, b, found)
            self.block.parts.append(Kept(a, b, pairs, conditions_, join.kind == "ANTI"))
            first = tuple(p[0] for p in pairs_of)
            return Scope(first + tuple(c for c in left.output if c not in first), left.hidden)
        if join.kind == "RIGHT":
            a, b = b, a
            first = tuple(p[1] for p in pairs_of)
            others = tuple(p[0] for p in pairs_of)
            rest = tuple(c for c in (*left.output, *right.output) if c not in (*first, *others))
            scope = Scope(first + rest, others + left.hidden + right.hidden)
        if join.kind == "FULL":
            pairs, conditions_ = self.partners(a, b, found)
            merged, scope = self.merged(pairs_of, pairs, scope, left, right)
            self.block.parts.append(Joined(a, b, JoinKind.FULL, pairs, conditions_, merged))
            return scope
        theirs = offered(b)
        for each in found:
            if each.value.columns and all(map(theirs, each.value.columns)):
                b = placed(b, each.value, each.certain)
        found = [c for c in found if not c.value.columns or not all(map(theirs, c.value.columns))]
        pairs, conditions_ = self.partners(a, b, found)
        self.block.parts.append(Joined(a, b, JoinKind.LEFT, pairs, conditions_))
        return scope

    def merged(
        self, using: Sequence[tuple[Named, Named]], pairs: Sequence[Match], scope: Scope, left: Scope, right: Scope
    ) -> tuple[dict[Made, tuple[Column, Column]], Scope]:
        """The columns of a FULL JOIN's USING: of either side, whichever is there."""
        merged: dict[Made, tuple[Column, Column]] = {}
        keys_: list[Named] = []
        for a, b in using:
            one, other = (column for c in (a, b) for column in c.value.columns)  # both are columns by now
            merged[made := self.new()] = (one, other)
            if a.value.type and a.value.type == b.value.type and Match(one, other) in pairs:
                self.raw[made] = a.value.type
            keys_.append(Named(a.name, (), Value((made,), common([a.value.type, b.value.type]))))
        taken = [c for pair in using for c in pair]
        rest = tuple(c for c in (*left.output, *right.output) if c not in taken)
        return merged, Scope((*keys_, *rest), (*taken, *left.hidden, *right.hidden)) if using else scope

    def first_token(self, source: Source) -> int:
        if isinstance(source, Join):
            return self.first_token(source.left)
        return source.span.start if isinstance(source, Table) else source.at

    def laterals(self, query: Select, visible: Mapping[str, Cte]) -> Scope:
        """What FROM offers, with its LATERAL VIEWs."""
        if not query.laterals:
            return self.source(query.source, visible)
        with self.apart():
            scope = self.source(query.source, visible)
            draft = self.built()
        for lateral in query.laterals:
            draft, columns = self.lateral(draft, lateral, scope)
            scope = Scope(scope.output + columns, scope.hidden)
        self.block.parts.append(draft)
        return scope

    # ── WHERE ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def where(self, query: Select, scope: Scope, visible: Mapping[str, Cte]) -> None:
        if query.where is None:
            return
        hidden = [s for opening in query.subqueries if (s := self.subquery_span(query.where, opening))]
        masked = self.text.masked(query.where, sorted(hidden, key=lambda s: s.start))
        names = Names(scope, clause="in WHERE", scalars=True)
        with self.whole(masked):
            for part in conjuncts(self.text, query.where):
                with self.text.noting():
                    if not self.subquery(query, part, scope, visible):
                        self.block.add(self.conjunct(part, names))

    def subquery_span(self, where: Span, opening: int) -> Span | None:
        """What stands for a subquery while the condition around it is checked."""
        if not where.start <= opening < where.end:
            return None
        if self.text.word(opening - 1) == "EXISTS":
            return Span(opening - 1, closing(self.text, opening) + 1)
        inside = 1 if self.text.word(opening - 1) == "IN" else 0
        return Span(opening + inside, closing(self.text, opening) + 1 - inside)

    def subquery(self, query: Select, part: Span, scope: Scope, visible: Mapping[str, Cte]) -> bool:
        """Whether a conjunct is [NOT] EXISTS or [NOT] IN with a query, which joins the block then."""
        negated, at = False, part.start
        while enclosed(self.text, part) or self.text.word(part.start) == "NOT":
            bare = self.text.word(part.start) == "NOT"
            negated ^= bare
            part = Span(part.start + 1, part.end if bare else part.end - 1)
        opening = next((o for o in query.subqueries if o >= part.start and closing(self.text, o) == part.end - 1), None)
        if opening is None:
            return False
        inner = query.subqueries[opening]
        if self.text.word(opening - 1) == "EXISTS" and opening - 1 == part.start:
            self.partner(inner, scope, visible, negated, at, None)
            return True
        turned = self.text.word(opening - 2) == "NOT"
        wanted = Span(part.start, opening - (2 if turned else 1))
        if self.text.word(opening - 1) != "IN" or wanted.end <= wanted.start:
            return False
        if any(self.text.type(i) == TokenType.OR for i in top(self.text, wanted)):
            return False
        left = self.expression(wanted, Names(scope, clause="in WHERE"))
        self.partner(inner, scope, visible, negated ^ turned, at, left)
        return True

    def partner(
        self, query: Query, scope: Scope, visible: Mapping[str, Cte], negated: bool, at: int, left: Value | None
    ) -> None:
        around = columns_of([c.value for c in (*scope.output, *scope.hidden)])
        with self.apart(Block(outer=around)) as block:
            if isinstance(query, Select) and not self.needs_rows(query):
                single = replace(query, distinct=False)  # it is asked whether there is a row, not how many
                inner = self.with_ctes(query, visible)
                columns = self.select(single, inner, None, at, loose=True, outer=scope)
            else:
                columns = self.unnamed(query, visible)
            right = self.built()
            found = list(block.correlated)
        known = None
        if left is not None:
            if len(columns) != 1:
                raise self.text.refuse(at, f"IN needs one column, and this query has {len(columns)}", "Select one.")
            found.append(self.equal(left, columns[0].value))
            known = (left.parts, columns[0].value.parts)
        self.block.subqueries.append(Subquery(right, tuple(found), negated, known, at))

    def scalar(self, place: Span, names: Names) -> Value:
        """A value of a query in an expression: an aggregate without GROUP BY, which has one row, or, if equalities say
        which rows of the query belong to one around it, one row for each of their values. EXISTS is a count."""
        exists = self.text.word(place.start) == "EXISTS"
        query, visible = self.queries[place.start + exists]
        fix = "Select one aggregate without GROUP BY, such as max(x), or join a subquery in FROM."
        groups = not isinstance(query, Select) or query.group is not None or query.having or query.qualify
        if not isinstance(query, Select) or groups or (exists and self.needs_rows(query)):
            raise self.text.unsupported(place.start, "a subquery inside an expression that groups or combines", fix)
        inner = self.with_ctes(query, visible)
        self.queries |= {opening: (each, inner) for opening, each in query.subqueries.items()}
        self.inner |= query.subqueries.keys()
        after_groups = names.rows is not None and names.rows.grouped is not None
        outer = None if after_groups else names.scope
        around = columns_of([c.value for c in (*outer.output, *outer.hidden)]) if outer else frozenset()
        with self.apart(Block(outer=around)) as block:
            scope = self.laterals(query, inner)
            self.where(query, replace(scope, outer=outer), inner)
            draft = self.built()
        ours = offered(draft)
        sides = [(c.match, c.match.turned) for c in block.correlated if c.match]
        pairs = [m for both in sides for m in both if ours(m.right) and m.left in around]
        if len(pairs) != len(block.correlated):
            how = "Correlate it by = between columns of relations, and put other conditions into FROM."
            raise self.text.unsupported(place.start, "a subquery correlated by more than equalities", how)
        grouped = Grouped(draft, tuple(dict.fromkeys(pair.right for pair in pairs)))
        if exists:
            self.items(query, Names(scope, clause="in EXISTS"))
            grouped.outputs[count := self.new()] = Value(("count(*)",), "bigint")
            self.block.values.append((grouped, tuple(Conjunct(Value(()), pair) for pair in pairs)))
            return Value(("coalesce(", count, ", 0L) > 0"), "boolean")
        if len(query.items) != 1:
            raise self.text.refuse(place.start, f"a value is one column, not {len(query.items)}", "Select one.")
        rows = Rows(grouped=grouped)
        value = self.expression(self.unaliased(query.items[0])[0], Names(scope, rows=rows, clause="in this subquery"))
        if not grouped.outputs:
            raise self.text.unsupported(place.start, "a subquery inside an expression without an aggregate", fix)
        self.block.values.append((grouped, tuple(Conjunct(Value(()), pair) for pair in pairs)))
        if not pairs:
            return value
        return Value(tuple(part for p in value.parts for part in _of_nothing(p, grouped)), value.type)

    # ── the result ───────────────────────────────────────────────────────────────────────────────────────────────────

    def key(self, columns: Sequence[Named], equalities: Sequence[tuple[Ref, Ref]]) -> tuple[str, ...]:
        """The outputs that hold every occurrence's key, or a column that is always equal to it."""
        names: dict[Ref, str] = {}
        for column in columns:
            ref = column.value.plain
            if isinstance(ref, Ref):
                names.setdefault(ref, column.name)
        same = [(a, b) for a, b in equalities if self.raw_type(a) == self.raw_type(b)]
        found: dict[str, None] = {}
        for i, (_, relation) in enumerate(self.occurrences):
            holders = [_holder(Ref(i, column), names, same) for column in relation.key]
            if not holders or None in holders:
                return ()
            found |= dict.fromkeys(h for h in holders if h)
        return tuple(c.name for c in columns if c.name in found)

    def check_outputs(self, query: Query, columns: Sequence[Named]) -> None:
        while isinstance(query, Combined):
            query = query.branches[0]
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
            if name.lower().startswith("_copy") or name.lower() == UNIT:
                fix = f"{UNIT}, and names that begin with _copy, are reserved: write AS and another."
                raise self.text.refuse(item, f"the output column name {name} is not allowed", fix)

    def recompute_sql(self, ties: Mapping[int, Sequence[int]]) -> str:
        for rewrite in self.rewrites:
            rewrite(ties)
        return self.user(Span(0, len(self.text.tokens))).rstrip("; \n\t\r")


def _of_nothing(part: str | Column, grouped: Grouped) -> Parts:
    """An aggregate's column where there may be no row for it."""
    of = grouped.outputs.get(part) if isinstance(part, Made) else None
    first = of.parts[0] if of else ""
    if isinstance(first, str) and first.startswith("count"):
        return ("coalesce(", part, ", 0L)")
    return ("coalesce(", part, ", array())") if isinstance(first, str) and first.startswith("sort_array") else (part,)


def _equality(conjunct: Conjunct) -> bool:
    """Whether a flat join has it as an equality."""
    match = conjunct.match
    if match is None or match.null_safe or not isinstance(match.left, Ref) or not isinstance(match.right, Ref):
        return False
    return match.left.occurrence != match.right.occurrence


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
