"""Single events of the binlog, taken apart: the names of transactions, statements, and what is compressed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pyarrow

from strobe.data.byte_reader import ByteReader
from strobe.sources.mariadb.binlog.protocol import GTID, MYSQL_GTID, MYSQL_TAGGED_GTID, QUERY_COMPRESSED, Event
from strobe.sources.mariadb.binlog.rows import lenenc
from strobe.sources.mariadb.binlog.sql import Statement
from strobe.sources.mariadb.limits import Limits

PAYLOAD_SIZE, PAYLOAD_COMPRESSION, PAYLOAD_WHOLE_SIZE, UNCOMPRESSED = 1, 2, 3, 255
_HEADER = struct.Struct("<IBIIIH")
_PIECE = 1 << 20
STATUS_MODE, STATUS_CHARSET = 1, 4
STATUS_SIZES = {0: 4, STATUS_MODE: 8, 3: 4, STATUS_CHARSET: 6}
STATUS_TEXTS = {2: 2, 5: 1, 6: 1}
"""The variables in front of a statement up to its character set: those of one size, and those with their length, which
have so many bytes more."""
SHIFTING = {
    "gbk": "gbk",
    "gb2312": "gb2312",
    "gb18030": "gb18030",
    "big5": "big5",
    "sjis": "cp932",
    "cp932": "cp932",
    "euckr": "euc_kr",
    "ujis": "euc_jp",
    "eucjpms": "euc_jp",
}
"""Character sets in which a byte may mean something else by what is before it."""
CODECS = {
    **SHIFTING,
    **dict.fromkeys(("utf8mb4", "utf8mb3", "utf8", "binary", "ascii"), "utf-8"),
    "latin1": "cp1252",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    **{name: name for name in ("cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852", "cp866")},
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "tis620": "tis_620",
}


def gtid(event: Event) -> str | None:
    """The transaction that begins with an event, as the server's own statements call it; None if it has no name."""
    reader = ByteReader(event.body)
    if event.type == GTID:
        sequence, domain = reader.number(8), reader.number(4)
        return f"{domain}-{event.server}-{sequence}"
    if event.type == MYSQL_GTID:
        reader.skip(1)
        return f"{UUID(bytes=reader.take(16))}:{reader.number(8)}"
    return _tagged(reader) if event.type == MYSQL_TAGGED_GTID else None


def _tagged(reader: ByteReader) -> str:
    """A version, a size and a number of fields that may not be left out, and then fields, each behind its number: the
    flags, the server, byte by byte, the sequence number with its sign, and the tag."""

    def number() -> int:
        """As many bytes follow the first one as it has ones at its low end."""
        first = reader.byte()
        size = (first ^ (first + 1)).bit_length()
        reader.at -= 1
        return reader.number(size) >> min(size, 8)

    for _ in range(6):
        number()  # up to the number of the server's field
    server = [number() for _ in range(16)]
    number()
    sequence = number() >> 1
    number()
    tag = reader.text(number())
    if max(server) > 255:
        raise reader.damaged("a GTID has no server")
    return f"{UUID(bytes=bytes(server))}:{tag}:{sequence}"


def rotated(event: Event) -> str:
    """The file of the log that comes next."""
    reader = ByteReader(event.body, min(8, len(event.body)))
    file = reader.text(reader.left)
    number = file.rpartition(".")[2]
    if not (number.isascii() and number.isdecimal() and len(number) < 20):
        raise reader.damaged("the next file of the binlog has no number")
    return file


def statement(event: Event, charsets: Mapping[int, str], limits: Limits) -> Statement:
    """A statement, read as its session wrote it; `charsets` has character sets by the numbers of their collations."""
    reader = ByteReader(event.body, min(8, len(event.body)))
    schema_size, _error, status = reader.byte(), reader.number(2), reader.part(reader.number(2))
    schema = reader.take(schema_size).decode("utf-8", "replace")
    if reader.byte():
        raise reader.damaged("the name of a schema has no end")
    text = uncompressed(reader, limits) if event.type == QUERY_COMPRESSED else reader.rest()
    mode, collation = _session(status)
    charset = "utf8mb4" if collation is None else charsets.get(collation, "")
    codec = CODECS.get(charset)
    if codec is None:
        problem = f"its character set is {charset or collation}"
        return Statement(text.decode("latin-1"), schema, mode, problem)
    try:
        return Statement(text.decode(codec, "strict" if charset in SHIFTING else "replace"), schema, mode)
    except UnicodeDecodeError:
        return Statement(text.decode("latin-1"), schema, mode, f"it is not in its character set {charset}")


