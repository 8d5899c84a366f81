"""How long Strobe waits for a PostgreSQL server, how much it asks of it at a time, and how much log it may keep."""

from __future__ import annotations

from dataclasses import dataclass

from strobe.retry import PG_SLOT_IN_USE, Policy


@dataclass(frozen=True)
class Timing:
    """In seconds."""

    connect: int = 10
    """Until a new connection is there."""
    free_connection: float = 30.0
    """Until one of the pool's connections is free."""
    answer: float = 10.0
    """For the server's answer, beyond the time that the statement itself may take; then the connection is given up."""
    longest_answer: float = 600.0
    """For an answer where statements may take as long as they want."""
    prepare: float = 60.0
    """For transactions that were open before `prepare`."""
    confirm: float = 1.0
    """Between two looks whether log that was needed is not any more, which the server is told then."""
    silence: float = 60.0
    """Without a sign of life the stream is given up. The server is asked for one now and then."""
    feedback: float = 5.0
    """Between two reports to the server of how far its log has been read."""
    feedback_while_full: float = 0.4
    """The same while nothing is read: then a server that wants a sign of life is not heard, and gets them unasked."""
    progress: float = 0.02
    """Between two reports that irrelevant log has been passed."""
    stopping: float = 0.05
    """Between two looks whether to stop, while no transaction comes."""
    retained: float = 10.0
    """Between two looks at how much log the server keeps for the slot."""
    slot_in_use: Policy = PG_SLOT_IN_USE
    """Until nobody else reads the slot."""


@dataclass(frozen=True)
class Limits:
    transactions: int = 200
    """Read from the log and not taken yet; while there are as many, the server keeps the rest."""
    rows: int = 100_000
    """Of theirs, in memory."""
    keys: int = 5_000
    """In one statement."""
    fetched: int = 5_000
    """Rows, fetched at a time."""
    pages: int = 1024
    """Of a table that several processes read: each portion has as many, at the least."""


@dataclass(frozen=True)
class SlotLimits:
    """How many bytes of log the server may keep for the slot, and what happens beyond the limit."""

    warn: int = 2**30
    limit: int | None = None
    rebuild: bool = False
    """Whether, beyond the limit, the log is let go and the views are rebuilt."""
