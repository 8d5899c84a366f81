"""Where blocks end: which views are cut together, and when.

Strong managers work through the updates between two cuts and send one action list for them. Lists of two views that
cover one row of the view-update table must end at the same cut: otherwise they overlap in a chain that never closes.

*Together.* With `order: source` all rows of a source are tied, and so a group has one component. With `order: views`
only the rows that share a view are: views that share a relation are one component, and have cuts of their own. A
transaction that concerns several components, and a global one whose parts do, ties these until it has been applied;
then each goes its own way again.

*When.* As soon as the block before has been merged and no commit is left waiting for an append: so under load blocks
grow by themselves, and commits come as fast as appends do. A block that could end at once *gathers* first: what comes
in a burst becomes one commit. It does so until nothing has come for a moment, and never for long. Blocks of complete-N
views end after every N transactions, whenever they come.

*How large.* A backlog is worked off in steps that each commit: a block that has grown beyond a number of rows ends
before the last one that has come, and the rest is the next block. That number follows from the time that such blocks
took so far.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from strobe.algebra.connected import connected
from strobe.algebra.view import View
from strobe.messages import Cut, Rel

GATHER = 0.15
"""Seconds for which a block gathers, at the most; less if the freshness of its views is less."""

QUIET = 0.025
"""Seconds after which it gathers no longer if nothing has come."""


@dataclass(frozen=True)
class Sizes:
    """How many changed rows a block may have. The first large one has `first`; as long as they are worked off in half
    of `seconds`, the next one may have twice as many, and if it takes longer than `seconds`, half."""

    step: int = 100
    """Rows are counted in steps of so many."""
    first: int = 5_000
    least: int = 500
    most: int = 20_000
    seconds: float = 4.0


class Table(Protocol):
    """What is asked of the view-update table."""

    def holds(self, number: int) -> bool:
        """Whether this row has not been applied."""
        ...

    def open_through(self, number: int, views: Collection[str] | None = None) -> bool:
        """Whether a row up to this one, which concerns one of these views, has not been applied."""
        ...


class Component:
    """Views whose blocks end together, the last row for them, and where and when their last block ended."""

    def __init__(self, views: Collection[str]) -> None:
        self.views = frozenset(views)
        self.arrived = 0
        self.cut = 0
        self.cut_at = float("-inf")
        self.began = self.latest = 0.0
        """When the first and the last row came that have not been cut."""
        self.large_at: float | None = None
        """When its last block ended, if that was as large as a block may be."""
        self.steps: deque[int] = deque()
        """The numbers of rows of these at which a further step of changed rows was full."""
        self._changed = 0

    def arrive(self, rel: Rel, step: float, now: float) -> None:
        if not self.uncut:
            self.began = now
        self.latest = now
        self.arrived = rel.number
        self._changed += rel.rows
        if self._changed >= step:
            self.steps.append(rel.number)
            self._changed = 0

    def end(self, number: int, now: float) -> None:
        self.cut, self.cut_at = number, now
        while self.steps and self.steps[0] <= number:
            self.steps.popleft()

    @property
    def uncut(self) -> bool:
        """Whether anything has arrived since the last cut."""
        return self.arrived > self.cut


def components(views: Mapping[str, View]) -> tuple[Component, ...]:
    """The views of a group, in components that share no relation."""
    used = {name: [relation.id for relation in view.relations] for name, view in views.items()}
    return tuple(Component(found) for found in connected(used))


@dataclass
class _Tie:
    rows: set[int]
    global_ids: set[str]
    views: set[str]


class Ties:
    """Components that are tied by rows which wait."""

    def __init__(self, of: Collection[Component]) -> None:
        self._components = tuple(of)
        self._ties: list[_Tie] = []

    def arrive(self, rel: Rel, step: float, now: float) -> None:
        if len(self._components) == 1:
            self._components[0].arrive(rel, step, now)
            return
        concerned = {component for component in self._components if not component.views.isdisjoint(rel.views)}
        for component in concerned:
            component.arrive(rel, step, now)
        ids = {part.id for part in rel.info.part_of}
        tie = next((tie for tie in self._ties if tie.global_ids & ids), None)
        if tie is not None:
            tie.rows.add(rel.number)
            tie.global_ids |= ids
            tie.views |= rel.views
        elif len(concerned) > 1 or ids:
            self._ties.append(_Tie({rel.number}, ids, set(rel.views)))

    def together(self, waits: Callable[[int], bool]) -> list[list[Component]]:
        """All components, those that are tied in one list; `waits` tells of a row whether it has not been applied."""
        self._ties = [tie for tie in self._ties if any(map(waits, tie.rows))]
        places = connected({i: c.views for i, c in enumerate(self._components)}, [tie.views for tie in self._ties])
        return [[self._components[i] for i in sorted(place)] for place in places]


class Blocks:
    """The blocks of one group of views."""

    def __init__(
        self,
        views: Mapping[str, View],
        table: Table,
        *,
        pace: int = 0,
        apart: bool = False,
        freshness: Mapping[str, float] | None = None,
        sizes: Sizes | None = Sizes(),  # noqa: B008  # frozen
    ) -> None:
        """A block ends after `pace` transactions (complete-N), or, with 0, whenever it suits. With `apart`, blocks end
        together only where they must; with a pace, all of them do. `freshness` is how many seconds changes of each view
        may wait to share a commit. Without `sizes`, every block has all that has come."""
        self.components = components(views) if apart and not pace else (Component(views),)
        self.pace = pace
        self.arrived = 0
        """The number of the last row."""
        self._table = table
        self._freshness = freshness or {}
        self._ties = Ties(self.components)
        self._rows = 0
        self._sizes = sizes
        self._steps = sizes.first // sizes.step if sizes else 0
        """How many steps of rows a block may have now."""

    def arrive(self, rel: Rel, now: float) -> None:
        self.arrived = rel.number
        self._rows += not rel.empty
        self._ties.arrive(rel, self._sizes.step if self._sizes else math.inf, now)

    @property
    def uncut(self) -> bool:
        """Whether anything has arrived since the last cut."""
        return any(component.uncut for component in self.components)

    @property
    def full(self) -> bool:
        """Whether a block of complete-N has its N rows."""
        return self.pace > 0 and self._rows >= self.pace

    def together(self) -> list[list[Component]]:
        """The components, with those in one list that must have their next cut in common."""
        return self._ties.together(self._table.holds)

    def open(self, component: Component) -> bool:
        """Whether anything of its last block has not been applied."""
        whom = None if len(self.components) == 1 else component.views
        return self._table.open_through(component.cut, whom)

    def due(self, now: float, at_work: Callable[[str], bool], waiting: int = 0) -> list[list[Component]]:
        """The components whose blocks are to end now; `at_work` tells of a view whether its last block may still bring
        something by itself, `waiting` is how many commits are not on their way yet."""
        if self.pace or waiting or not self.uncut:
            return []
        return [
            tied
            for tied in self.together()
            if any(component.uncut for component in tied)
            and not any(self._goes_on(component, at_work) for component in tied)
            and now >= self._gathers_until(tied)
        ]

    def next_due(self, now: float) -> float:
        """When blocks that wait for nothing but time end; infinity if there are none."""
        if self.pace or not self.uncut:
            return math.inf
        ends = [self._gathers_until(tied) for tied in self.together() if any(component.uncut for component in tied)]
        return min((end for end in ends if end > now), default=math.inf)

    def _goes_on(self, component: Component, at_work: Callable[[str], bool]) -> bool:
        """Whether the block goes on by itself. Where its rows are tied to later ones, it needs another cut."""
        return self.open(component) and any(map(at_work, component.views))

    def _gathers_until(self, tied: Sequence[Component]) -> float:
        """When what has come is cut, at the latest, if it could be cut at once."""
        if self._full(tied):
            return -math.inf
        uncut = [component for component in tied if component.uncut]
        freshness = min(self._freshness.get(view, 0.0) for component in tied for view in component.views)
        began = min(component.began for component in uncut) + min(GATHER, freshness)
        return min(began, max(component.latest for component in uncut) + QUIET)

    def _full(self, tied: Sequence[Component]) -> bool:
        return self._sizes is not None and any(len(component.steps) >= self._steps for component in tied)

    def end(self, ended: Sequence[Component], now: float, *, whole: bool = True) -> Cut:
        """Their blocks end here; those that have become too large, unless they must be `whole`, before."""
        self._rows = 0
        number, large = self.arrived, not whole and self._full(ended)
        if large:
            self._adapt(ended, now)
            number = min(c.steps[min(self._steps, len(c.steps)) - 1] for c in ended if c.steps)
        for component in ended:
            component.end(number, now)
            component.large_at = now if large else None
        return Cut(number, frozenset(view for component in ended for view in component.views))

    def _adapt(self, ended: Sequence[Component], now: float) -> None:
        """Larger or smaller blocks from now on, by what the last one took."""
        since = [component.large_at for component in ended if component.large_at is not None]
        if self._sizes is None or not since:
            return
        took, step = now - min(since), self._sizes.step
        if took > self._sizes.seconds:
            self._steps = max(self._sizes.least // step, self._steps // 2)
        elif took <= self._sizes.seconds / 2:
            self._steps = min(self._sizes.most // step, self._steps * 2)
