"""Trying again: longer and longer waits, that end at once when the process is to stop."""

from __future__ import annotations

import threading


class Backoff:
    """Waits of 0.1 s, 0.2 s, … up to 10 s; `reset` after a success."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._wait = 0.0

    def reset(self) -> None:
        self._wait = 0.0

    def pause(self) -> bool:
        """Wait; False if the process is to stop instead of trying again."""
        self._wait = min(10.0, self._wait * 2 or 0.1)
        return not self._stop.wait(self._wait)
