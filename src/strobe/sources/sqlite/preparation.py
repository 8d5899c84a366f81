"""What is prepared in a SQLite database: read back, compared with what should be there, made, and taken out.

A table's *watch* has a number, which its rows in the log carry. A table whose columns changed gets a new number when it
is prepared again, and `since` says up to where the log is about the old columns. A table whose triggers were missing or
altered for some time gets a new number too, and a row with sign 0 in the log that no reader passes: there is a gap.
Which watches ended in a gap stays recorded, so that it shows since when a table is watched without one.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from strobe.errors import UserError
from strobe.sources.sqlite.catalog import PREFIX, SqliteTable, kind_of, quote, read_table
from strobe.sources.sqlite.connection import ConnectionSettings
from strobe.sources.sqlite.triggers import (
    EVENTS,
    FORMAT,
    LOG,
    META,
    SEALING,
    WATCHED,
    Watch,
    create_log,
    index_name,
    note_name,
    seal,
    trigger_name,
    widen_log,
)

CURRENT, CONTINUED, GAP = range(3)
"""How a watch is retired: not at all, by one that follows it without a gap, or so that changes may be missing."""


@dataclass(frozen=True)
class Watched:
    """A row of `__strobe_watched`."""

    id: int
    relation: str
    types: Mapping[str, str]
    """The watched columns, in the log's order, with their Spark types."""
    since: int
    retired: bool = False
    gap: bool = False
    """It is retired, and changes may be missing between it and the next watch of the table."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.types)


@dataclass(frozen=True)
class Prepared:
    identity: str
    journal_mode: str
    watched: tuple[Watched, ...]

    @cached_property
    def by_id(self) -> dict[int, Watched]:
        return {w.id: w for w in self.watched}

    @property
    def current(self) -> tuple[Watched, ...]:
        return tuple(w for w in self.watched if not w.retired)

    def unbroken_since(self, watched: Watched) -> int:
        """The number of the watch since which the table is watched without a gap."""
        all_of_it = [w for w in self.watched if w.relation == watched.relation]
        after_gaps = [w.id for before, w in pairwise(all_of_it) if before.gap]
        return max(after_gaps, default=all_of_it[0].id)


def prepared(connection: sqlite3.Connection) -> Prepared | None:
    """What was prepared; None if nothing was."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (META,)).fetchone():
        return None
    meta = dict(connection.execute(f"SELECT name, value FROM {META}"))
    if meta["format"] != FORMAT:
        raise UserError(
            f"the database was prepared by another version of Strobe (format {meta['format']}, this one has {FORMAT})",
            fix="Use that version, or take its preparation out with it and prepare again.",
        )
    rows = connection.execute(f"SELECT id, relation, columns, since, retired FROM {WATCHED} ORDER BY id")
    watched = tuple(Watched(i, r, json.loads(c), s, old != CURRENT, old == GAP) for i, r, c, s, old in rows)
    return Prepared(meta["identity"], meta["journal_mode"], watched)


def require_prepared(connection: sqlite3.Connection, settings: ConnectionSettings) -> Prepared:
    state = prepared(connection)
    if state is None:
        raise settings.not_prepared()
    return state


def find_fault(connection: sqlite3.Connection, watched: Watched) -> str:
    """Why changes of a watched table may have gone unlogged; empty if none may."""
    if kind_of(connection, watched.relation) != "table":
        return "it was dropped or renamed"
    table = read_table(connection, watched.relation)
    types = {c.name: c.type for c in table.columns}
    for column, type_ in watched.types.items():
        if column not in types:
            return f"column {column} was renamed or dropped"
        if types[column] != type_:
            return f"column {column} has another type"
    found = connection.execute(
        "SELECT name, sql, rowid FROM sqlite_master WHERE type IN ('index', 'trigger') AND tbl_name = ? COLLATE NOCASE"
        " ORDER BY type, rowid",
        (watched.relation,),
    ).fetchall()
    ours = {name: sql for name, sql, _ in found if name.startswith(PREFIX)}
    watch = Watch(table, watched.columns, watched.id)
    if table.refusal or ours != watch.triggers() | watch.hold_columns():
        return "Strobe's triggers are missing, or no longer fit the table's keys"
    sealed = connection.execute("SELECT rowid FROM sqlite_master WHERE sql = ?", (SEALING,)).fetchone()
    youngest, _, place = found[-1]
    if youngest not in ours:
        return "a trigger was created after Strobe's, which must be the youngest"
    if sealed is None or place > sealed[0]:
        return "Strobe's triggers were dropped and created again"
    return ""


