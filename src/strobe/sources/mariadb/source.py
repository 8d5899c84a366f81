"""MariaDB and MySQL: the row-based binlog as the log, consistent snapshots as answers.

A position is a place in the binlog, with the GTID of the last transaction before it, by which the log is recognised
(see `position`). Positions are ordered as the server wrote its log, which is also the order in which commits
become visible, whatever GTID domains the transactions belong to.

Nothing is put into the database, and nothing is written to it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol

import pymysql

from strobe.algebra.schema import RelationSchema
from strobe.errors import SourceUnavailable, StrobeError, UserError
from strobe.messages import GlobalTransaction, Parts, Position, Seen, Transaction
from strobe.sources.base import Finding, Reader, Source, SourceContext
from strobe.sources.mariadb import snapshot
from strobe.sources.mariadb.binlog import protocol as binlog
from strobe.sources.mariadb.binlog.statements import Scene
from strobe.sources.mariadb.catalog import MariadbTable, charsets
from strobe.sources.mariadb.connection import Address, ConnectionSettings, rows
from strobe.sources.mariadb.definitions import Facts, look
from strobe.sources.mariadb.descent import Descents
from strobe.sources.mariadb.fingerprint import changed
from strobe.sources.mariadb.global_names import GlobalNames
from strobe.sources.mariadb.limits import Limits, Timing
from strobe.sources.mariadb.position import Whereabouts, between, file_number, verify
from strobe.sources.mariadb.preflight import check
from strobe.sources.mariadb.reader import MariadbReader
from strobe.sources.mariadb.server import Server
from strobe.sources.mariadb.session import is_mysql
from strobe.sources.mariadb.stream import Stream
from strobe.sources.mariadb.transaction_builder import Watched


class Load(Protocol):
    """How hard the database may be pressed."""

    @property
    def connections(self) -> int: ...
    @property
    def statement_timeout(self) -> timedelta: ...


class Config(Protocol):
    """What `strobe.yml` says about such a source."""

    @property
    def dsn(self) -> str: ...
    @property
    def global_transactions(self) -> str | None: ...
    @property
    def xa_prefix(self) -> str | None: ...
    @property
    def limits(self) -> Any: ...


class MariadbSource(Source):
    """A database of a MariaDB or MySQL server."""

    log_unit = "bytes of log"

    unlogged = "a session may switch the binlog off (SET sql_log_bin = 0)"

    def __init__(self, name: str, config: Config, timing: Timing | None = None, limits: Limits | None = None) -> None:
        self.name = name
        load: Load = config.limits
        self.settings = ConnectionSettings(
            name,
            Address.parse(config.dsn, f"source {name}"),
            load.connections,
            load.statement_timeout.total_seconds(),
            config.xa_prefix,
            timing or Timing(),
            limits or Limits(),
        )
        self.server = Server(self.settings)
        given = config.global_transactions
        self._names = GlobalNames.parse(given, self.settings.where) if given else None
        self._descents = Descents(self.settings)
        self._facts: tuple[int, Facts] | None = None
        """And when they were asked for, in connections made so far."""
        self._stream: Stream | None = None
        """That was opened last."""
        self._focus: Mapping[str, Collection[str]] | None = None

    @classmethod
    def from_config(
        cls, name: str, config: Config, context: SourceContext, timing: Timing | None = None
    ) -> MariadbSource:
        return cls(name, config, timing)

    def schemas(self) -> tuple[RelationSchema, ...]:
        """InnoDB's tables with their columns of a supported type; other columns are left out."""
        tables = self.server.catalog.refresh().values()
        return tuple(t.schema(self.name) for t in tables if t.usable and t.offered)

    def focus(self, columns: Mapping[str, Collection[str]]) -> None:
        self._focus = columns

    def check(self, relations: Sequence[str]) -> list[Finding]:
        """On a new connection: the server looks at global rights when one is made."""
        try:
            with self.settings.errors(), closing(self.settings.connect()) as connection:
                return list(check(connection, self.settings, relations, self._names))
        except StrobeError as error:
            return [Finding("error", error.where or self.settings.where, error.message, error.fix)]

    def prepare_script(self, relations: Sequence[str]) -> list[str]:
        """Nothing: the binlog is there or not, and rights are the DBA's to give."""
        return []

    def prepare(self, relations: Sequence[str]) -> None:
        for relation in relations:
            self.server.catalog.table(relation)

    def undo(self) -> list[str]:
        return []

    def identity(self) -> str:
        with self.server.connections.session() as connection:
            if is_mysql(connection):
                ((server,),) = rows(connection, "SELECT @@global.server_uuid")
                return f"mysql:{server}:{self.settings.database}"
            ((server, log),) = rows(connection, "SELECT @@global.server_id, @@global.log_bin_basename")
        return f"mariadb:{server}:{log}:{self.settings.database}"

    def position(self, text: str) -> Position:
        try:
            return Whereabouts.parse(text).position
        except ValueError:
            raise UserError(f"{text!r} is not a position in a binlog", where=self.settings.where) from None

    def now(self) -> Position:
        """Where a snapshot taken now is: what is in the log beyond it is not visible to anybody yet."""
        with self.server.connections.session() as connection:
            if is_mysql(connection):
                file, offset = snapshot.settled(connection, self.settings)
            else:
                file, offset = snapshot.begin_on_mariadb(connection)
                rows(connection, "COMMIT")
        return self.server.position(file, offset)

    def distance(self, start: Position, end: Position) -> int:
        with self.server.connections.session() as connection:
            return between(connection, start.order, end.order)

    def verify(self, position: Position) -> None:
        with self.server.connections.session() as connection:
            verify(self.settings, connection, position)

    def fingerprints(self, relations: Collection[str]) -> Mapping[str, str]:
        """See `fingerprint`. Where the log could not be read far enough to say how a table came to be what it is, the
        table is left out."""
        if not relations:
            return {}
        with self.server.connections.session() as connection:
            made = self.server.connections.made
            if self._facts is None or self._facts[0] != made:
                self._facts = made, Facts.of(connection)
            facts = self._facts[1]
            seen = look(connection, self.settings, relations, facts)
        found = dict.fromkeys(seen.gone, "")
        scene = Scene(self.settings.database, list(relations), facts.folds_case, facts.logs_actions)
        generations = {relation: fingerprint.generation for relation, fingerprint in seen.found.items()}
        with self.settings.errors():
            came = self._descents.of(generations, seen.low, seen.high, scene, facts.charsets)
        return found | {relation: replace(seen.found[relation], **vars(how)).text() for relation, how in came.items()}

    def changed(self, relation: str, columns: Collection[str], before: str, after: str) -> str:
        return changed(columns, before, after)

    def transactions(
        self, after: Position, stops: Sequence[Position], stopped: Callable[[], bool]
    ) -> Iterator[Transaction]:
        watched, names = self._watched(), self._names
        self._descents.begin(after)
        with self.server.connections.session() as connection:
            keys = {name: table.primary_key for name, table in self.server.catalog.known(connection).items()}
        own, log = self.server.connections, self.server.log
        self._stream = Stream(own, log, watched, stops, stopped, self.spill, names, keys)
        return self._stream.transactions(after)

    @property
    def warning(self) -> str:
        return self._stream.warning if self._stream is not None else ""

    def parts(self, through: Position) -> Parts:
        """As far back as the file of the position goes, and for some seconds the one before it."""
        if self._names is None and self.settings.xa_prefix is None:
            return Parts()
        at = Whereabouts.parse(through.text)
        file, offset = at.file, at.offset
        try:
            with self.server.connections.session() as connection:
                logs = [row[0] for row in rows(connection, "SHOW BINARY LOGS")]
                sets = charsets(connection)
            known, _ = self._parts(file, (file, offset), sets, math.inf)
            for log in [log for log in logs if file_number(log) < file_number(file)][-1:]:
                until = time.monotonic() + self.settings.timing.parts
                before, whole = self._parts(log, (file, 4), sets, until)
                since = (before.since or known.since) if whole else known.since
                known = Parts({**before.committed, **known.committed}, since)
        except (binlog.Broken, pymysql.err.Error) as error:
            raise SourceUnavailable(f"its binlog could not be read: {error}", where=self.settings.where) from error
        return known

    def _parts(self, file: str, end: tuple[str, int], sets: dict[int, str], deadline: float) -> tuple[Parts, bool]:
        """The global transactions with parts between the beginning of a file and a place; and whether there was time
        for all of them."""
        connections, log = self.server.connections, self.server.log
        stream = Stream(connections, log, {}, [], lambda: False, names=self._names)
        found: dict[GlobalTransaction, datetime] = {}
        since = None
        for transaction in stream.window(log.at(file, connections.made), end, sets):
            if time.monotonic() > deadline:
                return Parts(found, since), False
            at = transaction.committed_at
            since = since or at
            found |= {part: at for part in transaction.part_of if at is not None}
        return Parts(found, since), True

    def _watched(self) -> Watched:
        tables = self.server.catalog.refresh()
        if self._focus is None:
            return {name: table.kinds for name, table in tables.items() if table.usable}
        return {name: self._used(tables.get(name), name, columns) for name, columns in self._focus.items()}

    def _used(self, table: MariadbTable | None, name: str, columns: Collection[str]) -> dict[str, Any]:
        kinds = table.kinds if table is not None else {}
        for column in columns:
            if column not in kinds:
                what = f"the column {column}" if table is not None else "the table"
                raise self.settings.table_lost(f"{what}, which a view uses, is gone or of another type", name)
        return {column: kind for column, kind in kinds.items() if column in columns}

    def reader(self, *, at_a_position: bool = False) -> Reader:
        """Every snapshot is at a position: commits become visible in the order of the log."""
        return MariadbReader(self.server)

    @contextmanager
    def elsewhere(self) -> Iterator[Callable[[Seen], None]]:
        """A snapshot counts as seen, whichever process took it."""
        yield lambda seen: self.server.log.seen(seen.through)

    def discard(self, through: Position) -> None:
        """Nothing: how long the binlog stays is the DBA's decision (`binlog_expire_logs_seconds`)."""

    def close(self) -> None:
        self.server.connections.close()
