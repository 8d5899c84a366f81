"""Judges states by the positions that they say they reflect.

A claim places a state, so nothing has to be searched for: the views at the claimed vector must be the state, the vector
must be whole, and claims must never go back. That takes one recomputation for every state, however long the history is.
At a source that a claim does not name, what was claimed before has happened, and whatever the named positions imply.

A state without a claim must fit between its neighbours: it is looked for among the vectors between their claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod

from strobe.algebra.bag import Bag
from strobe.auditor.coverage import PASSED, Coverage, Failure
from strobe.auditor.timeline import Timeline, Vector

Views = Mapping[str, Bag]
Claim = Mapping[str, Mapping[str, int]]
"""By view and source: how many of the source's transactions it reflects."""


class Course:
    """The states of some views so far, placed by their claims. None stands for: too much to look at."""

    def __init__(self, timeline: Timeline, views: Sequence[str], views_at: Callable[[Vector], Views]) -> None:
        self.views_at = views_at
        self.weak: bool | None = True
        self.consistent: bool | None = True
        self.failure: Failure | None = None
        self.coverage = Coverage(timeline, self.same, views_at)
        self.too_many = 0
        """The vectors between two claims, where states without a claim could not be looked for."""
        self.at = timeline.start
        """Where the last state was placed."""
        self.last: Views = {}
        self._timeline = timeline
        self._views = views
        self._number = -1
        self._waiting: list[tuple[int, Views]] = []
        """States without a claim since the last that has one."""

    def add(self, state: Views, claim: Claim) -> None:
        """The next state."""
        self._number += 1
        named = self._named(claim)
        if named:
            self.coverage.watch(named)
            vector = self._vector(named)
            self._settle(vector)
            self._check(state, vector)
        elif not self._waiting and self.same(state, self.views_at(self.at)):
            self._check(state, self.at)
        else:
            self._waiting.append((self._number, state))
        self.last = state

    def finish(self) -> None:
        """After the last state."""
        end = self._timeline.end
        self._settle(end)
        if self.consistent:
            self.coverage.end(self._number, self.last, self.at)

    def same(self, one: Views, other: Views) -> bool:
        return all(_equal(one[view], other[view]) for view in self._views)

    def _named(self, claim: Claim) -> dict[str, int]:
        """By source, the latest position that one of the views claims: all of them must fit there together. Nothing,
        unless all of them claim something."""
        named: dict[str, int] = {}
        if any(view not in claim for view in self._views):
            return named
        for view in self._views:
            for source, n in claim[view].items():
                named[source] = max(n, named.get(source, 0))
        return named

    def _vector(self, named: Mapping[str, int]) -> Vector:
        sources = self._timeline.sources
        implied = self._timeline.whole(tuple(named.get(source, 0) for source in sources))
        return tuple(named.get(s, max(n, at)) for s, n, at in zip(sources, implied, self.at, strict=True))

    def _check(self, state: Views, vector: Vector) -> None:
        if not self.same(state, self.views_at(vector)):
            self.weak = False
            self._fail("false", self._number, state, vector)
        elif self._timeline.whole(vector) != vector:
            self._fail("torn", self._number, state, vector)
        elif not _below(self.at, vector):
            self._fail("back", self._number, state, vector)
        elif self.consistent and self._number:
            self.coverage.go(self._number, self.last, state, self.at, vector)
        elif self.consistent:
            self.coverage.begin(state, vector)
        self.at = vector

    def _fail(self, kind: str, number: int, state: Views, vector: Vector) -> None:
        self.consistent = False
        self.failure = self.failure or Failure(kind, number, state, self.at, vector, self.last)

    def _settle(self, high: Vector) -> None:
        """Places the states without a claim between the last claim and this one."""
        waiting, self._waiting = self._waiting, []
        if not waiting or not self.consistent:
            self.weak = None if waiting and self.weak else self.weak
            return
        self.coverage.give_up()
        ranges = [range(a, b + 1) for a, b in zip(self.at, high, strict=True)]
        between = prod(map(len, ranges))
        if between > PASSED:
            self.weak = self.consistent = None
            self.too_many = self.too_many or between
            return
        whole = [vector for vector in product(*ranges) if self._timeline.whole(vector) == vector]
        places = [self.at]
        for number, state in waiting:
            fits = [v for v in whole if self.same(state, self.views_at(v))]
            places = [v for v in fits if any(_below(u, v) for u in places)]
            if not places:
                self.weak = None
                self._fail("nowhere", number, state, high)
                return


def _equal(one: Bag, other: Bag) -> bool:
    return one is other or one == other or (one.known_empty and other.known_empty)


def _below(low: Vector, high: Vector) -> bool:
    return all(a <= b for a, b in zip(low, high, strict=True))
