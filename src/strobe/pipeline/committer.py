"""Turns warehouse transactions into commits: one thread, one append at a time, many commits in an append.

While an append is on its way the next transactions gather and share the one after it, as many as `batching` says; each
keeps a commit number of its own, so that *complete* costs what *strong* costs. Transactions that change nothing only
move positions: these become durable with the next commit, or now and then by a commit without rows, so that the
sources can discard their logs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from strobe.algebra.view import View
from strobe.engine.commits import Commits, absorbed
from strobe.messages import Commit, CommitHeader, Position, WarehouseTransaction
from strobe.pipeline.batching import Batching
from strobe.pipeline.sink import Sink

QUIET = 30.0
"""Seconds after which positions that moved without rows are made durable."""


Final = Callable[[CommitHeader, Sequence[Commit]], CommitHeader | None]
"""A last commit: given the one before it, and the commits up to there that it has to append with itself; none of them,
if it returns nothing."""


@dataclass(frozen=True)
class Waiting:
    transaction: WarehouseTransaction
    due: float
    keep: bool
    """Whether it is a commit of its own even if it changes nothing."""


class Committer(threading.Thread):
    def __init__(
        self,
        sink: Sink,
        last: CommitHeader,
        views: Mapping[str, View],
        floors: Mapping[str, Mapping[str, Position]],
        *,
        unguaranteed: Collection[str] = (),
        fail: Callable[[BaseException], None],
    ) -> None:
        """`floors` is what each view reflects at the start: one may be ahead of others until they have caught up.

        Views in `unguaranteed` keep no step with the others: they are where their own action lists say.
        """
        super().__init__(name="committer", daemon=True)
        self._sink = sink
        self._commits = Commits(last, views, floors, unguaranteed)
        self._durable = last
        self._fail = fail
        self._queue: deque[Waiting] = deque()
        self._moved: WarehouseTransaction | None = None
        self.visible: dict[str, Position] = {}
        """The vector that readers see: of the last durable commit, or of what followed it without changing anything."""
        self._moved_at = 0.0
        self.batching = Batching()
        self.appends = 0
        self.append_seconds = 0.0
        self._flush = False
        self._held = False
        self._final: Final | None = None
        self._stopping = False
        self._working = False
        self._changed = threading.Condition()

    @property
    def busy(self) -> bool:
        """Whether anything is waiting or on its way."""
        with self._changed:
            return bool(self._queue) or self._working or self._flush

    @property
    def waiting(self) -> int:
        with self._changed:
            return len(self._queue)

    @property
    def last(self) -> CommitHeader:
        """The last commit that is durable."""
        return self._durable

    def submit(self, transaction: WarehouseTransaction, *, wait: float, keep: bool) -> None:
        """Commit this, at the latest `wait` seconds from now."""
        with self._changed:
            if keep or not all(action.empty for action in transaction.actions):
                self._queue.append(Waiting(transaction, time.monotonic() + wait, keep))
                self._changed.notify_all()
            elif self._queue:
                self._queue.append(Waiting(transaction, time.monotonic() + QUIET, False))
            else:
                self._moved_at = self._moved_at if self._moved else time.monotonic()
                self._moved = absorbed(self._moved, transaction)
                if not self._working:
                    self.visible = {**self.visible, **transaction.positions}

    def flush(self) -> None:
        """Make everything durable now, positions that moved without rows included."""
        with self._changed:
            self._flush = True
            self._changed.notify_all()

    def hold(self) -> None:
        """Begin no append until `release`: what comes is to be part of one that is not an ordinary one."""
        with self._changed:
            self._held = True

    def release(self) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()

    @property
    def working(self) -> bool:
        """Whether an append is on its way."""
        with self._changed:
            return self._working

    def hand_over(self) -> list[Commit]:
        """All that is waiting, as commits that somebody else appends; while this is held, and not working."""
        with self._changed:
            commits: list[Commit] = []
            while self._queue or self._moved is not None:
                commits += [self._numbered(transaction) for transaction in self._take()]
            self._working = False
            return commits

    def end_with(self, final: Final) -> None:
        """Make this the last commit, and append with it all that is waiting."""
        with self._changed:
            self._final = final
            self._changed.notify_all()

    def stop(self, *, everything: bool = True) -> None:
        """Commit what is waiting (or, after a failure, only what is on its way), then end."""
        with self._changed:
            if not everything:
                self._queue.clear()
                self._moved = None
            self._stopping = self._flush = True
            self._changed.notify_all()

    def run(self) -> None:
        try:
            while (batch := self._next()) is not None:
                self._commit(batch)
            self._end()
        except BaseException as error:  # the coordinator decides what a failed append means
            self._fail(error)

    def _end(self) -> None:
        with self._changed:
            final = None if self._stopping else self._final
            commits = self.hand_over() if final else []
            self._working = final is not None
        if final is not None:
            self._durable = final(self._commits.last, commits) or self._durable
        with self._changed:
            self._working = False

    def _next(self) -> list[WarehouseTransaction] | None:
        """Wait for something to commit; None at the end."""
        with self._changed:
            self._working = False
            self._changed.notify_all()
            while self._final is None or self._stopping:
                if self._held and not self._stopping:
                    self._changed.wait(1.0)
                    continue
                now = time.monotonic()
                if self._queue and (
                    self._flush or len(self._queue) >= self.batching.size or min(w.due for w in self._queue) <= now
                ):
                    return self._take()
                if self._moved is not None and (self._flush or self._moved_at + QUIET <= now):
                    return self._take()
                self._flush = False
                if self._stopping:
                    return None
                due = min((w.due for w in self._queue), default=now + 1)
                self._changed.wait(max(0.001, min(1.0, due - now)))
            return None

    def _take(self) -> list[WarehouseTransaction]:
        """The next transactions that become commits; one that only moved positions is absorbed by its successor."""
        self._working = True
        batch: list[WarehouseTransaction] = []
        moved, self._moved = self._moved, None
        most = self.batching.size
        while self._queue and len(batch) < most:
            waiting = self._queue.popleft()
            empty = all(action.empty for action in waiting.transaction.actions)
            moved = absorbed(moved, waiting.transaction)
            if not empty or waiting.keep:
                batch.append(moved)
                moved = None
        if moved is not None and not batch:
            batch.append(moved)
        elif moved is not None:
            self._moved, self._moved_at = moved, time.monotonic()
        return batch

    def _commit(self, batch: list[WarehouseTransaction]) -> None:
        commits = [self._numbered(transaction) for transaction in batch]
        started = time.perf_counter()
        durable = self._sink.append(commits)
        seconds = time.perf_counter() - started
        self.batching.took(len(batch), seconds)
        self.appends += 1
        self.append_seconds += seconds
        self._durable = durable
        with self._changed:
            for transaction in (*batch, *([self._moved] if self._moved else [])):
                self.visible = {**self.visible, **transaction.positions}

    def _numbered(self, transaction: WarehouseTransaction) -> Commit:
        return self._commits.next(transaction, datetime.now(timezone.utc))
