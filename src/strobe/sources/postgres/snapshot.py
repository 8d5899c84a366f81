"""One snapshot of a PostgreSQL database for several processes, each on a connection of its own.

The snapshot is exported (`pg_export_snapshot`) by a transaction that stays open until all have read, and imported by
the others (`SET TRANSACTION SNAPSHOT`); what they then see is compared, since a snapshot that was not imported reads
like any other.

A table is read in ranges of its pages (`ctid`), whether it has a key or not; the last range has no end. A row version
that a snapshot sees stays where it is, unless the table is written anew (`VACUUM FULL`, `CLUSTER`): so the exporting
transaction holds the lock on each table that reading takes anyway, from before the ranges are made until the end. Of a
partitioned table, a range is the same pages of each partition. If the exporting transaction ends early, what was read
counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from strobe.algebra.bag import Row
from strobe.errors import SourceUnavailable
from strobe.messages import Seen
from strobe.sources.base import Shared
from strobe.sources.postgres.catalog import Table, rows
from strobe.sources.postgres.connection import Connection, Place, Pool
from strobe.sources.postgres.reader import PostgresReader, Rows

PAGES = 1024
"""A portion has as many, at the least: smaller tables are read in one."""

Ranges = Mapping[str, Sequence[int]]
"""By relation, the first page of each range."""

_PAGES = """
SELECT CASE WHEN bool_and(a.amname = 'heap') THEN max(pg_relation_size(c.oid)) ELSE 0 END
       / current_setting('block_size')::int8
FROM (SELECT %s::oid AS id UNION SELECT relid FROM pg_partition_tree(%s::oid::regclass)) t
JOIN pg_class c ON c.oid = t.id JOIN pg_am a ON a.oid = c.relam
WHERE c.relkind = 'r'
"""
"""Of the largest partition of a table; 0 where ranges of pages are not known to be read as such."""


@contextmanager
def share(pool: Pool, connection: Connection, seen: Seen, tables: Sequence[Table], most: int) -> Iterator[Shared]:
    """Share the snapshot that is open on a connection."""
    place = pool.place
    with place.errors():
        for table in tables:
            connection.execute(sql.SQL("SELECT FROM {} LIMIT 0").format(sql.Identifier(table.schema, table.table)))
        ranges = {table.name: _ranges(connection, table, most) for table in tables}
        ((name, text),) = rows(connection, "SELECT pg_export_snapshot(), pg_current_snapshot()::text")
    reader = SharedReader(place, pool.started, (str(name), str(text)), seen, ranges)
    yield Shared(seen, reader, most, {relation: len(starts) for relation, starts in ranges.items()})
    with place.errors():
        connection.execute("SELECT 1")


def _ranges(connection: Connection, table: Table, most: int) -> list[int]:
    ((found,),) = rows(connection, _PAGES, table.id, table.id)
    pages = int(found or 0)
    count = max(1, min(most, pages // PAGES))
    return [pages * n // count for n in range(count)]


class SharedReader(PostgresReader):
    """Reads a snapshot that another connection shares."""

    def __init__(self, place: Place, started: str, snapshot: tuple[str, str], seen: Seen, ranges: Ranges) -> None:
        """`snapshot` is the name by which it is imported, and what it then looks like."""
        super().__init__(Pool(place, started))
        self._given = (place, started, snapshot, seen, ranges)

    def __getstate__(self) -> tuple[object, ...]:  # type: ignore[override]
        return self._given

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def open(self) -> Seen:
        self.close()
        _, _, (name, text), seen, _ = self._given
        connection = self._pool.take()
        try:
            with self._place.errors():
                found = self._import(connection, name)
            if found != text:
                raise SourceUnavailable("the shared snapshot is another one", where=self._place.where)
        except BaseException:
            self._pool.give_back(connection)
            raise
        self._connection = connection
        return seen

    def _import(self, connection: Connection, name: str) -> str:
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))
        except (psycopg.errors.InvalidParameterValue, psycopg.errors.UndefinedObject):
            raise SourceUnavailable("the shared snapshot is gone", where=self._place.where) from None
        return str(rows(connection, "SELECT pg_current_snapshot()::text")[0][0])

    def scan_portion(self, relation: str, columns: Sequence[str], number: int) -> Iterator[Row]:
        starts = self._given[-1][relation]
        table = self._table(relation)
        found = Rows(self._place, table, columns)
        if len(starts) == 1:
            yield from self._read(table, found, found.selected)
            return
        pages = sql.SQL("{} WHERE t.ctid >= {}::tid").format(found.selected, sql.Literal(f"({starts[number]},0)"))
        if number + 1 < len(starts):
            pages = sql.SQL("{} AND t.ctid < {}::tid").format(pages, sql.Literal(f"({starts[number + 1]},0)"))
        yield from self._read(table, found, pages)

    def close(self) -> None:
        super().close()
        self._pool.close()
