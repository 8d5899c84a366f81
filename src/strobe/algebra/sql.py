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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sqlglot import TokenType

from strobe.algebra import sql_calls
from strobe.algebra.schema import RelationSchema, joinable, quoted
from strobe.algebra.sql_calls import Call, Specification, calls, filled, specification
from strobe.algebra.sql_drafts import (
    Draft,
    Exploded,
    Filtered,
    Grouped,
    Joined,
    Kept,
    Match,
    Over,
    Planter,
    Projected,
    Scanned,
    Sure,
    Ties,
    United,
    Windowed,
    certain,
    keys,
    offered,
    placed,
    scans,
    settled,
)
from strobe.algebra.sql_expressions import ColumnName, Expression, Item, check_moments, read_expression, read_item
from strobe.algebra.sql_functions import AGGREGATES, GENERATORS
from strobe.algebra.sql_grammar import (
    Alias,
    Combined,
    Join,
    Lateral,
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
from strobe.algebra.sql_names import Column, Made, Named, Parts, Ref, Scope, Value, columns_of, ends, listed, rendered
from strobe.algebra.sql_text import Consequence, Span, Text, bounded
from strobe.algebra.sql_types import common, infer
from strobe.algebra.tree import UNIT, JoinKind
from strobe.algebra.view import Equality, Occurrence, Output, View, snapshot_name


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
                    masked = _masked(text, item)
                    read_item(masked, Span(0, len(masked.tokens)))
            for condition in conditions(select):
                for part in conjuncts(text, condition):
                    if not any(part.start <= opening < part.end for opening in select.subqueries):
                        with text.noting():
                            masked = _masked(text, part)
                            read_expression(masked, Span(0, len(masked.tokens)))
        text.settle()
        return _relations(query)


def _masked(text: Text, span: Span) -> Text:
    """Without what is inside of aggregates, windows and generators."""
    found = list(calls(text, span))
    for call in found:
        if call.name not in GENERATORS or call.span.start != span.start:
            sql_calls.check(text, call)
    return text.masked(span, [call.span for call in found])


def _relations(query: Query) -> list[str]:
    found = [".".join(t.parts) for t, ctes in tables(query) if len(t.parts) > 1 or t.parts[0].lower() not in ctes]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Cte:
    query: Query
    columns: tuple[str, ...]
    at: int
    visible: Mapping[str, Cte]


@dataclass(frozen=True)
class Conjunct:
    """A condition that AND joins with others."""

    value: Value
    match: Match | None = None
    """What it is, where it is nothing but an equality of raw columns that the driver compares as Spark does."""
    certain: Sure = frozenset()
    """Values that are not NULL where it is true."""


@dataclass(frozen=True)
class Subquery:
    """A query in WHERE of which rows have partners, or none."""

    right: Draft
    conjuncts: tuple[Conjunct, ...]
    negated: bool
    known: tuple[Parts, Parts] | None = None
    """Of NOT IN: what must not be NULL on either side."""
    at: int = 0


@dataclass
class Block:
    """Inner joins as they grow, with the conditions on them."""

    parts: list[Draft] = field(default_factory=list)
    conjuncts: list[Conjunct] = field(default_factory=list)
    subqueries: list[Subquery] = field(default_factory=list)
    outer: frozenset[Column] = frozenset()
    """Of a subquery in WHERE: the columns around it."""
    correlated: list[Conjunct] = field(default_factory=list)

    def add(self, conjunct: Conjunct) -> None:
        (self.correlated if conjunct.value.columns & self.outer else self.conjuncts).append(conjunct)


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


_EXPLODED = {
    **dict.fromkeys(("explode", "explode_outer"), ("col",)),
    **dict.fromkeys(("posexplode", "posexplode_outer"), ("pos", "col")),
    **dict.fromkeys(("inline", "inline_outer"), ()),
}
"""The generators that a view may use, with the names of their columns."""
_OVER = "\0"


class _Compiler:
    def __init__(self, name: str, text: Text, relations: Mapping[str, RelationSchema]) -> None:
        self.name = name
        self.text = text
        self.relations = relations
        self.occurrences: list[tuple[str, RelationSchema]] = []
        self.block = Block()
        self.made = 0
        self.raw: dict[Made, str] = {}
        """The columns that operators make out of raw ones without changing them, with their types."""
        self.edits: dict[int, tuple[int, str]] = {}
        self.rewrites: list[Callable[[Mapping[int, Sequence[int]]], None]] = []
        """What changes in the text that Spark recomputes, once it is known which columns break ties."""

    def view(self, query: Query) -> View:
        columns = self.query(query, {}, None, 0)
        if self.text.problems:
            raise Consequence("a view of which something is refused")
        self.check_outputs(query, columns)
        block = self.block
        if block.subqueries or not all(isinstance(part, Scanned) for part in block.parts):
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

    def new(self) -> Made:
        self.made += 1
        return Made(self.made)

    # ── blocks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def apart(self, block: Block | None = None) -> Iterator[Block]:
        """A block of its own."""
        kept, self.block = self.block, block or Block()
        try:
            yield self.block
        finally:
            self.block = kept

    def built(self) -> Draft:
        """The block's joins: conditions as deep as they go, and next to what is there whatever an equality joins."""
        block = self.block
        parts, has = list(block.parts), [offered(part) for part in block.parts]
        rest: list[Conjunct] = []
        for conjunct in block.conjuncts:
            at = next((i for i, h in enumerate(has) if all(map(h, conjunct.value.columns))), None)
            if at is None or not conjunct.value.columns:
                rest.append(conjunct)
            else:
                parts[at] = placed(parts[at], conjunct.value, conjunct.certain)
        draft, there = parts[0], {0}
        while len(there) < len(parts):
            later = [i for i in range(len(parts)) if i not in there]
            joined = next((i for i in later if any(_joins(c, has, there, i) for c in rest)), later[0])
            pairs = [m for c in rest if (m := _joins(c, has, there, joined))]
            rest = [c for c in rest if not _joins(c, has, there, joined)]
            draft = Joined(draft, parts[joined], JoinKind.INNER, tuple(pairs))
            there.add(joined)
            now = offered(draft)
            fit = [c for c in rest if c.value.columns and all(map(now, c.value.columns))]
            draft.conditions = tuple(c.value for c in fit)
            rest = [c for c in rest if c not in fit]
        for conjunct in rest:
            draft = Filtered(draft, conjunct.value)
        for subquery in block.subqueries:
            with self.text.noting():
                draft = self.kept(draft, subquery)
        return draft

    def kept(self, draft: Draft, subquery: Subquery) -> Draft:
        if subquery.known and subquery.negated:
            left, right = subquery.known
            if left not in certain(draft) or right not in certain(subquery.right):
                fix = "Write NOT EXISTS with an equality, or add IS NOT NULL for both columns to their WHERE."
                message = "NOT IN (SELECT …) where NULL is possible keeps no row at all"
                raise self.text.refuse(subquery.at, message, fix)
        pairs, rest = self.partners(draft, subquery.right, subquery.conjuncts)
        return Kept(draft, subquery.right, pairs, rest, subquery.negated)

    def partners(
        self, left: Draft, right: Draft, conjuncts: Sequence[Conjunct]
    ) -> tuple[tuple[Match, ...], tuple[Value, ...]]:
        """What of some conditions are equalities between two sides, and the others."""
        ours, theirs = offered(left), offered(right)
        pairs: list[Match] = []
        conditions: list[Value] = []
        for each in conjuncts:
            match = each.match
            if match and ours(match.left) and theirs(match.right):
                pairs.append(match)
            elif match and ours(match.right) and theirs(match.left):
                pairs.append(match.turned)
            else:
                conditions.append(each.value)
        return tuple(pairs), tuple(conditions)

    def materialized(self, draft: Draft, values: Sequence[Value]) -> tuple[Draft, list[Value]]:
        """Values as columns, computed where they are more."""
        made: dict[Made, Value] = {}
        known: dict[Parts, Value] = {}
        found: list[Value] = []
        for value in values:
            if not value.plain and value.parts not in known:
                made[new := self.new()] = value
                known[value.parts] = Value((new,), value.type)
            found.append(known.get(value.parts, value))
        return (Projected(draft, made) if made else draft), found

    def columns(self, draft: Draft, scope: Scope) -> tuple[Draft, Scope]:
        """A scope whose names are all columns."""
        offers = (*scope.output, *scope.hidden)
        draft, found = self.materialized(draft, [c.value for c in offers])
        named = tuple(replace(c, value=value) for c, value in zip(offers, found, strict=True))
        return draft, Scope(named[: len(scope.output)], named[len(scope.output) :])

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
        if not self.needs_rows(query) and not query.distinct:
            scope = self.laterals(query, visible)
            self.where(query, replace(scope, outer=outer), visible)
            return self.named(self.items(query, Names(scope, clause="in this SELECT")), alias, at, qualifier, loose)
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

    def needs_rows(self, query: Select) -> bool:
        spans = [*query.items, *(s for s in (query.having, query.qualify) if s)]
        called = any(c.name not in GENERATORS for span in spans for c in calls(self.text, span))
        exploded = any(self.generator(item) for item in query.items)
        return called or exploded or query.group is not None or query.having is not None or query.qualify is not None

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
        near = difflib.get_close_matches(id_, self.relations, n=5, cutoff=0.5) or sorted(self.relations)[:5]
        fix = f"Known relations: {listed(near)}." if near else "Declare the source and its tables."
        raise self.text.refuse(at, f"unknown relation {id_}", fix)

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

    def lateral(self, draft: Draft, lateral: Lateral, scope: Scope) -> tuple[Draft, tuple[Named, ...]]:
        found = next(calls(self.text, lateral.call), None)
        if found is None or found.name not in _EXPLODED:
            shown = self.text.tokens[lateral.call.start].text
            fix = f"Use {listed(sorted(_EXPLODED), 'or')}."
            raise self.text.unsupported(lateral.call.start, f"the generator {shown}()", fix)
        return self.exploded(draft, found, lateral.alias, scope, outer=lateral.outer, at=lateral.at)

    def exploded(
        self, draft: Draft, call: Call, alias: Alias, scope: Scope, *, outer: bool, at: int
    ) -> tuple[Draft, tuple[Named, ...]]:
        names = alias.columns or _EXPLODED[call.name]
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

    # ── WHERE ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def where(self, query: Select, scope: Scope, visible: Mapping[str, Cte]) -> None:
        if query.where is None:
            return
        hidden = [s for opening in query.subqueries if (s := self.subquery_span(query.where, opening))]
        masked = self.text.masked(query.where, sorted(hidden, key=lambda s: s.start))
        names = Names(scope, clause="in WHERE")
        with self.whole(masked):
            for part in conjuncts(self.text, query.where):
                with self.text.noting():
                    if not self.subquery(query, part, scope, visible):
                        self.block.add(self.conjunct(part, names))

    @contextmanager
    def whole(self, condition: Text) -> Iterator[None]:
        """While the parts of a condition are read: it must be one as a whole too."""
        before = len(self.text.problems)
        yield
        found = calls(condition, Span(0, len(condition.tokens)))
        if len(self.text.problems) == before and not any(found):
            read_expression(condition, Span(0, len(condition.tokens)))

    def subquery_span(self, where: Span, opening: int) -> Span | None:
        """What stands for a subquery while the condition around it is checked."""
        if not where.start <= opening < where.end:
            return None
        if self.text.word(opening - 1) == "EXISTS":
            return Span(opening - 1, closing(self.text, opening) + 1)
        return Span(opening + 1, closing(self.text, opening)) if self.text.word(opening - 1) == "IN" else None

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
                columns = self.uncorrelated(query, scope, visible)
            right = self.built()
            found = list(block.correlated)
        known = None
        if left is not None:
            if len(columns) != 1:
                raise self.text.refuse(at, f"IN needs one column, and this query has {len(columns)}", "Select one.")
            found.append(self.equal(left, columns[0].value))
            known = (left.parts, columns[0].value.parts)
        self.block.subqueries.append(Subquery(right, tuple(found), negated, known, at))

    def uncorrelated(self, query: Query, scope: Scope, visible: Mapping[str, Cte]) -> tuple[Named, ...]:
        return self.unnamed(query, visible)

    # ── conditions and values ────────────────────────────────────────────────────────────────────────────────────────

    def condition(self, span: Span, names: Names) -> list[Conjunct]:
        found: list[Conjunct] = []
        with self.whole(self.text.masked(span, [])):
            for part in conjuncts(self.text, span):
                with self.text.noting():
                    found.append(self.conjunct(part, names))
        return found

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

    def equal(self, left: Value, right: Value, text: Value | None = None, *, null_safe: bool = False) -> Conjunct:
        """`left = right`, as an equality where both are raw columns that the driver compares as Spark does."""
        a, b = left.plain, right.plain
        value = text or Value((*left.embedded, " = ", *right.embedded))
        sure = frozenset() if null_safe else frozenset((left.parts, right.parts))
        if a and b and a != b and joinable(self.raw_type(a), self.raw_type(b)):
            return Conjunct(value, Match(a, b, null_safe), sure)
        return Conjunct(value, None, sure)

    def raw_type(self, column: Column) -> str:
        """The type of a column that look-ups can be by; empty if it is none."""
        if isinstance(column, Made):
            return self.raw.get(column, "")
        return self.occurrences[column.occurrence][1].column(column.column).type

    def expression(self, span: Span, names: Names) -> Value:
        masked, hidden = self.masked(span, names)
        return self.value(masked, read_expression(masked, Span(0, len(masked.tokens))), hidden, names)

    def masked(self, span: Span, names: Names) -> tuple[Text, dict[int, Value]]:
        """A text in which calls over many rows, and what is grouped by, stand as if they were columns; and their
        values by the place where they begin."""
        found = {call.span: self.called(call, names) for call in calls(self.text, span)}
        if names.rows and names.rows.written:
            found |= self.grouped_expressions(span, names.scope, names.rows.written, list(found))
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

    # ── groups and windows ───────────────────────────────────────────────────────────────────────────────────────────

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
        names = Names(scope, rows=rows, windows=True, clause="here")
        aliases: dict[str, list[Value]] = {}
        columns = self.items(query, names, aliases)
        later = replace(names, aliases=aliases, after=True)
        if query.having:
            for each in self.condition(query.having, replace(later, windows=False, clause="in HAVING")):
                draft = placed(draft, each.value, each.certain)
        conditions = self.condition(query.qualify, later) if query.qualify else []
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
        masked = self.text.masked(span, [call.span for call in calls(self.text, span)])
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

    def window(self, call: Call, names: Names, rows: Rows) -> Value:
        span = call.over or rows.named.get(call.window)
        if span is None:
            fix = f"Define it: WINDOW {call.window} AS (PARTITION BY … ORDER BY …)."
            raise self.text.refuse(call.span.end - 1, f"unknown window {call.window}", fix)
        spec = specification(self.text, span)
        inner = replace(names, windows=False, clause="inside a window function")
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
        rows.ordered.add((tuple(sorted(map(repr, by))), tuple(value.parts for value in order)))
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
        self.edits[clause.start] = (last_token.end, f") WHERE {condition}")

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
        if other or len(exploded) > 1 or call.name not in _EXPLODED:
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

    def user(self, span: Span) -> str:
        """The user's own text, as it is recomputed."""
        return "".join(piece for piece, _ in self.text.render(span, self.edits))


def _equality(conjunct: Conjunct) -> bool:
    """Whether a flat join has it as an equality."""
    match = conjunct.match
    if match is None or match.null_safe or not isinstance(match.left, Ref) or not isinstance(match.right, Ref):
        return False
    return match.left.occurrence != match.right.occurrence


def _ordered(value: Value) -> Column | None:
    """The column that an item of ORDER BY sorts by, if it is nothing else."""
    return next(iter(value.columns)) if isinstance(value.parts[0], (Ref, Made)) and len(value.parts) <= 2 else None


def _joins(conjunct: Conjunct, has: Sequence[Callable[[Column], bool]], there: set[int], part: int) -> Match | None:
    """The equality by which a part joins those that are there."""
    match = conjunct.match
    for each in (match, match.turned) if match else ():
        if has[part](each.right) and any(has[i](each.left) for i in there):
            return each
    return None


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
