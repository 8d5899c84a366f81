"""Reading a database in one consistent snapshot, whose place in the binlog is known exactly.

On MariaDB `START TRANSACTION WITH CONSISTENT SNAPSHOT` ties InnoDB's snapshot to the binlog: `Binlog_snapshot_file` and
`Binlog_snapshot_position`, read inside, say up to where. Commits become visible in the order of the log, so that a
snapshot is always a prefix of it. For MySQL see `mysql_snapshot`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pymysql

from strobe.algebra.bag import Row
from strobe.errors import SourceUnavailable, Unfit, UserError
from strobe.messages import Lookup, Position, Seen
from strobe.retry import MYSQL_PLACE, Retry
from strobe.sources.base import Reader
from strobe.sources.mariadb import snapshot as mysql_snapshot
from strobe.sources.mariadb.binlog import protocol as binlog
from strobe.sources.mariadb.catalog import Catalog, Table
from strobe.sources.mariadb.connection import Connections, Place, is_mysql, quote, rows, streamed
from strobe.sources.mariadb.position import Log
from strobe.sources.mariadb.stream import Stream, charsets
from strobe.sources.mariadb.values import Kind, decoder, encoder, selected

KEYS = 500
"""So many keys are asked for at once; from 1,000 on the server would turn the list into a temporary table."""
PLACE_BYTES = 2**24
"""Where more than this was logged meanwhile, another snapshot is cheaper than reading it."""
FOREVER_MS = 2**32 - 1
BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"


def snapshot(connection: Any) -> tuple[str, int]:
    """Begin a snapshot; its file and offset in the binlog."""
    rows(connection, BEGIN)
    status = {name.lower(): value for name, value in rows(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")}
    file, offset = status.get("binlog_snapshot_file"), status.get("binlog_snapshot_position")
    if not file or not offset:
        raise UserError(
            "the server does not say where in its binlog a snapshot is",
            where="",
            fix="The binlog must be on (log_bin): see `strobe check`.",
        )
    return file, int(offset)


class Shared:
    """What the readers and the stream of one source have in common."""

    def __init__(self, place: Place, log: Log | None = None) -> None:
        self.place = place
        self.connections = Connections(place)
        self.catalog = Catalog(self.connections)
        self.log = log or Log(place)
        self.charsets: dict[int, str] = {}

    def position(self, file: str, offset: int) -> Position:
        return self.log.at(file, self.connections.made, offset)


class MariadbReader(Reader):
    """One snapshot on one connection. Not open, it is an address, and pickles."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._connection: Any = None
        self._sound = False
        self._known: Collection[str] | None = None
        """The tables by whose rows the snapshot was placed; None where the server itself says where it is."""

    def __getstate__(self) -> tuple[Place, Log]:
        if self._connection is not None:
            raise TypeError("an open reader cannot be pickled")
        return self._shared.place, self._shared.log

    def __setstate__(self, state: tuple[Place, Log]) -> None:
        self.__init__(Shared(*state))  # type: ignore[misc]

    def __del__(self) -> None:
        self.close()

    def open(self) -> Seen:
        self.close()
        connections = self._shared.connections
        self._connection, self._sound, self._known = connections.take(), True, None
        try:
            with connections.place.errors():
                if is_mysql(self._connection):
                    position = self._mysql_snapshot()
                else:
                    position = self._shared.position(*snapshot(self._connection))
            self._shared.log.seen(position)
            return Seen(position)
        except BaseException:
            self._sound = False
            self.close()
            raise

    def _mysql_snapshot(self) -> Position:
        place, retry = self._shared.place, Retry(MYSQL_PLACE)
        while True:
            low, high = mysql_snapshot.begin(self._connection, place)
            start = self._shared.position(*low)
            found = start if low == high else self._placed(start, high) if high[1] - low[1] < PLACE_BYTES else None
            if found is not None:
                return found
            rows(self._connection, "COMMIT")
            if not retry.again():
                raise SourceUnavailable("it changes too fast to say what a snapshot has seen", where=place.where)

    def _placed(self, low: Position, high: tuple[str, int]) -> Position | None:
        """By the rows that the transactions between its two bounds touched."""
        shared, connection = self._shared, self._connection
        tables = {name: table for name, table in shared.catalog.known(connection).items() if table.usable}
        self._known, shared.charsets = tables.keys(), shared.charsets or charsets(connection)
        stream = Stream(shared.connections, shared.log, {n: t.kinds for n, t in tables.items()}, [], lambda: False)

        def find(table: str, keys: Sequence[Row]) -> Iterator[Row]:
            return self.lookup(Lookup(0, table, tuple(tables[table].kinds), tables[table].primary_key), keys)

        keyed = {n: mysql_snapshot.Keyed(tuple(t.kinds), t.primary_key) for n, t in tables.items() if t.searchable_key}
        try:
            between = list(stream.window(low, high, shared.charsets))
            return mysql_snapshot.placed(low, between, keyed, find)
        except (UserError, binlog.Broken):
            shared.catalog.forget()  # a definition that has changed, or a value that Spark cannot hold
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
        self._shared.connections.give_back(connection, sound)

    def lookup(self, lookup: Lookup, keys: Iterable[Row] | None) -> Iterator[Row]:
        table = self._table(lookup.relation)
        if keys is None:
            yield from self.scan(lookup.relation, lookup.columns)
            return
        search = Search(table, lookup.on, self._open_connection().escape)
        if not search.columns:
            yield from self.scan(lookup.relation, lookup.columns)
            return
        columns = list(dict.fromkeys((*lookup.columns, *lookup.on)))
        rows_of = Rows(self._shared.place, table, columns)
        places = [columns.index(c) for c in lookup.on]
        width = len(lookup.columns)
        wanted = ((key, found) for key in keys if (found := search.encode(key)) is not None)
        while batch := dict(islice(wanted, KEYS)):
            sql = f"{rows_of.select()} WHERE {search.condition(list(batch.values()))}"
            for row in self._read(rows_of, sql):
                # The server's idea of equality is wider (letter case, trailing blanks), and an index serves it.
                if tuple([row[i] for i in places]) in batch:
                    yield row[:width]

    def scan(self, relation: str, columns: Sequence[str]) -> Iterator[Row]:
        """Without the limit on time: a whole table takes what it takes."""
        rows_of = Rows(self._shared.place, self._table(relation), columns)
        if is_mysql(self._open_connection()):
            sql = rows_of.select(f"/*+ MAX_EXECUTION_TIME({FOREVER_MS}) */ ")
        else:
            sql = f"SET STATEMENT max_statement_time = 0 FOR {rows_of.select()}"
        yield from self._read(rows_of, sql)

    def _read(self, rows_of: Rows, sql: str) -> Iterator[Row]:
        connection, whole = self._open_connection(), False
        self._sound = False
        try:
            with self._shared.place.errors():
                for raw in streamed(connection, sql):
                    yield rows_of.decode(raw)
            whole = True
        except UserError:
            self._shared.catalog.forget()
            raise
        finally:
            self._sound = whole

    def _table(self, name: str) -> Table:
        connection = self._open_connection()
        if self._known is not None and name not in self._known:
            self._shared.catalog.forget()
            raise SourceUnavailable(f"the table {name} is new", where=self._shared.place.where)
        with self._shared.place.errors():
            return self._shared.catalog.table(name, connection)

    def _open_connection(self) -> Any:
        if self._connection is None:
            raise SourceUnavailable("the reader is not open", where=self._shared.place.where)
        return self._connection


