"""Reading a PostgreSQL database in one snapshot: look-ups by key, scans, and what the snapshot had seen.

What a snapshot had seen is decided by transaction ids (`pg_current_snapshot()`), never by positions: a transaction is
in the log before it is visible, and of two the later one may be visible first. The position up to which everything
visible is in the log is read *after* the snapshot was taken. It is a place that the log has been flushed up to, because
a stream never gets further: log that nobody flushes is flushed by a small message of our own, which changes no data.

A load needs more: a position at which the snapshot is exactly what the log had brought. For that the transactions at
the end of the log are looked at in a temporary copy of the slot; where the snapshot has seen a later one without an
earlier one, another snapshot is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import psycopg
from psycopg import sql

from strobe.algebra.bag import Row
from strobe.errors import UNREADABLE, RowOf, RowUnfit, SourceUnavailable, Unfit, UserError
from strobe.messages import Lookup, Position, Seen
from strobe.retry import PG_EXACT_SNAPSHOT, Retry
from strobe.sources.base import Reader, Shared
from strobe.sources.keyed import KeySearch, look_up
from strobe.sources.postgres import pgoutput
from strobe.sources.postgres.catalog import PgTable, read_tables
from strobe.sources.postgres.connection import STARTED, Connection, ConnectionSettings, Pool, rows
from strobe.sources.postgres.pgoutput import parse_lsn, widen
from strobe.sources.postgres.position import LogFingerprint, position_at
from strobe.sources.postgres.slot import commits, copy_slot
from strobe.sources.postgres.snapshot import (
    ExportedSnapshot,
    XidSnapshot,
    export_snapshot,
    flush,
    flushed,
    import_snapshot,
)
from strobe.sources.postgres.values import CODECS, Decode, PgType, decoder, encoding, unfit_error

_SNAPSHOT = """
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text,
       EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = {}), ({})
"""

_WHOLE = """
SELECT relfilenode = pg_relation_filenode(oid) FROM pg_class WHERE oid = {id}
"""
"""Whether a table that is locked now is the one that the snapshot sees: TRUNCATE and ALTER TABLE make a new file, which
an older snapshot finds empty."""

_ALL_PARTITIONS = """
WITH RECURSIVE tree AS (
    SELECT {id}::oid AS id UNION ALL SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.id
)
SELECT NOT EXISTS (SELECT id FROM tree EXCEPT SELECT relid FROM pg_partition_tree({id}::oid::regclass))
   AND NOT EXISTS (SELECT relid FROM pg_partition_tree({id}::oid::regclass) EXCEPT SELECT id FROM tree)
