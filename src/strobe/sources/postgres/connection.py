"""Which PostgreSQL database, and the connections to it: few, each with the same settings, and errors that are Strobe's.

Connections are bounded by a limit and kept between questions. Every session sets each variable on which an answer or
the text form of a value depends, and checks that it took: neither the role, the database, the server nor the `options`
of the DSN can change what Strobe reads. Row security is *off*: a policy that would hide rows then stops the query.

Nothing that somebody else put into the database is called by its name: names are looked up in `pg_catalog` alone, and
tables, types and publications are named with their schemas. A session writes only where it is asked for so. A table
that was replaced by a view, whose functions would run as Strobe's role, is refused by servers that can do that.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg
from psycopg import errors, generators, sql
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from strobe.errors import AccessRefused, RelationLost, SourceLost, SourceUnavailable, StrobeError, UserError
from strobe.sources.base import Finding
from strobe.sources.postgres import access
from strobe.sources.postgres.limits import Limits, SlotLimits, Timing

T = TypeVar("T")

SESSION = {
    "row_security": "off",
    "search_path": "pg_catalog, pg_temp",
    "default_transaction_read_only": "on",
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "default_transaction_isolation": "read committed",
    "DateStyle": "ISO, MDY",
    "TimeZone": "UTC",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "xmloption": "content",
    "lc_monetary": "C",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    "constraint_exclusion": "off",
    "gin_fuzzy_search_limit": "0",
    "plan_cache_mode": "force_generic_plan",
}
"""Variables on which answers depend, or how they are written; `plan_cache_mode` is for the speed of catalog queries."""

DEMANDED = {"zero_damaged_pages": "off", "ignore_checksum_failure": "off"}
"""Variables that only a superuser can set: with others than these values, rows are missing from answers."""
RESTRICTED = {"restrict_nonsystem_relation_kind": "view, foreign-table"}
"""What cannot be read: servers before 14.13, 15.8 and 16.4 do not have the variable."""

SHOWN = sql.SQL("SELECT {}").format(
    sql.SQL(", ").join(
        sql.SQL("current_setting({}, true)").format(sql.Literal(name)) for name in (*SESSION, *DEMANDED, *RESTRICTED)
    )
)
"""What these variables are now."""
LONGEST_NAME = 63

STARTED = "SELECT extract(epoch FROM pg_postmaster_start_time())::text"


class Connection(psycopg.Connection[tuple[object, ...]]):
    """One that does not wait for ever: a network may keep a connection open and carry nothing."""

    patience = Timing.longest_answer

    def wait(self, gen: PQGen[T], *more: Any, **named: Any) -> T:
        return super().wait(_within(gen, self.patience), *more, **named)

    def run(self, statement: str) -> PGresult:
        """A statement that may start a stream: whatever the server replies first."""
        self.pgconn.send_query(statement.encode())
        results: list[PGresult] = self.wait(generators.execute(self.pgconn))
        return results[-1]


def _within(steps: PQGen[T], seconds: float) -> PQGen[T]:
    """The same steps, which must have come to their end in time."""
    until = time.monotonic() + seconds
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if time.monotonic() > until:
                raise psycopg.OperationalError(f"the server has not answered for {seconds:g} s")
            wanted = steps.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def object_name(project: str, source: str) -> str:
    """The name of the slot and of the publication."""
    name = f"strobe_{project}_{source}"
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class ConnectionSettings:
    """Which database, how it is connected to, and what its errors become; pickles, and shows no secret."""

    source: str
    dsn: str = field(repr=False)
    schema: str
    name: str
    """Of the slot and of the publication."""
    connections: int = 4
    statement_timeout: float = 5.0
    global_transactions: str | None = None
    """The prefix of messages in the log that name global transactions; without one there are none."""
    slot_limits: SlotLimits = field(default_factory=SlotLimits)
    timing: Timing = field(default_factory=Timing)
    limits: Limits = field(default_factory=Limits)

    @property
    def where(self) -> str:
        return f"source {self.source}"

    def connect(self, *, replication: bool = False, writes: bool = False, timeout: float | None = None) -> Connection:
        """A new connection. With `replication` it is a walsender's, for the stream; only one that `writes` can."""
        if access.too_old():
            fix = "Install psycopg[binary], which brings a newer one."
            raise UserError("this libpq sends a password however a server asks for it", where=self.where, fix=fix)
        limit = self.statement_timeout if timeout is None else timeout
        parameters: dict[str, str | int | None] = {
            "connect_timeout": self.timing.connect,
            "application_name": self.name,
            "keepalives_idle": 30,
            **self._given(),
            **access.defaults(self._given()),
            "client_encoding": "UTF8",
        }
        if replication:
            parameters["replication"] = "database"
        with self.errors():
            connection = Connection.connect(make_conninfo("", **parameters), autocommit=True)
            try:
                writable = {"default_transaction_read_only": "off"} if writes else {}
                self._begin_session(connection, SESSION | writable, {} if replication else _timeouts(limit))
            except BaseException:
                connection.close()
                raise
        connection.patience = limit + self.timing.answer if limit else self.timing.longest_answer
        return connection

    def _begin_session(self, connection: Connection, session: dict[str, str], more: dict[str, str]) -> None:
        for statement in (_setting(session | more), SHOWN):
            result = connection.run(statement.as_string(connection))
            if result.status != ExecStatus.TUPLES_OK:
                raise errors.error_from_result(result)
        shown = [result.get_value(0, place) for place in range(result.nfields)]
        self.check_session([None if value is None else value.decode() for value in shown], session)

    def check_session(self, shown: Sequence[object], session: dict[str, str] = SESSION) -> None:
        """Raise unless a session's variables, as `SHOWN` reads them, are what answers rely on."""
        for (name, value), found in zip((session | DEMANDED | RESTRICTED).items(), shown, strict=True):
            if found != value and not (found is None and name in RESTRICTED):
                fix = f"Set {name} to {value} for this role, and connect to the server directly, without a pooler."
                raise UserError(f"{name} is {found!r}, and answers need {value!r}", where=self.where, fix=fix)

    def _given(self) -> dict[str, str]:
        try:
            return {name: str(value) for name, value in conninfo_to_dict(self.dsn).items() if value is not None}
        except psycopg.ProgrammingError:
            fix = "Write a URL, postgresql://user@host:port/database, or keys and values, host=… dbname=…"
            raise UserError("the dsn cannot be read", where=self.where, fix=fix) from None

    @contextmanager
    def errors(self, table: str = "") -> Iterator[None]:
        where = f"{self.where}, table {table}" if table else self.where
        try:
            yield
        except StrobeError:
            raise
        except psycopg.Error as error:
            raise self.translated(error, where, table) from None  # a driver's error may hold what was asked for

    def translated(self, error: psycopg.Error, where: str, table: str = "") -> StrobeError:
        text = self._clean(error)
        if table and isinstance(error, (errors.UndefinedTable, errors.UndefinedColumn)):
            return self.table_lost(text, table)
        if table and isinstance(error, errors.ObjectNotInPrerequisiteState):
            return self.table_lost(f"it is not a table any more: {text}", table)
        if isinstance(error, (errors.UndefinedTable, errors.UndefinedColumn, errors.UndefinedObject)):
            fix = f"See `strobe check`, then `strobe prepare {self.source}`."
            return UserError(text, where=where, fix=fix)
        if isinstance(error, errors.InsufficientPrivilege):
            return UserError(text, where=where, fix="`strobe check` says what the role lacks; or ask the owner.")
        if isinstance(error, errors.QueryCanceled):
            seconds = f"{self.statement_timeout:g} s"
            fix = "It is tried again; an index may be missing, or limits.statement_timeout is too short."
            return SourceUnavailable(f"a statement took longer than {seconds}: {text}", where=where, fix=fix)
        if isinstance(error, (psycopg.OperationalError, psycopg.InternalError)) or error.sqlstate is None:
            if fix := access.refused(text):
                return AccessRefused(text, where=where, fix=fix)
            if "authentication failed" in text or "no password supplied" in text:
                fix = "Put the right user and password where dsn takes them from, and start again."
                return AccessRefused(text, where=where, fix=fix)
            return SourceUnavailable(text, where=where)
        if error.sqlstate[:2] in ("08", "25", "40", "53", "55", "57", "58"):
            return SourceUnavailable(text, where=where)
        return UserError(text, where=where, fix="See the server's log.")

    def _clean(self, error: psycopg.Error) -> str:
        """What went wrong, without the details, which quote rows."""
        text = " ".join((error.diag.message_primary or str(error)).split()) or type(error).__name__
        password = self._given().get("password")
        return text.replace(password, "***") if password else text

    def warnings(self) -> Iterator[Finding]:
        """What the dsn leaves open to others."""
        return access.warnings(self._given(), f"{self.where}, dsn")

    def lost(self, message: str, *, rebuild: bool = False) -> SourceLost:
        """With `rebuild`, log was or will be let go, and the views that needed it are rebuilt by themselves."""
        fix = "Rebuild the views that use this source: `strobe rebuild VIEW`."
        fix = "The views that use this source are rebuilt by themselves." if rebuild else fix
        return SourceLost(message, source=self.source, rebuild=rebuild, where=self.where, fix=fix)

    def table_lost(self, message: str, *tables: str, fix: str = "") -> RelationLost:
        """Views that use these tables can no longer be kept."""
        where = f"{self.where}, table {tables[0]}" if len(tables) == 1 else self.where
        change = f"Change the views that use it, `strobe prepare {self.source}`, and `strobe rebuild VIEW`."
        return RelationLost(message, source=self.source, relations=tables, where=where, fix=fix or change)

    def not_prepared(self, what: str) -> UserError:
        return UserError(what, where=self.where, fix=f"Run `strobe prepare {self.source}`.")


