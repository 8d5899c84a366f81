"""Single events of the binlog, taken apart: the names of transactions, statements, and what is compressed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from uuid import UUID

import pyarrow

from strobe.errors import SourceUnavailable
from strobe.sources.mariadb.binlog.protocol import GTID, MYSQL_GTID, MYSQL_TAGGED_GTID, QUERY_COMPRESSED, Event
from strobe.sources.mariadb.binlog.rows import lenenc
from strobe.sources.mariadb.binlog.sql import Statement

PAYLOAD_SIZE, PAYLOAD_COMPRESSION, PAYLOAD_WHOLE_SIZE, UNCOMPRESSED = 1, 2, 3, 255
_HEADER = struct.Struct("<IBIIIH")
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


def statement(event: Event, charsets: Mapping[int, str]) -> Statement:
    """A statement, read as its session wrote it; `charsets` has character sets by the numbers of their collations."""
    body = event.body
    schema_size, status_size = body[8], int.from_bytes(body[11:13], "little")
    at = 13 + status_size
    schema = body[at : at + schema_size].decode("utf-8", "replace")
    text = body[at + schema_size + 1 :]
    if event.type == QUERY_COMPRESSED:
        text = uncompressed(text)
    mode, collation = _session(body[13:at])
    charset = "utf8mb4" if collation is None else charsets.get(collation, "")
    codec = CODECS.get(charset)
    if codec is None:
        problem = f"its character set is {charset or collation}"
        return Statement(text.decode("latin-1"), schema, mode, problem)
    try:
        return Statement(text.decode(codec, "strict" if charset in SHIFTING else "replace"), schema, mode)
    except UnicodeDecodeError:
        return Statement(text.decode("latin-1"), schema, mode, f"it is not in its character set {charset}")


def _session(status: bytes) -> tuple[int, int | None]:
    """The SQL mode of a statement's session, and the collation in which its client wrote."""
    at, mode = 0, 0
    try:
        while at < len(status):
            code = status[at]
            at += 1
            if code == STATUS_MODE:
                mode = int.from_bytes(status[at : at + 8], "little")
            elif code == STATUS_CHARSET:
                return mode, int.from_bytes(status[at : at + 2], "little")
            at += STATUS_SIZES[code] if code in STATUS_SIZES else status[at] + STATUS_TEXTS[code]
    except (IndexError, KeyError):
        pass  # what comes behind the character set is of no interest
    return mode, None


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
