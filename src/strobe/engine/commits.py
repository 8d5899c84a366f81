"""What warehouse transactions become: gathered for an append, numbered commits that say where every view stands."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from strobe.algebra.view import View
from strobe.merge.removals import combined
from strobe.messages import Commit, CommitHeader, Position, WarehouseTransaction


class Commits:
    """Makes one commit after the other, from a header on."""

    def __init__(
        self,
        last: CommitHeader,
        views: Mapping[str, View],
        floors: Mapping[str, Mapping[str, Position]],
        unguaranteed: Collection[str] = (),
    ) -> None:
        """`floors` is what each view reflects at the start: one may be ahead of others until they have caught up.

        Views in `unguaranteed` keep no step with the others: they are where their own action lists say.
        """
        self.last = last
        self._views = dict(views)
        self._floors = floors
        self._unguaranteed = frozenset(unguaranteed)

    def next(self, transaction: WarehouseTransaction, now: datetime) -> Commit:
        as_of = {
            v: {**self.last.as_of.get(v, {}), **self._times(v, view, transaction)}
            for v, view in self._views.items()
            if view.sources[0] in transaction.positions
        }
        self.last = self.last.following(now, self._vectors(transaction), as_of)
        removals, changes = combined(transaction.actions)
        return Commit(self.last, changes, removals)

    def _times(self, name: str, view: View, transaction: WarehouseTransaction) -> dict[str, datetime]:
        """The sources' own commit times; not of transactions that a view which is ahead has reflected long ago."""
        positions, floors = transaction.positions, self._floors[name]
        return {s: t for s, t in transaction.as_of.items() if s in view.sources and floors[s] <= positions[s]}

    def _vectors(self, transaction: WarehouseTransaction) -> dict[str, dict[str, str]]:
        """Where the views stand whose sources took part; other groups' stay where they are."""
        found = {}
        for name, view in self._views.items():
            ahead, floors = transaction.ahead.get(name, {}), self._floors[name]
            if name in self._unguaranteed:
                found[name] = {**self.last.positions[name], **{s: p.text for s, p in ahead.items()}}
            elif view.sources[0] in transaction.positions:
                places = {s: (transaction.positions[s], floors[s], ahead.get(s, floors[s])) for s in view.sources}
                found[name] = {s: max(of, key=lambda p: p.order).text for s, of in places.items()}
        return found


@dataclass(frozen=True)
class Waiting:
    transaction: WarehouseTransaction
    due: float
    keep: bool
    """Whether it is a commit of its own even if it changes nothing."""


class Gathering:
    """What waits for an append, with the time passed in.

    A transaction that changes nothing only moves positions: its successor absorbs it, or, if none comes, a commit
    without rows makes it durable.
    """

    def __init__(self, quiet: float) -> None:
        """`quiet` is after how many seconds positions that moved without rows are due."""
        self._quiet = quiet
        self._queue: deque[Waiting] = deque()
        self.moved: WarehouseTransaction | None = None
        """What only moves positions, and nothing is behind it."""
        self._moved_at = 0.0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def empty(self) -> bool:
        return not self._queue and self.moved is None

    def add(self, transaction: WarehouseTransaction, wait: float, keep: bool, now: float) -> bool:
        """Due `wait` seconds from now; whether it is a commit of its own."""
        own = keep or not all(action.empty for action in transaction.actions)
        if own or self._queue:
            self._queue.append(Waiting(transaction, now + (wait if own else self._quiet), keep))
        else:
            self._moved_at = self._moved_at if self.moved else now
            self.moved = absorbed(self.moved, transaction)
        return own

    def due(self, now: float, enough: int) -> bool:
        """Whether something has waited for long enough, or so many wait."""
        if self._queue and (len(self._queue) >= enough or self.next_due(now) <= now):
            return True
        return self.moved is not None and self._moved_at + self._quiet <= now

    def next_due(self, otherwise: float) -> float:
        """When the first transaction is due."""
        return min((waiting.due for waiting in self._queue), default=otherwise)

    def take(self, most: int, now: float) -> list[WarehouseTransaction]:
        """The next transactions that become commits."""
        found: list[WarehouseTransaction] = []
        moved, self.moved = self.moved, None
        while self._queue and len(found) < most:
            waiting = self._queue.popleft()
            moved = absorbed(moved, waiting.transaction)
            if waiting.keep or not all(action.empty for action in waiting.transaction.actions):
                found.append(moved)
                moved = None
        if moved is not None and not found:
            found.append(moved)
        elif moved is not None:
            self.moved, self._moved_at = moved, now
        return found

    def take_all(self, now: float) -> list[WarehouseTransaction]:
        found: list[WarehouseTransaction] = []
        while not self.empty:
            found += self.take(len(self._queue) + 1, now)
        return found

    def clear(self) -> None:
        self._queue.clear()
        self.moved = None


def absorbed(before: WarehouseTransaction | None, transaction: WarehouseTransaction) -> WarehouseTransaction:
    """A transaction that also moves what an earlier one without rows moved."""
    if before is None:
        return transaction
    return replace(
        transaction,
        positions={**before.positions, **transaction.positions},
        as_of={**before.as_of, **transaction.as_of},
        ahead={**before.ahead, **transaction.ahead},
    )
