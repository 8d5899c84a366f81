"""Single events of the binlog, taken apart: the names of transactions, statements, and what is compressed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from uuid import UUID

import pyarrow

from strobe.errors import SourceUnavailable
from strobe.sources.mariadb.binlog.protocol import GTID, MYSQL_GTID, MYSQL_TAGGED_GTID, QUERY_COMPRESSED, Event
from strobe.sources.mariadb.binlog.rows import lenenc

PAYLOAD_SIZE, PAYLOAD_COMPRESSION, PAYLOAD_WHOLE_SIZE, UNCOMPRESSED = 1, 2, 3, 255
_HEADER = struct.Struct("<IBIIIH")


def gtid(event: Event) -> str | None:
    """The transaction that begins with an event, as the server's own statements call it; None if it has no name."""
    try:
        if event.type == GTID:
            sequence, domain = struct.unpack_from("<QI", event.body)
            return f"{domain}-{event.server}-{sequence}"
        if event.type == MYSQL_GTID:
            server, (number,) = event.body[1:17], struct.unpack_from("<q", event.body, 17)
            return f"{UUID(bytes=server)}:{number}"
        return _tagged(event.body) if event.type == MYSQL_TAGGED_GTID else None
    except (struct.error, IndexError, ValueError):
        return None


def _tagged(body: bytes) -> str:
    """A version, a size and a number of fields that may not be left out, and then fields, each behind its number: the
    flags, the server, byte by byte, the sequence number with its sign, and the tag."""
    at = 0

    def number() -> int:
        """As many bytes follow the first one as it has ones at its low end."""
        nonlocal at
        size = (body[at] ^ (body[at] + 1)).bit_length()
        value = int.from_bytes(body[at : at + size], "little") >> min(size, 8)
        at += size
        return value

    for _ in range(6):
        number()  # up to the number of the server's field
    server = bytes([number() for _ in range(16)])
    number()
    sequence = number() >> 1
    number()
    size = number()
    return f"{UUID(bytes=server)}:{body[at : at + size].decode('ascii')}:{sequence}"


def statement(event: Event) -> tuple[str, str]:
    """The schema in which a statement ran, and its text."""
    body = event.body
    schema_size, status_size = body[8], int.from_bytes(body[11:13], "little")
    at = 13 + status_size
    schema = body[at : at + schema_size].decode("utf-8", "replace")
    text = body[at + schema_size + 1 :]
    if event.type == QUERY_COMPRESSED:
        text = uncompressed(text)
    return schema, text.decode("utf-8", "replace")


def payload(event: Event) -> Iterator[Event]:
    """The events of a transaction that MySQL has compressed: fields with their sizes, and then Zstandard's data."""
    data, at, fields = event.body, 0, dict[int, int]()
    while data[at]:
        kind, at = lenenc(data, at)
        size, at = lenenc(data, at)
        fields[kind], _ = lenenc(data, at)
        at += size
    stream, left = pyarrow.BufferReader(data[at + 1 : at + 1 + fields[PAYLOAD_SIZE]]), fields[PAYLOAD_SIZE]
    if fields.get(PAYLOAD_COMPRESSION, UNCOMPRESSED) != UNCOMPRESSED:
        stream, left = pyarrow.CompressedInputStream(stream, "zstd"), fields[PAYLOAD_WHOLE_SIZE]
    while left:  # one event at a time: together they may be large
        header = stream.read(_HEADER.size)
        timestamp, type_, _, size, _, flags = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
        body = stream.read(max(0, size - _HEADER.size))
        if size < _HEADER.size or len(header) + len(body) != size or size > left:
            raise SourceUnavailable("a compressed transaction of the binlog is damaged")
        left -= size
        yield Event(type_, timestamp, flags, 0, size, body)


def uncompressed(data: bytes) -> bytes:
    """MariaDB's compressed events: a byte with the length's size, the length, and zlib's stream."""
    if data[0] & 0x70:
        raise SourceUnavailable("the binlog is compressed in a way that Strobe does not know")
    size = data[0] & 7
    expected = int.from_bytes(data[1 : 1 + size], "big")
    found = zlib.decompress(data[1 + size :])
    if len(found) != expected:
        raise SourceUnavailable("a compressed event of the binlog is damaged")
    return found
