"""What must be done now and then, in the background: fold, discard, maintain.

Folding merges the log into the view tables by time and size and when nothing else happens; sources are told how far
they may discard their logs; old parts of the warehouse are compacted and dropped. None of it is needed for
correctness, all of it can be interrupted anywhere, and none of it delays commits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from strobe.config.model import PUBLISH
from strobe.coordinator.states import Log, Reason
from strobe.coordinator.timing import USUAL, Timing
from strobe.errors import LostGuarantee, SourceUnavailable, StrobeError, UserError
from strobe.events import Listener, MaintenancePutOff
from strobe.messages import Position
from strobe.pipeline.pipeline import Pipeline
from strobe.sources.base import Source
from strobe.warehouse import contradictions
from strobe.warehouse.warehouse import Warehouse


class Maintenance(threading.Thread):
    def __init__(
        self,
        pipeline: Pipeline,
        warehouse: Warehouse,
        tell: Listener,
        timing: Timing = USUAL,
        publish: timedelta = PUBLISH,
    ) -> None:
        """`publish` is how long commits may wait to be folded while more come."""
        super().__init__(name="maintenance", daemon=True)
        self._pipeline = pipeline
        self._warehouse = warehouse
        self._tell = tell
        self._timing = timing
        self._fold_every = publish.total_seconds()
        self._ended = threading.Event()
        self._folded = pipeline.committer.last.number
        self._fold_took = 0.0
        self._folded_at = self._maintained_at = self._discarded_at = time.monotonic()
        self._measured_at = self._folded_at - timing.measure_every
        self._discarded: dict[str, str] = {}
        self._proven, self._definitions = pipeline.prover.known, warehouse.definitions
        self._next_end: dict[str, float] = {}
        self.logs_needed: Callable[[], bool] = lambda: False
        """Whether views that will join read the sources from earlier on: nothing is discarded or rewritten."""
        self.hurry: Callable[[], bool] = lambda: False
        """Whether nothing that takes long is to be begun."""
        self.stopped: Mapping[str, Reason] = {}
        """Views that cannot be kept."""
        self.retained: dict[str, int] = {}
        """By source, how much log it keeps for Strobe, as it last said."""

    def fold_soon(self) -> None:
        """There is something to publish that no later commit stands for."""
        self._folded -= 1
        self._folded_at -= self._fold_every

    def _stop_wrong_views(self) -> None:
        """A fold may have found what no append has."""
        for name, definition in self._warehouse.definitions.items():
            if definition.wrong and name in self._pipeline.topology.views:
                raise contradictions.error(definition)

    def run(self) -> None:
        while not self._ended.wait(0.5):
            now = time.monotonic()
            try:
                if not self.hurry():
                    self._warehouse.empty()
                    self._remember()
                if now - self._discarded_at >= self._timing.discard_every:
                    self.discard()
                if now - self._measured_at >= self._timing.measure_every:
                    self._measure()
                if self._fold_due(now):
                    self._fold()
                self._stop_wrong_views()
                if now - self._maintained_at >= self._timing.maintain_every and not self.logs_needed():
                    self._warehouse.maintain()
                    self._maintained_at = time.monotonic()
            except LostGuarantee as error:  # more log is kept than may be, or a view is wrong
                self._pipeline.fail(error)
                return
            except (SourceUnavailable, UserError) as error:
                self._tell(MaintenancePutOff(str(error)))
                self._folded_at = self._maintained_at = time.monotonic()
            except BaseException as error:  # the coordinator ends with it
                self._pipeline.fail(error)
                return

    def _fold_due(self, now: float) -> bool:
        last = self._pipeline.committer.last
        behind = last.number - self._folded
        since_commit = time.time() - last.committed_at.timestamp()
        waited = now - self._folded_at
        timing = self._timing
        pause = max(self._fold_every, timing.fold_share * self._fold_took)
        if self.hurry():
            return False
        idle = min(waited, since_commit) >= min(timing.fold_idle, self._fold_every)
        return behind > 0 and (behind >= timing.fold_commits or waited >= pause or idle)

    def _fold(self) -> None:
        last, began = self._pipeline.committer.last.number, time.monotonic()
        self._warehouse.fold()
        self._folded, self._folded_at = last, time.monotonic()
        self._fold_took = self._folded_at - began

    def _remember(self) -> None:
        """What has been proven of the views' relations since, so that the next start need not judge it again."""
        proven = self._pipeline.prover.known
        if proven != self._proven:
            self._warehouse.remember(proven, self._definitions)
            self._proven = proven

    def discard(self) -> None:
        """Durable positions only: what is not in the log yet may have to be read again."""
        if self.logs_needed():
            return
        self._discarded_at = time.monotonic()
        last = self._pipeline.committer.last
        for name, source in self._pipeline.topology.sources.items():
            users = [view for view, vector in last.positions.items() if name in vector]
            if users:
                source.guard()
                needed = self._needed(name, source, users)
                if needed is not None and self._discarded.get(name) != needed.text:
                    source.discard(needed)
                    self._discarded[name] = needed.text

    def _measure(self) -> None:
        """How much log the sources that can be asked keep; of the others it stays as they last said."""
        self._measured_at = time.monotonic()
        for name, source in self._pipeline.topology.sources.items():
            if name in self._pipeline.vector and self._pipeline.problem(name) is None:
                with suppress(StrobeError):
                    if (kept := source.kept()) is not None:
                        self.retained[name] = kept.bytes

    def _needed(self, name: str, source: Source, users: Sequence[str]) -> Position | None:
        """Up to where its log may go; None if that is not known."""
        read = name in self._pipeline.vector
        keep = {Log.KEPT} if read else {Log.KEPT, Log.KEPT_UNLESS_READ}
        absent = {view for view, reason in self.stopped.items() if reason.log not in keep}
        texts = [self._pipeline.committer.last.positions[view][name] for view in users if view not in absent]
        if texts and read:
            return min((source.position(text) for text in texts), key=lambda position: position.order)
        if not texts and time.monotonic() >= self._next_end.get(name, 0.0):
            self._next_end[name] = time.monotonic() + self._timing.end_every
            return end_of(source)
        return None

    def finish(self) -> None:
        """At a clean stop: fold everything that has been committed."""
        self.stop()
        self.join()
        self._warehouse.empty()
        self._warehouse.fold()
        self.discard()

    def stop(self) -> None:
        self._ended.set()


def end_of(source: Source) -> Position | None:
    """Up to where everything in a log that is kept for nobody can be seen by whoever loads views anew; None if that
    cannot be found out."""
    with suppress(StrobeError):
        reader = source.reader(at_a_position=True)
        try:
            return reader.open().through
        finally:
            reader.close()
    return None
