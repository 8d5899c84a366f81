"""Sets of vectors as bits of an integer, so that a search over all schedules is a few operations on integers.

The vectors of a history form a box, one dimension for every source. A vector is a bit; moving a set on by one position
of a source is a shift. A level's definition asks for a schedule, but schedules never need to be listed: what is
reached by some schedule is a set of vectors, and grows by one shift for every way to go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import product
from operator import or_

from strobe.auditor.timeline import Timeline, Vector


def vectors(timeline: Timeline) -> int:
    """How many vectors there are."""
    return reduce(lambda count, n: count * (n + 1), timeline.end, 1)


class Lattice:
    """All vectors of a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self._sizes = [n + 1 for n in timeline.end]
        self._strides = [reduce(int.__mul__, self._sizes[i + 1 :], 1) for i in range(len(self._sizes))]
        self._count = vectors(timeline)
        self.start = 1
        self.end = 1 << (self._count - 1)
        self.vectors: list[Vector] = list(product(*(range(size) for size in self._sizes)))
        """By bit."""
        self.whole = sum(1 << bit for bit, vector in enumerate(self.vectors) if timeline.whole(vector) == vector)
        self._moves = self._possible_moves(timeline)
        self._climbs = [
            (self._where(place, range(size - by)), by * self._strides[place])
            for place, size in enumerate(self._sizes)
            for by in _doubling(size)
        ]

    def _where(self, place: int, positions: range) -> int:
        """The vectors whose position at one source is in a range."""
        stride, size = self._strides[place], self._sizes[place]
        block = ((1 << stride * len(positions)) - 1) << stride * positions.start
        period = stride * size
        return block * (((1 << self._count) - 1) // ((1 << period) - 1))

    def _possible_moves(self, timeline: Timeline) -> list[tuple[int, int]]:
        """(set of vectors, distance): from each vector of the set a schedule can go on by one transaction to the vector
        that lies so many bits further."""
        moves: dict[int, int] = {}
        for heads in timeline.moves:
            ready = self.whole
            for place, before in heads:
                ready &= self._where(place, range(before, before + 1))
            distance = sum(self._strides[place] for place, _ in heads)
            moves[distance] = moves.get(distance, 0) | ready
        return [(ready, distance) for distance, ready in moves.items()]

    def up(self, some: int) -> int:
        """All vectors that are, in every source, at or after one of these."""
        for below, distance in self._climbs:
            some |= (some & below) << distance
        return some

    def step(self, some: int) -> int:
        """The whole vectors that are one transaction after one of these."""
        return reduce(or_, ((some & ready) << distance for ready, distance in self._moves), 0)

    def walk(self, some: int, within: int) -> int:
        """These and all whole vectors that a schedule reaches from them without leaving `within`."""
        new = some
        while new:
            new = self.step(new) & within & ~some
            some |= new
        return some

    def members(self, some: int) -> Iterator[Vector]:
        while some:
            lowest = some & -some
            yield self.vectors[lowest.bit_length() - 1]
            some ^= lowest


def _doubling(size: int) -> Iterator[int]:
    """Distances 1, 2, 4, … that together climb from any position of a source to any later one."""
    by = 1
    while by < size:
        yield by
        by *= 2