"""
"""Whether a partitioned table that is locked now has just those partitions that the snapshot sees: one that has left is
not read, one that was attached is. What happens to the partitions' files is seen in the table's fingerprint."""


class PostgresReader(Reader):
    """One snapshot, on one connection of the pool."""

    def __init__(self, pool: Pool, tables: dict[str, PgTable] | None = None, *, at_a_position: bool = False) -> None:
        """`tables` are as they were when views were made; what comes back is checked against them."""
        self._settings = pool.settings
        self._pool = pool
        self._at_a_position = at_a_position
        self._connection: Connection | None = None
        self._tables = {} if tables is None else tables
        self._cursors = 0

    def __getstate__(self) -> tuple[ConnectionSettings, bool, str]:
        if self._connection is not None:
            raise TypeError("an open reader cannot be pickled")
        return self._settings, self._at_a_position, self._pool.started

    def __setstate__(self, state: tuple[ConnectionSettings, bool, str]) -> None:
        settings, at_a_position, started = state
        self.__init__(Pool(settings, started), at_a_position=at_a_position)  # type: ignore[misc]

    def open(self) -> Seen:
        self.close()
        if self._at_a_position:
            return self._open_at_a_position()
        snapshot, through = self._begin()
        return snapshot.seen(position_at(through))

    def _begin(self) -> tuple[XidSnapshot, int]:
        """A snapshot, and a place in the log up to which everything that it has seen is there."""
        connection = self._pool.take()
        try:
            with self._settings.errors():
                statement = sql.SQL(_SNAPSHOT).format(sql.Literal(self._settings.name), sql.SQL(STARTED))
                cursor = connection.execute(statement)
                cursor.nextset()
                ((text, end, reached, prepared, started),) = cast(list[tuple[Any, ...]], cursor.fetchall())
                if self._pool.started not in ("", started):
                    message = "the server was restarted, and is asked again when its log has been looked at"
                    raise SourceUnavailable(message, where=self._settings.where)
                if not prepared:
                    raise self._settings.not_prepared("the database is not prepared: there is no replication slot")
                through = flushed(self._settings, connection, parse_lsn(end), parse_lsn(reached))
        except BaseException:
            self._pool.give_back(connection)
            raise
        self._connection = connection
        return XidSnapshot(text), through

    def _open_at_a_position(self) -> Seen:
        with self._settings.errors(), self._settings.connect(timeout=0) as looking:
            retry = Retry(PG_EXACT_SNAPSHOT)
            while True:
                try:
                    slot, _ = copy_slot(looking, self._settings)
                except psycopg.errors.UndefinedObject:
                    raise self._settings.not_prepared("the database is not prepared: there is no slot") from None
                snapshot, through = self._begin()
                found = list(commits(looking, self._settings, slot, through))
                exact = _cut([(widen(begin.xid, snapshot.xmax), commit) for begin, commit in found], snapshot, through)
                if exact is not None and (found or retry.failures):
                    return snapshot.seen(exact)
                if exact is not None:
                    flush(self._settings)  # nothing has happened since the slot was confirmed: this marks a place
                self.close()
                rows(looking, "SELECT pg_drop_replication_slot(%s)::text", slot)
                if not retry.again():
                    break
        raise SourceUnavailable(
            "no snapshot is a state of the log: a transaction is committed there and not visible yet",
            where=self._settings.where,
            fix="It may wait for a synchronous standby; see pg_stat_activity. Strobe tries again.",
        )

    @contextmanager
    def shared(self, relations: Sequence[str], most: int) -> Iterator[Shared | None]:
        tasks = min(most, self._settings.connections)
        if tasks < 2 or not self._pool.sharing.acquire(blocking=False):
            yield None
            return
        try:
            seen = self.open()
            tables = [self._table(relation) for relation in dict.fromkeys(relations)]
            connection = self._open_connection()
            exported = export_snapshot(self._settings, connection, tables, tasks)
            reader = SharedReader(self._settings, self._pool.started, seen, exported)
            yield Shared(seen, reader, tasks, {name: len(starts) for name, starts in exported.ranges.items()})
            with self._settings.errors():
                connection.execute("SELECT 1")  # it has lasted
        finally:
            self.close()
            self._pool.sharing.release()

    def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._pool.give_back(connection)

    def lookup(self, lookup: Lookup, keys: Iterable[Row] | None) -> Iterator[Row]:
        table = self._table(lookup.relation)
        stored = self._open_connection().info.parameter_status("server_encoding")

        def read(search: TableSearch, columns: Sequence[str], batch: list[tuple[Any, ...]]) -> Iterator[Row]:
            found = RowDecoder(self._settings, table, columns)
            return self._read(table, found, search.statement(found.selected, batch))

        types = {c.name: c.type.spark or "" for c in table.offered}
        search = partial(TableSearch, table, CODECS.get(stored or "", "utf-8"))
        scan = partial(self.scan, lookup.relation, lookup.columns)
        return look_up(lookup, keys, types, self._settings.limits.keys, search, read, scan)

    def scan(self, relation: str, columns: Sequence[str]) -> Iterator[Row]:
        table = self._table(relation)
        found = RowDecoder(self._settings, table, columns)
        yield from self._read(table, found, found.selected)

    def rows(self, relation: str) -> int | None:
        """As the server's own statistics have it: counting would read the table. None before it was first analysed."""
        table = self._table(relation)
        with self._settings.errors(table.name):
            ((estimate,),) = rows(
                self._open_connection(),
                "SELECT reltuples::bigint::text FROM pg_class WHERE oid = %s::regclass",
                table.sql,
            )
        return None if int(estimate) < 0 else int(estimate)

    def _read(self, table: PgTable, found: RowDecoder, statement: sql.Composable) -> Iterator[Row]:
        """In portions, through a cursor of the server's that goes with the snapshot."""
        connection = self._open_connection()
        self._cursors += 1
        name = sql.Identifier(f"strobe_{self._cursors}")
        most = self._settings.limits.fetched
        fetch = sql.SQL("FETCH {} FROM {}").format(sql.SQL(str(most)), name)
        whole = sql.SQL(_ALL_PARTITIONS if table.partitioned else _WHOLE).format(id=sql.Literal(table.id))
        with self._settings.errors(table.name):
            cursor = connection.execute(
                sql.SQL("DECLARE {} NO SCROLL CURSOR FOR {}; {}; {}").format(name, statement, whole, fetch)
            )
            cursor.nextset()
            self._expect_whole(table, cursor.fetchall())
            cursor.nextset()
            while (result := cursor.pgresult) is not None and result.ntuples:
                found.expect(result)
                yield from found.decode(result)
                if result.ntuples < most:
                    return
                cursor = connection.execute(fetch)

    def _expect_whole(self, table: PgTable, found: Sequence[tuple[object, ...]]) -> None:
        if found != [(True,)]:
            what = "a partition left or came" if table.partitioned else "the table was rewritten"
            message = f"{what} after the snapshot was taken, and is asked again"
            raise SourceUnavailable(message, where=f"{self._settings.where}, table {table.name}")

    def _table(self, name: str) -> PgTable:
        if name not in self._tables:
            with self._settings.errors():
                for found, table in read_tables(self._open_connection(), self._settings).items():
                    self._tables.setdefault(found, table)
        if name not in self._tables:
            raise self._settings.table_lost(f"there is no table {name}", name)
        return self._tables[name]

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise SourceUnavailable("the reader is not open", where=self._settings.where)
        return self._connection


