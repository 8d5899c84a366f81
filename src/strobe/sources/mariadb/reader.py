"""Look-ups and scans in one consistent snapshot, whose place in the binlog is known exactly (see `snapshot`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pymysql

from strobe.algebra.bag import Row
from strobe.errors import UNREADABLE, RowOf, RowUnfit, SourceUnavailable, Unfit, UserError
from strobe.messages import Lookup, Position, Seen
from strobe.redaction import content
from strobe.retry import Retry
from strobe.sources.base import Reader
from strobe.sources.keyed import KeySearch, look_up
from strobe.sources.mariadb import snapshot
from strobe.sources.mariadb.binlog import protocol as binlog
from strobe.sources.mariadb.catalog import MariadbTable, charsets
from strobe.sources.mariadb.connection import ConnectionSettings, quote, rows, streamed
from strobe.sources.mariadb.position import Log
from strobe.sources.mariadb.server import Server
from strobe.sources.mariadb.session import is_mysql
from strobe.sources.mariadb.stream import Stream
from strobe.sources.mariadb.values import decoder, encoder, selected

FOREVER_MS = 2**32 - 1


class MariadbReader(Reader):
    """One snapshot on one connection. Not open, it is an address, and pickles."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection: Any = None
        self._sound = False
        self._known: Collection[str] | None = None
        """The tables by whose rows the snapshot was placed; None where the server itself says where it is."""

    def __getstate__(self) -> tuple[ConnectionSettings, Log]:
        if self._connection is not None:
            raise TypeError("an open reader cannot be pickled")
        return self._server.settings, self._server.log

    def __setstate__(self, state: tuple[ConnectionSettings, Log]) -> None:
        self.__init__(Server(*state))  # type: ignore[misc]

    def __del__(self) -> None:
        self.close()

    def open(self) -> Seen:
        self.close()
        connections = self._server.connections
        self._connection, self._sound, self._known = connections.take(), True, None
        try:
            with connections.settings.errors():
                if is_mysql(self._connection):
                    position = self._mysql_snapshot()
                else:
                    position = self._server.position(*snapshot.begin_on_mariadb(self._connection))
            self._server.log.seen(position)
            return Seen(position)
        except BaseException:
            self._sound = False
            self.close()
            raise

    def _mysql_snapshot(self) -> Position:
        settings, retry = self._server.settings, Retry(self._server.settings.timing.place)
        while True:
            low, high = snapshot.begin_on_mysql(self._connection, settings)
            start = self._server.position(*low)
            near = high[1] - low[1] < settings.limits.window_bytes
            found = start if low == high else self._placed(start, high) if near else None
            if found is not None:
                return found
            rows(self._connection, "COMMIT")
            if not retry.again():
                raise SourceUnavailable("it changes too fast to say what a snapshot has seen", where=settings.where)

    def _placed(self, low: Position, high: tuple[str, int]) -> Position | None:
        """By the rows that the transactions between its two bounds touched."""
        server, connection = self._server, self._connection
        tables = {name: table for name, table in server.catalog.known(connection).items() if table.usable}
        self._known, server.charsets = tables.keys(), server.charsets or charsets(connection)
        stream = Stream(server.connections, server.log, {n: t.kinds for n, t in tables.items()}, [], lambda: False)

        def find(table: str, keys: Sequence[Row]) -> Iterator[Row]:
            return self.lookup(Lookup(0, table, tuple(tables[table].kinds), tables[table].primary_key), keys)

        keyed = {n: snapshot.Keyed(tuple(t.kinds), t.primary_key) for n, t in tables.items() if t.searchable_key}
        try:
            between = list(stream.window(low, high, server.charsets))
            return snapshot.placed(low, between, keyed, find, server.settings.limits.window_rows)
        except (UserError, binlog.Broken):
            server.catalog.forget()  # a definition that has changed, or a value that Spark cannot hold
            return None

    def close(self) -> None:
        connection, self._connection = getattr(self, "_connection", None), None
        if connection is None:
            return
        sound = self._sound
        if sound:
            try:
                rows(connection, "COMMIT")
            except (pymysql.err.Error, OSError):
                sound = False
        self._server.connections.give_back(connection, sound)

    def lookup(self, lookup: Lookup, keys: Iterable[Row] | None) -> Iterator[Row]:
        table = self._table(lookup.relation)

        def read(search: TableSearch, columns: Sequence[str], batch: list[tuple[str, ...]]) -> Iterator[Row]:
            row_decoder = RowDecoder(self._server.settings, table, columns)
            return self._read(row_decoder, f"{row_decoder.select()} WHERE {search.condition(batch)}")

        types = {c: kind.type for c, kind in table.kinds.items()}
        search = partial(TableSearch, table, self._open_connection().escape)
        scan = partial(self.scan, lookup.relation, lookup.columns)
        return look_up(lookup, keys, types, self._server.settings.limits.keys, search, read, scan)

    def scan(self, relation: str, columns: Sequence[str]) -> Iterator[Row]:
        """Without the limit on time: a whole table takes what it takes."""
        row_decoder = RowDecoder(self._server.settings, self._table(relation), columns)
        if is_mysql(self._open_connection()):
            sql = row_decoder.select(f"/*+ MAX_EXECUTION_TIME({FOREVER_MS}) */ ")
        else:
            sql = f"SET STATEMENT max_statement_time = 0 FOR {row_decoder.select()}"
        yield from self._read(row_decoder, sql)

    def _read(self, row_decoder: RowDecoder, sql: str) -> Iterator[Row]:
        connection, whole = self._open_connection(), False
        self._sound = False
        try:
            with self._server.settings.errors():
                for raw in streamed(connection, sql):
                    yield row_decoder.decode(raw)
            whole = True
        except UserError:
            self._server.catalog.forget()
            raise
        finally:
            self._sound = whole

    def _table(self, name: str) -> MariadbTable:
        connection = self._open_connection()
        if self._known is not None and name not in self._known:
            self._server.catalog.forget()
            raise SourceUnavailable(f"the table {name} is new", where=self._server.settings.where)
        with self._server.settings.errors():
            return self._server.catalog.table(name, connection)

    def _open_connection(self) -> Any:
        if self._connection is None:
            raise SourceUnavailable("the reader is not open", where=self._server.settings.where)
        return self._connection


