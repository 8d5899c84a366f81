"""A database's tables, as information_schema has them: columns with what they hold, keys and indexes.

Once read they are remembered: the stream ends where a column that is used changes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pymysql

from strobe.algebra.schema import Column, RelationSchema
from strobe.errors import UserError
from strobe.sources.mariadb.connection import ConnectionSettings, Pool, quote, rows
from strobe.sources.mariadb.session import is_mysql
from strobe.sources.mariadb.values import Kind, kind_of


@dataclass(frozen=True)
class TableColumn:
    name: str
    declared: str
    kind: Kind | None
    """None where the type is not supported, or the value is not stored."""
    nullable: bool


@dataclass(frozen=True)
class MariadbTable:
    name: str
    type: str
    engine: str
    columns: tuple[TableColumn, ...] = ()
    indexes: tuple[tuple[str, tuple[str, ...]], ...] = field(default=())
    """Name and columns; the primary key is called PRIMARY."""

    @property
    def usable(self) -> bool:
        return self.type == "BASE TABLE" and self.engine.lower() == "innodb"

    @property
    def offered(self) -> tuple[TableColumn, ...]:
        return tuple(c for c in self.columns if c.kind)

    @property
    def kinds(self) -> dict[str, Kind]:
        return {c.name: c.kind for c in self.columns if c.kind}

    @property
    def primary_key(self) -> tuple[str, ...]:
        return dict(self.indexes).get("PRIMARY", ())

    @property
    def searchable_key(self) -> bool:
        """Whether there is a primary key by which rows are found."""
        kinds = self.kinds
        return bool(self.primary_key) and all(c in kinds and kinds[c].searchable for c in self.primary_key)

    def schema(self, source: str) -> RelationSchema:
        kinds = self.kinds
        columns = tuple(Column(c, kind.type, kind.searchable) for c, kind in kinds.items())
        key = self.primary_key if all(c in kinds for c in self.primary_key) else ()
        found = (_prefix(index, kinds) for _, index in self.indexes)
        return RelationSchema(source, self.name, columns, key, tuple(i for i in found if i))


def _prefix(index: Sequence[str], kinds: dict[str, Kind]) -> tuple[str, ...]:
    """The leading columns of an index by which rows are found."""
    useful = []
    for column in index:
        if column not in kinds or not kinds[column].searchable:
            break
        useful.append(column)
    return tuple(useful)


def read_tables(connection: Any, database: str, name: str | None = None) -> dict[str, MariadbTable]:
    """The tables of a database that this user may read, or one of them."""
    where = f"TABLE_SCHEMA = {connection.escape(database)}"
    if name is not None:
        where += f" AND TABLE_NAME = {connection.escape(name)}"
    schema = "information_schema"
    columns: dict[str, list[TableColumn]] = {}
    for table, column, data_type, declared, charset, octets, nullable, extra in rows(
        connection,
        "SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, CHARACTER_OCTET_LENGTH,"
        f" IS_NULLABLE, EXTRA FROM {schema}.COLUMNS WHERE {where} ORDER BY TABLE_NAME, ORDINAL_POSITION",
    ):
        kind = kind_of(data_type.lower(), declared, charset, int(octets) if octets else None)
        if "VIRTUAL" in extra.upper():
            kind, declared = None, f"{declared}, virtual"  # computed when it is read, and not in the binlog
        columns.setdefault(table, []).append(TableColumn(column, declared, kind, nullable == "YES"))
    indexes: dict[str, dict[str, list[str]]] = {}
    for table, index, column in rows(
        connection,
        f"SELECT TABLE_NAME, INDEX_NAME, COLUMN_NAME FROM {schema}.STATISTICS"
        f" WHERE {where} AND INDEX_TYPE = 'BTREE' ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX",
    ):
        indexes.setdefault(table, {}).setdefault(index, []).append(column)
    found = {}
    for table, type_, engine in rows(
        connection, f"SELECT TABLE_NAME, TABLE_TYPE, ENGINE FROM {schema}.TABLES WHERE {where}"
    ):
        own = tuple((i, tuple(c)) for i, c in indexes.get(table, {}).items())
        found[table] = MariadbTable(table, type_, engine or "", tuple(columns.get(table, ())), own)
    return found


class Catalog:
    """The tables as they were last read. A change of a used column ends the stream, so that what is remembered here
    holds for as long as anything read with it is used."""

    def __init__(self, connections: Pool) -> None:
        self._connections = connections
        self._tables: dict[str, MariadbTable] = {}
        self._whole = False
        self._lock = threading.Lock()

    @property
    def settings(self) -> ConnectionSettings:
        return self._connections.settings

    def refresh(self) -> dict[str, MariadbTable]:
        with self._connections.session() as connection:
            tables = read_tables(connection, self.settings.database)
        with self._lock:
            self._tables, self._whole = tables, True
        return tables

    def known(self, connection: Any) -> dict[str, MariadbTable]:
        """All tables as they were last read, which may have been part of them only: then all are read."""
        with self._lock:
            if not self._whole:
                self._tables, self._whole = read_tables(connection, self.settings.database), True
            return dict(self._tables)

    def forget(self) -> None:
        with self._lock:
            self._tables, self._whole = {}, False

    def table(self, name: str, connection: Any = None) -> MariadbTable:
        with self._lock:
            known = self._tables.get(name)
        if known is not None:
            return known
        if connection is None:
            with self._connections.session() as own:
                found = read_tables(own, self.settings.database, name)
        else:
            found = read_tables(connection, self.settings.database, name)
        if name not in found:
            raise UserError(
                "there is no such table, or no right to read it",
                where=f"{self.settings.where}, table {name}",
                fix="See `strobe check`.",
            )
        with self._lock:
            self._tables[name] = found[name]
        return found[name]


_CASCADE = re.compile(r"\bFOREIGN KEY\b[^\n]*\bON (DELETE|UPDATE) (CASCADE|SET NULL|SET DEFAULT)", re.IGNORECASE)


def cascades(connection: Any, table: str) -> list[str]:
    """The foreign keys of a table by which the server changes its rows without writing that into the binlog."""
    ((_, created),) = rows(connection, f"SHOW CREATE TABLE {quote(table)}")
    found = []
    for line in _without_comments(created).splitlines():
        if _CASCADE.search(line):
            constraint = re.match(r"\s*CONSTRAINT `((?:[^`]|``)*)`", line)
            found.append(constraint[1].replace("``", "`") if constraint else line.strip())
    return found


def logs_actions(connection: Any) -> bool:
    """Whether rows that foreign keys change are in the binlog: MySQL from 9.6 on, unless it is told otherwise."""
    found = rows(connection, "SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'")
    return is_mysql(connection) and [value for _, value in found] == ["OFF"]


def _without_comments(created: str) -> str:
    """SHOW CREATE TABLE has one element in a line; text in quotes could look like anything."""
    return re.sub(r"'(?:[^'\\]|\\.|'')*'", "''", created, flags=re.DOTALL)


def charsets(connection: Any) -> dict[int, str]:
    """Character sets by the numbers of their collations."""
    schema = "information_schema"
    found = dict(rows(connection, f"SELECT ID, CHARACTER_SET_NAME FROM {schema}.COLLATIONS WHERE ID IS NOT NULL"))
    try:
        more = f"SELECT ID, CHARACTER_SET_NAME FROM {schema}.COLLATION_CHARACTER_SET_APPLICABILITY"
        found |= dict(rows(connection, f"{more} WHERE ID IS NOT NULL"))
    except pymysql.err.OperationalError:
        pass  # servers before 10.10 have no numbers there, and need none
    return {int(number): charset for number, charset in found.items()}
