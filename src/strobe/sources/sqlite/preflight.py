"""Preflight of a SQLite source: whether the database is prepared, and each table watched as it should be.

Every finding says which command mends it.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from strobe.errors import StrobeError
from strobe.sources.base import Finding
from strobe.sources.sqlite.catalog import PREFIX
from strobe.sources.sqlite.preparation import Prepared, find_fault, prepared, usable_table


def check(connection: sqlite3.Connection, source: str, path: Path, relations: Sequence[str]) -> Iterator[Finding]:
    where, prepare = f"source {source}", f"Run `strobe prepare {source}`."
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        yield Finding(
            "error", where, f"{path} or its folder is not writable", "WAL mode needs both writable, for readers too."
        )
    state = prepared(connection)
    if state is None:
        yield Finding("error", where, "the database is not prepared", prepare)
    elif connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        yield Finding("error", where, "the database is no longer in WAL mode: readers would block writers", prepare)
    for relation in relations:
        yield from check_relation(connection, state, source, relation)


def check_relation(
    connection: sqlite3.Connection, state: Prepared | None, source: str, relation: str
) -> Iterator[Finding]:
    where, prepare = f"source {source}, table {relation}", f"Run `strobe prepare {source}`."
    try:
        table = usable_table(connection, source, relation)
    except StrobeError as error:
        yield Finding("error", error.where, error.message, error.fix)
        return
    left_out = [c for c in table.columns if not c.type]
    if left_out:
        names = ", ".join(f"{c.name} ({c.declared or 'no type'})" for c in left_out)
        yield Finding("warning", where, f"columns without a supported declared type are left out: {names}")
    if writes_to_itself(connection, relation):
        yield Finding(
            "warning",
            where,
            "one of its own triggers inserts into it before the change that fired it is made",
            "Make it an AFTER trigger: rows that REPLACE removes after such an insert may be missed.",
        )
    if state is None:
        return
    watched = next((w for w in state.current if w.relation == relation), None)
    if watched is None:
        yield Finding("error", where, "the table is not watched yet", prepare)
    elif fault := find_fault(connection, watched):
        rebuild = " Then rebuild the views that use the table: changes may be missing."
        yield Finding("error", where, fault, prepare + rebuild)
    elif set(watched.columns) != {c.name for c in table.offered}:
        yield Finding("error", where, "its columns have changed since it was prepared", prepare)


def writes_to_itself(connection: sqlite3.Connection, relation: str) -> bool:
    found = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE", (relation,)
    )
    into = re.compile(rf"\bBEFORE\b.*\bBEGIN\b.*\bINTO\s+[\"`\[]?{re.escape(relation)}\b", re.IGNORECASE | re.DOTALL)
    return any(into.search(sql) for name, sql in found if not name.startswith(PREFIX))
