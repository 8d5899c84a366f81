"""Positions in the log of a SQLite database: a row's number and the random mark that it was given.

A database that was restored from a backup and went another way has other marks.
"""

from __future__ import annotations

import sqlite3

from strobe.messages import Position
from strobe.sources.sqlite.triggers import LOG


def position_at(seq: int, mark: int) -> Position:
    return Position(f"{seq}:{mark}", (seq,))


def end_of_log(connection: sqlite3.Connection) -> Position:
    row = connection.execute(f"SELECT seq, mark FROM {LOG} ORDER BY seq DESC LIMIT 1").fetchone()
    if row is None:
        raise sqlite3.DatabaseError(f"the table {LOG} is empty, which Strobe never leaves it")
    return position_at(*row)
