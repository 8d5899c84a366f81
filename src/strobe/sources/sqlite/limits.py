"""How long Strobe waits for a SQLite database, and how much it asks of it at a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """In seconds."""

    poll: float = 0.02
    """Between two looks whether the database has changed."""
    quiet: float = 1.0
    """Without a change, after which it is looked at less often."""
    quiet_poll: float = 0.1
    """Between two looks then."""
    busy: float = 5.0
    """Until a lock that somebody else has is free."""
    discard: float = 0.5
    """Spent on taking away log, at a time."""
    discard_busy: float = 0.05
    """Until a lock is free, where only log is to be taken away: that can wait."""
    discard_pause: float = 0.002
    """Between two steps of it, for writers."""


@dataclass(frozen=True)
class Limits:
    parameters: int = 500
    """In one statement."""
    discarded: int = 1000
    """Rows of log that are taken away in one step."""
