"""Signed bags in memory: the relation that the simulator and all small changes use."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any

from strobe.algebra.bounds import Bound
from strobe.algebra.relation import Relation
from strobe.algebra.room import Room

Row = tuple[Any, ...]

NAN = float("nan")
"""The one NaN: Spark calls NaN equal to NaN, and one object is equal to itself inside Python's tuples and
dictionaries."""


def canonical(value: Any) -> Any:
    """The form of a value in which equal (to Spark) means equal and hashed alike (to Python)."""
    if isinstance(value, float):
        if math.isnan(value):
            return NAN
        return 0.0 if value == 0 else value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, Decimal) and value == 0:
        return abs(value)
    if isinstance(value, (list, tuple)):
        return tuple(canonical(v) for v in value)
    return value


def picker(places: Sequence[int]) -> Callable[[Row], Row]:
    """Picks the values at these places out of a row."""
    if len(places) > 1:
        return itemgetter(*places)
    return (lambda row: (row[places[0]],)) if places else (lambda _row: ())


class Bag:
    """A signed bag: rows with non-zero counts, under named attributes. Immutable.

    What is derived from a bag has its `room`, if it has one: a join that would make more rows than are left in it is
    carried out where the room says.
    """

    __slots__ = ("_attributes", "_room", "_rows")

    def __init__(
        self, attributes: Sequence[str], rows: Mapping[Row, int] | None = None, room: Room | None = None
    ) -> None:
        self._attributes = tuple(attributes)
        self._rows: dict[Row, int] = {row: n for row, n in rows.items() if n} if rows else {}
        self._room = room

    @classmethod
    def of(cls, attributes: Sequence[str], rows: Iterable[Row], count: int = 1) -> Bag:
        """Rows as they come, each with the same count; equal ones are summed."""
        counts: dict[Row, int] = defaultdict(int)
        for row in rows:
            counts[tuple(canonical(v) for v in row)] += count
        return cls(attributes, counts)

    def within(self, room: Room | None) -> Bag:
        """The same rows with a room, or without any."""
        return self._sharing_rows(self._attributes, room)

    def _sharing_rows(self, attributes: Sequence[str], room: Room | None) -> Bag:
        found = Bag(attributes, room=room)
        found._rows = self._rows
        return found

    @property
    def attributes(self) -> tuple[str, ...]:
        return self._attributes

    @property
    def room(self) -> Room | None:
        return self._room

    @property
    def known_empty(self) -> bool:
        return not self._rows

    def items(self) -> Iterator[tuple[Row, int]]:
        return iter(self._rows.items())

    def __len__(self) -> int:
        """How many different rows there are."""
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bag):
            return NotImplemented
        if set(self._attributes) != set(other._attributes):
            return False
        return self._rows == other.project(self._attributes)._rows

    __hash__ = None  # type: ignore[assignment]  # bags are compared by contents and never used as keys

    def __deepcopy__(self, _memo: object) -> Bag:
        return self  # immutable

    def __reduce__(self) -> tuple[Any, ...]:
        return Bag, (self._attributes, self._rows)  # a room belongs to this process

    def __repr__(self) -> str:
        rows = ", ".join(f"{n:+d}{list(row)}" for row, n in sorted(self._rows.items(), key=repr))
        return f"Bag({', '.join(self._attributes)}: {rows})"

    def plus(self, other: Relation) -> Relation:
        if not isinstance(other, Bag):
            return other.lift(self).plus(other)
        return self.add(other)

    def add(self, other: Bag) -> Bag:
        """`plus` where both are known to be in memory."""
        if len(self) < len(other) and self._attributes == other._attributes:
            self, other = other, self
        if not other._rows and (self._room is not None or other._room is None):
            return self
        counts = dict(self._rows)
        for row, n in other.project(self._attributes).items():
            total = counts.get(row, 0) + n
            if total:
                counts[row] = total
            else:
                del counts[row]
        return Bag(self._attributes, counts, self._room or other._room)

    def negate(self) -> Bag:
        return Bag(self._attributes, {row: -n for row, n in self._rows.items()}, self._room)

    def join(self, other: Relation, on: Sequence[tuple[str, str]]) -> Relation:
        if not isinstance(other, Bag):
            return other.lift(self).join(other, on)
        mine = picker([self._attributes.index(a) for a, _ in on])
        theirs = picker([other._attributes.index(b) for _, b in on])
        matches: dict[Row, list[tuple[Row, int]]] = defaultdict(list)
        for row, n in other.items():
            key = theirs(row)
            if None not in key:
                matches[key].append((row, n))
        room = self._room or other._room
        left = math.inf if room is None else room.left
        counts: dict[Row, int] = defaultdict(int)
        for row, n in self._rows.items():
            found = matches.get(mine(row), ())
            left -= len(found)
            if room is not None and left < 0:
                return room.lift(self).join(other, on)
            for match, m in found:
                counts[row + match] += n * m
        if room is not None:
            room.left -= len(counts)
        return Bag(self._attributes + other._attributes, counts, room)

    def project(self, attributes: Sequence[str]) -> Bag:
        if tuple(attributes) == self._attributes:
            return self
        pick = picker([self._attributes.index(a) for a in attributes])
        counts: dict[Row, int] = defaultdict(int)
        for row, n in self._rows.items():
            counts[pick(row)] += n
        return Bag(attributes, counts, self._room)

    def rename(self, names: Mapping[str, str]) -> Bag:
        return self._sharing_rows([names.get(a, a) for a in self._attributes], self._room)

    def keys(self, attributes: Sequence[str], *, nulls: bool = False) -> Bag:
        pick = picker([self._attributes.index(a) for a in attributes])
        found = {pick(row) for row in self._rows}
        return Bag(attributes, {key: 1 for key in found if nulls or None not in key}, self._room)

    def key_delete(self, keys: Relation, on: Sequence[tuple[str, str]]) -> Relation:
        if not isinstance(keys, Bag):
            return keys.lift(self).key_delete(keys, on)
        mine = picker([self._attributes.index(a) for a, _ in on])
        gone: Collection[Row] = keys._rows
        if [b for _, b in on] != list(keys._attributes):
            theirs = picker([keys._attributes.index(b) for _, b in on])
            gone = {theirs(row) for row in keys._rows}
        rest = {r: n for r, n in self._rows.items() if mine(r) not in gone}
        return Bag(self._attributes, rest, self._room)

    def outside(self, bound: Bound) -> Bag:
        inside = bound.test(self._attributes)
        return Bag(self._attributes, {row: n for row, n in self._rows.items() if not inside(row)}, self._room)

    def part(self, sign: int) -> Bag:
        return Bag(self._attributes, {row: abs(n) for row, n in self._rows.items() if n * sign > 0}, self._room)

    def lift(self, other: Relation) -> Relation:
        return other

    def collect(self) -> Bag:
        return self


def total(attributes: Sequence[str], relations: Iterable[Relation]) -> Relation:
    """The sum of them all. What is in memory is added up in one pass, so that many small ones cost what they hold."""
    counts: dict[Row, int] = defaultdict(int)
    room: Room | None = None
    elsewhere: list[Relation] = []
    for relation in relations:
        if isinstance(relation, Bag):
            room = room or relation.room
            for row, n in relation.project(attributes).items():
                counts[row] += n
        else:
            elsewhere.append(relation)
    found: Relation = Bag(attributes, counts, room)
    for relation in elsewhere:
        found = found.plus(relation)
    return found
