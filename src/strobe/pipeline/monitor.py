"""One thread for each source, reading its transactions.

A source that fails is read again from where it was, with back-off. A monitor can be *paused*, so that nothing new
comes in, and sent on to *hold* exactly at a position: this is how a batch is made to end at the state in which an
audit or a rebuild has read the sources.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from strobe.data.spilled import release
from strobe.errors import LostGuarantee, StrobeError
from strobe.messages import Position, Transaction
from strobe.retry import READ_SOURCE, Retry
from strobe.sources.base import Source


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
    ) -> None:
        """`room` says whether the system can take more than what was read up to a position; while it cannot, the source
        is left alone: its log keeps."""
        super().__init__(name=f"monitor-{source.name}", daemon=True)
        self.source = source
        self.position = after
        self.problem: StrobeError | None = None
        self._stops = list(stops)
        self._deliver, self._fail, self._room = deliver, fail, room
        self._ended = threading.Event()
        self._paused = threading.Event()
        self._at_rest = threading.Event()
        self._hold: Position | None = None

    def run(self) -> None:
        retry = Retry(READ_SOURCE, self._ended.wait)
        while not self._ended.is_set():
            if self._resting():
                self._at_rest.set()
                self._ended.wait(0.02)
                continue
            self._at_rest.clear()
            try:
                self._read(retry)
                self.problem = None
            except LostGuarantee as error:
                self._fail(error)
                return
            except StrobeError as error:
                self.problem = error
                retry.again()
            except BaseException as error:  # a broken source must not die silently in its thread
                self._fail(error)
                return

    def _read(self, retry: Retry) -> None:
        stops = [*self._stops, *([self._hold] if self._hold else [])]
        for transaction in self.source.transactions(self.position, stops, self._interrupted):
            while not self._room(self.position) and not self._interrupted():
                self._ended.wait(0.02)
            if self._interrupted():
                release(transaction)
                return
            self._deliver(transaction)
            self.position = transaction.position
            self.problem = None
            retry.reset()
            if self._resting():
                return

    def _resting(self) -> bool:
        return self._paused.is_set() or (self._hold is not None and self._hold <= self.position)

    def _interrupted(self) -> bool:
        return self._ended.is_set() or self._paused.is_set()

    def pause(self) -> None:
        """Let nothing more in, as soon as `at_rest`."""
        self._at_rest.clear()
        self._paused.set()

    @property
    def at_rest(self) -> bool:
        return self._at_rest.is_set()

    @property
    def paused(self) -> bool:
        return self._resting()

    def hold_at(self, position: Position) -> None:
        """Go on, to exactly this position."""
        self._hold = position
        self._at_rest.clear()
        self._paused.clear()

    @property
    def holds(self) -> bool:
        return self._hold is not None and self._hold.order == self.position.order

    def resume(self) -> None:
        self._hold = None
        self._paused.clear()

    def stop(self) -> None:
        self._ended.set()
