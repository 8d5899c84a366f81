"""The messages of PostgreSQL's logical replication: `pgoutput`, protocol version 1, and the frames around it.

Pure: bytes in, messages out. Values stay as the server wrote them, as text in its own encoding; `UNCHANGED` stands for
a value stored out of line that an update left alone, and that is not in the stream.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum

from strobe.errors import BrokenInvariant

EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)


class Unchanged(Enum):
    UNCHANGED = "u"


UNCHANGED = Unchanged.UNCHANGED

Value = bytes | None | Unchanged
Tuple = tuple[Value, ...]


@dataclass(frozen=True)
class Begin:
    commit_lsn: int
    """Where the transaction's commit record starts."""
    committed_at: datetime
    xid: int
    """32 bits, without the epoch."""


@dataclass(frozen=True)
class Commit:
    lsn: int
    end_lsn: int
    committed_at: datetime


@dataclass(frozen=True)
class Origin:
    lsn: int
    name: str


@dataclass(frozen=True)
class ColumnInfo:
    key: bool
    name: str
    type: int
    modifier: int


@dataclass(frozen=True)
class RelationInfo:
    """What a table looks like from here on: sent before its first change, and again when it changes."""

    id: int
    schema: str
    name: str
    identity: str
    """REPLICA IDENTITY: `d`efault, `n`othing, `f`ull or `i`ndex."""
    columns: tuple[ColumnInfo, ...]


@dataclass(frozen=True)
class TypeInfo:
    id: int
    schema: str
    name: str


@dataclass(frozen=True)
class Insert:
    relation: int
    new: Tuple


@dataclass(frozen=True)
class Update:
    """`key` is there when the key changed, `old` under REPLICA IDENTITY FULL."""

    relation: int
    key: Tuple | None
    old: Tuple | None
    new: Tuple


@dataclass(frozen=True)
class Delete:
    relation: int
    key: Tuple | None
    old: Tuple | None


@dataclass(frozen=True)
class Truncate:
    relations: tuple[int, ...]


@dataclass(frozen=True)
class Emitted:
    """What `pg_logical_emit_message` wrote."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


Message = Begin | Commit | Origin | RelationInfo | TypeInfo | Insert | Update | Delete | Truncate | Emitted


@dataclass(frozen=True)
class Data:
    """A frame with a message in it."""

    start: int
    end: int
    payload: bytes


@dataclass(frozen=True)
class KeepAlive:
    """Everything committed at or before `end` has been sent."""

    end: int
    reply: bool


def frame(data: bytes) -> Data | KeepAlive:
    """What comes out of a walsender's COPY."""
    kind = data[:1]
    if kind == b"w":
        start, end, _ = struct.unpack_from(">QQq", data, 1)
        return Data(start, end, data[25:])
    if kind == b"k":
        end, _, reply = struct.unpack_from(">QqB", data, 1)
        return KeepAlive(end, bool(reply))
    raise BrokenInvariant(f"a walsender sent a frame of unknown kind {kind!r}")


def feedback(written: int, flushed: int, now: datetime, reply: bool = False) -> bytes:
    """What is received, and what is durable here; 0 confirms nothing."""
    return struct.pack(">cQQQqB", b"r", written, flushed, flushed, _microseconds(now), reply)


def decode(data: bytes) -> Message:
    """One message of `pgoutput`."""
    kind = data[:1]
    if kind not in _DECODERS:
        raise BrokenInvariant(f"pgoutput sent a message of unknown kind {kind!r}")
    reading = _Reading(data)
    message = _DECODERS[kind](reading)
    if reading.rest:
        raise BrokenInvariant(f"pgoutput sent a message of kind {kind!r} that is longer than it should be")
    return message


