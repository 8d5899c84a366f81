"""One run of the pipeline, and what is done beside it in every turn: whether it goes on, and if not why."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from strobe.apply.cutover import Cutover
from strobe.coordinator.availability import Availability
from strobe.coordinator.requests import RequestHandler
from strobe.coordinator.timing import USUAL, Timing
from strobe.pipeline.pipeline import Pipeline
from strobe.pipeline.run_end import CutOver, MembersChanged, RunEnd, Stopped

MOMENT = 0.1
"""Seconds between two looks whether nothing is left to do, where the run ends then."""


class Until:
    """When the coordinator ends by itself."""

    def __init__(
        self,
        stop: threading.Event,
        *,
        idle: bool,
        seconds: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """When it is told to `stop`; with `idle`, as soon as nothing is left to do; so many `seconds` after the views
        have begun to be kept."""
        self._stop, self.idle, self._seconds = stop, idle, seconds
        self._deadline: float | None = None
        self._clock = clock

    def begin(self) -> None:
        """The views are kept from now on, if they were not yet."""
        if self._seconds is not None and self._deadline is None:
            self._deadline = self._clock() + self._seconds

    @property
    def over(self) -> bool:
        return self._stop.is_set() or self.left <= 0

    @property
    def left(self) -> float:
        """Seconds until it ends by itself, if they are known."""
        return math.inf if self._deadline is None else self._deadline - self._clock()


class Run:
    def __init__(
        self,
        pipeline: Pipeline,
        handler: RequestHandler,
        availability: Availability,
        cutover: Cutover,
        until: Until,
        *,
        timing: Timing = USUAL,
        clock: Callable[[], float] = time.monotonic,
        status: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        """`status` writes down how things are, `release` lets go of large answers when nothing needs them any more."""
        self._pipeline, self._handler = pipeline, handler
        self._availability, self._cutover = availability, cutover
        self._until, self._quiet = until, _Quiet(pipeline, clock)
        self._status, self._release = status, release
        self._timing, self._clock = timing, clock
        self._next_beat = 0.0

    def step(self) -> RunEnd | None:
        """Called in every turn of the loop: do what is due, and say whether the run ends, and why."""
        if self._cutover.over:
            return CutOver()
        self._handler.look()
        if self._pipeline.settled:
            self._release()
        detached = self._beat()
        if self._until.over:
            return Stopped()
        if self._cutover.ready:  # the run ends anyhow, when the views have joined
            return None
        if self._pipeline.tied:
            detached = self._availability.tie(self._pipeline.tied)
        if detached is not None:
            return MembersChanged(detached)
        self._handler.rebuild(self._availability)
        return Stopped() if self._until.idle and self._nothing_left() else None

    def pause(self) -> float:
        """After how many seconds `step` is due again, if nothing happens before."""
        look = MOMENT if self._until.idle else math.inf
        return min(self._next_beat - self._clock(), look, self._until.left)

    def _beat(self) -> frozenset[str] | None:
        """Twice a second: the sources to go on without, if these are others than before."""
        if self._clock() < self._next_beat:
            return None
        self._status()
        self._next_beat = self._clock() + self._timing.beat
        return self._availability.mind(self._pipeline)

    def _nothing_left(self) -> bool:
        waited_for = self._availability.down or self._availability.refused or self._availability.ready
        return not waited_for and self._quiet.for_a_moment()


class _Quiet:
    """Idle, and still idle a moment later."""

    def __init__(self, pipeline: Pipeline, clock: Callable[[], float]) -> None:
        self._pipeline, self._clock = pipeline, clock
        self._since: float | None = None
        self._next_look = 0.0

    def for_a_moment(self) -> bool:
        now = self._clock()
        if now < self._next_look:
            return False
        self._next_look = now + MOMENT
        self._pipeline.end_blocks()
        if not self._pipeline.idle():
            self._since = None
            return False
        self._since = self._since or now
        return now - self._since >= 0.3
