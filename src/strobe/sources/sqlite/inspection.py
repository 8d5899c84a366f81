"""Whether tables are still watched as they should be, asked often and told cheaply.

What is wrong follows from the schema alone. So its texts are compared with those of the last inspection, and the tables
are inspected again only if something differs. `PRAGMA schema_version` would be cheaper to compare, but can be set, and
does not move when `sqlite_master` is written to.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from strobe.errors import RelationLost
from strobe.sources.sqlite.connection import ConnectionSettings
from strobe.sources.sqlite.preparation import Prepared, Watched, find_fault

_Schema = list[tuple[int, str, str, str, str]]


class Inspection:
    """Inspects the watched tables of one database, and remembers the result as long as the schema stays."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._known: tuple[_Schema, tuple[Watched, ...], Mapping[str, str]] | None = None

    def faults(self, connection: sqlite3.Connection, state: Prepared) -> Mapping[str, str]:
        """What is wrong with each watched table; empty where nothing is."""
        schema: _Schema = connection.execute("SELECT rowid, type, name, tbl_name, sql FROM sqlite_master").fetchall()
        known = self._known
        if known is None or known[:2] != (schema, state.current):
            faults = {w.relation: find_fault(connection, w) for w in state.current}
            known = self._known = schema, state.current, faults
        return known[2]

    def fault(self, connection: sqlite3.Connection, state: Prepared, relation: str) -> RelationLost | None:
        """What is wrong with one table, as an error."""
        what = self.faults(connection, state).get(relation, "it is not watched")
        return self._settings.table_lost(relation, what) if what else None
