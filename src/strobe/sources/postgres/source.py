"""PostgreSQL: logical replication, streamed, and answers in short snapshots.

A position is a place in the write-ahead log (an LSN): the end of a transaction's commit record, or of log that nobody
needs. A slot on the server keeps the log until every view has durably passed it. It carries the project's name.

The log has a transaction before anybody can see it. Strobe reports it when it is visible, and not before: so whatever
is reported is in every snapshot taken from then on, after a restart of Strobe too, and nothing is shown that the
source itself would not show yet. Still an answer may have seen a later transaction without an earlier one; what it has
seen is decided by transaction ids.

Strobe writes nothing but the publication and the slot, in `prepare` and `undo`, and now and then an empty message into
the log, where log that an answer needs would stay unflushed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from strobe.algebra.schema import RelationSchema
from strobe.data.spilled import release
from strobe.errors import RelationLost, SourceLost, SourceUnavailable, StrobeError, UserError
from strobe.messages import Parts, Position, Transaction
from strobe.sources.base import Finding, Kept, Reader, Source, SourceContext
from strobe.sources.postgres import ddl
from strobe.sources.postgres.catalog import LiveCatalog, PgTable, read_tables, usable_table
from strobe.sources.postgres.connection import STARTED, Connection, ConnectionSettings, Pool, object_name, rows
from strobe.sources.postgres.definition import changed, knows, proven, unexplained
from strobe.sources.postgres.fingerprint import read_fingerprints
from strobe.sources.postgres.limits import SlotLimits, Timing
from strobe.sources.postgres.partitions import Moved, Partitions
from strobe.sources.postgres.pgoutput import lsn_text, parse_lsn
from strobe.sources.postgres.position import parse, passes, position_at
from strobe.sources.postgres.preflight import check
from strobe.sources.postgres.preparation import Preparation, read_prepared
from strobe.sources.postgres.reader import PostgresReader
from strobe.sources.postgres.slot import Guard, Slot, copy_slot, kept, read_slot
from strobe.sources.postgres.snapshot import end_of_log
from strobe.sources.postgres.stream import Slots, Stream, Visible
from strobe.sources.postgres.transaction_builder import TransactionBuilder, Watched, parts_before


class PostgresSource(Source):
    """One database of a PostgreSQL server."""

    log_unit = "bytes of log"
    follows_ddl = True

    def __init__(self, settings: ConnectionSettings) -> None:
        self.name = settings.source
        self.settings = settings
        self._pool = Pool(settings)
        self._preparation = Preparation(self._pool)
        self._slots = Slots()
        self._guard = Guard(self._pool)
        self._partitions = Partitions()
        self._durable = 0
        self._history = ""
        """Which server's, and which of its timelines, as first seen."""
        self._focus: Mapping[str, Collection[str]] | None = None
        self._builder: TransactionBuilder | None = None
        """Of the stream that was opened last."""
        self._tables: dict[str, PgTable] = {}
        """As they were when the views were made: stream and answers are held against them."""

    @classmethod
    def from_config(
        cls, name: str, config: Any, context: SourceContext, timing: Timing | None = None
    ) -> PostgresSource:
        limits, slot = config.limits, config.slot
        return cls(
            ConnectionSettings(
                name,
                config.dsn,
                config.schema_name,
                object_name(context.project, name),
                limits.connections,
                limits.statement_timeout.total_seconds(),
                config.global_transactions,
                SlotLimits(slot.warn, slot.limit, slot.beyond == "rebuild"),
                timing or Timing(),
            )
        )

    def schemas(self) -> tuple[RelationSchema, ...]:
        """Tables with their columns of supported types; other columns are left out."""
        with self._pool.session() as connection:
            self._tables = read_tables(connection, self.settings)
        return tuple(t.relation(self.name) for t in self._tables.values() if t.offered)

    def focus(self, columns: Mapping[str, Collection[str]]) -> None:
        self._focus = columns

    def beside(self, other: Source) -> None:
        """A slot serves one connection: whoever comes second reads a copy of it."""
        if isinstance(other, PostgresSource) and other.settings.name == self.settings.name:
            self._slots = other._slots

    def check(self, relations: Sequence[str]) -> list[Finding]:
        try:
            with self._pool.session() as connection:
                return list(check(connection, self.settings, relations))
        except StrobeError as error:
            return [Finding("error", error.where or self.settings.where, error.message, error.fix)]

    def prepare_script(self, relations: Sequence[str]) -> list[str]:
        return self._preparation.script(relations)

    def prepare(self, relations: Sequence[str]) -> None:
        self._preparation.prepare(relations)

    def renew(self) -> None:
        self._preparation.renew()

    def undo(self) -> list[str]:
        return self._preparation.undo()

    def partition_keys(self, relations: Sequence[str]) -> Mapping[str, Sequence[str] | None]:
        with self._pool.session() as connection:
            tables = read_tables(connection, self.settings)
            partitioned = [t for name in relations if (t := tables.get(name)) is not None and t.partitioned]
            if not partitioned or not ddl.installed(connection, self.settings):
                return {}
            return {table.name: ddl.partition_key(connection, table.id) for table in partitioned}

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        """A connection that may change the catalog."""
        settings = self.settings
        with settings.errors(), settings.connect(writes=True, timeout=settings.timing.prepare) as connection:
            yield connection

    def ddl_script(self) -> list[str]:
        with self._pool.session() as connection:
            return ddl.statements(connection, self.settings)

    def follow_ddl(self) -> None:
        with self._changing() as connection:
            ddl.execute(connection, self.settings, ddl.statements(connection, self.settings))

    def guard(self) -> None:
        self._guard.look()

    # Positions.

    def identity(self) -> str:
        with self._pool.session() as connection:
            self._slot(connection)
            return f"postgres:{self._same_history(connection)}:{self.settings.name}"

    def _same_history(self, connection: Connection) -> str:
        ((system, timeline, database),) = rows(
            connection,
            "SELECT (SELECT system_identifier FROM pg_control_system())::text,"
            " substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8),"
            " (SELECT oid FROM pg_database WHERE datname = current_database())::text",
        )
        found = f"{system}:{int(timeline, 16)}:{database}"
        self._history = self._history or found
        if found != self._history:
            raise self.settings.lost(
                f"this is another server or another timeline than before (it was {self._history}, it is {found})"
            )
        return found

    def _slot(self, connection: Connection) -> Slot:
        slot = read_slot(connection, self.settings.name)
        if slot is None:
            raise self.settings.not_prepared("the database is not prepared: there is no replication slot")
        return slot

    def position(self, text: str) -> Position:
        try:
            return parse(text)
        except ValueError:
            raise UserError(f"{text!r} is not a position in a PostgreSQL log", where=self.settings.where) from None

    def now(self) -> Position:
        with self._pool.session() as connection:
            self._slot(connection)
            return position_at(end_of_log(self.settings, connection))

    def verify(self, position: Position) -> None:
        with self._pool.session() as connection:
            prepared = read_prepared(connection, self.settings)
            if prepared.slot is None or prepared.publication is None:
                raise self.settings.lost(f"{prepared.missing}: changes after position {position.text} may be gone")
            self._reaches(connection, prepared.slot, position)

    def _reaches(self, connection: Connection, slot: Slot, position: Position) -> None:
        """A slot would silently start further on, and the log of a restored server may pass the same places."""
        settings = self.settings
        if slot.wal_status == "lost":
            raise settings.lost(
                "the server has taken away log that the slot needed", rebuild=settings.slot_limits.rebuild
            )
        if position.order[0] < slot.confirmed:
            confirmed = lsn_text(slot.confirmed)
            raise settings.lost(
                f"the slot {settings.name} begins at {confirmed}, after position {position.text}: it was made anew, or "
                "somebody else has read it"
            )
        ((end,),) = rows(connection, "SELECT pg_current_wal_insert_lsn()::text")
        if parse_lsn(end) < position.order[0]:
            raise settings.lost(f"the log ends at {end}, before position {position.text}: the server was restored")
        with settings.connect(timeout=0) as looking:
            if not passes(looking, settings, *copy_slot(looking, settings), position):
                raise settings.lost(f"the log has other transactions before position {position.text}: it was restored")

    # Definitions.

    def fingerprints(self, relations: Collection[str]) -> Mapping[str, str]:
        with self._pool.session() as connection:
            left, through = self._partitions.moved.left.keys(), self._partitions.of(relations)
            return read_fingerprints(connection, self.settings, relations, self._tables, through, left)

    def changed(self, relation: str, columns: Collection[str], before: str, after: str) -> str:
        moved = self._partitions.moved
        if unexplained(before, after, moved):
            with suppress(UserError):  # the publication is gone: the log cannot be read, and says nothing
                moved = moved.and_then(self._moved_in_log())
        return changed(columns, before, after, moved)

    def proven(self, before: str, after: str) -> str:
        return proven(before, after) if before and after else after

    def was_known(self, partition: int, fingerprint: str) -> bool:
        return knows(fingerprint, partition)

    def _token(self) -> str | None:
        with self._pool.session() as connection:
            return ddl.read_token(connection, self.settings)

    def _moved_in_log(self) -> Moved:
        """What is in the log, also where it has not been read yet, or not by this process."""
        with self.settings.errors(), self.settings.connect(timeout=0) as looking:
            return ddl.moved_in_log(looking, self.settings)

    # The stream.

    def transactions(
        self, after: Position, stops: Sequence[Position], stopped: Callable[[], bool]
    ) -> Iterator[Transaction]:
        """What the log shows to be lost is lost if it shows it twice: the name of a table, for example, may have been
        damaged on its way, and no checksum says so."""
        doubted: tuple[Position, SourceLost] | None = None
        while True:
            try:
                for transaction in self._transactions(after, stops, stopped):
                    after = transaction.position
                    yield transaction
                return
            except SourceLost as error:
                if doubted is not None and doubted[0] == after:
                    raise (doubted[1] if _same(doubted[1], error) else error) from None
                doubted = after, error

    def _transactions(
        self, after: Position, stops: Sequence[Position], stopped: Callable[[], bool]
    ) -> Iterator[Transaction]:
        with self._pool.session() as connection:
            watched = self._watched(connection)
        visible = Visible(self._pool)
        self._partitions.begin()

        def check(slot: str, started: str) -> None:
            self._check_stream(after, slot, started)

        self._builder = builder = TransactionBuilder(
            self.settings, watched, LiveCatalog(self._pool), visible.widen, self._partitions, self.spill, self._token
        )
        with Stream(
            self.settings,
            builder,
            after,
            stops,
            self._slots,
            durable=lambda: self._durable,
            check=check,
            guard=self.guard,
        ) as stream:
            while not stopped():
                transaction = stream.take(self.settings.timing.stopping)
                if transaction is None:
                    continue
                shown = False
                try:
                    shown = transaction.xid is None or visible.wait(transaction.xid, stopped)
                finally:
                    if not shown:  # it will come again
                        release(transaction)
                if not shown:
                    return
                self._partitions.reported(transaction.position.order[0])
                yield transaction

    def _check_stream(self, after: Position, slot: str, started: str) -> None:
        """A stream has begun, from a server that was started then: it is the one that was read up to this position."""
        with self._pool.session() as connection:
            if rows(connection, STARTED) != [(started,)]:
                connection.close()
                raise SourceUnavailable("connections lead to different servers", where=self.settings.where)
            self._same_history(connection)
            found = read_slot(connection, slot)
            if found is None:
                raise self.settings.lost(f"the slot {slot} is gone")
            self._reaches(connection, found, after)
        self._pool.started = started

    def _watched(self, connection: Connection) -> dict[int, Watched]:
        """The tables that are used, by their ids."""
        if not self._tables:
            self._tables = read_tables(connection, self.settings)
        published = read_prepared(connection, self.settings).publication or frozenset()
        missing = set(self._focus or ()) - published
        if missing:
            listed = ", ".join(sorted(missing))
            what = f"table {listed} is not in the publication: its changes are missing"
            raise self.settings.table_lost(what, *sorted(missing))
        found = {}
        for name in self._focus if self._focus is not None else published:
            table = usable_table(self.settings, self._tables, name)
            used = {c.name for c in table.offered} if self._focus is None else set(self._focus[name])
            named_by = table.relation(self.name).key
            key = () if table.images else named_by
            used |= set(key)
            types = {c.name: c.type for c in table.offered if c.name in used}
            qualified = (table.schema, table.table)
            numbers = {c.name: c.number for c in table.offered if c.name in used}
            found[table.id] = Watched(
                name, types, key, table.images, table.sql, qualified, numbers, table.partitioned, named_by
            )
        return found

    def kept(self) -> Kept | None:
        with self._pool.session() as connection:
            slot = read_slot(connection, self.settings.name)
        return None if slot is None else kept(self.settings, slot)

    def discard(self, through: Position) -> None:
        """The stream tells the slot; without one the slot is moved on directly."""
        self._durable = max(self._durable, through.order[0])
        if self._slots.taken:
            return
        try:
            with self._pool.session() as connection:
                slot = read_slot(connection, self.settings.name)
                if slot is not None and not slot.active and slot.confirmed < through.order[0]:
                    rows(
                        connection,
                        "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)::text",
                        self.settings.name,
                        lsn_text(through.order[0]),
                    )
        except StrobeError:
            return  # another time

    @property
    def warning(self) -> str:
        return self._builder.warning if self._builder is not None else ""

    def parts(self, through: Position) -> Parts:
        if self.settings.global_transactions is None:
            return Parts()
        with self.settings.errors(), self.settings.connect(timeout=0) as looking:
            slot, _ = copy_slot(looking, self.settings)
            return parts_before(looking, self.settings, slot, through.order[0])

    def reader(self, *, at_a_position: bool = False) -> Reader:
        return PostgresReader(self._pool, self._tables, at_a_position=at_a_position)

    def close(self) -> None:
        self._pool.close()


def _same(first: SourceLost, second: SourceLost) -> bool:
    """Whether it is the same that was lost; the second time there may be another reason at hand."""
    return isinstance(first, RelationLost) and isinstance(second, RelationLost) and first.relations == second.relations
