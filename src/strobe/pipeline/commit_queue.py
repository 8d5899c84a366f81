"""What has been merged and waits to be appended, in order.

Transactions that change nothing only move positions: they are absorbed by the next one. What cannot be proven at the
moment is held back, and what belongs to other groups of views overtakes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from strobe.engine.commits import absorbed, divided
from strobe.messages import Position, WarehouseTransaction

QUIET = 30.0
"""Seconds after which positions that moved without rows are made durable."""

AGAIN = 0.5
"""Seconds after which what was held back is tried again."""


@dataclass(frozen=True)
class Waiting:
    transaction: WarehouseTransaction
    due: float
    keep: bool
    """Whether it is a commit of its own even if it changes nothing."""

    @property
    def commits(self) -> bool:
        return self.keep or not all(action.empty for action in self.transaction.actions)


@dataclass(frozen=True)
class Taken:
    """What has been taken out together: first what only moved positions, then the others."""

    waiting: tuple[Waiting, ...] = ()
    moved: WarehouseTransaction | None = None

    def __bool__(self) -> bool:
        return bool(self.waiting) or self.moved is not None

    @property
    def sources(self) -> frozenset[str]:
        moved = [self.moved] if self.moved is not None else []
        return frozenset(s for t in (*moved, *(w.transaction for w in self.waiting)) for s in t.positions)

    def divided(self, held: Collection[str]) -> tuple[Taken, Taken]:
        """What moves some of these sources, and the rest. A commit is of one group; positions may be of several."""
        back, free = list[Waiting](), list[Waiting]()
        for waiting in self.waiting:
            if waiting.commits:
                (back if waiting.transaction.positions.keys() & set(held) else free).append(waiting)
            else:
                for part, found in zip((back, free), divided(waiting.transaction, held), strict=True):
                    part += [replace(waiting, transaction=found)] if found is not None else []
        stays, goes = (None, None) if self.moved is None else divided(self.moved, held)
        return Taken(tuple(back), stays), Taken(tuple(free), goes)

    def commits(self) -> tuple[list[WarehouseTransaction], WarehouseTransaction | None]:
        """The transactions that become commits, each with the positions that moved before it; and what moved after the
        last of them. If nothing else does, what moved is a commit."""
        batch: list[WarehouseTransaction] = []
        moved = self.moved
        for waiting in self.waiting:
            moved = absorbed(moved, waiting.transaction)
            if waiting.commits:
                batch.append(moved)
                moved = None
        return ([moved], None) if moved is not None and not batch else (batch, moved)


class CommitQueue:
    def __init__(self) -> None:
        self._queue: deque[Waiting] = deque()
        self._moved: WarehouseTransaction | None = None
        self._moved_at = 0.0
        self._held = Taken()
        self._again = 0.0

    def __len__(self) -> int:
        return len(self._queue) + len(self._held.waiting)

    def __bool__(self) -> bool:
        return bool(self._queue or self._held or self._moved is not None)

    def submit(self, transaction: WarehouseTransaction, now: float, wait: float, keep: bool) -> bool:
        """Whether it becomes a commit."""
        waiting = Waiting(transaction, now + wait, keep)
        if waiting.commits:
            self._queue.append(waiting)
        elif self._queue or self._held:
            self._queue.append(Waiting(transaction, now + QUIET, False))
        else:
            self._moved_at = self._moved_at if self._moved else now
            self._moved = absorbed(self._moved, transaction)
        return waiting.commits

    @property
    def moved(self) -> Mapping[str, Position]:
        """Positions that have moved without rows since the last commit."""
        return {} if self._moved is None else self._moved.positions

    def due(self, now: float, size: int, *, flush: bool) -> bool:
        """Whether something is to be appended now: `size` commits are enough, and with `flush` anything is."""
        if (flush and (self._queue or self._moved is not None)) or (self._held and self._again <= now):
            return True
        if self._queue and (len(self._queue) >= size or min(w.due for w in self._queue) <= now):
            return True
        return self._moved is not None and self._moved_at + QUIET <= now

    def next_due(self, now: float) -> float:
        """When something will be due, if nothing comes before; at the latest in a second."""
        held = [self._again] if self._held else []
        return min([now + 1.0, *held, *(w.due for w in self._queue)])

    def take(self, most: int) -> Taken:
        """The next ones, at the most so many commits, with everything that was held back."""
        waiting = list(self._held.waiting)
        moved = self._held.moved if self._held else self._moved
        if not self._held:
            self._moved = None
        self._held = Taken()
        count = sum(w.commits for w in waiting)
        while self._queue and count < most:
            waiting.append(self._queue.popleft())
            count += waiting[-1].commits
        return Taken(tuple(waiting), moved)

    def hold_back(self, held: Taken, now: float) -> None:
        """Put back what cannot be appended yet, before whatever has come since."""
        if held and self._moved is not None:  # it came later: it must not go first
            self._queue.appendleft(Waiting(self._moved, now + QUIET, False))
            self._moved = None
        self._held, self._again = held, now + AGAIN

    def put_back(self, moved: WarehouseTransaction, now: float) -> None:
        """What moved after the last commit that was taken."""
        if self._held:
            self._queue.appendleft(Waiting(moved, now + QUIET, False))
        else:
            self._moved, self._moved_at = absorbed(moved, self._moved) if self._moved else moved, now

    def clear(self) -> None:
        self._queue.clear()
        self._moved, self._held = None, Taken()
