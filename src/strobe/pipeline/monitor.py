"""One thread for each source, reading its transactions.

A source that fails is read again from where it was, with back-off. A monitor can be *paused*, so that nothing new
comes in, and sent on to *hold* exactly at a position: this is how a batch is made to end at the state in which an
audit or a rebuild has read the sources. Or it is sent on to hold behind the part of a global transaction, so that no
such state has one without the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence

from strobe.data.spilled import release
from strobe.errors import LostGuarantee, StrobeError
from strobe.messages import Position, Transaction
from strobe.pipeline.health import Failing, Health
from strobe.pipeline.states import MONITOR, MonitorEvent, Reading
from strobe.retry import READ_SOURCE, Retry
from strobe.sources.base import Source, contained


class Monitor(threading.Thread):
    def __init__(
        self,
        source: Source,
        after: Position,
        stops: Sequence[Position],
        *,
        deliver: Callable[[Transaction], None],
        fail: Callable[[BaseException], None],
        room: Callable[[Position], bool],
        health: Health,
    ) -> None:
        """`room` says whether the system can take more than what was read up to a position; while it cannot, the source
        is left alone: its log keeps. It is asked again at each `look_for_room`."""
        super().__init__(name=f"monitor-{source.name}", daemon=True)
        self.source = source
        self.position = after
        self._stops = list(stops)
        self._deliver, self._fail, self._room, self._health = deliver, fail, room, health
        self._ended = threading.Event()
        self._changed = threading.Condition()
        self._state: Reading = MONITOR.begins
        self._goal: Position | None = None
        """Up to where it reads, if it is to stay somewhere."""
        self._wanted: Collection[str] = ()
        """Global transactions: it reads up to the next part of one of them."""

    @property
    def state(self) -> Reading:
        return self._state

    def _told(self, event: MonitorEvent, goal: Position | None = None, wanted: Collection[str] = ()) -> None:
        """The one place where the state changes."""
        with self._changed:
            self._state, self._goal, self._wanted = MONITOR.next(self._state, event), goal, wanted
            self._changed.notify_all()

    def run(self) -> None:
        retry = Retry(READ_SOURCE, self._ended.wait)
        while not self._ended.is_set():
            if self._comes_to_rest():
                with self._changed:
                    self._changed.wait_for(lambda: self._ended.is_set() or not self.at_rest)
                continue
            try:
                self._read(retry)
                self._health.succeeded(self.source.name, Failing.STREAM)
            except LostGuarantee as error:
                self._fail(error)
                return
            except StrobeError as error:
                self._health.failed(self.source.name, Failing.STREAM, error)
                retry.again()
            except BaseException as error:  # not the source's: Strobe itself must not die silently in this thread
                self._fail(error)
                return

    def _read(self, retry: Retry) -> None:
        stops = [*self._stops, *([goal] if (goal := self._goal) else [])]
        for transaction in self._transactions(stops):
            with self._changed:
                self._changed.wait_for(lambda: self._interrupted() or self._room(self.position))
            if self._interrupted():
                release(transaction)
                return
            self._deliver(transaction)
            self._has_come(transaction)
            self._health.succeeded(self.source.name, Failing.STREAM)
            retry.reset()
            if self._comes_to_rest():
                return

    def _transactions(self, stops: Sequence[Position]) -> Iterator[Transaction]:
        with contained(self.source.name):
            yield from self.source.transactions(self.position, stops, self._interrupted)

    def _has_come(self, transaction: Transaction) -> None:
        with self._changed:
            self.position = transaction.position
            if any(part.id in self._wanted for part in transaction.part_of):
                self._goal, self._wanted = transaction.position, ()

    def _comes_to_rest(self) -> bool:
        """In this thread, which delivers nothing more from here on if it does."""
        with self._changed:
            if self._state is Reading.PAUSING:
                self._state = MONITOR.next(self._state, MonitorEvent.RESTED)
            elif self._goal is not None and self._goal <= self.position and self._state is Reading.READING_TO:
                self._state = MONITOR.next(self._state, MonitorEvent.REACHED)
            return self._state in (Reading.PAUSED, Reading.AT)

    def _interrupted(self) -> bool:
        return self._ended.is_set() or self._state in (Reading.PAUSING, Reading.PAUSED)

    def pause(self) -> None:
        """Let nothing more in, as soon as `at_rest`."""
        self._told(MonitorEvent.PAUSE)

    @property
    def at_rest(self) -> bool:
        return self._state in (Reading.PAUSED, Reading.AT)

    @property
    def paused(self) -> bool:
        return self._state in (Reading.PAUSING, Reading.PAUSED, Reading.AT)

    def hold_at(self, position: Position) -> None:
        """Go on, to exactly this position."""
        self._told(MonitorEvent.HOLD_AT, position)

    def hold_behind(self, parts: Collection[str]) -> None:
        """Go on, to the next transaction that is a part of one of these global transactions."""
        self._told(MonitorEvent.HOLD_AT, wanted=frozenset(parts))

    @property
    def holds(self) -> bool:
        goal = self._goal
        return self._state is Reading.AT and goal is not None and goal.order == self.position.order

    def resume(self) -> None:
        self._told(MonitorEvent.RESUME)

    def look_for_room(self) -> None:
        """There may be room now."""
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._ended.set()
            self._changed.notify_all()
