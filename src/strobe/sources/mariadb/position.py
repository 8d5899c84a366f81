"""Positions in a binlog, and telling a log from another one that has the same places.

A position is a place, `file:offset@second`, where the second is the one in which the file was made: a server that was
restored from a backup, reset or replaced has other files under the same names. Behind a slash follows the last
transaction before the place in this file, by its GTID, the offset at which it begins, and the second of its commit:
`binlog.000004:3456@1763300000/0-1-17@3321:1763300042`. It is not there where no transaction had been read in the file.

Positions are ordered by their places: as the server wrote its log.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pymysql

from strobe.errors import Damaged, LostGuarantee, SourceUnavailable
from strobe.messages import Position
from strobe.sources.mariadb.binlog.events import gtid
from strobe.sources.mariadb.binlog.protocol import FORMAT, Broken, Dump, Event, dump
from strobe.sources.mariadb.connection import ConnectionSettings, rows

FIRST = 4
"""The offset of a file's first event."""
_CANNOT_SEND = 1236
_NOT_THERE = re.compile(
    "bogus data|truncated in the middle|max_allowed_packet|checksum|impossible position|position > file size"
    "|could not find first log",
    re.IGNORECASE,
)
"""Why the server cannot send what was there. It has other reasons too, such as having too many files open."""


@dataclass(frozen=True)
class LogFingerprint:
    """A transaction of the log, as no other log has it."""

    gtid: str
    began: int
    """The offset of its first event."""
    second: int

    @classmethod
    def of(cls, event: Event, began: int) -> LogFingerprint | None:
        """By its first event; None where the server gave it no GTID."""
        name = gtid(event)
        return cls(name, began, event.timestamp) if name else None

    @classmethod
    def parse(cls, text: str) -> LogFingerprint:
        name, _, where = text.rpartition("@")
        began, _, second = where.partition(":")
        if not name:
            raise ValueError(text)
        return cls(name, int(began), int(second))

    def __str__(self) -> str:
        return f"{self.gtid}@{self.began}:{self.second}"


@dataclass
class Whereabouts:
    """A place in the log: where a connection is, or what a position says."""

    file: str
    offset: int
    created: int
    """The second in which the file was made."""
    last: LogFingerprint | None = None
    """The last transaction before it in this file, as far as it is known."""

    @classmethod
    def parse(cls, text: str) -> Whereabouts:
        """`ValueError` if it is not a position."""
        place, _, fingerprint = text.partition("/")
        place, _, created = place.rpartition("@")
        file, _, offset = place.rpartition(":")
        file_number(file)
        return cls(file, int(offset), int(created), LogFingerprint.parse(fingerprint) if fingerprint else None)

    @property
    def order(self) -> tuple[int, int]:
        return file_number(self.file), self.offset

    @property
    def position(self) -> Position:
        place = f"{self.file}:{self.offset}@{self.created}"
        return Position(f"{place}/{self.last}" if self.last else place, self.order)

    def advance(self, end: int) -> None:
        """Events have the lower half of their offset only."""
        offset = (self.offset & ~0xFFFFFFFF) | end
        self.offset = offset if offset >= self.offset else offset + (1 << 32)


def file_number(file: str) -> int:
    return int(file.rpartition(".")[2])


