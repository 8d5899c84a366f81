"""Rows as the binlog has them: what a table map says about its table, and the decoding of row images by it.

The table map describes itself completely when the server has `binlog_row_metadata = FULL`: names, signs, character
sets and the values of enumerations as they were when the row was written, whatever the table looks like today.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from strobe.algebra.bag import Row, canonical
from strobe.data.byte_reader import ByteReader
from strobe.errors import UNREADABLE, Unfit
from strobe.sources.mariadb.binlog import json
from strobe.sources.mariadb.binlog.decimals import Read, decimal_reader, decimal_size
from strobe.sources.mariadb.values import (
    LATIN1,
    PLAIN,
    Kind,
    bit_kind,
    decimal_kind,
    make_date,
    make_moment,
    time_kind,
    unalias,
)

TINY, SHORT, LONG, FLOAT, DOUBLE, NULL, TIMESTAMP, LONGLONG, INT24, DATE, TIME, DATETIME, YEAR, NEWDATE = range(1, 15)
VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = range(15, 20)
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141
VECTOR = 242
JSON, NEWDECIMAL, ENUM, SET = 245, 246, 247, 248
BLOB, VAR_STRING, STRING, GEOMETRY = 252, 253, 254, 255

_NUMERIC = {TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE, YEAR}
_CHARACTER = {STRING, VAR_STRING, VARCHAR, BLOB, GEOMETRY, BLOB_COMPRESSED, VARCHAR_COMPRESSED}
_MYSQL_CHARACTER = _CHARACTER - {GEOMETRY} | {VECTOR}
_META = {
    **dict.fromkeys((FLOAT, DOUBLE, TIMESTAMP2, DATETIME2, TIME2, BLOB, GEOMETRY, JSON, VECTOR, BLOB_COMPRESSED), 1),
    **dict.fromkeys((VARCHAR, VAR_STRING, STRING, NEWDECIMAL, BIT, VARCHAR_COMPRESSED, ENUM, SET), 2),
}
_KNOWN = {TINY, SHORT, LONG, LONGLONG, INT24, DATE, YEAR, NEWDATE, *_META}
_INTEGERS = {TINY: (1, "tinyint"), SHORT: (2, "smallint"), INT24: (3, "int"), LONG: (4, "int"), LONGLONG: (8, "bigint")}
_UNSIGNED = {TINY: "smallint", SHORT: "int", INT24: "int", LONG: "bigint", LONGLONG: "decimal(20,0)"}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
BINARY = 63
MOST_COLUMNS = 4096
"""Of a table: the servers have no room for more."""
_LENGTHS = {252: 2, 253: 3, 254: 8}
_EXACT = {2, 3, 4, 5, 6, 10, 11}
"""Elements of the optional metadata that end where what is known of them ends."""

Skip = Callable[[ByteReader], None]
Step = tuple[Skip | None, Read | None, int]
"""How to get past a column, or how to read it and where its value goes."""


class Undescribed(Exception):
    """The binlog does not say enough about a table to read its rows exactly."""


def lenenc(reader: ByteReader) -> int:
    """A length-encoded integer."""
    first = reader.byte()
    if first < 251:
        return first
    size = _LENGTHS.get(first)
    if size is None:
        raise reader.damaged(f"a length begins with {first}")
    return reader.number(size)


@dataclass
class LoggedColumn:
    type: int
    meta: int
    name: str = ""
    unsigned: bool = False
    collation: int | None = None
    values: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class TableMap:
    """The table that the row events after it are about."""

    id: int
    database: str
    table: str
    body: bytes
    """All but the number: equal ones describe the same table in the same state."""
    mysql: bool
    """Which of the servers wrote it."""

    @classmethod
    def parse(cls, data: bytes, mysql: bool) -> TableMap:
        reader = ByteReader(data)
        number, _flags = reader.number(6), reader.number(2)
        database, table = (_name(reader) for _ in range(2))
        return cls(number, database, table, reader.rest(), mysql)

    def columns(self) -> list[LoggedColumn]:
        """Raises `Undescribed` where names are missing or a type is unknown."""
        reader = ByteReader(self.body)
        count = lenenc(reader)
        if not 1 <= count <= MOST_COLUMNS:
            raise reader.damaged(f"a table has {count} columns")
        types, described = reader.take(count), reader.part(lenenc(reader))
        columns = []
        for type_ in types:
            if type_ not in _KNOWN:
                raise Undescribed(_strange(type_))
            columns.append(_column(type_, described))
        described.finish()
        reader.skip((count + 7) // 8)
        while reader.left:
            kind = reader.byte()
            _describe(columns, kind, reader.part(lenenc(reader)), _MYSQL_CHARACTER if self.mysql else _CHARACTER)
        if not all(c.name for c in columns):
            raise Undescribed("the binlog has no column names: binlog_row_metadata was not FULL")
        return columns


def _name(reader: ByteReader) -> str:
    found = reader.text(reader.byte())
    if reader.byte():
        raise reader.damaged("a name has no end")
    return found


def _strange(type_: int) -> str:
    if type_ in (TIMESTAMP, TIME, DATETIME):
        return "it has a time column in the format of MariaDB before 10.1 (`ALTER TABLE … FORCE` renews it)"
    return f"it has a column of the binlog's type {type_}"


def _column(type_: int, reader: ByteReader) -> LoggedColumn:
    size = _META.get(type_, 0)
    meta = reader.take(size)
    if type_ == STRING and meta[0] in (ENUM, SET):
        found = LoggedColumn(meta[0], meta[1])
    elif type_ == STRING:
        found = LoggedColumn(type_, (((meta[0] << 4) & 0x300) ^ 0x300) + meta[1])
    elif type_ in (NEWDECIMAL, BIT):
        found = LoggedColumn(type_, meta[0] << 8 | meta[1])
    else:
        found = LoggedColumn(type_, int.from_bytes(meta, "little"))
    if not _possible(found):
        raise reader.damaged(f"a column of type {type_} has the size {found.meta}")
    return found


def _possible(column: LoggedColumn) -> bool:
    """Whether a server makes columns of this size."""
    type_, meta = column.type, column.meta
    if type_ == NEWDECIMAL:
        precision, scale = divmod(meta, 256)
        return 1 <= precision <= 65 and scale <= precision
    if type_ == BIT:
        return 1 <= (meta & 0xFF) * 8 + (meta >> 8) <= 64 and meta >> 8 < 8
    if type_ in (ENUM, SET):
        return meta in (1, 2, 3, 4, 8) if type_ == SET else meta in (1, 2)
    if type_ in (BLOB, JSON, GEOMETRY, VECTOR, BLOB_COMPRESSED):
        return 1 <= meta <= 4
    return type_ not in (TIMESTAMP2, DATETIME2, TIME2) or meta <= 6


def _describe(columns: Sequence[LoggedColumn], kind: int, reader: ByteReader, character: Collection[int]) -> None:
    """One element of the optional metadata; `character` has the types that the server takes for text."""
    texts = [c for c in columns if c.type in ({ENUM, SET} if kind in (10, 11) else character)]
    if kind == 1:
        numbers = [c for c in columns if c.type in _NUMERIC]
        if len(numbers) > 8 * reader.left:  # an early MySQL 8.0, which leaves YEAR out
            numbers = [c for c in numbers if c.type != YEAR]
        signs = reader.take((len(numbers) + 7) // 8)
        for i, column in enumerate(numbers):
            column.unsigned = bool(signs[i // 8] & (0x80 >> i % 8))
    elif kind in (2, 10):
        _default_charsets(texts, reader)
    elif kind in (3, 11):
        for column in texts:
            column.collation = lenenc(reader)
    elif kind == 4:
        for column in columns:
            column.name = reader.text(lenenc(reader))
    elif kind in (5, 6):
        of = SET if kind == 5 else ENUM
        for column in (c for c in columns if c.type == of):
            column.values = [reader.take(lenenc(reader)) for _ in range(_count(reader))]
    if kind in _EXACT:
        reader.finish()


def _count(reader: ByteReader) -> int:
    found = lenenc(reader)
    if found > reader.left:
        raise reader.damaged(f"{found} values should follow in {reader.left} bytes")
    return found


def _default_charsets(columns: Sequence[LoggedColumn], reader: ByteReader) -> None:
    default = lenenc(reader)
    for column in columns:
        column.collation = default
    while reader.left:
        place = lenenc(reader)
        if place >= len(columns):
            raise reader.damaged(f"there are {len(columns)} columns of text, and number {place} is described")
        columns[place].collation = lenenc(reader)


def kind_of(column: LoggedColumn, charsets: Mapping[int, str]) -> Kind | None:
    """The kind of a logged column; None where the type is not supported."""
    if column.type in _INTEGERS:
        return Kind(_UNSIGNED[column.type] if column.unsigned else _INTEGERS[column.type][1], "number")
    if column.type == NEWDECIMAL:
        return decimal_kind(column.meta >> 8, column.meta & 0xFF)
    if column.type == BIT:
        return bit_kind((column.meta & 0xFF) * 8 + (column.meta >> 8))
    if column.type in (STRING, VARCHAR, VAR_STRING, BLOB, ENUM, SET):
        return _text_kind(column, charsets)
    if column.type == TIME2:
        return time_kind(column.meta)
    if column.type == JSON:
        return PLAIN["json"]
    names = {FLOAT: "float", DOUBLE: "double", DATE: "date", NEWDATE: "date", DATETIME2: "datetime"}
    names |= {TIMESTAMP2: "timestamp", YEAR: "year"}
    return PLAIN.get(names.get(column.type, ""))


def _text_kind(column: LoggedColumn, charsets: Mapping[int, str]) -> Kind | None:
    if column.collation is None:
        return None
    if column.collation == BINARY:
        if column.type in (ENUM, SET):
            return None
        fixed = column.type == STRING
        return Kind("binary", "fixed bytes", length=column.meta) if fixed else Kind("binary", "bytes")
    form = {STRING: "char", ENUM: "enum", SET: "set"}.get(column.type, "text")
    return Kind("string", form, unalias(charsets.get(column.collation)))


# Decoding and skipping of single values


def skipper(column: LoggedColumn) -> Skip:
    type_, meta = column.type, column.meta
    if type_ in (STRING, VARCHAR, VAR_STRING, VARCHAR_COMPRESSED):
        return _skip_counted(1 if meta < 256 else 2)
    if type_ in (BLOB, GEOMETRY, JSON, VECTOR, BLOB_COMPRESSED):
        return _skip_counted(meta)
    size = _fixed_size(type_, meta)
    return lambda reader: reader.skip(size)


def _skip_counted(width: int) -> Skip:
    return lambda reader: reader.skip(reader.number(width))


def _fixed_size(type_: int, meta: int) -> int:
    if type_ in _INTEGERS:
        return _INTEGERS[type_][0]
    if type_ == NEWDECIMAL:
        return decimal_size(meta >> 8, meta & 0xFF)
    if type_ == BIT:
        return (meta & 0xFF) + bool(meta >> 8)
    if type_ in (ENUM, SET):
        return meta
    base = {FLOAT: 4, DOUBLE: 8, DATE: 3, NEWDATE: 3, YEAR: 1, TIMESTAMP2: 4, DATETIME2: 5, TIME2: 3}[type_]
    return base + (meta + 1) // 2 if type_ in (TIMESTAMP2, DATETIME2, TIME2) else base


def reader(column: LoggedColumn, kind: Kind) -> Read:
    type_, meta = column.type, column.meta
    size = 0 if type_ in (STRING, VARCHAR, VAR_STRING, BLOB, JSON) else _fixed_size(type_, meta)
    if type_ in _INTEGERS:
        return _integer(size, not column.unsigned, kind.type.startswith("decimal"))
    if type_ == NEWDECIMAL:
        return decimal_reader(meta >> 8, meta & 0xFF)
    if type_ == BIT:
        return _bits(size, (meta & 0xFF) * 8 + (meta >> 8), kind.type)
    if type_ in (STRING, VARCHAR, VAR_STRING):
        return _counted(1 if meta < 256 else 2, kind)
    if type_ in (BLOB, JSON):
        return _counted(meta, kind)
    if type_ == ENUM:
        return _enumeration(size, [_decode_text(v, kind.charset) for v in column.values])
    if type_ == SET:
        return _set(size, [_decode_text(v, kind.charset) for v in column.values])
    if type_ == TIME2:
        return _time(meta)
    plain: dict[int, Read] = {FLOAT: _float, DOUBLE: _double, DATE: _date, NEWDATE: _date, YEAR: _year}
    if type_ in plain:
        return plain[type_]
    return _moment(size - 5) if type_ == DATETIME2 else _instant(size - 4)


def _integer(size: int, signed: bool, as_decimal: bool) -> Read:
    code = {1: "b", 2: "h", 4: "i", 8: "q"}.get(size)
    if code and not as_decimal:
        layout = struct.Struct(f"<{code if signed else code.upper()}")
        return lambda reader: reader.unpack(layout)[0]

    def read(reader: ByteReader) -> Any:
        value = int.from_bytes(reader.take(size), "little", signed=signed)
        return Decimal(value) if as_decimal else value

    return read


def _bits(size: int, bits: int, type_: str) -> Read:
    make: Callable[[int], Any] = {"boolean": bool, "bigint": int}.get(type_, Decimal)

    def read(reader: ByteReader) -> Any:
        value = int.from_bytes(reader.take(size), "big")
        if value >> bits:
            raise reader.damaged(f"a value has more than {bits} bits")
        return make(value)

    return read


_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")


def _float(reader: ByteReader) -> Any:
    return canonical(reader.unpack(_FLOAT)[0])


def _double(reader: ByteReader) -> Any:
    return canonical(reader.unpack(_DOUBLE)[0])


def _date(reader: ByteReader) -> Any:
    packed = reader.number(3)
    return make_date(packed >> 9, packed >> 5 & 15, packed & 31)


def _year(reader: ByteReader) -> Any:
    found = reader.byte()
    return found and found + 1900


def _micros(fraction: bytes) -> int:
    """Two digits of a fraction are in each byte."""
    return int.from_bytes(fraction, "big") * 10 ** (6 - 2 * len(fraction)) if fraction else 0


def _moment(fraction: int) -> Read:
    def read(reader: ByteReader) -> Any:
        data = reader.take(5 + fraction)
        packed = int.from_bytes(data[:5], "big") - 0x8000000000
        year, month = divmod(packed >> 22, 13)
        clock = (packed >> 12 & 31, packed >> 6 & 63, packed & 63)
        return make_moment(year, month, packed >> 17 & 31, *clock, _micros(data[5:]))

    return read


def _instant(fraction: int) -> Read:
    def read(reader: ByteReader) -> Any:
        data = reader.take(4 + fraction)
        seconds, micros = int.from_bytes(data[:4], "big"), _micros(data[4:])
        if not seconds:
            raise Unfit("there is no moment 0000-00-00 00:00:00")
        return _EPOCH + timedelta(seconds=seconds, microseconds=micros)

    return read


def _decode_text(value: bytes, charset: str) -> str:
    if charset == "latin1":
        return "".join([LATIN1[byte] for byte in value])
    try:
        return value.decode("ascii" if charset == "ascii" else "utf-8")
    except UnicodeDecodeError:
        raise Unfit(f"it is not text in {charset}") from None


def _counted(width: int, kind: Kind) -> Read:
    charset, length = kind.charset, kind.length
    make: Callable[[bytes], Any] = {
        "bytes": bytes,
        "fixed bytes": lambda value: value.ljust(length, b"\0"),
        "char": lambda value: _decode_text(value, charset).rstrip(" "),
        "text": lambda value: _decode_text(value, charset),
        "json": json.text,
    }[kind.form]
    return lambda reader: make(reader.take(reader.number(width)))


def _enumeration(size: int, values: Sequence[str]) -> Read:
    known = ["", *values]

    def read(reader: ByteReader) -> Any:
        place = reader.number(size)
        if place >= len(known):
            raise reader.damaged(f"there are {len(values)} values, and number {place} is chosen")
        return known[place]

    return read


def _set(size: int, values: Sequence[str]) -> Read:
    def read(reader: ByteReader) -> Any:
        chosen = reader.number(size)
        if chosen >> len(values):
            raise reader.damaged(f"there are {len(values)} values, and others are chosen")
        return ",".join([value for place, value in enumerate(values) if chosen >> place & 1])

    return read


def _time(digits: int) -> Read:
    """Hours in ten bits, minutes and seconds in six each, two digits of the fraction in a byte; offset for the sign."""
    bytes_ = (digits + 1) // 2
    size, zero = 3 + bytes_, 0x800000 << 8 * bytes_

    def read(reader: ByteReader) -> Any:
        packed = int.from_bytes(reader.take(size), "big") - zero
        whole, part = divmod(abs(packed), 1 << 8 * bytes_)
        text = f"{'-' if packed < 0 else ''}{whole >> 12 & 1023:02}:{whole >> 6 & 63:02}:{whole & 63:02}"
        return f"{text}.{part:0{2 * bytes_}}"[: len(text) + 1 + digits] if digits else text

    return read


class UnfitRow(Unfit):
    """A row with a value that Spark cannot hold, which is `UNREADABLE` among the others."""

    values: Sequence[Any] = ()


class RowPlan:
    """How to read the images of one table in one state, over the columns that are wanted."""

    def __init__(self, logged: Sequence[LoggedColumn], wanted: Sequence[str], kinds: Sequence[Kind]) -> None:
        places = {c.name: i for i, c in enumerate(logged)}
        self.width = len(logged)
        self.columns = tuple(wanted)
        self._all = (1 << self.width) - 1
        self._needed = [places[name] for name in wanted]
        self._bytes = (self.width + 7) // 8
        self._steps: list[Step] = [(skipper(c), None, -1) for c in logged]
        for slot, (name, kind) in enumerate(zip(wanted, kinds, strict=True)):
            self._steps[places[name]] = (None, reader(logged[places[name]], kind), slot)

    def present(self, reader: ByteReader) -> int:
        """Which columns the images of an event have, bit by bit; what is beyond the last one says nothing."""
        return reader.number(self._bytes) & self._all

    def complete(self, present: int) -> bool:
        """Whether an image with these columns has all that are wanted."""
        return present == self._all or all(present >> i & 1 for i in self._needed)

    def image(self, reader: ByteReader, present: int) -> Row:
        """One row image. Raises `UnfitRow` for a value that Spark cannot hold."""
        whole = present == self._all
        nulls = reader.number(self._bytes if whole else (bin(present).count("1") + 7) // 8)
        row: list[Any] = [None] * len(self.columns)
        unfit: UnfitRow | None = None
        for skip, read, slot in self._steps if whole and not nulls else _there(self._steps, present, nulls):
            if read is not None:
                try:
                    row[slot] = read(reader)
                except Unfit as reason:
                    unfit, row[slot] = unfit or UnfitRow(f"column {self.columns[slot]}: {reason}"), UNREADABLE
            elif skip is not None:
                skip(reader)
        if unfit is not None:
            unfit.values = row
            raise unfit
        return tuple(row)


def _there(steps: Sequence[Step], present: int, nulls: int) -> Iterator[Step]:
    """The steps of the columns that are in an image and not NULL."""
    bit = 1
    for place, step in enumerate(steps):
        if present >> place & 1:
            if not nulls & bit:
                yield step
            bit <<= 1
