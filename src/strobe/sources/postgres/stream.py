"""The change stream of a PostgreSQL database, over a walsender connection.

A thread of its own reads the connection, so that keep-alives are answered while whoever wants the transactions is busy;
it holds a bounded number of them. The slot is told what is durable here, and nothing else: what was only received may
be needed again. Positions are places between records of the log, as numbers.

A slot serves one connection at a time. A second stream of the same process reads a temporary copy of it.
"""

from __future__ import annotations

import math
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

import psycopg
from psycopg.pq import ExecStatus

from strobe.algebra.bag import Bag
from strobe.data.spilled import release
from strobe.errors import Damaged, SourceUnavailable
from strobe.messages import Position, Transaction
from strobe.retry import PG_VISIBLE, Retry
from strobe.sources.postgres import pgoutput
from strobe.sources.postgres.connection import STARTED, Connection, ConnectionSettings, Pool, identifier, rows
from strobe.sources.postgres.pgoutput import lsn_text, widen
from strobe.sources.postgres.position import fingerprint_of, position_at
from strobe.sources.postgres.slot import copy_slot, taken_away
from strobe.sources.postgres.snapshot import XidSnapshot
from strobe.sources.postgres.transaction_builder import TransactionBuilder
from strobe.sources.postgres.walsender import Incoming

CLOCK = "SELECT (extract(epoch FROM clock_timestamp() - timestamptz '2000-01-01 00:00:00+00') * 1000000)::int8::text"
"""The server's, in microseconds since its epoch."""


LATE = 10
"""Looks after which a transaction should be visible, unless a synchronous standby is waited for."""


class Slots:
    """Whether a stream of this process reads the slot at the moment: a second one reads a copy."""

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


class Arrivals:
    """Transactions that a stream has read and nobody has taken yet: a bounded number of them, and of their rows."""

    def __init__(self, transactions: int, rows: int) -> None:
        """There is room while there are fewer than these."""
        self._most, self._most_rows = transactions, rows
        self._changed = threading.Condition()
        self._waiting: deque[Transaction] = deque()
        self._rows = 0
        self._error: BaseException | None = None
        self._closed = False

    def put(self, transaction: Transaction, seconds: float) -> bool:
        """False if there is no room for it in time. Once closed, what comes is dropped."""
        rows = _rows_held(transaction)
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._has_room(rows), seconds):
                return False
            if not self._closed:
                self._waiting.append(transaction)
                self._rows += rows
                self._changed.notify_all()
                return True
        release(transaction)
        return True

    def _has_room(self, rows: int) -> bool:
        return len(self._waiting) < self._most and (not rows or self._rows < self._most_rows)

    def fail(self, error: BaseException) -> None:
        """Nothing more will come: raised after the last transaction."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self, seconds: float) -> Transaction | None:
        """The next transaction; None if nothing comes in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._error, seconds)
            if self._waiting:
                found = self._waiting.popleft()
                self._rows -= _rows_held(found)
                self._changed.notify_all()
                return found
            if self._error is not None:
                raise self._error
        return None

    def close(self) -> None:
        """Nobody will take what is left: it will come again."""
        with self._changed:
            self._closed = True
            left, self._waiting = self._waiting, deque()
            self._changed.notify_all()
        for transaction in left:
            release(transaction)


def _rows_held(transaction: Transaction) -> int:
    """The rows that it has in memory."""
    found = (*transaction.changes.values(), *transaction.gone.values())
    return sum(len(rows) for rows in found if isinstance(rows, Bag))


