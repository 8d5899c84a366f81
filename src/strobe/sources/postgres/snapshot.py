"""Snapshots of a PostgreSQL database: what one has seen, where the log ended by then, and one for several processes.

What a snapshot has seen is a matter of transaction ids (`XidSnapshot`). All of it is before the end of the log that is
read after the snapshot was taken (`end_of_log`).

Several processes read one snapshot, each on a connection of its own: it is exported (`pg_export_snapshot`) by a
transaction that stays open until all have read, and imported by the others (`SET TRANSACTION SNAPSHOT`); what they then
see is compared, since a snapshot that was not imported reads like any other.

A table is read in ranges of its pages (`ctid`), whether it has a key or not; the last range has no end. A row version
that a snapshot sees stays where it is, unless the table is written anew (`VACUUM FULL`, `CLUSTER`): so the exporting
transaction holds the lock on each table that reading takes anyway, from before the ranges are made until the end. Of a
partitioned table, a range is the same pages of each partition. If the exporting transaction ends early, what was read
counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from strobe.errors import SourceUnavailable
from strobe.messages import Position, SeenByXid
from strobe.retry import PG_FLUSH, Retry
from strobe.sources.postgres.catalog import PgTable
from strobe.sources.postgres.connection import Connection, ConnectionSettings, rows
from strobe.sources.postgres.pgoutput import parse_lsn

_PAGES = """
SELECT CASE WHEN bool_and(a.amname = 'heap') THEN max(pg_relation_size(c.oid)) ELSE 0 END
       / current_setting('block_size')::int8
FROM (SELECT %s::oid AS id UNION SELECT relid FROM pg_partition_tree(%s::oid::regclass)) t
JOIN pg_class c ON c.oid = t.id JOIN pg_am a ON a.oid = c.relam
WHERE c.relkind = 'r'
"""
"""Of the largest partition of a table; 0 where ranges of pages are not known to be read as such."""


class XidSnapshot:
    """`pg_current_snapshot()`, read."""

    def __init__(self, text: str) -> None:
        low, high, running = text.split(":")
        self.xmin, self.xmax = int(low), int(high)
        self.running = frozenset(int(x) for x in running.split(",") if x)

    def saw(self, xid: int) -> bool:
        return xid < self.xmax and xid not in self.running

    def seen(self, through: Position) -> SeenByXid:
        return SeenByXid(through, self.xmax, self.running)


def end_of_log(settings: ConnectionSettings, connection: Connection) -> int:
    """Where the log ends: everything committed so far is before it."""
    ((end, reached),) = rows(connection, "SELECT pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text")
    return flushed(settings, connection, parse_lsn(end), parse_lsn(reached))


def flushed(settings: ConnectionSettings, connection: Connection, wanted: int, reached: int) -> int:
    """Wait until the log is flushed up to a place, and see to it if nobody else does."""
    retry = Retry(PG_FLUSH)
    while reached < wanted:
        if retry.failures == 5:
            flush(settings)
        if not retry.again():
            raise SourceUnavailable("the server does not flush its log", where=settings.where)
        reached = parse_lsn(str(rows(connection, "SELECT pg_current_wal_flush_lsn()::text")[0][0]))
    return wanted


def flush(settings: ConnectionSettings) -> None:
    """A commit of our own flushes everything before it. Its message is in the log only, and nobody reads it."""
    with settings.errors(), settings.connect(writes=True) as connection, connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = 'local'")
        connection.execute("SELECT pg_logical_emit_message(true, 'strobe', '')")


@dataclass(frozen=True)
class ExportedSnapshot:
    """A snapshot that other connections may import as long as the transaction lasts that exported it."""

    name: str
    text: str
    """What `pg_current_snapshot()` is where it was imported."""
    ranges: Mapping[str, Sequence[int]]
    """By relation, the first page of each range."""


def export_snapshot(
    settings: ConnectionSettings, connection: Connection, tables: Sequence[PgTable], most: int
) -> ExportedSnapshot:
    """Export the snapshot that is open on a connection, with these tables in at most so many ranges each."""
    with settings.errors():
        for table in tables:
            connection.execute(sql.SQL("SELECT FROM {} LIMIT 0").format(sql.Identifier(table.schema, table.table)))
        ranges = {table.name: _ranges(connection, table, most, settings.limits.pages) for table in tables}
        ((name, text),) = rows(connection, "SELECT pg_export_snapshot(), pg_current_snapshot()::text")
    return ExportedSnapshot(str(name), str(text), ranges)


def _ranges(connection: Connection, table: PgTable, most: int, least: int) -> list[int]:
    """The first pages of at most so many ranges, each with so many pages at the least."""
    ((found,),) = rows(connection, _PAGES, table.id, table.id)
    pages = int(found or 0)
    count = max(1, min(most, pages // least))
    return [pages * n // count for n in range(count)]


def import_snapshot(settings: ConnectionSettings, connection: Connection, exported: ExportedSnapshot) -> None:
    """Begin a transaction that sees an exported snapshot."""
    with settings.errors():
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(exported.name)))
        except (psycopg.errors.InvalidParameterValue, psycopg.errors.UndefinedObject):
            raise SourceUnavailable("the shared snapshot is gone", where=settings.where) from None
        found = str(rows(connection, "SELECT pg_current_snapshot()::text")[0][0])
    if found != exported.text:
        raise SourceUnavailable("the shared snapshot is another one", where=settings.where)
