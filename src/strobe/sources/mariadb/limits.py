"""How long Strobe waits for a MariaDB or MySQL server, and how much it asks of it at a time."""

from __future__ import annotations

from dataclasses import dataclass

from strobe.retry import MYSQL_PLACE, MYSQL_SETTLE, Policy


@dataclass(frozen=True)
class Timing:
    """In seconds."""

    connect: float = 10
    """Until a new connection is there."""
    free_connection: float = 60
    """Until one of the few connections is free."""
    idle: float = 30
    """A connection that was not used for longer is not trusted any more."""
    answer: float = 10.0
    """For the server's answer, beyond the time that the statement itself may take; then the connection is given up."""
    silence: float = 30
    """Without even a heartbeat the stream is given up."""
    heartbeat: float = 5
    """Between two signs of life of a server whose log is quiet."""
    step: float = 0.05
    """Between two looks whether the stream is to stop."""
    progress: float = 0.2
    """Between two reports that irrelevant log has been passed."""
    event: float = 30
    """For one event at a known offset."""
    parts: float = 10.0
    """To search the file before a position for parts of global transactions."""
    settle: Policy = MYSQL_SETTLE
    """Until commits that are on their way are visible."""
    place: Policy = MYSQL_PLACE
    """Until there is a snapshot whose place in the log can be told."""


@dataclass(frozen=True)
class Limits:
    keys: int = 500
    """In one statement; from 1,000 on the server would turn the list into a temporary table."""
    offset: int = 1 << 32
    """The replication protocol has no room for offsets from here on."""
    window_bytes: int = 2**24
    """Where more than this was logged while a snapshot was taken, another snapshot is cheaper than reading it."""
    window_rows: int = 10_000
    """Where more rows than this were touched meanwhile, too."""
    event: int = 1 << 28
    """Bytes of one event of the binlog, packed or unpacked: the size of its largest row, about."""
    unpacked: int = 1 << 32
    """Bytes of one transaction that the server has compressed."""
