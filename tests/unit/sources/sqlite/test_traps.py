"""SQLite: whoever may write the file cannot reach beyond it, and what only reads cannot write."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from strobe.sources.sqlite.connection import ConnectionSettings


def opened(folder: Path, script: str) -> ConnectionSettings:
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        connection.executescript(script)
    return ConnectionSettings("shop", folder / "shop.db")


def test_a_view_cannot_call_what_reaches_beyond_the_file(tmp_path: Path) -> None:
    """A function that the process has registered for itself, as one that loads a library would be, is not called by
    views, triggers and generated columns of the file."""
    settings = opened(tmp_path, "CREATE TABLE t (id INTEGER PRIMARY KEY); INSERT INTO t VALUES (1)")
    with closing(sqlite3.connect(settings.path)) as connection:
        connection.create_function("reach", 1, lambda value: value)
        connection.executescript("CREATE VIEW v AS SELECT reach(id) AS id FROM t")
    sprung: list[int] = []
    for mode in ("ro", "rw"):
        with closing(settings.connect(mode)) as connection:
            connection.create_function("reach", 1, sprung.append)
            with pytest.raises(sqlite3.OperationalError, match="unsafe use of reach"):
                connection.execute("SELECT * FROM v").fetchall()
            with pytest.raises(sqlite3.Error):
                connection.execute("SELECT load_extension('x')").fetchall()
    assert not sprung


def test_reading_connections_cannot_write(tmp_path: Path) -> None:
    """Not even into temporary tables; those that prepare and trim the log can."""
    settings = opened(tmp_path, "CREATE TABLE t (id INTEGER PRIMARY KEY); INSERT INTO t VALUES (1)")
    with closing(settings.connect()) as connection:
        for statement in ("DELETE FROM t", "CREATE TEMP TABLE t (id)"):
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                connection.execute(statement)
    with closing(settings.connect("rw")) as connection:
        connection.execute("DELETE FROM t")
