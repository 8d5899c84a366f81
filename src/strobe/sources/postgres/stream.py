"""The change stream of a PostgreSQL database, over a walsender connection.

A thread of its own reads the connection, so that keep-alives are answered while whoever wants the transactions is busy;
it holds a bounded number of them. The slot is told what is durable here, and nothing else: what was only received may
be needed again. Positions are places between records of the log, as numbers.

A slot serves one connection at a time. A second stream of the same process reads a temporary copy of it.
"""

from __future__ import annotations

import queue
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from strobe.algebra.bag import Bag, Row
from strobe.algebra.relation import Relation
from strobe.data.arrow import canonical_ddl
from strobe.errors import BrokenInvariant, RelationLost, SourceUnavailable, StrobeError, Unfit, UserError
from strobe.messages import GlobalTransaction, Position
from strobe.retry import PG_SLOT_IN_USE, Retry
from strobe.sources.global_transactions import global_transaction
from strobe.sources.net_changes import ROWS, NetChange, NetChanges, remove_files
from strobe.sources.postgres import pgoutput
from strobe.sources.postgres.connection import STARTED, Connection, Place, identifier
from strobe.sources.postgres.pgoutput import UNCHANGED, RelationInfo, Tuple, lsn_text, parse_lsn
from strobe.sources.postgres.position import Mark, mark_of
from strobe.sources.postgres.slot import taken_away
from strobe.sources.postgres.values import Decode, PgType, decoder

WAITING = 200
"""Transactions that wait to be taken; while there are as many, or `ROWS` rows of theirs, the server keeps the rest."""
FEEDBACK_SECONDS = 5.0
WAITING_FEEDBACK_SECONDS = 0.4
"""While nothing is read, a server that wants a sign of life is not heard: it gets them unasked."""
SILENCE_SECONDS = 60.0
"""After so long without a sign of life the connection is given up. The server is asked for one now and then."""
PROGRESS_SECONDS = 0.02
"""How often the passing of irrelevant log is reported, at the most."""
PREFIX = "strobe"
"""Of messages in the log that name the global transaction of which this one is a part."""


@dataclass(frozen=True)
class Watched:
    """What is wanted of a table, as it was when the views were made."""

    name: str
    types: Mapping[str, PgType]
    """The columns that are reported."""
    key: tuple[str, ...]
    images: bool
    sql: str
    place: tuple[str, str]
    """Its schema and its name there."""
    declared: Mapping[str, str]
    """The columns' types, as the server writes them."""


@dataclass(frozen=True)
class Arrived:
    """A whole transaction, or (without xid) the news that everything up to `end` has come."""

    end: int
    mark: Mark | None = None
    """The last transaction that had come by then."""
    xid: int | None = None
    committed_at: datetime | None = None
    changes: Mapping[str, Relation] = field(default_factory=dict)
    gone: Mapping[str, Relation] = field(default_factory=dict)
    part_of: tuple[GlobalTransaction, ...] = ()

    @property
    def told(self) -> bool:
        """Whether it says more than how far the log has come."""
        return bool(self.changes or self.gone or self.part_of)

    @property
    def held(self) -> int:
        """The rows that it has in memory."""
        return sum(len(rows) for rows in (*self.changes.values(), *self.gone.values()) if isinstance(rows, Bag))


