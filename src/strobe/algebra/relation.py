"""A relation as managers handle it: a signed bag behind a handle.

Two implementations keep this interface: `Bag` in memory, and `spark.relation.SparkRelation` over data in Spark. One
property suite holds the two equal. A manager never asks which one it has. (A third, `data.spilled.Spilled`, is
what a source hands over of a large transaction, and is read into one of the two before it reaches a manager.)

A signed bag maps rows to counts; a count is positive for rows that are there or come, negative for rows that go, never
zero. NULL (`None`) joins with nothing, but equals itself where rows are summed or taken out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from strobe.algebra.bag import Bag
    from strobe.algebra.bounds import Bound


@runtime_checkable
class Relation(Protocol):
    @property
    def attributes(self) -> tuple[str, ...]: ...

    @property
    def known_empty(self) -> bool:
        """True only if it is certain, without work, that there are no rows."""
        ...

    def plus(self, other: Relation) -> Relation:
        """Sum of counts. `other` has the same attributes, in any order."""
        ...

    def negate(self) -> Relation: ...

    def join(self, other: Relation, on: Sequence[tuple[str, str]]) -> Relation:
        """Equality join on pairs (own attribute, other's attribute); counts multiply; attributes are disjoint, and the
        result has own ones first. With no pairs it is the cross product."""
        ...

    def project(self, attributes: Sequence[str]) -> Relation:
        """Keep these attributes in this order; rows that become equal are summed."""
        ...

    def rename(self, names: Mapping[str, str]) -> Relation: ...

    def keys(self, attributes: Sequence[str], *, nulls: bool = False) -> Relation:
        """The distinct combinations of these attributes, over all rows of any sign, each once; with `nulls` also those
        that have a NULL."""
        ...

    def key_delete(self, keys: Relation, on: Sequence[tuple[str, str]]) -> Relation:
        """Without the rows whose own attributes equal some row of `keys` in all pairs (own, key's). NULL equals NULL
        here: a whole row can serve as a key."""
        ...

    def outside(self, bound: Bound) -> Relation:
        """Without the rows that are in a bound, whose columns are attributes."""
        ...

    def part(self, sign: int) -> Relation:
        """The rows whose count has this sign, with positive counts."""
        ...

    def lift(self, other: Relation) -> Relation:
        """The rows of `other` (a bag in memory) as this kind of relation, so that the two can be combined."""
        ...

    def collect(self) -> Bag:
        """The rows in memory, whatever that takes."""
        ...
