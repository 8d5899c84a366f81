"""What Strobe puts into a PostgreSQL database: the publication and the slot, and how they are taken out again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strobe.sources.postgres.catalog import read_tables, usable_table
from strobe.sources.postgres.connection import Connection, ConnectionSettings, identifier, rows
from strobe.sources.postgres.slot import Slot, read_slot


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
