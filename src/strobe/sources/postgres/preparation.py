"""What Strobe puts into a PostgreSQL database, and takes out again: a publication and a replication slot.

The publication says which tables' changes the log is to bring; the slot keeps the log. Both carry the
project's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from strobe.errors import SourceUnavailable, UserError
from strobe.retry import PG_WRITERS, Retry
from strobe.sources.base import NotUndone
from strobe.sources.postgres import ddl
from strobe.sources.postgres.catalog import read_tables, usable_table
from strobe.sources.postgres.connection import Connection, ConnectionSettings, Pool, identifier, literal, rows
from strobe.sources.postgres.slot import Slot, let_go, read_slot


@dataclass(frozen=True)
class Prepared:
    """What `prepare` makes, as far as it is there."""

    publication: frozenset[str] | None
    """The tables in it, by the names of views; None if there is no publication."""
    flaws: tuple[str, ...]
    """What is wrong with the publication."""
    slot: Slot | None

    @property
    def missing(self) -> str:
        if self.publication is None and self.slot is None:
            return "the database is not prepared"
        if self.publication is None:
            return "the publication is missing"
        return "" if self.slot else "the replication slot is missing"


def read_prepared(connection: Connection, settings: ConnectionSettings) -> Prepared:
    """What is there of the publication and the slot."""
    publication = rows(
        connection,
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot FROM pg_publication"
        " WHERE pubname = %s",
        settings.name,
    )
    tables: frozenset[str] | None = None
    flaws: list[str] = []
    if publication:
        whole, via_root = publication[0]
        if not whole:
            flaws.append("it does not publish all kinds of changes")
        if not via_root:
            flaws.append("it publishes partitions under their own names")
        members = rows(
            connection, "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", settings.name
        )
        tables = frozenset(t if s == settings.schema else f"{s}.{t}" for s, t in members)
        flaws += _narrowed(connection, settings)
    return Prepared(tables, tuple(flaws), read_slot(connection, settings.name))


def _narrowed(connection: Connection, settings: ConnectionSettings) -> Iterable[str]:
    """Publications of PostgreSQL 15 and later can leave out rows and columns."""
    if connection.info.server_version < 150000:
        return []
    found = rows(
        connection,
        "SELECT c.relname FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid"
        " JOIN pg_class c ON c.oid = r.prrelid"
        " WHERE p.pubname = %s AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL)",
        settings.name,
    )
    return [f"it leaves out rows or columns of table {name}" for (name,) in found]


def publication_statements(
    connection: Connection, settings: ConnectionSettings, relations: Sequence[str], prepared: Prepared
) -> list[str]:
    """What makes the publication hold these tables too."""
    tables = read_tables(connection, settings)
    wanted = [usable_table(settings, tables, relation) for relation in dict.fromkeys(relations)]
    name = identifier(settings.name)
    if prepared.publication is None:
        listed = ", ".join(table.sql for table in wanted)
        return [f"CREATE PUBLICATION {name} FOR TABLE {listed} WITH (publish_via_partition_root = true)"]
    new = [table.sql for table in wanted if table.name not in prepared.publication]
    return [f"ALTER PUBLICATION {name} ADD TABLE {', '.join(new)}"] if new else []


class Preparation:
    """Puts the publication and the slot into a database, and takes them out again."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._settings = pool, pool.settings
        self._command = f"strobe prepare {self._settings.source}"

    def script(self, relations: Sequence[str]) -> list[str]:
        """The statements that these tables still need."""
        with self._pool.session() as connection:
            prepared = read_prepared(connection, self._settings)
            statements = publication_statements(connection, self._settings, relations, prepared)
            if prepared.slot is None:
                name = literal(self._settings.name, connection)
                statements.append(f"SELECT pg_create_logical_replication_slot({name}, 'pgoutput')")
        return statements

    def prepare(self, relations: Sequence[str]) -> None:
        with self._pool.session() as connection:
            prepared = read_prepared(connection, self._settings)
            statements = publication_statements(connection, self._settings, relations, prepared)
        if not statements and prepared.slot:
            return
        with self._connected() as connection:
            for statement in statements:
                self._execute(connection, statement)
            if prepared.slot is None:
                self._create_slot(connection)
            elif statements:
                added = [r for r in relations if prepared.publication is None or r not in prepared.publication]
                self._wait_for_writers(connection, added)

    def renew(self) -> None:
        """Replace a slot that is lost or beyond its limit, where views are to be rebuilt."""
        if self._settings.slot_limits.rebuild:
            let_go(self._settings)
            with self._connected() as connection:
                if read_slot(connection, self._settings.name) is None:
                    self._create_slot(connection)

    def undo(self) -> list[str]:
        """Take all of it out, the event trigger too, as far as the role may; returns what was there."""
        removed: list[str] = []
        left: list[str] = []
        reasons: list[str] = []
        with self._connected() as connection:
            for what, statements in self._removal(connection):
                try:
                    for statement in statements:
                        connection.execute(statement)
                    removed.append(what)
                except psycopg.errors.InsufficientPrivilege as error:
                    left += statements
                    reasons.append(f"{what} ({error.diag.message_primary})")
        if left:
            raise NotUndone(
                f"the role may not do this: drop {', '.join(reasons)}",
                removed=removed,
                left=left,
                where=self._settings.where,
                fix=f"Let its owner, or a superuser, run: {'; '.join(left)};",
            )
        return removed

    def _removal(self, connection: Connection) -> Iterator[tuple[str, Sequence[str]]]:
        """What is there, and the statements that take it out. The slot goes first of what its role may drop: it is what
        makes the server keep its log."""
        name, prepared = self._settings.name, read_prepared(connection, self._settings)
        if trigger := ddl.removal(connection, self._settings):
            yield f"event trigger {name}", trigger
        if prepared.slot is not None:
            yield f"replication slot {name}", [f"SELECT pg_drop_replication_slot({literal(name, connection)})"]
        if prepared.publication is not None:
            yield f"publication {name}", [f"DROP PUBLICATION {identifier(name)}"]

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        settings = self._settings
        with settings.errors(), settings.connect(writes=True, timeout=settings.timing.prepare) as connection:
            yield connection

    def _execute(self, connection: Connection, statement: str) -> None:
        try:
            connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege as error:
            raise UserError(
                f"the role may not do this: {error.diag.message_primary}",
                where=self._settings.where,
                fix=f"Let the owner of the tables run: {statement}; then `{self._command}` again.",
            ) from None

    def _create_slot(self, connection: Connection) -> None:
        name, seconds = literal(self._settings.name, connection), self._settings.timing.prepare
        try:
            self._execute(connection, f"SELECT pg_create_logical_replication_slot({name}, 'pgoutput')")
        except psycopg.errors.QueryCanceled:
            raise SourceUnavailable(
                f"the slot was not ready within {seconds:.0f} s: it waits for transactions that are open",
                where=self._settings.where,
                fix="Run `strobe prepare` again when they have ended; pg_stat_activity shows them.",
            ) from None

    def _wait_for_writers(self, connection: Connection, relations: Sequence[str]) -> None:
        """What a transaction wrote before its table was published is not in the stream, even if it commits later:
        it has to end before anything is read from the table."""
        tables = read_tables(connection, self._settings)
        ids = [tables[relation].id for relation in relations]
        writers = (
            "SELECT DISTINCT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND granted"
            " AND relation = ANY(%s::int8[]::oid[]) AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock',"
            " 'ExclusiveLock', 'AccessExclusiveLock')"
        )
        before = set(rows(connection, writers, ids))
        retry = Retry(PG_WRITERS)
        while before & set(rows(connection, writers, ids)):
            if not retry.again():
                listed = ", ".join(tables[relation].sql for relation in relations)
                connection.execute(f"ALTER PUBLICATION {identifier(self._settings.name)} DROP TABLE {listed}")
                raise SourceUnavailable(
                    f"transactions that write to {listed} have been open for {PG_WRITERS.seconds:.0f} s",
                    where=self._settings.where,
                    fix="Run `strobe prepare` again when they have ended; pg_stat_activity shows them.",
                )