class SharedReader(PostgresReader):
    """Reads a snapshot that another connection shares."""

    def __init__(self, settings: ConnectionSettings, started: str, seen: Seen, exported: ExportedSnapshot) -> None:
        super().__init__(Pool(settings, started))
        self._seen, self._exported = seen, exported

    def __getstate__(self) -> tuple[Any, ...]:
        return self._settings, self._pool.started, self._seen, self._exported

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def open(self) -> Seen:
        self.close()
        connection = self._pool.take()
        try:
            import_snapshot(self._settings, connection, self._exported)
        except BaseException:
            self._pool.give_back(connection)
            raise
        self._connection = connection
        return self._seen

    def scan_portion(self, relation: str, columns: Sequence[str], number: int) -> Iterator[Row]:
        starts = self._exported.ranges[relation]
        table = self._table(relation)
        found = RowDecoder(self._settings, table, columns)
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


def _cut(found: Sequence[tuple[int, pgoutput.Commit]], snapshot: XidSnapshot, through: int) -> Position | None:
    """The position at which the log had brought exactly what the snapshot has seen; None if there is none.

    `found` are the transactions after the slot's own position, by their ids. Those before have been reported, and what
    is reported is visible.
    """
    seen = [commit for xid, commit in found if snapshot.saw(xid)]
    missed = [commit.lsn for xid, commit in found if not snapshot.saw(xid)]
    at = min(missed, default=through)
    if any(commit.end_lsn > at for commit in seen):
        return None
    return position_at(at, LogFingerprint.of(seen[-1]) if seen else None)