class Stream(threading.Thread):
    """Reads the log after a position, in a thread of its own, as long as the `with` statement lasts."""

    def __init__(
        self,
        settings: ConnectionSettings,
        builder: TransactionBuilder,
        after: Position,
        stops: Sequence[Position],
        slots: Slots,
        *,
        durable: Callable[[], int],
        check: Callable[[str, str], None],
        guard: Callable[[], None],
    ) -> None:
        """`durable` is where the log that is still needed begins; `guard` is called often, and may raise.

        `check` is called as soon as the slot is held, when nobody else can move it on any more, with the slot's name
        and when the server was started that it is on."""
        super().__init__(name=f"stream-{settings.source}", daemon=True)
        self._settings, self._timing = settings, settings.timing
        self._after = after.order[0]
        self._fingerprint = fingerprint_of(after)
        self._stops = sorted({stop.order[0] for stop in stops if after < stop})
        self._check = check
        self._builder = builder
        self._durable = durable
        self._slots = slots
        self._guard = guard
        self._own = False
        self._arrivals = Arrivals(settings.limits.transactions, settings.limits.rows)
        self._ending = threading.Event()
        self._wake, self._waker = socket.socketpair()
        """Ends a wait for the server."""
        self._passed: int | None = None
        self._passed_at = 0.0
        self._told = (0, 0)
        self._told_at = self._asked_at = 0.0
        self._heard_at = time.monotonic()

    def __enter__(self) -> Stream:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._arrivals.close()
        self._waker.close()
        self.join(timeout=5)

    def take(self, seconds: float) -> Transaction | None:
        """The next transaction; None if nothing comes in time. One without an id says how far the log has been read."""
        return self._arrivals.take(seconds)

    def run(self) -> None:
        connection: Connection | None = None
        self._own = self._slots.take()
        try:
            connection = self._settings.connect(replication=True)
            with self._settings.errors():
                self._incoming = Incoming(self._after, _clock(connection))
                self._begin(connection)
                self._read(connection)
        except BaseException as error:  # raised where the transactions are taken
            self._arrivals.fail(error)
        finally:
            self._wake.close()
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
        retry = Retry(self._timing.slot_in_use, self._ending.wait)
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
                self._answer(connection)
                continue
            if count < 0:
                raise self._ended(connection)
            self._pass_on(connection)
            self._answer(connection)
            if time.monotonic() > self._heard_at + self._timing.silence:
                message = f"the server has been silent for {self._timing.silence:.0f} s"
                raise SourceUnavailable(message, where=self._settings.where)
            if pgconn.socket in select.select([pgconn.socket, self._wake.fileno()], [], [], self._wait())[0]:
                pgconn.consume_input()

    def _wait(self) -> float:
        """Seconds until something is due, if the server sends nothing."""
        due = [self._feedback_at(), self._ask_at(), self._heard_at + self._timing.silence]
        if self._passed is not None:
            due.append(self._passed_at + self._timing.progress)
        return min(self._timing.confirm, max(0.0, min(due) - time.monotonic()))

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
        before = self._incoming.reached
        try:
            found = self._incoming.read(data)
            if isinstance(found, pgoutput.KeepAlive):
                if found.reply:
                    self._tell(connection)
                self._reached(before)
                return
            transaction = self._builder.receive(found.message, found.size)
        except Damaged as error:
            raise error.of(self._incoming.event, self._settings.where) from None
        if transaction is None:
            return
        self._stop_before(connection, transaction.position.order[0])
        self._fingerprint = fingerprint_of(transaction.position)
        if transaction.changes or transaction.gone or transaction.departed or transaction.part_of:
            self._passed = None
            self._report(connection, transaction)
        else:
            self._reached(before)

    def _reached(self, before: int) -> None:
        if self._incoming.reached > before:
            self._passed = self._incoming.reached

    def _pass_on(self, connection: Connection) -> None:
        """Report how far irrelevant log has been passed, now and then."""
        if self._passed is not None and time.monotonic() >= self._passed_at + self._timing.progress:
            passed, self._passed, self._passed_at = self._passed, None, time.monotonic()
            self._stop_before(connection, passed)
            self._report(connection, self._progress(passed))

    def _stop_before(self, connection: Connection, end: int) -> None:
        """Report the stops before a place, each with the transaction that was the last one by then."""
        while self._stops and self._stops[0] < end:
            self._put(connection, self._progress(self._stops.pop(0)))

    def _progress(self, end: int) -> Transaction:
        """The news that everything up to `end` has come."""
        return Transaction(self._settings.source, position_at(end, self._fingerprint))

    def _report(self, connection: Connection, transaction: Transaction) -> None:
        if self._stops and self._stops[0] == transaction.position.order[0]:
            del self._stops[0]
        self._put(connection, transaction)

    def _put(self, connection: Connection, transaction: Transaction) -> None:
        while not self._arrivals.put(transaction, self._timing.feedback_while_full):
            self._tell(connection)

    def _answer(self, connection: Connection) -> None:
        """Say how far the log has been read, and ask for a keep-alive, if either is due."""
        now = time.monotonic()
        if now >= self._ask_at():
            self._asked_at = now
            self._tell(connection, ask=True)
        elif now >= self._feedback_at():
            self._tell(connection)

    def _ask_at(self) -> float:
        """When the server is asked for the keep-alive that confirms the last one."""
        if not self._incoming.unconfirmed:
            return math.inf
        answered = self._heard_at > self._asked_at
        return self._asked_at + (self._timing.progress if answered else self._timing.feedback)

    def _feedback_at(self) -> float:
        """When the server is told how far its log has been read: soon if that is news."""
        news = self._told != (self._incoming.reached, self._confirmed())
        return self._told_at + (min(0.1, self._timing.feedback) if news else self._timing.feedback)

    def _confirmed(self) -> int:
        """0 for a copy, which confirms nothing, and as long as nothing is known to be durable."""
        return min(self._durable(), self._incoming.reached) if self._own else 0

    def _tell(self, connection: Connection, *, ask: bool = False) -> None:
        self._told = (self._incoming.reached, self._confirmed())
        self._told_at = time.monotonic()
        if self._own:
            self._guard()
        pgconn = connection.pgconn
        ask = ask or self._told_at > self._heard_at + self._timing.feedback
        pgconn.put_copy_data(pgoutput.feedback(*self._told, datetime.now(timezone.utc), reply=ask))
        until = time.monotonic() + 5
        while pgconn.flush() and time.monotonic() < until:
            select.select([pgconn.socket], [pgconn.socket], [], 0.1)
            pgconn.consume_input()


def _clock(connection: Connection) -> Callable[[], int]:
    """What the server's clock should show from now on."""
    result = connection.run(CLOCK)
    if result.status != ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)
    shown, at = int(result.get_value(0, 0) or b""), time.monotonic()
    return lambda: shown + int((time.monotonic() - at) * 1_000_000)


class Visible:
    """Which transactions new snapshots show."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._last = self._look()

    def _look(self) -> XidSnapshot:
        with self._pool.session() as connection:
            return XidSnapshot(str(rows(connection, "SELECT pg_current_snapshot()::text")[0][0]))

    def widen(self, xid: int) -> int:
        """The whole id of a recent transaction, of its lower 32 bits."""
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
            if retry.failures == LATE:
                self._require(xid)
            retry.again()
        return True

    def _require(self, xid: int) -> None:
        """What is in the log has begun and is not taken back. Nothing else says that an id was damaged on its way."""
        with self._pool.session() as connection:
            try:
                found = rows(connection, "SELECT pg_xact_status(%s::text::xid8)", str(xid)) != [("aborted",)]
            except psycopg.errors.InvalidParameterValue:  # it is in the future
                found = False
        if not found:
            raise Damaged(f"there is no transaction {xid}", 0, where=self._pool.settings.where)
