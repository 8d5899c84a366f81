"""What a walsender sends, held against what it has sent before.

PostgreSQL's protocol has no checksum. What decides positions is there more than once, though: the place of a commit
four times, its time twice, and the server's clock in every frame. The place that a keep-alive names is there once, and
a wrong one would be the worst that can happen: views would claim transactions that they have never seen. So it counts
when the next keep-alive has confirmed it: of two in a row, the smaller one is believed.

What is there once, and cannot be held against anything: values of rows, as long as they are of their column's type, and
the transaction's id. TLS protects these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strobe.errors import Damaged
from strobe.sources.postgres import pgoutput
from strobe.sources.postgres.pgoutput import KeepAlive, Message, lsn_text

DAY = 24 * 60 * 60 * 1_000_000
"""In microseconds. A clock that is put right moves by less; one whose bytes were shifted, by years."""


@dataclass(frozen=True)
class Arrived:
    """A message of the log, which had so many bytes."""

    message: Message
    size: int


class Incoming:
    """The frames of one connection, in order."""

    def __init__(self, after: int, clock: Callable[[], int]) -> None:
        """`clock` is what the server's clock should show: microseconds since its epoch."""
        self._clock = clock
        self._begin: pgoutput.Begin | None = None
        self._at: int | None = None
        self._named = after
        """By the last keep-alive."""
        self.reached = after
        """All that was committed before this place has come."""

    @property
    def unconfirmed(self) -> bool:
        """Whether it takes another keep-alive to know how far the log has come."""
        return self._begin is None and self._named > self.reached

    @property
    def event(self) -> str:
        """What was read last, in errors."""
        if self._at is None:
            return f"a frame of the change stream after {lsn_text(self.reached)}"
        return f"the message of the log at {lsn_text(self._at)}"

    def read(self, data: bytes) -> Arrived | KeepAlive:
        """The next frame. Raises `Damaged` if the server cannot have sent it."""
        self._at = None
        frame = pgoutput.frame(data)
        if abs(frame.sent_at - self._clock()) > DAY:
            raise Damaged("the server's clock has moved by more than a day", 9 if isinstance(frame, KeepAlive) else 17)
        if isinstance(frame, KeepAlive):
            self._alive(frame.end)
            return frame
        self._at = frame.start
        message = pgoutput.decode(frame.payload)
        if isinstance(message, pgoutput.Begin):
            if self._begin is not None:
                raise Damaged("a transaction begins in another one", 0)
            self._begin = message
        elif isinstance(message, pgoutput.Commit):
            self._committed(message, frame.start)
        return Arrived(message, len(frame.payload))

    def _alive(self, end: int) -> None:
        if self._begin is None:
            self.reached = max(self.reached, min(self._named, end))
            self._named = end

    def _committed(self, commit: pgoutput.Commit, start: int) -> None:
        begin, self._begin = self._begin, None
        if begin is None or (begin.commit_lsn, begin.committed_at) != (commit.lsn, commit.committed_at):
            raise Damaged("a commit comes without its beginning", 0)
        if not self.reached <= commit.lsn < commit.end_lsn == start:
            raise Damaged("a commit is at another place than it says", 0)
        self.reached = self._named = commit.end_lsn
