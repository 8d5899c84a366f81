"""Turns warehouse transactions into commits: one thread, one append at a time, many commits in an append.

While an append is on its way the next transactions gather and share the one after it, as many as `batching` says; each
keeps a commit number of its own, so that *complete* costs what *strong* costs. Transactions that change nothing only
move positions: these become durable with the next commit, or now and then by a commit without rows, so that the
sources can discard their logs.

Nothing is appended before the sources have proven that no definition on which it rests has changed (see `proving`).
What cannot be proven now waits, and other groups' commits overtake it. Positions that moved are proven too, before
anybody is told of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial

from strobe.algebra.view import View
from strobe.engine.commits import Commits
from strobe.engine.gathering import AGAIN, Gathering, Taken
from strobe.errors import NotNow
from strobe.messages import Commit, CommitHeader, Position, WarehouseTransaction
from strobe.pipeline.batching import Batching
from strobe.pipeline.sink import Sink
from strobe.pipeline.states import COMMITTER, CommitterEvent, Committing

QUIET = 30.0
"""Seconds after which positions that moved without rows are made durable."""

LOOK = 0.2
"""Seconds between two looks at definitions, at the least, while positions move and nothing is appended."""

IDLE = 2.0
"""The same while nothing happens at all."""

APPENDS = {Committing.IDLE, Committing.GATHERING, Committing.DRAINING}
"""States in which an ordinary append may begin."""

WORKING = {
    *(Committing.APPENDING, Committing.HOLDING, Committing.ENDING),
    *(Committing.CUTTING_OVER, Committing.DRAINING, Committing.FAILED),
}
"""States in which an append may be on its way, or may have happened."""


Final = Callable[[CommitHeader, Sequence[Commit]], CommitHeader | None]
"""A last commit: given the one before it, and the commits up to there that it has to append with itself; none of them,
if it returns nothing."""


Prove = Callable[[Collection[str]], Collection[str]]
"""Asks sources whether their relations are still what they were; returns the sources of which nothing can be committed
now. Raises if views cannot be kept any more."""


def unproven(_sources: Collection[str]) -> Collection[str]:
    """Where there is nothing to prove."""
    return ()


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


class Committer(threading.Thread):
    def __init__(
        self,
        sink: Sink,
        last: CommitHeader,
        views: Mapping[str, View],
        floors: Mapping[str, Mapping[str, Position]],
        *,
        unguaranteed: Collection[str] = (),
        prove: Prove = unproven,
        fail: Callable[[BaseException], None],
        changed: Callable[[], None] = lambda: None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`floors` is what each view reflects at the start: one may be ahead of others until they have caught up.
        `changed` is called when something has been appended or proven. `now` is the time that commits carry.

        Views in `unguaranteed` keep no step with the others: they are where their own action lists say.
        """
        super().__init__(name="committer", daemon=True)
        self._sink = sink
        self._commits = Commits(last, views, floors, unguaranteed)
        self._durable = last
        self._fail, self._has_changed, self._now = fail, changed, now
        self._prove = prove
        self._sources = frozenset(source for view in views.values() for source in view.sources)
        self._gathering = Gathering(QUIET)
        self.visible: dict[str, Position] = {}
        """The vector that readers see: of the last durable commit, or of what followed it without changing anything."""
        self._looked_at = float("-inf")
        self.batching = Batching()
        self.appends = 0
        self.append_seconds = 0.0
        self._flush = False
        self._final: Final | None = None
        self._changed = threading.Condition()
        self._state: Committing = COMMITTER.begins

    @property
    def state(self) -> Committing:
        return self._state

    def _told(self, event: CommitterEvent) -> None:
        """The one place where the state changes, under the lock."""
        self._state = COMMITTER.next(self._state, event)
        self._changed.notify_all()

    @property
    def busy(self) -> bool:
        """Whether anything is waiting or on its way."""
        with self._changed:
            return len(self._gathering) > 0 or self._state in WORKING or self._flush

    @property
    def waiting(self) -> int:
        with self._changed:
            return len(self._gathering)

    @property
    def last(self) -> CommitHeader:
        """The last commit that is durable."""
        return self._durable

    def submit(self, transaction: WarehouseTransaction, *, wait: float, keep: bool) -> None:
        """Commit this, at the latest `wait` seconds from now."""
        with self._changed:
            if self._gathering.add(transaction, wait, keep, time.monotonic()):
                self._told(CommitterEvent.SUBMITTED)
            else:
                self._changed.notify_all()

    def flush(self) -> None:
        """Make everything durable now, positions that moved without rows included."""
        with self._changed:
            self._flush = True
            self._changed.notify_all()

    def hold(self) -> None:
        """Begin no append until `release`: what comes is to be part of one that is not an ordinary one."""
        with self._changed:
            self._told(CommitterEvent.HOLD)

    def release(self) -> None:
        with self._changed:
            self._told(CommitterEvent.RELEASE)
            self._gather()

    @property
    def working(self) -> bool:
        """Whether an append is on its way."""
        with self._changed:
            return self._state in WORKING

    def hand_over(self) -> list[Commit]:
        """All that is waiting, proven, as commits that somebody else appends; while this is held."""
        if held := self._prove(self._sources):
            raise NotNow(f"the tables of {', '.join(sorted(held))} cannot be proven now", fix="Try again.")
        with self._changed:
            self._told(CommitterEvent.HAND_OVER)
            return self._all_waiting()

    def end_with(self, final: Final) -> None:
        """Make this the last commit, and append with it all that is waiting."""
        with self._changed:
            self._final = final
            self._told(CommitterEvent.END_WITH)

    def stop(self, *, everything: bool = True) -> None:
        """Commit what is waiting (or, after a failure, only what is on its way), then end."""
        with self._changed:
            if not everything:
                self._gathering.clear()
            self._flush = True
            self._told(CommitterEvent.STOP)

    def run(self) -> None:
        try:
            while (work := self._next()) is not None:
                self._has_changed()  # what was taken out waits no longer
                work()
                self._has_changed()
        except BaseException as error:  # the coordinator decides what a failed append means
            self._fail(error)
            with self._changed:
                self._told(CommitterEvent.FAIL)

    def _next(self) -> Callable[[], None] | None:
        """Wait for something to append; None at the end."""
        with self._changed:
            while self._state is not Committing.ENDED:
                now = time.monotonic()
                if self._state is Committing.ENDING and self._final is not None:
                    return partial(self._cut_over, self._final)
                if self._state in APPENDS and self._gathering.due(now, self.batching.size, flush=self._flush):
                    self._told(CommitterEvent.DUE)
                    return partial(self._append, self._gathering.take_out(self.batching.size))
                if self._state in APPENDS:
                    self._flush = False
                if self._state is Committing.DRAINING:
                    self._told(CommitterEvent.DRAINED)
                elif self._state in APPENDS and now >= self._next_look():
                    return self._look
                else:
                    self._changed.wait(self._patience(now))
            return None

    def _next_look(self) -> float:
        """When definitions are looked at, if nothing is appended before."""
        moved = any(self.visible.get(s) != p for s, p in self._gathering.moved.items())
        return self._looked_at + (LOOK if moved else IDLE)

    def _patience(self, now: float) -> float:
        """Seconds to wait, if nobody says anything before."""
        if self._state not in APPENDS:
            return 1.0
        return max(0.001, min(self._gathering.next_due(now), self._next_look()) - now)

    def _gather(self) -> None:
        """What has come meanwhile waits like anything else."""
        if len(self._gathering) and self._state is Committing.IDLE:
            self._told(CommitterEvent.SUBMITTED)

    def _all_waiting(self) -> list[Commit]:
        return [self._numbered(transaction) for transaction in self._gathering.take_all(time.monotonic())]

    def _cut_over(self, final: Final) -> None:
        """Make the last commit, as soon as everything in it is proven."""
        if self._prove(self._sources):
            with self._changed:
                self._changed.wait_for(lambda: self._state is not Committing.ENDING, AGAIN)
            return
        with self._changed:
            if self._state is not Committing.ENDING:
                return
            self._told(CommitterEvent.BEGIN_LAST)
            commits = self._all_waiting()
        self._durable = final(self._commits.last, commits) or self._durable
        with self._changed:
            self._told(CommitterEvent.DURABLE)

    def _look(self) -> None:
        """See whether all definitions are what they were; then positions that moved without rows may be shown."""
        with self._changed:
            moved = dict(self._gathering.moved)
        held = self._prove(self._sources)
        with self._changed:
            self._looked_at = time.monotonic()
            self.visible = {**self.visible, **{s: p for s, p in moved.items() if s not in held}}

    def _append(self, taken: Taken) -> None:
        held = self._prove(taken.positions.keys())
        with self._changed:
            self._looked_at = time.monotonic()
            batch = self._gathering.sort_out(taken, held, self._looked_at)
        if batch:
            self._durable = self._commit(batch)
        with self._changed:
            shown = {s: p for s, p in taken.positions.items() if s not in held}
            self.visible = {**self.visible, **shown}
            self._told(CommitterEvent.DURABLE if batch else CommitterEvent.PUT_OFF)
            self._gather()

    def _commit(self, batch: list[WarehouseTransaction]) -> CommitHeader:
        commits = [self._numbered(transaction) for transaction in batch]
        started = time.perf_counter()
        durable = self._sink.append(commits)
        seconds = time.perf_counter() - started
        self.batching.took(len(batch), seconds)
        self.appends += 1
        self.append_seconds += seconds
        return durable

    def _numbered(self, transaction: WarehouseTransaction) -> Commit:
        return self._commits.next(transaction, self._now())
