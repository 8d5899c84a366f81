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

from strobe.data.byte_reader import ByteReader
from strobe.errors import Damaged

EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)
MOST_COLUMNS = 1664
"""Of a table: PostgreSQL itself has no room for more."""
_DATA, _KEEP_ALIVE = struct.Struct(">QQq"), struct.Struct(">Qq")
_LSN, _LSNS, _INT8, _OID, _COUNT = (struct.Struct(f">{layout}") for layout in ("Q", "QQ", "q", "I", "H"))
_TYPE, _ROW = struct.Struct(">Ii"), struct.Struct(">IB")
_WIDTH, _SIZE = struct.Struct(">H").unpack_from, struct.Struct(">i").unpack_from
_TEXT, _NEW, _KEY, _OLD = b"tNKO"


class Unchanged(Enum):
    UNCHANGED = "u"


UNCHANGED = Unchanged.UNCHANGED

Value = bytes | None | Unchanged
Tuple = tuple[Value, ...]
_ABSENT: dict[int, Value] = {ord("n"): None, ord("u"): UNCHANGED}


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
    sent_at: int
    """By the server's clock: microseconds since its epoch."""
    payload: bytes


@dataclass(frozen=True)
class KeepAlive:
    """Everything committed at or before `end` has been sent."""

    end: int
    sent_at: int
    reply: bool


def frame(data: bytes) -> Data | KeepAlive:
    """What comes out of a walsender's COPY."""
    reader = ByteReader(data)
    kind = reader.take(1)
    if kind == b"w":
        start, end, sent_at = reader.unpack(_DATA)
        if start != end:  # a message of the log has one place
            raise Damaged("a message is at two places", 1)
        return Data(start, sent_at, reader.rest())
    if kind == b"k":
        end, sent_at = reader.unpack(_KEEP_ALIVE)
        reply = _flag(reader)
        reader.finish()
        return KeepAlive(end, sent_at, bool(reply))
    raise Damaged(f"a frame of unknown kind {kind!r}", 0)


def feedback(written: int, flushed: int, now: datetime, reply: bool = False) -> bytes:
    """What is received, and what is durable here; 0 confirms nothing."""
    return struct.pack(">cQQQqB", b"r", written, flushed, flushed, _microseconds(now), reply)


def decode(data: bytes) -> Message:
    """One message of `pgoutput`. Raises `Damaged` if it is none, or none that ends where the data does."""
    reader = ByteReader(data)
    kind = reader.take(1)
    if kind not in _DECODERS:
        raise Damaged(f"a message of unknown kind {kind!r}", 0)
    message = _DECODERS[kind](reader)
    reader.finish()
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


def _moment(reader: ByteReader) -> datetime:
    at, (microseconds,) = reader.at, reader.unpack(_INT8)
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise Damaged("there is no such moment", at) from None


def _flag(reader: ByteReader, known: int = 1) -> int:
    found = reader.byte()
    if found & ~known:
        raise Damaged(f"a flag is {found}", reader.at - 1)
    return found


def _kind(reader: ByteReader, known: bytes) -> int:
    found = reader.byte()
    if found not in known:
        raise Damaged(f"{bytes([found])!r} is where one of {known!r} belongs", reader.at - 1)
    return found


def _tuple(reader: ByteReader) -> Tuple:
    """Most of the log is this: the reader's checks are made here, all at once for each value."""
    data, at, end = reader.data, reader.at + 2, reader.end
    values: list[Value] = []
    try:
        for _ in range(_WIDTH(data, reader.at)[0]):
            kind = data[at]
            if kind == _TEXT:
                start = at + 5
                size = _SIZE(data, at + 1)[0]
                if size < 0 or start + size > end:
                    raise Damaged(f"a value of {size} bytes should follow, and {end - start} do", at)
                at = start + size
                values.append(data[start:at])
            else:
                values.append(_ABSENT[kind])
                at += 1
    except (IndexError, struct.error):
        raise Damaged("a row ends too early", min(at, end)) from None
    except KeyError:
        raise Damaged("a value is of unknown kind", at) from None
    if at > end:
        raise Damaged("a row ends too early", end)
    reader.at = at
    return tuple(values)


def _begin(reader: ByteReader) -> Begin:
    (lsn,), moment, (xid,) = reader.unpack(_LSN), _moment(reader), reader.unpack(_OID)
    return Begin(lsn, moment, xid)


def _commit(reader: ByteReader) -> Commit:
    _flag(reader, 0)
    lsn, end = reader.unpack(_LSNS)
    return Commit(lsn, end, _moment(reader))


def _origin(reader: ByteReader) -> Origin:
    return Origin(reader.unpack(_LSN)[0], reader.terminated())


def _relation(reader: ByteReader) -> RelationInfo:
    (number,), schema, name = reader.unpack(_OID), reader.terminated(), reader.terminated()
    identity = chr(_kind(reader, b"dnfi"))
    (count,) = reader.unpack(_COUNT)
    if count > MOST_COLUMNS:
        raise Damaged(f"a table has {count} columns", reader.at - 2)
    columns = tuple([_column(reader) for _ in range(count)])
    return RelationInfo(number, schema or "pg_catalog", name, identity, columns)


def _column(reader: ByteReader) -> ColumnInfo:
    key, name = _flag(reader), reader.terminated()
    type_, modifier = reader.unpack(_TYPE)
    return ColumnInfo(bool(key), name, type_, modifier)


def _type(reader: ByteReader) -> TypeInfo:
    return TypeInfo(reader.unpack(_OID)[0], reader.terminated(), reader.terminated())


def _insert(reader: ByteReader) -> Insert:
    relation, kind = reader.unpack(_ROW)
    if kind != _NEW:
        raise Damaged("a new row does not follow", reader.at - 1)
    return Insert(relation, _tuple(reader))


def _update(reader: ByteReader) -> Update:
    (relation,), kind = reader.unpack(_OID), _kind(reader, b"KON")
    before = _tuple(reader) if kind != _NEW else None
    if kind != _NEW:
        _kind(reader, b"N")
    new = _tuple(reader)
    return Update(relation, before if kind == _KEY else None, before if kind == _OLD else None, new)


def _delete(reader: ByteReader) -> Delete:
    (relation,), kind = reader.unpack(_OID), _kind(reader, b"KO")
    found = _tuple(reader)
    return Delete(relation, found if kind == _KEY else None, found if kind == _OLD else None)


def _truncate(reader: ByteReader) -> Truncate:
    (count,), _ = reader.unpack(_OID), _flag(reader, 3)
    if reader.left != 4 * count:
        raise Damaged(f"{count} tables should follow in {reader.left} bytes", reader.at)
    return Truncate(tuple([reader.unpack(_OID)[0] for _ in range(count)]))


def _emitted(reader: ByteReader) -> Emitted:
    flags, (lsn,) = _flag(reader), reader.unpack(_LSN)
    prefix = reader.terminated()
    return Emitted(bool(flags), lsn, prefix, reader.take(reader.unpack(_OID)[0]))


_DECODERS: dict[bytes, Callable[[ByteReader], Message]] = {
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