class RowDecoder:
    """Selects and decodes columns of one table."""

    def __init__(self, settings: ConnectionSettings, table: PgTable, columns: Sequence[str]) -> None:
        self._settings, self._table, self._columns = settings, table, tuple(columns)
        self._types: list[PgType] = []
        self._numbers: list[int] = []
        for name in columns:
            column = table.column(name)
            if column is None or not column.type.spark:
                raise UserError(f"there is no column {name} of a supported type", where=self._where)
            self._types.append(column.type)
            self._numbers.append(column.number)
        self._decoders: list[Decode] = [decoder(t) for t in self._types]

    @property
    def _where(self) -> str:
        return f"{self._settings.where}, table {self._table.name}"

    @property
    def selected(self) -> sql.Composable:
        names = sql.SQL(", ").join(sql.Identifier("t", c) for c in self._columns)
        table = sql.Identifier(self._table.schema, self._table.table)
        only = sql.SQL("" if self._table.partitioned else "ONLY ")
        return sql.SQL("SELECT {} FROM {}{} AS t").format(names, only, table)

    def expect(self, result: psycopg.pq.abc.PGresult) -> None:
        """The columns are still what they were."""
        for place, (type_, number) in enumerate(zip(self._types, self._numbers, strict=True)):
            if (result.ftable(place), result.ftablecol(place)) != (self._table.id, number):
                what = f"its column {self._columns[place]} is another one now, or one of another table"
                raise self._settings.table_lost(what, self._table.name)
            same_length = result.fmod(place) == type_.modifier or type_.name == "varchar"
            if result.ftype(place) != type_.oid or not same_length:
                column = self._columns[place]
                raise self._settings.table_lost(f"its column {column} has another type now", self._table.name)

    def decode(self, result: psycopg.pq.abc.PGresult) -> Iterator[Row]:
        columns = list(enumerate(self._decoders))
        value = result.get_value
        for line in range(result.ntuples):
            try:
                yield tuple([None if (v := value(line, i)) is None else decode(v) for i, decode in columns])
            except Unfit:
                raise self._refused(result, line) from None

    def _refused(self, result: psycopg.pq.abc.PGresult, line: int) -> RowUnfit:
        values, wrong = list[Any](), list[UserError]()
        for place, decode in enumerate(self._decoders):
            text = result.get_value(line, place)
            try:
                values.append(None if text is None else decode(text))
            except Unfit as reason:
                values.append(UNREADABLE)
                column, type_ = self._columns[place], self._types[place]
                wrong.append(unfit_error(self._where, column, type_, text or b"", str(reason)))
        source, table = self._settings.source, self._table.name
        row = RowOf.named(source, table, self._table.relation(source).key, self._columns, values)
        return RowUnfit(wrong[0].message, row=row, source=source, relations=[table], where=wrong[0].where)


class TableSearch(KeySearch):
    """Finding rows by equality of some columns, and NULL in others, in one statement for many keys.

    Columns whose equality differs from Spark's narrow nothing.
    """

    def __init__(self, table: PgTable, codec: str, on: Sequence[str], nulls: Sequence[str]) -> None:
        self._types = {c.name: c.type for c in table.offered if c.searchable and c.name in on}
        self._encodings = {name: encoding(type_, codec) for name, type_ in self._types.items()}
        super().__init__(on, nulls, {name: found.encode for name, found in self._encodings.items()})

    def statement(self, selected: sql.Composable, keys: Sequence[tuple[Any, ...]]) -> sql.Composable:
        arrays = [self._array(place, keys) for place in range(len(self.columns))]
        names = [sql.Identifier("t", c) for c in self.columns]
        tests = [sql.SQL("{} = ANY({})").format(name, array) for name, (array, _) in zip(names, arrays, strict=True)]
        tests += [sql.SQL("{} IS NULL").format(sql.Identifier("t", c)) for c in self.nulls]
        exact = [(name, array) for name, (array, whole) in zip(names, arrays, strict=True) if whole]
        if len(exact) > 1:
            tests.append(
                sql.SQL("({}) IN (SELECT * FROM unnest({}))").format(
                    sql.SQL(", ").join(name for name, _ in exact), sql.SQL(", ").join(array for _, array in exact)
                )
            )
        return sql.SQL("{} WHERE {}").format(selected, sql.SQL(" AND ").join(tests))

    def _array(self, place: int, keys: Sequence[tuple[Any, ...]]) -> tuple[sql.Composable, bool]:
        """The keys' values as an array, and whether it has one for each key, in their order."""
        values = sql.Literal(_array_text([key[place] for key in keys]))
        type_, array = self._types[self.columns[place]], self._encodings[self.columns[place]].array
        if type_.name == "enum":  # without a cast from or to the type, which its owner may have defined
            those = sql.SQL(
                "ARRAY(SELECT v FROM unnest(enum_range(NULL::{})) AS e (v) WHERE enum_out(v)::text = ANY({}::text[]))"
            )
            return those.format(sql.SQL(type_.sql), values), False
        return sql.SQL("{}::{}").format(values, sql.SQL(array)), True


def _array_text(values: Sequence[str]) -> str:
    return "{" + ",".join('"' + v.replace("\\", "\\\\").replace('"', '\\"') + '"' for v in values) + "}"