class Rows:
    """Selects and decodes rows of one table."""

    def __init__(self, place: Place, table: Table, columns: Sequence[str]) -> None:
        self._where = f"{place.where}, table {table.name}"
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
        return f"SELECT {hint}{chosen or '1'} FROM {quote(self._table.name)}"

    def decode(self, raw: Sequence[Any]) -> Row:
        try:
            return tuple([None if v is None else decode(v) for decode, v in zip(self._decoders, raw, strict=False)])
        except Unfit:
            raise self._refused(raw) from None

    def _refused(self, raw: Sequence[Any]) -> UserError:
        for column, decode, value in zip(self._columns, self._decoders, raw, strict=True):
            try:
                _ = value is None or decode(value)
            except Unfit as unfit:
                where = f"{self._where}, column {column}"
                return UserError(
                    f"{value!r} has no counterpart in Spark: {unfit}", where=where, fix="Change the value."
                )
        return UserError("a value has no counterpart in Spark", where=self._where)


class Search:
    """Finding a table's rows by equality of some columns, as the server sees equality: never narrower than Spark."""

    def __init__(self, table: Table, on: Sequence[str], literal: Callable[[Any], str]) -> None:
        kinds = table.kinds
        self._places = [i for i, c in enumerate(on) if c in kinds and kinds[c].searchable]
        self.columns = [on[i] for i in self._places]
        self._encoders = [encoder(kinds[c], literal) for c in self.columns]
        self._names = [quote(c) for c in self.columns]

    def encode(self, key: Row) -> tuple[str, ...] | None:
        found = [encode(key[i]) for i, encode in zip(self._places, self._encoders, strict=True)]
        literals = tuple(text for text in found if text is not None)
        return literals if len(literals) == len(found) else None

    def condition(self, keys: Sequence[tuple[str, ...]]) -> str:
        if len(self._names) == 1:
            return f"{self._names[0]} IN ({', '.join(key[0] for key in keys)})"
        return " OR ".join(
            f"({' AND '.join(f'{n} = {v}' for n, v in zip(self._names, key, strict=True))})" for key in keys
        )


def kinds_of(table: Table, columns: Iterable[str]) -> dict[str, Kind]:
    """What the given columns hold, those of unsupported types left out."""
    wanted, kinds = set(columns), table.kinds
    return {name: kind for name, kind in kinds.items() if name in wanted}
