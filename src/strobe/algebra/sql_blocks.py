"""Inner joins as they grow while FROM and WHERE are read, and the drafts of operators that become of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from strobe.algebra.schema import RelationSchema, joinable
from strobe.algebra.sql_drafts import (
    Draft,
    Filtered,
    Joined,
    Kept,
    Match,
    Projected,
    Sure,
    certain,
    offered,
    placed,
)
from strobe.algebra.sql_names import Column, Made, Parts, Scope, Value
from strobe.algebra.sql_text import Text
from strobe.algebra.tree import JoinKind


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
    values: list[tuple[Draft, tuple[Conjunct, ...]]] = field(default_factory=list)
    """Scalar subqueries: one row each, or one for what these equalities say."""
    outer: frozenset[Column] = frozenset()
    """Of a subquery in WHERE: the columns around it."""
    correlated: list[Conjunct] = field(default_factory=list)

    def add(self, conjunct: Conjunct) -> None:
        (self.correlated if conjunct.value.columns & self.outer else self.conjuncts).append(conjunct)


class Blocks:
    """What is being built, innermost: a block of joins; and the columns and occurrences that there are so far."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.occurrences: list[tuple[str, RelationSchema]] = []
        self.block = Block()
        self.made = 0
        self.raw: dict[Made, str] = {}
        """The columns that operators make out of raw ones without changing them, with their types."""

    def new(self) -> Made:
        self.made += 1
        return Made(self.made)

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
        draft = self.with_values(draft, block)
        for conjunct in rest:
            draft = Filtered(draft, conjunct.value)
        for subquery in block.subqueries:
            with self.text.noting():
                draft = self.kept(draft, subquery)
        return draft

    def with_values(self, draft: Draft, block: Block) -> Draft:
        """Every row with the values of a block's scalar subqueries: NULL where there is no row for it."""
        for value, conjuncts in block.values:
            pairs, _ = self.partners(draft, value, conjuncts)
            draft = Joined(draft, value, JoinKind.LEFT if conjuncts else JoinKind.INNER, pairs)
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


def _joins(conjunct: Conjunct, has: Sequence[Callable[[Column], bool]], there: set[int], part: int) -> Match | None:
    """The equality by which a part joins those that are there."""
    match = conjunct.match
    for each in (match, match.turned) if match else ():
        if has[part](each.right) and any(has[i](each.left) for i in there):
            return each
    return None