def prepare_statements(
    connection: sqlite3.Connection, source: str, relations: Sequence[str], journal_mode: str
) -> list[str]:
    """What has to be executed so that these relations, and those watched before, are watched as they should be."""
    state = prepared(connection)
    statements = [] if state else create_log(journal_mode)
    width = 0
    if state:
        width = sum(name.startswith("v") for _, name, *_ in connection.execute(f"PRAGMA table_info({LOG})"))
    known = {w.relation: w for w in state.watched} if state else {}
    free = max((w.id for w in known.values()), default=0) + 1
    active = [w.relation for w in known.values() if not w.retired]
    for relation in dict.fromkeys([*active, *relations]):
        before = known.get(relation)
        if before and relation not in relations and kind_of(connection, relation) != "table":
            statements += _retire(connection, before, GAP)
            continue
        table = usable_table(connection, source, relation)
        columns = tuple(c.name for c in table.offered)
        fault = find_fault(connection, before) if before and not before.retired else ""
        if before and not before.retired and not fault and set(before.columns) == set(columns):
            continue
        statements += widen_log(width, len(columns))
        width = max(width, len(columns))
        gap = before is not None and (before.retired or bool(fault))
        if before:
            statements += _retire(connection, before, GAP if gap else CONTINUED)
        statements += _watch(Watch(table, columns, free), renewed=before is not None, gap=gap)
        free += 1
    return statements + seal() if statements else []


def usable_table(connection: sqlite3.Connection, source: str, relation: str) -> SqliteTable:
    """The table, or the reason why it cannot be watched."""
    where = f"source {source}, table {relation}"
    kind = kind_of(connection, relation)
    if kind is None:
        raise UserError("there is no such table", where=where, fix="Name a table of this database.")
    if kind != "table":
        raise UserError(f"it is a {kind}, which has no change log", where=where, fix="Use the tables behind it.")
    table = read_table(connection, relation)
    if table.refusal:
        raise UserError(
            f"it cannot be watched exactly: {table.refusal}, so rows that REPLACE removes cannot be foreseen",
            where=where,
            fix="Replace that index by one over plain columns with SQLite's own collations.",
        )
    if not table.offered:
        fix = "Declare types; see docs/sources/sqlite.md."
        raise UserError("none of its columns has a declared type that is supported", where=where, fix=fix)
    return table


def _retire(connection: sqlite3.Connection, watched: Watched, how: int) -> list[str]:
    return [
        f"UPDATE {WATCHED} SET retired = {how} WHERE id = {watched.id}",
        *_drop_triggers(connection, watched),
        f"DROP TABLE IF EXISTS {note_name(watched.id)}",
    ]


def _drop_triggers(connection: sqlite3.Connection, watched: Watched) -> list[str]:
    """By name: the triggers and indexes of a table that was renamed went with it."""
    names = {trigger_name(watched.relation, event) for event in EVENTS} | {index_name(watched.id)}
    found = connection.execute("SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'index')")
    return [f"DROP {kind.upper()} {quote(name)}" for kind, name in found if name in names]


def _watch(watch: Watch, renewed: bool, gap: bool) -> list[str]:
    types = json.dumps({c: watch.table.column(c).type for c in watch.columns})
    literal = [text.replace("'", "''") for text in (watch.table.name, types)]
    since = f"(SELECT max(seq) FROM {LOG})" if renewed else "0"
    mark_gap = [f"INSERT INTO {LOG} (relation, sign) VALUES ({watch.id}, 0)"] if gap else []
    return [
        *mark_gap,
        f"INSERT INTO {WATCHED} VALUES ({watch.id}, '{literal[0]}', '{literal[1]}', {since}, {CURRENT})",
        *watch.create_notes(),
        *watch.hold_columns().values(),
        *watch.triggers().values(),
    ]


def undo_statements(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """(what it is, the statement that takes it out) for every trace. Indexes of Strobe's own tables go with them."""
    found = connection.execute("SELECT type, name, tbl_name FROM sqlite_master ORDER BY type DESC, name")
    return [
        (f"{kind} {name}", f"DROP {kind.upper()} {quote(name)}")
        for kind, name, table in found
        if name.startswith(PREFIX) and not (kind == "index" and table.startswith(PREFIX))
    ]
