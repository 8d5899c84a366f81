"""Transactions from the binlog: whole, in commit order, each with the place where it ends.

A transaction without changes of a watched table only moves the position; many in a row are reported as one, as soon as
a relevant one follows, the log is quiet, or some time has passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import pymysql

from strobe.errors import SourceUnavailable, StrobeError
from strobe.messages import Position, Transaction
from strobe.sources.base import Spill
from strobe.sources.mariadb.binlog import protocol as binlog
from strobe.sources.mariadb.binlog.protocol import Dump
from strobe.sources.mariadb.catalog import charsets, logs_actions
from strobe.sources.mariadb.connection import Pool, rows
from strobe.sources.mariadb.global_names import GlobalNames
from strobe.sources.mariadb.position import Log, Whereabouts, file_number
from strobe.sources.mariadb.transaction_builder import EventGroup, TransactionBuilder, Watched


class Stream:
    """Reads on from a position, through one lost connection after another, until it is told to stop."""

    def __init__(
        self,
        connections: Pool,
        log: Log,
        watched: Watched,
        stops: Sequence[Position],
        stopped: Callable[[], bool],
        spill: Spill | None = None,
        names: GlobalNames | None = None,
        keys: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Large transactions go into files in `spill`; `names` says where global ones are named. By their `keys` rows
        are named in errors."""
        self._connections, self._log, self._watched = connections, log, watched
        self._settings = connections.settings
        self._stops = {stop.order for stop in stops}
        self._stopped, self._spill, self._names = stopped, spill, names
        self._charsets: dict[int, str] = {}
        self._looks_back = False
        self._builder = TransactionBuilder(self._settings, log, watched, spill, names, self._first_phase, keys)

    @property
    def warning(self) -> str:
        """About something in the log that is ignored."""
        return self._builder.warning

    def transactions(self, after: Position) -> Iterator[Transaction]:
        try:
            yield from self._transactions(after)
        finally:
            self._builder.forget()

    def _transactions(self, after: Position) -> Iterator[Transaction]:
        heard = True
        while not self._stopped():
            try:
                with self._open(after) as connection:
                    try:
                        for transaction in self._read(connection):
                            heard, after = True, transaction.position
                            self._log.stream_at = after
                            yield transaction
                    finally:
                        self._release(connection.thread)
            except binlog.Broken as broken:
                if not heard:
                    raise SourceUnavailable(f"the connection failed: {broken}", where=self._settings.where) from broken
                heard = False  # once more from where it was, at once; after that it is for the caller to wait
            except pymysql.err.OperationalError as error:
                with self._connections.session() as connection:
                    self._log.verify(connection, after)
                raise self._settings.translate(error) from error

    def _open(self, after: Position) -> AbstractContextManager[Dump]:
        with self._connections.session() as connection:
            self._log.verify(connection, after)
            if not self._charsets:
                self._charsets = charsets(connection)
            self._builder.logs_actions = logs_actions(connection)
        at = Whereabouts.parse(after.text)
        self._builder.begin(at, self._charsets)
        self._looks_back = True
        return binlog.dump(self._settings, at.file, at.offset)

    def _release(self, thread: int) -> None:
        """End the server's side too: it would notice with its next heartbeat only, and keep files of the log till then.

        A user may do this to its own connections without any right.
        """
        try:
            with self._connections.session(wait=1) as connection:
                dumps = {int(row[0]) for row in rows(connection, "SHOW PROCESSLIST") if row[4] == "Binlog Dump"}
                if thread in dumps:  # a server that was restarted gives numbers anew
                    rows(connection, f"KILL CONNECTION {thread}")
        except StrobeError:
            pass  # it is gone already, or the server is

    def _read(self, connection: Dump) -> Iterator[Transaction]:
        pending: Transaction | None = None
        reported = time.monotonic()
        while not self._stopped():
            try:
                event = connection.next()
            except EOFError:
                raise binlog.Broken("the server ended the stream") from None
            done = None if event is None else self._builder.take(event)
            pending = done or pending
            if pending is None:
                continue
            late = event is None or time.monotonic() - reported > self._settings.timing.progress
            if pending.changes or pending.part_of or late or pending.position.order in self._stops:
                yield pending
                pending, reported = None, time.monotonic()

    def window(self, start: Position, end: tuple[str, int], charsets: dict[int, str]) -> Iterator[Transaction]:
        """Every single transaction from a place on, as far as the log goes now but not beyond another place."""
        yield from self._window(self._builder, start, end, charsets)

    def _window(
        self, builder: TransactionBuilder, start: Position, end: tuple[str, int], charsets: Mapping[int, str]
    ) -> Iterator[Transaction]:
        at, last = Whereabouts.parse(start.text), (file_number(end[0]), end[1])
        builder.begin(at, charsets)
        with binlog.dump(self._settings, at.file, at.offset, forever=False) as connection:
            while builder.at.order < last:
                try:
                    event = connection.next()
                except EOFError:
                    return
                if event is not None and (done := builder.take(event)) is not None:
                    yield done

    def _files(self) -> list[str]:
        """The log's files up to the one that is being read."""
        with self._connections.session() as connection:
            files = [row[0] for row in rows(connection, "SHOW BINARY LOGS")]
        return [file for file in files if file_number(file) <= file_number(self._builder.at.file)]

    def _first_phase(self, name: str, end: tuple[str, int]) -> EventGroup:
        """The first phase of an XA transaction that came before the position from which the log was read; the second
        begins at `end`. The last phase of this name before it is the one: a name may be used again."""
        for file in reversed(self._files() if self._looks_back else []):
            earlier = TransactionBuilder(self._settings, self._log, self._watched, self._spill, self._names)
            start = self._log.at(file, self._connections.made)
            for _ in self._window(earlier, start, end, self._charsets):
                pass
            found = earlier.prepared.pop(name, None)
            earlier.forget()
            if found is not None:
                return found
            end = (file, 4)
        at = self._builder.at
        raise self._settings.lost(
            f"the XA transaction committed at {at.file}:{at.offset} was prepared before the binlog begins"
        )