class RowDecoder:
    """Selects and decodes rows of one table."""

    def __init__(self, settings: ConnectionSettings, table: MariadbTable, columns: Sequence[str]) -> None:
        self._source, self._where = settings.source, f"{settings.where}, table {table.name}"
        self._qualified = quote(settings.database, table.name)
        self._table, self._columns = table, tuple(columns)
        kinds = table.kinds
        for column in columns:
            if column not in kinds:
                raise UserError(
                    f"there is no column {column} of a supported type", where=self._where, fix="See `strobe check`."
                )
        self._kinds = [kinds[c] for c in columns]
        self._decoders = [decoder(kind) for kind in self._kinds]

    def select(self, hint: str = "") -> str:
        chosen = ", ".join(selected(kind, quote(c)) for kind, c in zip(self._kinds, self._columns, strict=True))
        return f"SELECT {hint}{chosen or '1'} FROM {self._qualified}"

    def decode(self, raw: Sequence[Any]) -> Row:
        try:
            return tuple([None if v is None else decode(v) for decode, v in zip(self._decoders, raw, strict=False)])
        except Unfit:
            raise self._refused(raw) from None

    def _refused(self, raw: Sequence[Any]) -> RowUnfit:
        values, wrong = list[Any](), list[tuple[str, str]]()
        for column, decode, value in zip(self._columns, self._decoders, raw, strict=False):
            try:
                values.append(None if value is None else decode(value))
            except Unfit as unfit:
                values.append(UNREADABLE)
                wrong.append((column, f"{content(value)} has no counterpart in Spark: {unfit}"))
        column, message = wrong[0]
        return RowUnfit(
            message,
            row=RowOf.named(self._source, self._table.name, self._table.primary_key, self._columns, values),
            source=self._source,
            relations=[self._table.name],
            where=f"{self._where}, column {column}",
        )


class TableSearch(KeySearch):
    """Finding a table's rows by equality of some columns, as the server sees equality: never narrower than Spark; and
    NULL in others."""

    def __init__(
        self, table: MariadbTable, literal: Callable[[Any], str], on: Sequence[str], nulls: Sequence[str]
    ) -> None:
        kinds = {c: kind for c, kind in table.kinds.items() if kind.searchable and c in on}
        super().__init__(on, nulls, {c: encoder(kind, literal) for c, kind in kinds.items()})

    def condition(self, keys: Sequence[tuple[str, ...]]) -> str:
        names = [quote(c) for c in self.columns]
        tests = [f"{quote(c)} IS NULL" for c in self.nulls]
        if len(names) == 1:
            tests.append(f"{names[0]} IN ({', '.join(key[0] for key in keys)})")
        elif names:
            alternatives = (" AND ".join(f"{n} = {v}" for n, v in zip(names, key, strict=True)) for key in keys)
            tests.append(f"({' OR '.join(f'({test})' for test in alternatives)})")
        return " AND ".join(tests)
