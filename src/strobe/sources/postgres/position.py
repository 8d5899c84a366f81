"""Positions in a PostgreSQL log, and telling that log from another one that passes the same places.

A place in the log is a number of bytes. A server whose data folder was copied and put back later keeps its system
identifier and its timeline, and once it has written as much again its log has every place that a view ever stood at,
with other transactions before it. The slot comes back with the folder, at an earlier place, which by itself means
nothing: a server that crashed may also have forgotten how far its slot was confirmed.

So a position carries a fingerprint: the last transaction that the stream had brought by then, by the place where it
ends and the microsecond of its commit. The slot can be read again from where it is confirmed: between there and the
position the last transaction must be that one, or there must be none if that one ended before. If it is so, the log is
the one that was read, or one in which nothing happened instead: either way nothing is missing and nothing is too much.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from strobe.messages import Position
from strobe.sources.postgres import pgoutput
from strobe.sources.postgres.connection import Connection, ConnectionSettings
from strobe.sources.postgres.pgoutput import lsn_text, parse_lsn
from strobe.sources.postgres.slot import commits


@dataclass(frozen=True)
class LogFingerprint:
    """Of a log up to a position: the last transaction before it."""

    end: int
    moment: int
    """Microseconds since PostgreSQL's epoch."""

    @classmethod
    def of(cls, commit: pgoutput.Commit) -> LogFingerprint:
        return cls(commit.end_lsn, (commit.committed_at - pgoutput.EPOCH) // timedelta(microseconds=1))

    def __str__(self) -> str:
        return f"{lsn_text(self.end)}:{self.moment}"


def position_at(lsn: int, fingerprint: LogFingerprint | None = None) -> Position:
    return Position(f"{lsn_text(lsn)}@{fingerprint}" if fingerprint else lsn_text(lsn), (lsn,))


def fingerprint_of(position: Position) -> LogFingerprint | None:
    """What a position carries; `ValueError` if it is none."""
    _, carries, text = position.text.partition("@")
    if not carries:
        return None
    end, _, moment = text.partition(":")
    return LogFingerprint(parse_lsn(end), int(moment))


def parse(text: str) -> Position:
    position = Position(text, (parse_lsn(text.partition("@")[0]),))
    fingerprint_of(position)
    return position


def passes(connection: Connection, settings: ConnectionSettings, slot: str, confirmed: int, position: Position) -> bool:
    """Whether the log that this slot reads, confirmed up to a place, is the one in which a position was taken."""
    expected = fingerprint_of(position)
    if expected is None:
        return True
    last = None
    for _, commit in commits(connection, settings, slot, position.order[0]):
        last = LogFingerprint.of(commit)
    return last == (expected if expected.end > confirmed else None)