class Slots:
    """Which slots streams of this process read at the moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False

    def take(self) -> bool:
        with self._lock:
            free, self._taken = not self._taken, True
            return free

    def leave(self) -> None:
        with self._lock:
            self._taken = False

    @property
    def taken(self) -> bool:
        return self._taken


class Stream(threading.Thread):
    def __init__(
        self,
        place: Place,
        after: Position,
        stops: Sequence[Position],
        watched: Mapping[int, Watched],
        types: Callable[[set[tuple[int, int]]], Mapping[tuple[int, int], PgType]],
        durable: Callable[[], int],
        slots: Slots,
        check: Callable[[str, str], None],
        guard: Callable[[], None],
        spill: Path | None = None,
    ) -> None:
        """`watched` is by the tables' ids; `durable` says up to where the log is no longer needed; `guard` is called
        often, and may raise; large transactions go into files in `spill`.

        `check` is called as soon as the slot is held, when nobody else can move it on any more, with the slot's name
        and when the server was started that it is on."""
        super().__init__(name=f"stream-{place.source}", daemon=True)
        self._place = place
        self._after = after.order[0]
        self._mark = mark_of(after)
        self._stops = sorted({stop.order[0] for stop in stops if after < stop})
        self._check = check
        self._assembly = Assembly(place, watched, types, spill)
        self._durable = durable
        self._slots = slots
        self._guard = guard
        self._own = False
        self._arrived: queue.Queue[Arrived | StrobeError | BaseException] = queue.Queue(WAITING)
        self._rows_put = self._rows_taken = 0
        self._ending = threading.Event()
        self._received = self._after
        self._passed: int | None = None
        self._passed_at = 0.0
        self._told = (0, 0)
        self._told_at = 0.0
        self._heard_at = time.monotonic()

    def __enter__(self) -> Stream:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join(timeout=5)
        while not self._arrived.empty():  # nobody has taken it: it will come again
            if isinstance(arrived := self._arrived.get_nowait(), Arrived):
                remove_files(arrived.changes, arrived.gone)

    def take(self, seconds: float) -> Arrived | None:
        """The next that has arrived; None if nothing does in time."""
        try:
            found = self._arrived.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(found, BaseException):
            self._arrived.put(found)  # for whoever asks again
            raise found
        self._rows_taken += found.held
        return found

    def run(self) -> None:
        connection: Connection | None = None
        self._own = self._slots.take()
        try:
            connection = self._place.connect(replication=True)
            with self._place.errors():
                self._begin(connection)
                self._read(connection)
        except BaseException as error:  # raised where the transactions are taken
            self._put(connection, error)
        finally:
            self._assembly.forget()
            if connection is not None:
                connection.close()
            if self._own:
                self._slots.leave()

    def _begin(self, connection: Connection) -> None:
        name = self._place.name
        if not self._own:
            name = self._copy(connection)
        started = (connection.run(STARTED).get_value(0, 0) or b"").decode()
        statement = (
            f"START_REPLICATION SLOT {identifier(name)} LOGICAL {lsn_text(self._after)} "
            f"(proto_version '1', publication_names '{identifier(self._place.name)}', messages 'true')"
        )
        retry = Retry(PG_SLOT_IN_USE, self._ending.wait)
        while True:
            result = connection.run(statement)
            if result.status == ExecStatus.COPY_BOTH:
                self._check(name, started)
                return
            error = psycopg.errors.error_from_result(result)
            if not isinstance(error, psycopg.errors.ObjectInUse) or not retry.again():
                raise self._refused(error)

    def _copy(self, connection: Connection) -> str:
        try:
            return copy_slot(connection, self._place)[0]
        except psycopg.errors.UndefinedObject as error:
            raise self._refused(error) from None

    def _refused(self, error: psycopg.Error) -> BaseException:
        if isinstance(error, psycopg.errors.ObjectInUse):
            fix = "Another coordinator may be reading it; the slot belongs to one project."
            return SourceUnavailable(f"the slot {self._place.name} is in use", where=self._place.where, fix=fix)
        if isinstance(error, psycopg.errors.UndefinedObject):
            return self._place.lost(f"the slot {self._place.name} is gone")
        if isinstance(error, psycopg.errors.ObjectNotInPrerequisiteState):
            return self._place.lost(
                f"the slot {self._place.name} cannot be read any more: {error}", rebuild=taken_away(self._place)
            )
        return error

    def _read(self, connection: Connection) -> None:
        pgconn = connection.pgconn
        self._heard_at = time.monotonic()
        while not self._ending.is_set():
            count, data = pgconn.get_copy_data(1)
            if count > 0:
                self._heard_at = time.monotonic()
                self._frame(connection, bytes(data))
                if self._feedback_due():
                    self._tell(connection)
                continue
            if count < 0:
                raise self._ended(connection)
            self._pass_on(connection)
            if self._feedback_due():
                self._tell(connection)
            if time.monotonic() > self._heard_at + SILENCE_SECONDS:
                message = f"the server has been silent for {SILENCE_SECONDS:.0f} s"
                raise SourceUnavailable(message, where=self._place.where)
            wait = PROGRESS_SECONDS if self._passed is not None else 0.1
            if select.select([pgconn.socket], [], [], wait)[0]:
                pgconn.consume_input()

    def _ended(self, connection: Connection) -> BaseException:
        result = connection.pgconn.get_result()
        if result is not None and result.status == ExecStatus.FATAL_ERROR:
            error = psycopg.errors.error_from_result(result)
            if isinstance(error, (psycopg.errors.UndefinedObject, psycopg.errors.UndefinedFile)):
                return self._place.lost(f"the log cannot be read any more: {error}", rebuild=taken_away(self._place))
            return error
        return SourceUnavailable("the server ended the change stream", where=self._place.where)

    def _frame(self, connection: Connection, data: bytes) -> None:
        frame = pgoutput.frame(data)
        if isinstance(frame, pgoutput.KeepAlive):
            if not self._assembly.open:
                self._reached(frame.end)
            if frame.reply:
                self._tell(connection)
            return
        arrived = self._assembly.receive(pgoutput.decode(frame.payload), len(frame.payload))
        if arrived is None:
            return
        self._stop_before(connection, arrived.end)
        self._mark = arrived.mark
        if arrived.told:
            self._passed = None
            self._received = max(self._received, arrived.end)
            self._arrive(connection, arrived)
        else:
            self._reached(arrived.end)

    def _reached(self, end: int) -> None:
        if end > self._received:
            self._received = end
            self._passed = end

    def _pass_on(self, connection: Connection) -> None:
        """Report how far irrelevant log has been passed, now and then."""
        if self._passed is not None and time.monotonic() >= self._passed_at + PROGRESS_SECONDS:
            passed, self._passed, self._passed_at = self._passed, None, time.monotonic()
            self._stop_before(connection, passed)
            self._arrive(connection, Arrived(passed, self._mark))

    def _stop_before(self, connection: Connection, end: int) -> None:
        """Report the stops before a place, each with the transaction that was the last one by then."""
        while self._stops and self._stops[0] < end:
            self._put(connection, Arrived(self._stops.pop(0), self._mark))

    def _arrive(self, connection: Connection, arrived: Arrived) -> None:
        if self._stops and self._stops[0] == arrived.end:
            del self._stops[0]
        self._put(connection, arrived)

    def _put(self, connection: Connection | None, item: Arrived | BaseException) -> None:
        rows = item.held if isinstance(item, Arrived) else 0
        while not self._ending.is_set():
            try:
                if not rows or self._rows_put - self._rows_taken < ROWS:
                    self._arrived.put(item, timeout=0.5)
                    self._rows_put += rows
                    return
                self._ending.wait(0.02)
            except queue.Full:
                pass
            if connection is None or isinstance(item, BaseException):
                continue
            if time.monotonic() >= self._told_at + WAITING_FEEDBACK_SECONDS:
                self._tell(connection)
        if isinstance(item, Arrived):
            remove_files(item.changes, item.gone)

    def _feedback_due(self) -> bool:
        now = time.monotonic()
        if now >= self._told_at + FEEDBACK_SECONDS:
            return True
        return now >= self._told_at + 0.1 and self._told != (self._received, self._confirmed())

    def _confirmed(self) -> int:
        """0 for a copy, which confirms nothing, and as long as nothing is known to be durable."""
        return min(self._durable(), self._received) if self._own else 0

    def _tell(self, connection: Connection) -> None:
        self._told = (self._received, self._confirmed())
        self._told_at = time.monotonic()
        if self._own:
            self._guard()
        pgconn = connection.pgconn
        silent = self._told_at > self._heard_at + FEEDBACK_SECONDS
        pgconn.put_copy_data(pgoutput.feedback(*self._told, datetime.now(timezone.utc), reply=silent))
        until = time.monotonic() + 5
        while pgconn.flush() and time.monotonic() < until:
            select.select([pgconn.socket], [pgconn.socket], [], 0.1)
            pgconn.consume_input()


def copy_slot(connection: Connection, place: Place) -> tuple[str, int]:
    """A temporary copy of the slot, which goes with the connection; returns its name and where it is confirmed."""
    name = f"{place.name[:40]}_copy_{connection.info.backend_pid}"
    text = psycopg.sql.SQL("SELECT lsn::text FROM pg_copy_logical_replication_slot({}, {}, true)")
    result = connection.run(text.format(place.name, name).as_string(connection))
    if result.status != ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)
    return name, parse_lsn((result.get_value(0, 0) or b"").decode())


class Assembly:
    """Puts transactions together from messages."""

    def __init__(
        self,
        place: Place,
        watched: Mapping[int, Watched],
        types: Callable[[set[tuple[int, int]]], Mapping[tuple[int, int], PgType]],
        spill: Path | None = None,
    ) -> None:
        self._place, self._watched, self._types = place, watched, types
        self._relations: dict[int, Rows | None] = {}
        self._begin: pgoutput.Begin | None = None
        self._nets = NetChanges(spill)
        self._parts: dict[GlobalTransaction, None] = {}

    @property
    def open(self) -> bool:
        """Whether a transaction has come in part."""
        return self._begin is not None

    def forget(self) -> None:
        """What has come in part will come again."""
        self._nets.forget()

    def receive(self, message: pgoutput.Message, size: int = 0) -> Arrived | None:
        """A message, which had so many bytes; the transaction that ends with it."""
        if isinstance(message, pgoutput.Begin):
            self._begin, self._parts = message, {}
            self._nets.forget()
        elif isinstance(message, pgoutput.Commit):
            return self._commit(message)
        elif isinstance(message, RelationInfo):
            self._relations[message.id] = self._rows(message)
        elif isinstance(message, (pgoutput.Insert, pgoutput.Update, pgoutput.Delete)):
            rows = self._relations[message.relation]
            if rows is not None:
                rows.apply(message, rows.net(self._nets))
                self._nets.grew(size)
        elif isinstance(message, pgoutput.Truncate):
            self._truncate(message)
        elif isinstance(message, pgoutput.Emitted) and (part := named_by(message, self._place)):
            self._parts[part] = None
        return None

    def _commit(self, message: pgoutput.Commit) -> Arrived:
        begin, self._begin = self._begin, None
        if begin is None:
            raise BrokenInvariant("a commit came without its beginning", where=self._place.where)
        changes, gone = self._nets.take()
        parts, mark = tuple(self._parts), Mark.of(message)
        return Arrived(message.end_lsn, mark, begin.xid, message.committed_at, changes, gone, parts)

    def _truncate(self, message: pgoutput.Truncate) -> None:
        emptied = [rows.watched.name for n in message.relations if (rows := self._relations.get(n)) is not None]
        if emptied:
            what = f"table {', '.join(emptied)} was emptied by TRUNCATE, which Strobe cannot follow"
            fix = "Rebuild the views that use it: `strobe rebuild VIEW`."
            raise self._place.table_lost(what, *emptied, fix=fix)

    def _rows(self, info: RelationInfo) -> Rows | None:
        watched = self._watched.get(info.id)
        if watched is None:
            return None
        if (info.schema, info.name) != watched.place:
            raise self._altered(watched, "it was renamed")
        types = self._types({(c.type, c.modifier) for c in info.columns})
        there = {c.name: types[c.type, c.modifier] for c in info.columns}
        for column, wanted in watched.types.items():
            if column not in there:
                raise self._altered(watched, f"its column {column} was dropped or renamed")
            if (there[column].spark, there[column].name) != (wanted.spark, wanted.name):
                raise self._altered(watched, f"its column {column} has another type")
        if watched.images and info.identity != "f":
            raise self._altered(watched, "its REPLICA IDENTITY is no longer FULL")
        if not watched.images and info.identity != "f":
            named = {c.name for c in info.columns if c.key}
            if not set(watched.key) <= named:
                raise self._altered(watched, f"old rows are no longer named by its key ({', '.join(watched.key)})")
        return Rows(self._place, watched, info)

    def _altered(self, watched: Watched, what: str) -> RelationLost:
        return self._place.table_lost(f"table {watched.name} was altered: {what}", watched.name)


def named_by(message: pgoutput.Emitted, place: Place) -> GlobalTransaction | None:
    """The global transaction that a message in the log names, if that is what it is for."""
    if not message.transactional or message.prefix != PREFIX:
        return None
    return global_transaction(message.content.decode(errors="replace"), place.source)


class Rows:
    """Decodes the changes of one table, as it was described last."""

    def __init__(self, place: Place, watched: Watched, info: RelationInfo) -> None:
        self.watched = watched
        self._place = place
        names = [c.name for c in info.columns]
        self._columns = tuple(watched.types)
        self._spark = {name: canonical_ddl(type_.spark or "") for name, type_ in watched.types.items()}
        self._places = [names.index(c) for c in self._columns]
        self._decoders: list[Decode] = [decoder(t) for t in watched.types.values()]
        self._key = [names.index(c) for c in watched.key] if not watched.images else []
        self._key_decoders = [self._decoders[self._columns.index(c)] for c in watched.key] if self._key else []

    def net(self, nets: NetChanges) -> NetChange:
        """What the transaction does to this table."""
        return nets.of(self.watched.name, self._spark, () if self.watched.images else self.watched.key)

    def apply(self, message: pgoutput.Insert | pgoutput.Update | pgoutput.Delete, net: NetChange) -> None:
        if isinstance(message, pgoutput.Insert):
            net.change(None, self._row(message.new))
        elif not self.watched.images:
            new = message.new if isinstance(message, pgoutput.Update) else None
            named = message.key or message.old or new
            net.change(self._key_of(named or ()), None if new is None else self._row(new))
        elif message.old is None:
            raise BrokenInvariant("an old row is missing", where=self._where)
        elif isinstance(message, pgoutput.Update):
            net.change(self._row(message.old), self._row(message.new, message.old))
        else:
            net.change(self._row(message.old), None)

    @property
    def _where(self) -> str:
        return f"{self._place.where}, table {self.watched.name}"

    def _row(self, values: Tuple, old: Tuple | None = None) -> Row:
        found: list[Any] = []
        for place, decode in zip(self._places, self._decoders, strict=True):
            value = values[place]
            if value is UNCHANGED and old is not None:
                value = old[place]
            if value is None:
                found.append(None)
                continue
            if not isinstance(value, bytes):
                raise self._out_of_line(self._columns[len(found)])
            try:
                found.append(decode(value))
            except Unfit as unfit:
                raise self.unfit(self._columns[len(found)], value, str(unfit)) from None
        return tuple(found)

    def _key_of(self, values: Tuple) -> Row:
        return tuple(
            decode(value) if isinstance(value := values[place], bytes) else None
            for place, decode in zip(self._key, self._key_decoders, strict=True)
        )

    def unfit(self, column: str, value: bytes, reason: str) -> RelationLost:
        found = unfit(self._where, column, self.watched.types[column], value, reason)
        fix = "Change the value, or leave the column out of the views; then `strobe rebuild` those that use the table."
        return RelationLost(
            found.message, source=self._place.source, relations=[self.watched.name], where=found.where, fix=fix
        )

    def _out_of_line(self, column: str) -> RelationLost:
        return self._place.table_lost(
            f"a long value of column {column} was left alone by an update, and is not in the log",
            self.watched.name,
            fix=f"Run: ALTER TABLE {self.watched.sql} REPLICA IDENTITY FULL; then `strobe rebuild` the views that use "
            "the column.",
        )


def unfit(where: str, column: str, type_: PgType, value: bytes, reason: str) -> UserError:
    shown = value[:60].decode(errors="replace")
    return UserError(
        f"{shown!r} cannot be read as {type_.spark}: {reason}",
        where=f"{where}, column {column}",
        fix="Change the value, or leave the column out of the views.",
    )
