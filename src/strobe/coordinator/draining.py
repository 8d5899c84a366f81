"""How far the backlog of each source has been committed, and when that will be done at the present rate.

A backlog begins when readers see less than the source has committed, and ends when they see everything. It is measured
in the source's log (bytes in PostgreSQL, MariaDB and MySQL; numbers elsewhere), of which not everything concerns the
views: so the estimate is one. Where the log ends is asked in a thread of its own, and only while something is on its
way: a coordinator at rest asks nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from strobe.messages import Position
from strobe.pipeline.background import begin
from strobe.pipeline.pipeline import Pipeline
from strobe.sources.base import Source

ASK = 2.0
"""Seconds between two questions where a log ends."""

WINDOW = 30.0
"""Seconds from which the present rate is taken."""

SHORT = 5.0
"""Seconds of work that are not worth telling of."""


@dataclass(frozen=True)
class Draining:
    percent: float
    """Of the log from where the backlog began to where it ends now."""
    left: int
    unit: str
    """In which `left` counts."""
    per_second: float
    """How much of it is committed in a second."""
    seconds: float | None
    """After which all is committed if both sides go on like this; None if the log grows faster, or nobody knows yet."""


@dataclass(frozen=True)
class Sample:
    """At some time, how much of the log has been committed since the backlog began, and how much has not."""

    at: float
    done: int
    left: int


class Course:
    """The course of one backlog."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)
        while len(self._samples) > 2 and self._samples[1].at <= sample.at - WINDOW:
            self._samples.popleft()

    @property
    def now(self) -> Draining | None:
        """None while there is little to tell of."""
        if len(self._samples) < 2:
            return None
        first, last = self._samples[0], self._samples[-1]
        rate = (last.done - first.done) / (last.at - first.at)
        shrinks = (first.left - last.left) / (last.at - first.at)
        seconds = last.left / shrinks if shrinks > 0 else None
        if not last.left or (seconds is not None and seconds < SHORT):
            return None
        percent = 100 * last.done / (last.done + last.left)
        return Draining(round(percent, 1), last.left, self._unit, round(rate, 1), seconds and round(seconds, 1))


class _Meter:
    """Measures the backlog of one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._begun: Position | None = None
        self._course = Course(source.log_unit)
        self._asked: Future[tuple[int, int]] | None = None
        self._asked_at = float("-inf")

    def look(self, visible: Position, now: float, *, under_way: bool) -> Draining | None:
        """`visible` is what readers see."""
        if self._asked is not None and self._asked.done():
            self._take(self._asked)
            self._asked = None
        if under_way and self._asked is None and now >= self._asked_at + ASK:
            self._begun, self._asked_at = self._begun or visible, now
            self._asked = begin(partial(self._ask, self._begun, visible), "backlog")
        elif not under_way:
            self._forget()
        return self._course.now

    def _ask(self, begun: Position, visible: Position) -> tuple[int, int]:
        end = self._source.now()
        return self._source.distance(begun, visible), self._source.distance(visible, end)

    def _take(self, asked: Future[tuple[int, int]]) -> None:
        if asked.exception() is not None:
            return  # it is down: somebody else reports that
        done, left = asked.result()
        if left:
            self._course.add(Sample(self._asked_at, done, left))
        else:
            self._forget()

    def _forget(self) -> None:
        self._begun, self._course = None, Course(self._source.log_unit)


class Backlogs:
    """Those of the sources of one run."""

    def __init__(self, pipeline: Pipeline, clock: Callable[[], float]) -> None:
        self._pipeline, self._clock = pipeline, clock
        self._meters = {name: _Meter(pipeline.topology.sources[name]) for name in pipeline.vector}

    def look(self) -> dict[str, Draining]:
        """By source that has one. Called often."""
        under_way, now = not self._pipeline.settled, self._clock()
        found = {
            name: meter.look(self._pipeline.visible(name), now, under_way=under_way)
            for name, meter in self._meters.items()
        }
        return {name: draining for name, draining in found.items() if draining is not None}
