"""Waiting for what is to happen, never for a time: a busy machine may be many times slower, or stand still at times."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 120.0
"""Seconds after which what has not happened is not going to."""

STEP = 2.0
"""Seconds between two writes when there have been many, enough for every algorithm to come to rest; at first less."""


def eventually(condition: Callable[[], Any], seconds: float = PATIENCE, pause: float = 0.02) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)


class Writing:
    """How long writers go on: for some seconds, and then until enough has happened, all in step, with rests between.

    Some algorithms take up whatever comes while they work: writers without rests might keep them at it for ever.
    """

    def __init__(self, seconds: float, enough: Callable[[], bool] = lambda: True, step: float = STEP) -> None:
        self._end = time.monotonic() + seconds
        self._enough, self._step = enough, step
        self._stopped = threading.Event()

    @property
    def goes_on(self) -> bool:
        late = time.monotonic() - self._end
        return not self._stopped.is_set() and (late < 0 or (late < PATIENCE and not self._enough()))

    def rest(self, seconds: float) -> None:
        """What a writer does between two transactions."""
        late = time.monotonic() - self._end
        step = self._step / 8 if late < 10 else self._step
        until = time.monotonic() + (seconds if late < 0 else step - late % step)
        self._stopped.wait(seconds)
        while self.goes_on and (left := until - time.monotonic()) > 0:
            self._stopped.wait(min(left, 0.1))

    def stop(self) -> None:
        self._stopped.set()