def lsn_text(lsn: int) -> str:
    """As PostgreSQL writes it: `16/B374D848`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def widen(xid: int, near: int) -> int:
    """The 64-bit transaction id with these lower 32 bits, given some recent one. Ids in a log that can still be
    decoded are less than 2^31 behind the newest."""
    newest = near + 2**30
    return newest - ((newest - xid) % 2**32)


def _microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


class _Reading:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 1

    @property
    def rest(self) -> int:
        return len(self._data) - self._at

    def numbers(self, layout: str) -> tuple[int, ...]:
        found = struct.unpack_from(">" + layout, self._data, self._at)
        self._at += struct.calcsize(">" + layout)
        return found

    def number(self, layout: str) -> int:
        return self.numbers(layout)[0]

    def text(self) -> str:
        end = self._data.index(b"\0", self._at)
        found = self._data[self._at : end].decode()
        self._at = end + 1
        return found

    def raw(self, length: int) -> bytes:
        found = self._data[self._at : self._at + length]
        if len(found) != length:
            raise BrokenInvariant("pgoutput sent a message that ends too early")
        self._at += length
        return found

    def moment(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.number("q"))

    def tuple(self) -> Tuple:
        return tuple([self._value() for _ in range(self.number("H"))])

    def _value(self) -> Value:
        kind = self.raw(1)
        if kind == b"t":
            return self.raw(self.number("i"))
        if kind == b"n":
            return None
        if kind == b"u":
            return UNCHANGED
        raise BrokenInvariant(f"pgoutput sent a value of unknown kind {kind!r}")


def _begin(reading: _Reading) -> Begin:
    return Begin(reading.number("Q"), reading.moment(), reading.number("I"))


def _commit(reading: _Reading) -> Commit:
    _, lsn, end = reading.numbers("BQQ")
    return Commit(lsn, end, reading.moment())


def _origin(reading: _Reading) -> Origin:
    return Origin(reading.number("Q"), reading.text())


def _relation(reading: _Reading) -> RelationInfo:
    number, schema, name = reading.number("I"), reading.text(), reading.text()
    identity = chr(reading.number("B"))
    columns = tuple([_column(reading) for _ in range(reading.number("H"))])
    return RelationInfo(number, schema or "pg_catalog", name, identity, columns)


def _column(reading: _Reading) -> ColumnInfo:
    key, name = reading.number("B") & 1, reading.text()
    type_, modifier = reading.numbers("Ii")
    return ColumnInfo(bool(key), name, type_, modifier)


def _type(reading: _Reading) -> TypeInfo:
    return TypeInfo(reading.number("I"), reading.text(), reading.text())


def _insert(reading: _Reading) -> Insert:
    relation = reading.number("I")
    _expect(reading, b"N")
    return Insert(relation, reading.tuple())


def _update(reading: _Reading) -> Update:
    relation, kind = reading.number("I"), reading.raw(1)
    key = reading.tuple() if kind == b"K" else None
    old = reading.tuple() if kind == b"O" else None
    if kind != b"N":
        _expect(reading, b"N")
    return Update(relation, key, old, reading.tuple())


def _delete(reading: _Reading) -> Delete:
    relation, kind = reading.number("I"), reading.raw(1)
    found = reading.tuple()
    return Delete(relation, found if kind == b"K" else None, found if kind == b"O" else None)


def _truncate(reading: _Reading) -> Truncate:
    count, _ = reading.numbers("IB")
    return Truncate(reading.numbers(f"{count}I"))


def _emitted(reading: _Reading) -> Emitted:
    flags, lsn = reading.numbers("BQ")
    prefix = reading.text()
    return Emitted(bool(flags & 1), lsn, prefix, reading.raw(reading.number("i")))


def _expect(reading: _Reading, kind: bytes) -> None:
    found = reading.raw(1)
    if found != kind:
        raise BrokenInvariant(f"pgoutput sent {found!r} where {kind!r} belongs")


_DECODERS: dict[bytes, Callable[[_Reading], Message]] = {
    b"B": _begin,
    b"C": _commit,
    b"O": _origin,
    b"R": _relation,
    b"Y": _type,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"M": _emitted,
}
