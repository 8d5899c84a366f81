"""Whether states that are placed one after the other show every state of the sources, or every N-th.

Asked between one place and the next, over the vectors that a schedule can pass there. Only some of the sources may be
watched: transactions of the others alone are then passed unseen, and not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from strobe.algebra.bag import Bag
from strobe.auditor.timeline import Timeline, Vector

Views = Mapping[str, Bag]

PASSED = 2_000
"""Vectors that are looked at between one place and the next, at the most."""

LARGEST_N = 64
"""Up to here, and for the divisors of the first block's size, it is asked whether a history is complete-N."""


@dataclass(frozen=True)
class Failure:
    """What is wrong with a state that stands between two vectors, or that claims the second of them."""

    kind: str
    """`false`: it is not what it claims; `torn`, `back`: of its claim; `nowhere`: not between its neighbours;
    `skipped`: of what was never shown before it; `uneven`: it does not end a block."""
    number: int
    state: Views
    low: Vector
    high: Vector
    before: Views


class Passage:
    """A timeline as some of its sources see it."""

    def __init__(self, timeline: Timeline, places: Collection[int]) -> None:
        self._timeline = timeline
        self._places = tuple(sorted(places))
        self._moves = [tuple(head for head in heads if head[0] in places) for heads in timeline.moves]
        self._counted = {
            place: list(accumulate((self._moves[n][0][0] == place for n in timeline.queues[place]), initial=0))
            for place in self._places
        }
        self.total = self.height(timeline.end)

    def height(self, vector: Vector) -> int:
        """How many transactions have happened that the sources see."""
        return sum(self._counted[place][vector[place]] for place in self._places)

    def below(self, low: Vector, high: Vector) -> bool:
        return all(low[place] <= high[place] for place in self._places)

    def next(self, vector: Vector) -> Iterator[Vector]:
        """Where a schedule can be after one more transaction that the sources see, and as few others as possible."""
        for number in {
            self._timeline.queues[place][vector[place]] for place in self._places if self._left(vector, place)
        }:
            if any(vector[place] != before for place, before in self._moves[number]):
                continue
            moved = list(vector)
            for place, _ in self._moves[number]:
                moved[place] += 1
            after = self._timeline.whole(tuple(moved))
            if all(after[place] == moved[place] for place in self._places):
                yield after

    def _left(self, vector: Vector, place: int) -> bool:
        return vector[place] < self._timeline.end[place]


class Coverage:
    """`complete` is None where there was too much to look at."""

    def __init__(
        self, timeline: Timeline, same: Callable[[Views, Views], bool], views_at: Callable[[Vector], Views]
    ) -> None:
        self._timeline = timeline
        self._same = same
        self._views_at = views_at
        self._watched: frozenset[int] = frozenset()
        self._passage = Passage(timeline, ())
        self._blocks: dict[int, Vector] | None = None
        """By N: where the last block ended, as long as the states may be complete-N."""
        self.complete: bool | None = True
        self.skipped: Failure | None = None
        self.uneven: dict[int, Failure] = {}
        """By N: what keeps the states from being complete-N."""

    @property
    def every(self) -> list[int]:
        """The N > 1 with which the states so far may be complete-N."""
        return sorted(self._blocks or ())

    def watch(self, sources: Collection[str]) -> None:
        """Takes these sources into account from now on."""
        watched = self._watched | {self._timeline.sources.index(source) for source in sources}
        if watched != self._watched:
            self._watched, self._passage = watched, Passage(self._timeline, watched)

    def give_up(self) -> None:
        """A state could not be placed exactly."""
        self.complete, self._blocks = None, {}

    def begin(self, state: Views, vector: Vector) -> None:
        """The first state has its place: it must be the start, and so must all up to there."""
        if not self._same(state, self._views_at(self._timeline.start)):
            self.complete, self._blocks = False, {}
            self.skipped = Failure("skipped", 0, state, self._timeline.start, vector, state)
        self.go(0, state, state, self._timeline.start, vector)

    def end(self, number: int, last: Views, low: Vector) -> None:
        """The last state must be all there is to see up to the end."""
        if not self._watched:
            self.watch(self._timeline.sources)
        self.go(number, last, last, low, self._timeline.end)

    def go(self, number: int, before: Views, state: Views, low: Vector, high: Vector) -> None:
        """A further state has its place."""
        if self.complete:
            self.complete = self._linked(low, high, before, state, 1)
            if self.complete is False:
                self.skipped = Failure("skipped", number, state, low, high, before)
        height, total = self._passage.height(high), self._passage.total
        if self._blocks is None and height:
            sizes = {*range(2, min(total, LARGEST_N) + 1), *(n for n in range(2, height + 1) if height % n == 0)}
            self._blocks = dict.fromkeys(sizes, self._timeline.start)
        unchanged = self._same(before, state)
        for n, began in list((self._blocks or {}).items()):
            ends_block = height % n == 0 or height == total
            if self._blocks is None or (unchanged and not ends_block):
                continue
            if ends_block and self._linked(began, high, before, state, n):
                self._blocks[n] = high
            else:
                del self._blocks[n]
                self.uneven[n] = Failure("uneven", number, state, began, high, before)

    def _linked(self, low: Vector, high: Vector, before: Views, after: Views, every: int) -> bool | None:
        """Whether some schedule leads from one vector to the other, past such vectors only, each `every` transactions,
        at which the views are first the one state and then the other."""
        passage = self._passage
        if passage.height(high) - passage.height(low) <= every:
            return True
        todo, seen = [(low, False)], {(low, False)}
        while todo:
            at, changed = todo.pop()
            for vector in passage.next(at):
                if not passage.below(vector, high):
                    continue
                if passage.below(high, vector):
                    return True
                for step in self._steps(vector, changed, before, after, every):
                    if step not in seen:
                        seen.add(step)
                        todo.append(step)
            if len(seen) > PASSED:
                return None
        return False

    def _steps(
        self, vector: Vector, changed: bool, before: Views, after: Views, every: int
    ) -> Iterator[tuple[Vector, bool]]:
        if self._passage.height(vector) % every:
            yield vector, changed
            return
        views = self._views_at(vector)
        if not changed and self._same(views, before):
            yield vector, False
        if self._same(views, after):
            yield vector, True
