"""Lets the stream look at the log and readers take snapshots one at a time.

So no reported transaction spans a snapshot that an answer was read in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from strobe.messages import Position


class Gate:
    """Keeps reported transactions from spanning a snapshot that an answer was read in.

    A reported transaction is everything between two looks at the log, and an answer must have seen it wholly or not at
    all. So looks and snapshots happen one after the other, and every snapshot's position ends a transaction: one that
    was taken before a look is known to it, and one taken after it is not before its end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: set[int] = set()

    @contextmanager
    def snapshot(self) -> Iterator[Callable[[Position], None]]:
        """Take a snapshot inside, and say where it is."""
        with self._lock:
            yield lambda position: self._positions.add(position.order[0])

    @contextmanager
    def look(self, after: Position, stopped: Callable[[], bool]) -> Iterator[set[int]]:
        """Fix the read transaction of a look inside; the snapshots taken since `after` are ends of what it reports."""
        with self._lock:
            if not stopped():  # another stream, which comes after this one, may still need what this one has passed
                self._positions = {p for p in self._positions if p > after.order[0]}
            yield {p for p in self._positions if p > after.order[0]}
