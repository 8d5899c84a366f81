"""Views that are more than one flat join: a tree of operators over occurrences of relations.

Every column in a tree has a name of its own, so that a column means the same wherever it is mentioned: `r{i}c{j}` for
column j of occurrence i, and another name for whatever an operator computes or joins together. Expressions are Spark
SQL over these names. Only Spark evaluates them; the driver looks up rows by columns that are *raw*, values that are
carried up as a source has them, and takes more rows than needed where it cannot decide.

A raw column is *padded* where an outer join may put NULL into the place of its value: a look-up by it finds no row for
NULL, though there may be such rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from strobe.algebra.view import Occurrence, Output

UNIT = "_g"
"""The column that keeps apart the rows of states which are evaluated at once, as after and before a change. Operators
join, group and partition by it too; it stands in the text of window expressions alone."""


class Operator:
    """What all operators have in common. Operators are frozen, and shared between copies of a view."""

    @property
    def children(self) -> tuple[Operator, ...]:
        raise NotImplementedError

    @property
    def columns(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def raw(self) -> frozenset[str]:
        """The columns by which its rows can be looked up."""
        raise NotImplementedError

    @property
    def padded(self) -> frozenset[str]:
        """The raw columns whose NULLs may be of the tree's own making."""
        raise NotImplementedError

    def __deepcopy__(self, _memo: object) -> Operator:
        return self


@dataclass(frozen=True)
class Scan(Operator):
    """All rows of an occurrence, with the columns of it that the view uses."""

    occurrence: Occurrence

    @property
    def children(self) -> tuple[Operator, ...]:
        return ()

    @property
    def columns(self) -> tuple[str, ...]:
        return self.occurrence.attributes

    @cached_property
    def raw(self) -> frozenset[str]:
        return frozenset(self.occurrence.attributes)

    @property
    def padded(self) -> frozenset[str]:
        return frozenset()


@dataclass(frozen=True)
class _Unary(Operator):
    child: Operator

    @property
    def children(self) -> tuple[Operator, ...]:
        return (self.child,)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.child.columns

    @property
    def raw(self) -> frozenset[str]:
        return self.child.raw

    @property
    def padded(self) -> frozenset[str]:
        return self.child.padded


@dataclass(frozen=True)
class Filter(_Unary):
    """The rows for which a condition is true: WHERE, HAVING, QUALIFY."""

    condition: str