def events(connection: Dump, seconds: float) -> Iterator[Event]:
    """What a connection brings up to the end of what was asked for."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            event = connection.next()
        except EOFError:
            return
        if event is not None:
            yield event
    raise Broken("the server is too slow")


def created(settings: ConnectionSettings, file: str) -> int:
    """The second in which a binlog file was made, which its first event has."""
    return look(settings, file)[0].timestamp


def look(settings: ConnectionSettings, file: str, offset: int = FIRST) -> tuple[Event, Event]:
    """The first event of a file, and the one at an offset."""
    first = None
    try:
        with settings.errors(), dump(settings, file, offset, forever=False) as connection:
            for event in events(connection, settings.timing.event):
                first = event if event.type == FORMAT else first
                if first is not None and (offset == FIRST or (event is not first and event.end)):
                    return first, event
    except Broken as error:
        raise SourceUnavailable(f"the binlog {file} cannot be read: {error}", where=settings.where) from error
    raise SourceUnavailable(f"the binlog {file} cannot be read at {offset}", where=settings.where)


class Log:
    """What is known of a log: when its files were made, and what has been read of it. It is asked for once, and again
    where a new connection may lead to another server."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._known: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        self._lock = threading.Lock()
        self.stream_at: Position | None = None
        self.newest: Position | None = None
        """The furthest snapshot that was taken, until the log is found to have lost what it saw."""

    def __getstate__(self) -> tuple[ConnectionSettings, dict[str, int], Position | None]:
        """What was asked for on connections of this process has to be asked again elsewhere."""
        return self._settings, dict(self._known), self.stream_at

    def __setstate__(self, state: tuple[ConnectionSettings, dict[str, int], Position | None]) -> None:
        settings, known, stream_at = state
        self.__init__(settings)  # type: ignore[misc]
        self._known, self.stream_at = known, stream_at

    def second_of(self, file: str, connections: int) -> int:
        """When a file was made; `connections` is how many have been made so far."""
        if self._asked.get(file) != connections:
            self.learn(file, self._second_now(file))
            self._asked[file] = connections
        return self._known[file]

    def _second_now(self, file: str) -> int:
        """What the file's first event says. A snapshot in a later file than the stream's has to wait for the stream;
        any other would be believed at once, so that the log must still be the one that the stream has read. If it is
        not, the stream finds out why when it is opened again."""
        at = Whereabouts.parse(self.stream_at.text) if self.stream_at is not None else None
        if at is None or file_number(at.file) < file_number(file):
            return created(self._settings, file)
        if not passes(self._settings, at):
            message = "its log was restored, replaced or purged, and it is asked again when that is known"
            raise SourceUnavailable(message, where=self._settings.where)
        return at.created if at.file == file else created(self._settings, file)

    def learn(self, file: str, second: int) -> None:
        if len(self._known) > 1000:
            self._known.clear()
            self._asked.clear()
        if self._known.setdefault(file, second) != second:
            raise self._settings.lost(
                f"the binlog {file} is another one than before: the database was restored or reset"
            )

    def at(self, file: str, connections: int, offset: int = FIRST) -> Position:
        return Whereabouts(file, offset, self.second_of(file, connections)).position

    def seen(self, position: Position) -> None:
        """A snapshot was taken there."""
        with self._lock:
            self.newest = max(self.newest or position, position, key=lambda p: p.order)

    def verify(self, connection: Any, after: Position) -> None:
        """Raise `LostGuarantee` unless a stream can go on after a position, in the log that it has read, and the log
        has all that snapshots have seen."""
        verify(self._settings, connection, after)
        newest = self.newest
        if newest is not None and after < newest:
            wanted = Whereabouts.parse(newest.text)
            if not (reaches(connection, wanted) and passes(self._settings, wanted)):
                self.newest = None  # whoever has such an answer ends with this, and begins anew
                raise passed_by(self._settings, wanted)
        self.stream_at = after


def verify(settings: ConnectionSettings, connection: Any, position: Position) -> None:
    """Raise `LostGuarantee` unless the binlog passes through a position and still has everything after it."""
    wanted = Whereabouts.parse(position.text)
    if not reaches(connection, wanted):
        raise passed_by(settings, wanted)
    if wanted.offset >= settings.limits.offset:
        raise settings.lost(f"the replication protocol cannot start at {position.text}, beyond 4 GiB of a file")
    if not passes(settings, wanted):
        raise passed_by(settings, wanted)


def reaches(connection: Any, wanted: Whereabouts) -> bool:
    """Whether the log has a place."""
    logs = {name: int(size) for name, size, *_ in rows(connection, "SHOW BINARY LOGS")}
    return wanted.offset <= logs.get(wanted.file, -1)


def between(connection: Any, start: tuple[int, ...], end: tuple[int, ...]) -> int:
    """The bytes of log between two places, as far as files between them are still there."""
    sizes = {file_number(name): int(size) for name, size, *_ in rows(connection, "SHOW BINARY LOGS")}
    before_end = sum(size for number, size in sizes.items() if start[0] <= number < end[0])
    return max(0, before_end + end[1] - start[1])


def passes(settings: ConnectionSettings, wanted: Whereabouts) -> bool:
    """Whether a file is the one that it was, with the transaction in it that was the last one, if that can be asked
    for."""
    last = wanted.last if wanted.last and wanted.last.began < settings.limits.offset else None
    try:
        first, event = _look_twice(settings, wanted.file, last.began if last else FIRST)
    except Damaged:
        return False  # in the middle of another event
    except SourceUnavailable as error:
        cause = error.__cause__
        if isinstance(cause, pymysql.err.Error) and cause.args[0] == _CANNOT_SEND and _NOT_THERE.search(error.message):
            return False
        raise
    found = LogFingerprint.of(event, (event.end - event.size) % (1 << 32)) if last else None
    return first.timestamp == wanted.created and found == last


def _look_twice(settings: ConnectionSettings, file: str, offset: int) -> tuple[Event, Event]:
    """What was damaged on its way is not so again."""
    try:
        return look(settings, file, offset)
    except Damaged:
        return look(settings, file, offset)


def passed_by(settings: ConnectionSettings, wanted: Whereabouts) -> LostGuarantee:
    return settings.lost(
        f"the binlog does not pass through position {wanted.position.text}: the database was restored or replaced,"
        " or its log was purged or reset"
    )