def _session(status: ByteReader) -> tuple[int, int | None]:
    """The SQL mode of a statement's session, and the collation in which its client wrote. What comes behind the
    character set, and behind a variable that is not known, is of no interest."""
    mode = 0
    while status.left:
        code = status.byte()
        if code == STATUS_MODE:
            mode = status.number(8)
        elif code == STATUS_CHARSET:
            return mode, status.number(2)
        elif code in STATUS_SIZES:
            status.skip(STATUS_SIZES[code])
        elif code in STATUS_TEXTS:
            status.skip(status.byte() - 1 + STATUS_TEXTS[code])
        else:
            break
    return mode, None


def payload(event: Event, limits: Limits) -> Iterator[Event]:
    """The events of a transaction that MySQL has compressed: fields with their sizes, and then Zstandard's data. They
    are unpacked one at a time: together they may be large, and what they claim to be need not be so."""
    reader, fields = ByteReader(event.body), dict[int, int]()
    while kind := lenenc(reader):
        field = reader.part(lenenc(reader))
        fields[kind] = lenenc(field)
    packed = reader.part(fields.get(PAYLOAD_SIZE, 0))
    reader.finish()
    left = packed.left
    stream: Any = pyarrow.BufferReader(packed.rest())
    if fields.get(PAYLOAD_COMPRESSION, UNCOMPRESSED) != UNCOMPRESSED:
        stream, left = pyarrow.CompressedInputStream(stream, "zstd"), fields.get(PAYLOAD_WHOLE_SIZE, 0)
    if left > limits.unpacked:
        raise reader.damaged(f"a compressed transaction claims to have {left} bytes")
    while left:
        inner = ByteReader(_unpacked(stream, _HEADER.size, reader))
        timestamp, type_, _, size, _, flags = inner.unpack(_HEADER)
        if not _HEADER.size <= size <= min(left, limits.event):
            raise reader.damaged(f"a compressed transaction has an event of {size} bytes where {left} are left")
        left -= size
        yield Event(type_, timestamp, flags, 0, size, _unpacked(stream, size - _HEADER.size, reader))
    if _read(stream, 1, reader):
        raise reader.damaged("a compressed transaction is longer than it claims")


def _unpacked(stream: Any, size: int, reader: ByteReader) -> bytes:
    """So many bytes, for which there is room only as they come."""
    pieces, left = list[bytes](), size
    while left and (piece := _read(stream, min(left, _PIECE), reader)):
        pieces.append(piece)
        left -= len(piece)
    if left:
        raise reader.damaged("a compressed transaction ends too early")
    return b"".join(pieces)


def _read(stream: Any, size: int, reader: ByteReader) -> bytes:
    try:
        return bytes(stream.read(size))
    except (OSError, pyarrow.ArrowException):
        raise reader.damaged("a compressed transaction cannot be unpacked") from None


def uncompressed(reader: ByteReader, limits: Limits) -> bytes:
    """MariaDB's compressed events, up to their end: a byte with the length's size, the length, and zlib's stream."""
    first = reader.byte()
    if first & 0x70:
        raise reader.damaged("it is compressed in a way that Strobe does not know")
    expected = int.from_bytes(reader.take(first & 7), "big")
    if expected > limits.event:
        raise reader.damaged(f"it claims to have {expected} bytes")
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(reader.rest(), expected + 1)
    except zlib.error:
        raise reader.damaged("it cannot be unpacked") from None
    if len(found) != expected or not unpacking.eof or unpacking.unused_data:
        raise reader.damaged("it is not as long as it claims")
    return found
