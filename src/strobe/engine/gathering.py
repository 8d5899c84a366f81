"""What has been merged and gathers for an append, in order, with the time passed in.

Transactions that change nothing only move positions: they are absorbed by the next one or, if none comes, made durable
by a commit without rows. What cannot be proven at the moment is held back, and what belongs to other groups of views
overtakes it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from strobe.engine.commits import absorbed, divided
from strobe.messages import Position, WarehouseTransaction

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
    def positions(self) -> dict[str, Position]:
        """Where the sources are that any of it moves, after the last of it."""
        moved = [self.moved] if self.moved is not None else []
        return {s: p for t in (*moved, *(w.transaction for w in self.waiting)) for s, p in t.positions.items()}

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


class _Queue:
    """What waits, in order, with the earliest time at which any of it is due."""

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._dues: deque[float] = deque()
        """The earliest of all, the earliest of those behind that one, and so on."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def due(self) -> float:
        return self._dues[0] if self._dues else math.inf

    def append(self, waiting: Waiting) -> None:
        while self._dues and self._dues[-1] > waiting.due:
            self._dues.pop()
        self._dues.append(waiting.due)
        self._waiting.append(waiting)

    def appendleft(self, waiting: Waiting) -> None:
        if waiting.due <= self.due:
            self._dues.appendleft(waiting.due)
        self._waiting.appendleft(waiting)

    def popleft(self) -> Waiting:
        waiting = self._waiting.popleft()
        if self._dues[0] == waiting.due:
            self._dues.popleft()
        return waiting

    def clear(self) -> None:
        self._waiting.clear()
        self._dues.clear()


class Gathering:
    def __init__(self, quiet: float) -> None:
        """`quiet` is after how many seconds positions that moved without rows are due."""
        self._quiet = quiet
        self._queue = _Queue()
        self._moved: WarehouseTransaction | None = None
        self._moved_at = 0.0
        self._held = Taken()
        self._again = 0.0

    def __len__(self) -> int:
        return len(self._queue) + len(self._held.waiting)

    @property
    def empty(self) -> bool:
        return not (self._queue or self._held or self._moved is not None)

    def add(self, transaction: WarehouseTransaction, wait: float, keep: bool, now: float) -> bool:
        """Due `wait` seconds from now; whether it becomes a commit."""
        waiting = Waiting(transaction, now + wait, keep)
        if waiting.commits:
            self._queue.append(waiting)
        elif self._queue or self._held:
            self._queue.append(Waiting(transaction, now + self._quiet, False))
        else:
            self._moved_at = self._moved_at if self._moved else now
            self._moved = absorbed(self._moved, transaction)
        return waiting.commits

    @property
    def moved(self) -> Mapping[str, Position]:
        """Positions that have moved without rows since the last commit."""
        return {} if self._moved is None else self._moved.positions

    def due(self, now: float, enough: int, *, flush: bool = False) -> bool:
        """Whether something is to be appended now: so many commits are enough, and with `flush` anything is."""
        if (flush and (self._queue or self._moved is not None)) or (self._held and self._again <= now):
            return True
        if self._queue and (len(self._queue) >= enough or self._queue.due <= now):
            return True
        return self._moved is not None and self._moved_at + self._quiet <= now

    def next_due(self, now: float) -> float:
        """When something will be due, if nothing comes before; at the latest in a second."""
        held = [self._again] if self._held else []
        return min([now + 1.0, *held, self._queue.due])

    def take(self, most: int, now: float) -> list[WarehouseTransaction]:
        """The next transactions that become commits, at the most so many."""
        return self.sort_out(self.take_out(most), (), now)

    def take_all(self, now: float) -> list[WarehouseTransaction]:
        found: list[WarehouseTransaction] = []
        while not self.empty:
            found += self.take(len(self) + 1, now)
        return found

    def take_out(self, most: int) -> Taken:
        """The next ones, at the most so many commits, with everything that was held back; to be sorted out."""
        waiting, moved = list(self._held.waiting), self._held.moved
        if not self._held:
            moved, self._moved = self._moved, None
        self._held = Taken()
        count = sum(w.commits for w in waiting)
        while self._queue and count < most:
            waiting.append(self._queue.popleft())
            count += waiting[-1].commits
        return Taken(tuple(waiting), moved)

    def sort_out(self, taken: Taken, held: Collection[str], now: float) -> list[WarehouseTransaction]:
        """What becomes a commit of what was taken out; what moves one of the sources in `held` is put back, before
        whatever has come since."""
        back, free = taken.divided(held)
        batch, rest = free.commits()
        if back and self._moved is not None:  # it came later: it must not go first
            self._queue.appendleft(Waiting(self._moved, now + self._quiet, False))
            self._moved = None
        self._held, self._again = back, now + AGAIN
        if rest is not None and back:
            self._queue.appendleft(Waiting(rest, now + self._quiet, False))
        elif rest is not None:
            self._moved, self._moved_at = absorbed(rest, self._moved) if self._moved else rest, now
        return batch

    def clear(self) -> None:
        self._queue.clear()
        self._moved, self._held = None, Taken()
