"""Answers from a SQLite database: rows decoded, and look-ups and scans in one read transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from strobe.algebra.bag import Row
from strobe.errors import UNREADABLE, RowOf, RowUnfit, SourceUnavailable, Unfit, UserError
from strobe.messages import Lookup, Seen
from strobe.redaction import content
from strobe.sources.base import Reader
from strobe.sources.keyed import KeySearch, look_up
from strobe.sources.sqlite.catalog import SqliteTable, quote, read_table
from strobe.sources.sqlite.connection import ConnectionSettings
from strobe.sources.sqlite.gate import Gate
from strobe.sources.sqlite.inspection import Inspection
from strobe.sources.sqlite.position import end_of_log
from strobe.sources.sqlite.preparation import require_prepared
from strobe.sources.sqlite.triggers import LOG
from strobe.sources.sqlite.values import decoder, encoder


class RowDecoder:
    """Decodes rows of one table."""

    def __init__(
        self, settings: ConnectionSettings, relation: str, types: Mapping[str, str], key: Sequence[str] = ()
    ) -> None:
        self._source, self._relation = settings.source, relation
        self._where = f"{settings.where}, table {relation}"
        self._types = types
        self._key = key
        self._decoders = [decoder(t) for t in types.values()]

    @classmethod
    def of(cls, settings: ConnectionSettings, table: SqliteTable, columns: Sequence[str]) -> RowDecoder:
        types = {c.name: c.type for c in table.columns if c.type}
        for column in columns:
            if column not in types:
                where = f"{settings.where}, table {table.name}"
                raise UserError(f"there is no column {column} of a supported type", where=where)
        return cls(settings, table.name, {c: types[c] for c in columns}, table.primary_key)

    def decode(self, raw: Sequence[Any]) -> Row:
        try:
            return tuple([None if v is None else decode(v) for decode, v in zip(self._decoders, raw, strict=True)])
        except Unfit:
            raise self._refused(raw) from None

    def _refused(self, raw: Sequence[Any]) -> RowUnfit:
        values, wrong = list[Any](), list[tuple[str, str]]()
        for (column, type_), decode, value in zip(self._types.items(), self._decoders, raw, strict=True):
            try:
                values.append(None if value is None else decode(value))
            except Unfit as unfit:
                values.append(UNREADABLE)
                wrong.append((column, f"{content(value)} cannot be read as {type_}: {unfit}"))
        column, message = wrong[0]
        return RowUnfit(
            message,
            row=RowOf.named(self._source, self._relation, self._key, tuple(self._types), values),
            source=self._source,
            relations=[self._relation],
            where=f"{self._where}, column {column}",
        )


class SqliteReader(Reader):
    """One read transaction. Not open, it is a path and a name, and pickles; in another process it passes no gate.

    Only tables that are watched in this very snapshot are read: so rows cannot come from a table that has another's
    name for a while.
    """

    def __init__(
        self, settings: ConnectionSettings, gate: Gate | None = None, inspection: Inspection | None = None
    ) -> None:
        self._settings = settings
        self._gate = gate or Gate()
        self._inspection = inspection or Inspection(settings)
        self._connection: sqlite3.Connection | None = None
        self._tables: dict[str, SqliteTable] = {}

    def __getstate__(self) -> ConnectionSettings:
        if self._connection is not None:
            raise TypeError("an open reader cannot be pickled")
        return self._settings

    def __setstate__(self, settings: ConnectionSettings) -> None:
        self.__init__(settings)  # type: ignore[misc]

    def open(self) -> Seen:
        self.close()
        with self._settings.errors():
            connection = self._settings.connect()
            try:
                with self._gate.snapshot() as taken:
                    connection.execute("BEGIN")
                    end = end_of_log(connection, self._settings)
                    taken(end)
            except BaseException as error:
                connection.close()
                if isinstance(error, sqlite3.OperationalError) and f"no such table: {LOG}" in str(error):
                    raise self._settings.not_prepared() from error
                raise
        self._connection, self._tables = connection, {}
        return Seen(end)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def lookup(self, lookup: Lookup, keys: Iterable[Row] | None) -> Iterator[Row]:
        table = self._table(lookup.relation)

        def read(search: TableSearch, columns: Sequence[str], batch: list[tuple[Any, ...]]) -> Iterator[Row]:
            rows = RowDecoder.of(self._settings, table, columns)
            return self._read(rows, search.sql(columns, len(batch)), [value for key in batch for value in key])

        types = {c.name: c.type for c in table.columns if c.type}
        most = self._settings.limits.parameters // max(1, len(lookup.on))
        search, scan = partial(TableSearch, table), partial(self.scan, lookup.relation, lookup.columns)
        return look_up(lookup, keys, types, most, search, read, scan)

    def scan(self, relation: str, columns: Sequence[str]) -> Iterator[Row]:
        table = self._table(relation)
        rows = RowDecoder.of(self._settings, table, columns)
        selected = ", ".join(map(quote, columns))
        yield from self._read(rows, f"SELECT {selected} FROM {quote(relation)}", [])

    def rows(self, relation: str) -> int | None:
        with self._settings.errors():
            (count,) = self._open_connection().execute(f"SELECT count(*) FROM {quote(relation)}").fetchone()
        return int(count)

    def _read(self, rows: RowDecoder, sql: str, parameters: Sequence[Any]) -> Iterator[Row]:
        with self._settings.errors():
            cursor = self._open_connection().execute(sql, parameters)
            while found := cursor.fetchmany(1000):
                yield from map(rows.decode, found)

    def _table(self, name: str) -> SqliteTable:
        if name not in self._tables:
            with self._settings.errors():
                connection = self._open_connection()
                state = require_prepared(connection, self._settings)
                if lost := self._inspection.fault(connection, state, name):
                    raise lost
                self._tables[name] = read_table(connection, name)
        return self._tables[name]

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise SourceUnavailable("the reader is not open", where=self._settings.where)
        return self._connection


class TableSearch(KeySearch):
    """Finding a table's rows by equality of some columns, and NULL in others.

    Values are compared under the collation of an index, so that the index is used, and again byte by byte, as Spark
    compares them: so a row is found by one key at most. Columns whose equal values have several spellings narrow
    nothing.
    """

    def __init__(self, table: SqliteTable, on: Sequence[str], nulls: Sequence[str]) -> None:
        columns = {c.name: c for c in table.schema("").columns if c.searchable}
        super().__init__(on, nulls, {c: encoder(columns[c].type) for c in on if c in columns})
        self._table = table
        self._text = {c for c in self.columns if columns[c].type == "string"}
        self._collations = self._index_collations()

    def _index_collations(self) -> dict[str, str]:
        """The collations of the index that serves most of the columns."""
        best: dict[str, str] = {}
        for index in self._table.lookup_indexes:
            served: dict[str, str] = {}
            for column, collation in zip(index.columns, index.collations, strict=True):
                if column not in (*self.columns, *self.nulls):
                    break
                served[column] = collation
            best = max(best, served, key=len)
        return best

    def sql(self, columns: Sequence[str], keys: int) -> str:
        tests = [f"t.{quote(column)} IS NULL" for column in self.nulls]
        names = [f"k{i}" for i in range(len(self.columns))]
        for name, column in zip(names, self.columns, strict=True):
            collation = self._collations.get(column, "BINARY")
            tests.append(f't.{quote(column)} = k.{name} COLLATE "{collation}"')
            if collation != "BINARY" and column in self._text:
                tests.append(f't.{quote(column)} = k.{name} COLLATE "BINARY"')
        selected = ", ".join(f"t.{quote(c)}" for c in columns)
        found = f"{quote(self._table.name)} AS t WHERE {' AND '.join(tests)}"
        if not names:
            return f"SELECT {selected} FROM {found}"
        row = f"({', '.join('?' * len(names))})"
        values = ", ".join([row] * keys)
        return f"WITH k({', '.join(names)}) AS (VALUES {values}) SELECT {selected} FROM k CROSS JOIN {found}"
