"""Judges states by the positions that they say they reflect.

A claim places a state, so nothing has to be searched for: the views at the claimed vector must be the state, the vector
must be whole, and claims must never go back. That takes one recomputation for every state, however long the history is.
At a source that a claim does not name, what was claimed before has happened, and whatever the named positions imply.

A state without a claim must fit between its neighbours: it is looked for among the vectors between their claims.

Whether every state of the sources is shown (complete, complete-N) is asked between one claim and the next, over the
vectors that a schedule can pass there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from strobe.algebra.bag import Bag
from strobe.auditor.timeline import Timeline, Vector

Views = Mapping[str, Bag]
Claim = Mapping[str, Mapping[str, int]]
"""By view and source: how many of the source's transactions it reflects."""

PASSED = 2_000
"""Vectors that are looked at between one claim and the next, at the most."""

LARGEST_N = 64
"""Up to here, and for the first block's own size, it is asked whether a history is complete-N."""


@dataclass(frozen=True)
class Failure:
    """What is wrong with a state that stands between two vectors, or that claims the second of them."""

    kind: str
    """`false`: it is not what it claims; `torn`, `back`: of its claim; `nowhere`: not between its neighbours;
    `skipped`: of what was never shown before it."""
    number: int
    state: Views
    low: Vector
    high: Vector
    before: Views


@dataclass
class Course:
    """The states of some views so far, placed by their claims. None stands for: too much to look at."""

    timeline: Timeline
    views: Sequence[str]
    views_at: Callable[[Vector], Views]
    weak: bool | None = True
    consistent: bool | None = True
    complete: bool | None = True
    failure: Failure | None = None
    skipped: Failure | None = None
    too_many: int = 0
    """The vectors between two claims, where states without a claim could not be looked for."""
    last: Views = field(default_factory=dict)
    _number: int = -1
    at: Vector = ()
    """Where the last state was placed."""
    _waiting: list[tuple[int, Views]] = field(default_factory=list)
    """States without a claim since the last that has one."""
    _blocks: dict[int, Vector] | None = None
    """By N: where the last block ended, as long as the states may be complete-N."""

    def __post_init__(self) -> None:
        self.at = self.timeline.start

    def add(self, state: Views, claim: Claim | None) -> None:
        """The next state."""
        self._number += 1
        named = self._named(claim or {})
        if named:
            vector = self._vector(named)
            self._settle(vector)
            self._check(state, vector)
        elif not self._waiting and self.same(state, self.views_at(self.at)):
            self._check(state, self.at)
        else:
            self._waiting.append((self._number, state))
        self.last = state

    def finish(self) -> int | None:
        """After the last state. The smallest N > 1 with which the states are complete-N, if there is one."""
        end = self.timeline.end
        self._settle(end)
        if self.consistent:
            self._track(self.last, end)
        return min(self._blocks or (), default=None)

    def same(self, one: Views, other: Views) -> bool:
        return all(one[view] is other[view] or one[view] == other[view] for view in self.views)

    def _named(self, claim: Claim) -> dict[str, int]:
        """By source, the latest position that one of the views claims: all of them must fit there together."""
        named: dict[str, int] = {}
        for view in self.views:
            for source, n in claim.get(view, {}).items():
                named[source] = max(n, named.get(source, 0))
        return named

    def _vector(self, named: Mapping[str, int]) -> Vector:
        sources = self.timeline.sources
        implied = self.timeline.whole(tuple(named.get(source, 0) for source in sources))
        return tuple(named.get(s, max(n, at)) for s, n, at in zip(sources, implied, self.at, strict=True))

    def _check(self, state: Views, vector: Vector) -> None:
        if not self.same(state, self.views_at(vector)):
            self.weak = False
            self._fail("false", self._number, state, vector)
        elif self.timeline.whole(vector) != vector:
            self._fail("torn", self._number, state, vector)
        elif not _below(self.at, vector):
            self._fail("back", self._number, state, vector)
        elif self.consistent:
            self._track(state, vector)
        self.at = vector

    def _fail(self, kind: str, number: int, state: Views, vector: Vector) -> None:
        self.consistent = False
        self.failure = self.failure or Failure(kind, number, state, self.at, vector, self.last)

    # ── states without a claim ───────────────────────────────────────────────────────────────────────────────────────

    def _settle(self, high: Vector) -> None:
        """Places the states without a claim between the last claim and this one."""
        waiting, self._waiting = self._waiting, []
        if not waiting or not self.consistent:
            self.weak = None if waiting and self.weak else self.weak
            return
        self._blocks = {}
        self.complete = None
        ranges = [range(a, b + 1) for a, b in zip(self.at, high, strict=True)]
        between = prod(map(len, ranges))
        if between > PASSED:
            self.weak = self.consistent = None
            self.too_many = self.too_many or between
            return
        whole = [vector for vector in product(*ranges) if self.timeline.whole(vector) == vector]
        places = [self.at]
        for number, state in waiting:
            fits = [v for v in whole if self.same(state, self.views_at(v))]
            places = [v for v in fits if any(_below(u, v) for u in places)]
            if not places:
                self.weak = None
                self._fail("nowhere", number, state, high)
                return

    # ── completeness ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _track(self, state: Views, vector: Vector) -> None:
        """Goes on to the vector of a state, or to the end."""
        before = self.last or state
        if not self._number and not self.same(state, self.views_at(self.timeline.start)):
            self.complete, self._blocks = False, {}
            self.skipped = Failure("skipped", 0, state, self.at, vector, before)
        if self.complete:
            self.complete = self._linked(self.at, vector, before, state, 1)
            if self.complete is False:
                self.skipped = Failure("skipped", self._number, state, self.at, vector, before)
        height, total = self.timeline.height(vector), len(self.timeline.transactions)
        if self._blocks is None and height:
            sizes = {*range(2, min(total, LARGEST_N) + 1), height} - {1}
            self._blocks = dict.fromkeys(sizes, self.timeline.start)
        unchanged = self.same(before, state)
        for n, low in list((self._blocks or {}).items()):
            whole_blocks = height % n == 0 or height == total
            if unchanged and not whole_blocks:
                continue
            if self._blocks and whole_blocks and self._linked(low, vector, before, state, n):
                self._blocks[n] = vector
            elif self._blocks:
                del self._blocks[n]

    def _linked(self, low: Vector, high: Vector, before: Views, after: Views, every: int) -> bool | None:
        """Whether some schedule leads from one vector to the other, past such vectors only, each `every` transactions,
        at which the views are first the one state and then the other."""
        height = self.timeline.height
        if height(high) - height(low) <= every:
            return True
        todo, seen = [(low, False)], {(low, False)}
        while todo:
            at, changed = todo.pop()
            for _, vector in self.timeline.next(at):
                for step in self._steps(vector, high, changed, before, after, every):
                    if step[0] == high:
                        return True
                    if step not in seen:
                        seen.add(step)
                        todo.append(step)
            if len(seen) > PASSED:
                return None
        return False

    def _steps(
        self, vector: Vector, high: Vector, changed: bool, before: Views, after: Views, every: int
    ) -> Iterator[tuple[Vector, bool]]:
        if not _below(vector, high):
            return
        if vector != high and self.timeline.height(vector) % every:
            yield vector, changed
            return
        views = self.views_at(vector)
        if not changed and vector != high and self.same(views, before):
            yield vector, False
        if self.same(views, after):
            yield vector, True


def _below(low: Vector, high: Vector) -> bool:
    return all(a <= b for a, b in zip(low, high, strict=True))
