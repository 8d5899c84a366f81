"""Positions in the log of a SQLite database: a row's number and the random mark that it was given.

A database that was restored from a backup and went another way has other marks.
"""

from __future__ import annotations

import sqlite3

from strobe.messages import Position
from strobe.sources.sqlite.connection import ConnectionSettings
from strobe.sources.sqlite.triggers import LOG


def position_at(seq: int, mark: int) -> Position:
    return Position(f"{seq}:{mark}", (seq,))


def end_of_log(connection: sqlite3.Connection, settings: ConnectionSettings) -> Position:
    row = connection.execute(f"SELECT seq, mark FROM {LOG} ORDER BY seq DESC LIMIT 1").fetchone()
    if row is None:
        raise settings.lost(f"the table {LOG} is empty, which Strobe never leaves it")
    return position_at(*row)


def require_passed(connection: sqlite3.Connection, settings: ConnectionSettings, position: Position) -> None:
    """Raise `LostGuarantee` unless the log passed through a position and still has its row."""
    seq, mark = map(int, position.text.split(":"))
    row = connection.execute(f"SELECT mark FROM {LOG} WHERE seq = ?", (seq,)).fetchone()
    if row is None or row[0] != mark:
        raise settings.lost(
            f"the log in {settings.path} does not pass through position {position.text}:"
            " the database was restored or replaced, or its log was taken away"
        )
