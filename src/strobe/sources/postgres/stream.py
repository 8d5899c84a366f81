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
from datetime import datetime, timezone
from pathlib import Path

import psycopg
from psycopg.pq import ExecStatus

from strobe.errors import SourceUnavailable, StrobeError
from strobe.messages import Position
from strobe.retry import PG_SLOT_IN_USE, PG_VISIBLE, Retry
from strobe.sources.net_changes import ROWS, remove_files
from strobe.sources.postgres import pgoutput
from strobe.sources.postgres.connection import STARTED, Connection, ConnectionSettings, Pool, identifier, rows
from strobe.sources.postgres.pgoutput import lsn_text, widen
from strobe.sources.postgres.position import fingerprint_of
from strobe.sources.postgres.slot import copy_slot, taken_away
from strobe.sources.postgres.snapshot import XidSnapshot
from strobe.sources.postgres.transaction_builder import Arrived, TransactionBuilder, Watched
from strobe.sources.postgres.values import PgType

WAITING = 200
"""Transactions that wait to be taken; while there are as many, or `ROWS` rows of theirs, the server keeps the rest."""
FEEDBACK_SECONDS = 5.0
WAITING_FEEDBACK_SECONDS = 0.4
"""While nothing is read, a server that wants a sign of life is not heard: it gets them unasked."""
SILENCE_SECONDS = 60.0
"""After so long without a sign of life the connection is given up. The server is asked for one now and then."""
PROGRESS_SECONDS = 0.02
"""How often the passing of irrelevant log is reported, at the most."""


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
        settings: ConnectionSettings,
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
        super().__init__(name=f"stream-{settings.source}", daemon=True)
        self._settings = settings
        self._after = after.order[0]
        self._fingerprint = fingerprint_of(after)
        self._stops = sorted({stop.order[0] for stop in stops if after < stop})
        self._check = check
        self._builder = TransactionBuilder(settings, watched, types, spill)
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
            connection = self._settings.connect(replication=True)
            with self._settings.errors():
                self._begin(connection)
                self._read(connection)
        except BaseException as error:  # raised where the transactions are taken
            self._put(connection, error)
        finally:
            self._builder.forget()
            if connection is not None:
                connection.close()
            if self._own:
                self._slots.leave()

    def _begin(self, connection: Connection) -> None:
        name = self._settings.name
        if not self._own:
            name = self._copy(connection)
        started = (connection.run(STARTED).get_value(0, 0) or b"").decode()
        statement = (
            f"START_REPLICATION SLOT {identifier(name)} LOGICAL {lsn_text(self._after)} "
            f"(proto_version '1', publication_names '{identifier(self._settings.name)}', messages 'true')"
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
            return copy_slot(connection, self._settings)[0]
        except psycopg.errors.UndefinedObject as error:
            raise self._refused(error) from None

    def _refused(self, error: psycopg.Error) -> BaseException:
        if isinstance(error, psycopg.errors.ObjectInUse):
            fix = "Another coordinator may be reading it; the slot belongs to one project."
            return SourceUnavailable(f"the slot {self._settings.name} is in use", where=self._settings.where, fix=fix)
        if isinstance(error, psycopg.errors.UndefinedObject):
            return self._settings.lost(f"the slot {self._settings.name} is gone")
        if isinstance(error, psycopg.errors.ObjectNotInPrerequisiteState):
            return self._settings.lost(
                f"the slot {self._settings.name} cannot be read any more: {error}", rebuild=taken_away(self._settings)
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
                raise SourceUnavailable(message, where=self._settings.where)
            wait = PROGRESS_SECONDS if self._passed is not None else 0.1
            if select.select([pgconn.socket], [], [], wait)[0]:
                pgconn.consume_input()

    def _ended(self, connection: Connection) -> BaseException:
        result = connection.pgconn.get_result()
        if result is not None and result.status == ExecStatus.FATAL_ERROR:
            error = psycopg.errors.error_from_result(result)
            if isinstance(error, (psycopg.errors.UndefinedObject, psycopg.errors.UndefinedFile)):
                return self._settings.lost(
                    f"the log cannot be read any more: {error}", rebuild=taken_away(self._settings)
                )
            return error
        return SourceUnavailable("the server ended the change stream", where=self._settings.where)

    def _frame(self, connection: Connection, data: bytes) -> None:
        frame = pgoutput.frame(data)
        if isinstance(frame, pgoutput.KeepAlive):
            if not self._builder.open:
                self._reached(frame.end)
            if frame.reply:
                self._tell(connection)
            return
        arrived = self._builder.receive(pgoutput.decode(frame.payload), len(frame.payload))
        if arrived is None:
            return
        self._stop_before(connection, arrived.end)
        self._fingerprint = arrived.fingerprint
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
            self._arrive(connection, Arrived(passed, self._fingerprint))

    def _stop_before(self, connection: Connection, end: int) -> None:
        """Report the stops before a place, each with the transaction that was the last one by then."""
        while self._stops and self._stops[0] < end:
            self._put(connection, Arrived(self._stops.pop(0), self._fingerprint))

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


class Visible:
    """Which transactions new snapshots show."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._last = self._look()

    def _look(self) -> XidSnapshot:
        with self._pool.session() as connection:
            return XidSnapshot(str(rows(connection, "SELECT pg_current_snapshot()::text")[0][0]))

    def widen(self, xid: int) -> int:
        return widen(xid, self._last.xmax)

    def wait(self, xid: int, stopped: Callable[[], bool]) -> bool:
        """Until it is visible; false if told to stop before."""
        retry = Retry(PG_VISIBLE)
        while not self._last.saw(xid):
            self._last = self._look()
            if self._last.saw(xid):
                break
            if stopped():
                return False
            retry.again()
        return True