def _setting(variables: dict[str, str]) -> sql.Composed:
    """The statement that sets these variables. It is read with whatever search path the server gives a session, which
    may lead to other people's functions and operators: so all of its names are qualified."""
    plain = [
        sql.SQL("pg_catalog.set_config({}, {}, false)").format(sql.Literal(name), sql.Literal(value))
        for name, value in variables.items()
    ]
    known = [
        sql.SQL(
            "(SELECT pg_catalog.set_config(s.name, {}, false) FROM pg_catalog.pg_settings s"
            " WHERE s.name OPERATOR(pg_catalog.=) {})"
        ).format(sql.Literal(value), sql.Literal(name))
        for name, value in RESTRICTED.items()
    ]
    return sql.SQL("SELECT {}").format(sql.SQL(", ").join([*plain, *known]))


def _timeouts(limit: float) -> dict[str, str]:
    return {"statement_timeout": f"{limit * 1000:.0f}", "idle_in_transaction_session_timeout": "0"}


class Pool:
    """The connections for questions: as many as the limit says, kept open between them."""

    def __init__(self, settings: ConnectionSettings, started: str = "") -> None:
        self.settings = settings
        self.started = started
        """When the server was started of which it is known that its log is the one that views stand in."""
        self.sharing = threading.Lock()
        """Held while a snapshot is shared: one at a time, so that connections stay few."""
        self._free = threading.BoundedSemaphore(settings.connections)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()

    def take(self) -> Connection:
        seconds = self.settings.timing.free_connection
        if not self._free.acquire(timeout=seconds):
            message = f"all {self.settings.connections} connections have been in use for {seconds:g} s"
            raise SourceUnavailable(message, where=self.settings.where)
        try:
            with self._lock:
                while self._idle:
                    connection = self._idle.pop()
                    if not connection.closed:
                        return connection
            return self.settings.connect()
        except BaseException:
            self._free.release()
            raise

    def give_back(self, connection: Connection) -> None:
        """Whatever it was doing ends here."""
        try:
            if not connection.closed and connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                connection.execute("ROLLBACK")
            sound = not connection.closed
        except psycopg.Error:
            connection.close()
            sound = False
        with self._lock:
            if sound:
                self._idle.append(connection)
            else:  # the others were made by the same server that is gone
                idle, self._idle = self._idle, []
                for other in idle:
                    other.close()
        self._free.release()

    @contextmanager
    def session(self, table: str = "") -> Iterator[Connection]:
        connection = self.take()
        try:
            with self.settings.errors(table):
                yield connection
        finally:
            self.give_back(connection)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def rows(connection: Connection, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """All rows of a statement's result."""
    return connection.execute(statement, parameters).fetchall()


def literal(text: str, connection: Connection) -> str:
    return sql.Literal(text).as_string(connection)


def identifier(*parts: str) -> str:
    return sql.Identifier(*parts).as_string(None)
