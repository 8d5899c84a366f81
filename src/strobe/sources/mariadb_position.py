"""Positions in a binlog, and telling a log from another one that has the same places.

A position is a place, `file:offset@second`, where the second is the one in which the file was made: a server that was
restored from a backup, reset or replaced has other files under the same names. Behind a slash follows the last
transaction before the place in this file, by its GTID, the offset at which it begins, and the second of its commit:
`binlog.000004:3456@1763300000/0-1-17@3321:1763300042`. It is not there where no transaction had been read in the file.

Positions are ordered by their places: as the server wrote its log.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pymysql

from strobe.errors import LostGuarantee, SourceUnavailable
from strobe.messages import Position
from strobe.sources.mariadb_binlog import FORMAT, SILENCE_SECONDS, Broken, Damaged, Dump, Event, dump
from strobe.sources.mariadb_events import gtid
from strobe.sources.mariadb_place import Place, rows

FIRST = 4
"""The offset of a file's first event."""
LONGEST = 1 << 32
_CANNOT_SEND = 1236


@dataclass(frozen=True)
class Mark:
    """A transaction of the log, as no other log has it."""

    gtid: str
    began: int
    """The offset of its first event."""
    second: int

    @classmethod
    def of(cls, event: Event, began: int) -> Mark | None:
        """By its first event; None where the server gave it no GTID."""
        name = gtid(event)
        return cls(name, began, event.timestamp) if name else None

    @classmethod
    def parse(cls, text: str) -> Mark:
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
    last: Mark | None = None
    """The last transaction before it in this file, as far as it is known."""

    @classmethod
    def parse(cls, text: str) -> Whereabouts:
        """`ValueError` if it is not a position."""
        place, _, mark = text.partition("/")
        place, _, created = place.rpartition("@")
        file, _, offset = place.rpartition(":")
        file_number(file)
        return cls(file, int(offset), int(created), Mark.parse(mark) if mark else None)

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


def created(place: Place, file: str) -> int:
    """The second in which a binlog file was made, which its first event has."""
    second, _ = look(place, file)
    return second


def look(place: Place, file: str, offset: int = FIRST) -> tuple[int, Event | None]:
    """The second in which a file was made, and the event at an offset behind its first one; None if there is none."""
    second = None
    try:
        with place.errors(), dump(place, file, offset, forever=False) as connection:
            for event in events(connection, SILENCE_SECONDS):
                if event.type == FORMAT:
                    second = event.timestamp
                    if offset == FIRST:
                        return second, None
                elif second is not None and event.end:
                    return second, event
    except Broken as error:
        raise SourceUnavailable(f"the binlog {file} cannot be read: {error}", where=place.where) from error
    if second is None:
        raise SourceUnavailable(f"the binlog {file} cannot be read", where=place.where)
    return second, None


class Log:
    """What is known of a log: when its files were made, and what has been read of it. It is asked for once, and again
    where a new connection may lead to another server."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._known: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        self.read: Position | None = None
        """How far the stream is."""
        self.newest: Position | None = None
        """Of the snapshots that were taken in this process."""

    def __getstate__(self) -> dict[str, Any]:
        """What was asked for on connections of this process has to be asked again elsewhere."""
        return {**self.__dict__, "_known": dict(self._known), "_asked": {}, "newest": None}

    def made(self, file: str, connections: int) -> int:
        """The second; `connections` is how many have been made so far."""
        if self._asked.get(file) != connections:
            if self.read is not None and not _passes(self._place, wanted := Whereabouts.parse(self.read.text)):
                raise passed_by(self._place, wanted)
            self.learn(file, created(self._place, file))
            self._asked[file] = connections
        return self._known[file]

    def learn(self, file: str, second: int) -> None:
        if len(self._known) > 1000:
            self._known.clear()
            self._asked.clear()
        if self._known.setdefault(file, second) != second:
            raise self._place.lost(f"the binlog {file} is another one than before: the database was restored or reset")

    def at(self, file: str, connections: int, offset: int = FIRST) -> Position:
        return Whereabouts(file, offset, self.made(file, connections)).position

    def seen(self, position: Position) -> None:
        """A snapshot was taken there."""
        self.newest = max(self.newest or position, position, key=lambda p: p.order)


def verify(place: Place, connection: Any, position: Position) -> None:
    """Raise `LostGuarantee` unless the binlog passes through a position and still has everything after it."""
    wanted = Whereabouts.parse(position.text)
    logs = {name: int(size) for name, size, *_ in rows(connection, "SHOW BINARY LOGS")}
    if wanted.file not in logs or wanted.offset > logs[wanted.file]:
        raise passed_by(place, wanted)
    if wanted.offset >= LONGEST:
        raise place.lost(f"the replication protocol cannot start at {position.text}, beyond 4 GiB of a file")
    if not _passes(place, wanted):
        raise passed_by(place, wanted)


def _passes(place: Place, wanted: Whereabouts) -> bool:
    """Whether a file is the one that it was, with the transaction in it that was the last one, if it can be asked for:
    the protocol has no room for places beyond 4 GiB."""
    last = wanted.last if wanted.last and wanted.last.began < LONGEST else None
    try:
        second, event = look(place, wanted.file, last.began if last else FIRST)
    except Damaged:
        return False  # in the middle of another event
    except SourceUnavailable as error:
        cause = error.__cause__
        if not (last and isinstance(cause, pymysql.err.Error) and cause.args[0] == _CANNOT_SEND):
            raise
        if "open" in error.message.lower():
            raise  # for want of files, or of rights to them
        return False
    found = Mark.of(event, (event.end - event.size) % LONGEST) if event else None
    return second == wanted.created and found == last


def passed_by(place: Place, wanted: Whereabouts) -> LostGuarantee:
    return place.lost(
        f"the binlog does not pass through position {wanted.position.text}: the database was restored or replaced,"
        " or its log was purged or reset"
    )