@dataclass(frozen=True)
class Project(_Unary):
    """Computed columns. An output that is a column of the child by its own name is that column, and as raw as there."""

    outputs: tuple[Output, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(output.name for output in self.outputs)

    @cached_property
    def passed(self) -> Mapping[str, str]:
        """The outputs that are nothing but a column of the child: which."""
        known = set(self.child.columns)
        return {o.name: o.expression for o in self.outputs if o.expression in known}

    @cached_property
    def raw(self) -> frozenset[str]:
        return frozenset(name for name, column in self.passed.items() if column in self.child.raw)

    @cached_property
    def padded(self) -> frozenset[str]:
        return frozenset(name for name, column in self.passed.items() if column in self.child.padded)


class JoinKind(Enum):
    """RIGHT is LEFT mirrored."""

    INNER = "inner"
    LEFT = "left"
    FULL = "full"


@dataclass(frozen=True)
class Pair:
    """An equality between raw columns of two sides, of types that the driver compares as Spark does."""

    left: str
    right: str
    null_safe: bool = False
    """`<=>`: NULL equals NULL."""


@dataclass(frozen=True)
class Merged:
    """The one column of a FULL JOIN's USING: the left side's value, or else the right side's."""

    name: str
    left: str
    right: str


@dataclass(frozen=True)
class _Binary(Operator):
    left: Operator
    right: Operator
    pairs: tuple[Pair, ...]
    condition: str | None
    """What is left of ON besides the pairs."""

    @property
    def children(self) -> tuple[Operator, ...]:
        return (self.left, self.right)


@dataclass(frozen=True)
class Join(_Binary):
    kind: JoinKind = JoinKind.INNER
    merged: tuple[Merged, ...] = ()
    """Of a FULL JOIN: beside the columns of both sides. A merged column is raw where it equals some pair."""

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return (*self.left.columns, *self.right.columns, *(m.name for m in self.merged))

    @cached_property
    def raw(self) -> frozenset[str]:
        paired = {(pair.left, pair.right) for pair in self.pairs}
        merged = (m.name for m in self.merged if (m.left, m.right) in paired)
        return self.left.raw | self.right.raw | frozenset(merged)

    @cached_property
    def padded(self) -> frozenset[str]:
        left = self.left.raw if self.kind is JoinKind.FULL else self.left.padded
        right = self.right.padded if self.kind is JoinKind.INNER else self.right.raw
        below = self.left.padded | self.right.padded
        return left | right | frozenset(m.name for m in self.merged if {m.left, m.right} & below)


@dataclass(frozen=True)
class Exists(_Binary):
    """The left rows for which some right row, or with `negated` none, satisfies the pairs and the condition."""

    negated: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return self.left.columns

    @property
    def raw(self) -> frozenset[str]:
        return self.left.raw

    @property
    def padded(self) -> frozenset[str]:
        return self.left.padded


@dataclass(frozen=True)
class Union(Operator):
    """UNION ALL."""

    branches: tuple[Operator, ...]
    outputs: tuple[tuple[str, tuple[str, ...]], ...]
    """Each column with the branches' columns that it consists of."""
    cast: frozenset[str] = frozenset()
    """Columns that Spark casts in some branch, since their types differ."""

    @property
    def children(self) -> tuple[Operator, ...]:
        return self.branches

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.outputs)

    @cached_property
    def raw(self) -> frozenset[str]:
        everywhere = (
            name
            for name, of in self.outputs
            if all(column in branch.raw for column, branch in zip(of, self.branches, strict=True))
        )
        return frozenset(everywhere) - self.cast

    @cached_property
    def padded(self) -> frozenset[str]:
        return self.raw & frozenset(
            name
            for name, of in self.outputs
            if any(column in branch.padded for column, branch in zip(of, self.branches, strict=True))
        )


@dataclass(frozen=True)
class Explode(_Unary):
    """LATERAL VIEW: each row once for every element that a generator makes of it."""

    generator: str
    """`explode(r0c3)`, as Spark SQL."""
    made: tuple[str, ...]
    outer: bool = False

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return (*self.child.columns, *self.made)


@dataclass(frozen=True)
class _Together(_Unary):
    """Whose rows need others: those that have the same values in some columns are read whole."""

    number: int
    """Which one it is, among all of the tree."""
    by: tuple[str, ...]
    """Columns of the child. Without any, all rows belong together."""
    outputs: tuple[Output, ...]
    """Aggregates, or window expressions, whose PARTITION BY begins with `UNIT`."""

    @cached_property
    def cover(self) -> tuple[str, ...]:
        """The columns by which whatever belongs together can be asked for; without any, all rows are read."""
        return tuple(column for column in self.by if column in self.child.raw - self.child.padded)


@dataclass(frozen=True)
class Group(_Together):
    """GROUP BY; DISTINCT, which has no outputs; and the one group of an aggregate without GROUP BY, always there."""

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return (*self.by, *(output.name for output in self.outputs))

    @cached_property
    def raw(self) -> frozenset[str]:
        return self.child.raw & frozenset(self.by)

    @cached_property
    def padded(self) -> frozenset[str]:
        return self.child.padded & frozenset(self.by)


@dataclass(frozen=True)
class Window(_Together):
    """Window expressions with one PARTITION BY."""

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return (*self.child.columns, *(output.name for output in self.outputs))


def operators(tree: Operator) -> Iterator[Operator]:
    """A tree's operators, each before those below it, from left to right."""
    waiting = [tree]
    while waiting:
        yield (found := waiting.pop())
        waiting += reversed(found.children)


def attribute_of(operator: Operator, column: str) -> str:
    """The attribute whose values a raw column carries; one of them where several are carried together."""
    if isinstance(operator, Project):
        return attribute_of(operator.child, operator.passed[column])
    if isinstance(operator, Union):
        return attribute_of(operator.branches[0], dict(operator.outputs)[column][0])
    if isinstance(operator, Join):
        column = next((m.left for m in operator.merged if m.name == column), column)
    child = next((child for child in operator.children if column in child.columns), None)
    return column if child is None else attribute_of(child, column)
