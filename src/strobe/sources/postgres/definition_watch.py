"""Whether tables are still what they were when the views were made.

The log describes a table before its next change only, and says nothing of one that is dropped, renamed or no longer
published. So the catalog is looked at now and then. What was committed before is reported first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from strobe.errors import RelationLost, StrobeError
from strobe.sources.postgres.connection import Connection, ConnectionSettings, Pool, rows
from strobe.sources.postgres.snapshot import end_of_log
from strobe.sources.postgres.transaction_builder import Watched

_PUBLISHED = """
SELECT c.oid::int8, n.nspname, c.relname
FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename WHERE p.pubname = %s
"""
_COLUMNS = """
SELECT attrelid::int8, attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = ANY(%s::int8[]::oid[]) AND attnum > 0 AND NOT attisdropped
"""


def unpublished(settings: ConnectionSettings, *tables: str) -> RelationLost:
    listed = ", ".join(tables)
    return settings.table_lost(f"table {listed} is not in the publication: its changes are missing", *tables)


class DefinitionWatch:
    """Compares the tables that are used with the catalog, now and then."""

    def __init__(self, pool: Pool, watched: Mapping[int, Watched]) -> None:
        self._pool, self._settings, self._watched = pool, pool.settings, watched
        self._lost: RelationLost | None = None
        self._from = 0
        self._next = 0.0

    def look(self, reported: int) -> None:
        """Raise if a table is not what it was, once the log has been reported up to where that was noticed."""
        if self._lost is not None:
            if reported >= self._from:
                raise self._lost
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + self._settings.timing.definitions
            try:
                with self._pool.session() as connection:
                    self._lost = self._found(connection)
                    self._from = end_of_log(self._settings, connection) if self._lost else 0
            except StrobeError:
                return  # another time

    def _found(self, connection: Connection) -> RelationLost | None:
        published = {oid: (schema, name) for oid, schema, name in rows(connection, _PUBLISHED, self._settings.name)}
        missing = [w.name for oid, w in self._watched.items() if published.get(oid) != w.qualified]
        if missing:
            listed = ", ".join(sorted(missing))
            what = f"table {listed} was dropped, renamed or taken out of the publication"
            return self._settings.table_lost(what, *sorted(missing))
        now = {(oid, name): declared for oid, name, declared in rows(connection, _COLUMNS, list(self._watched))}
        for oid, table in self._watched.items():
            for column, declared in table.declared.items():
                if now.get((oid, column)) != declared:
                    what = f"its column {column} was dropped, renamed or has another type"
                    return self._settings.table_lost(f"table {table.name} was altered: {what}", table.name)
        return None
