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
from strobe.errors import Unfit
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

Skip = Callable[[bytes, int], int]
Step = tuple[Skip | None, Read | None, int]
"""How to get past a column, or how to read it and where its value goes."""


class Undescribed(Exception):
    """The binlog does not say enough about a table to read its rows exactly."""


def lenenc(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer, and where it ends."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


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
        number = int.from_bytes(data[:6], "little")
        size = data[8]
        database = data[9 : 9 + size].decode("utf-8")
        at = 9 + size + 1
        table = data[at + 1 : at + 1 + data[at]].decode("utf-8")
        return cls(number, database, table, bytes(data[at + 1 + data[at] + 1 :]), mysql)

    def columns(self) -> list[LoggedColumn]:
        """Raises `Undescribed` where names are missing or a type is unknown."""
        data = self.body
        count, at = lenenc(data, 0)
        types = data[at : at + count]
        _, at = lenenc(data, at + count)
        columns = []
        for type_ in types:
            if type_ not in _KNOWN:
                raise Undescribed(_strange(type_))
            size = _META.get(type_, 0)
            columns.append(_column(type_, data[at : at + size]))
            at += size
        at += (count + 7) // 8
        while at < len(data):
            kind = data[at]
            size, at = lenenc(data, at + 1)
            _describe(columns, kind, data[at : at + size], _MYSQL_CHARACTER if self.mysql else _CHARACTER)
            at += size
        if not all(c.name for c in columns):
            raise Undescribed("the binlog has no column names: binlog_row_metadata was not FULL")
        return columns


def _strange(type_: int) -> str:
    if type_ in (TIMESTAMP, TIME, DATETIME):
        return "it has a time column in the format of MariaDB before 10.1 (`ALTER TABLE … FORCE` renews it)"
    return f"it has a column of the binlog's type {type_}"


def _column(type_: int, meta: bytes) -> LoggedColumn:
    if type_ == STRING and meta[0] in (ENUM, SET):
        return LoggedColumn(meta[0], meta[1])
    if type_ == STRING:
        return LoggedColumn(type_, (((meta[0] << 4) & 0x300) ^ 0x300) + meta[1])
    if type_ in (NEWDECIMAL, BIT):
        return LoggedColumn(type_, meta[0] << 8 | meta[1])
    return LoggedColumn(type_, int.from_bytes(meta, "little"))


def _describe(columns: Sequence[LoggedColumn], kind: int, data: bytes, character: Collection[int]) -> None:
    """One element of the optional metadata; `character` has the types that the server takes for text."""
    texts = [c for c in columns if c.type in ({ENUM, SET} if kind in (10, 11) else character)]
    if kind == 1:
        numbers = [c for c in columns if c.type in _NUMERIC]
        if len(numbers) > 8 * len(data):  # an early MySQL 8.0, which leaves YEAR out
            numbers = [c for c in numbers if c.type != YEAR]
        for i, column in enumerate(numbers):
            column.unsigned = bool(data[i // 8] & (0x80 >> i % 8))
    elif kind in (2, 10):
        _default_charsets(texts, _integers(data))
    elif kind in (3, 11):
        for column, collation in zip(texts, _integers(data), strict=True):
            column.collation = collation
    elif kind == 4:
        for column, name in zip(columns, _strings(data), strict=True):
            column.name = name.decode("utf-8")
    elif kind in (5, 6):
        at, of = 0, SET if kind == 5 else ENUM
        for column in (c for c in columns if c.type == of):
            count, at = lenenc(data, at)
            for _ in range(count):
                size, at = lenenc(data, at)
                column.values.append(bytes(data[at : at + size]))
                at += size


def _default_charsets(columns: Sequence[LoggedColumn], numbers: Sequence[int]) -> None:
    for column in columns:
        column.collation = numbers[0]
    for i, collation in zip(numbers[1::2], numbers[2::2], strict=True):
        columns[i].collation = collation


def _integers(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        number, at = lenenc(data, at)
        found.append(number)
    return found


def _strings(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size, at = lenenc(data, at)
        found.append(bytes(data[at : at + size]))
        at += size
    return found


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
    return lambda data, at: at + size


def _skip_counted(width: int) -> Skip:
    return lambda data, at: at + width + int.from_bytes(data[at : at + width], "little")


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
        return _bits(size, kind.type)
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
        unpack = struct.Struct(f"<{code if signed else code.upper()}").unpack_from
        return lambda data, at: (unpack(data, at)[0], at + size)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        value = int.from_bytes(data[at : at + size], "little", signed=signed)
        return (Decimal(value) if as_decimal else value), at + size

    return read


def _bits(size: int, type_: str) -> Read:
    make: Callable[[int], Any] = {"boolean": bool, "bigint": int}.get(type_, Decimal)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return make(int.from_bytes(data[at : at + size], "big")), at + size

    return read


def _float(data: bytes, at: int) -> tuple[Any, int]:
    return canonical(struct.unpack_from("<f", data, at)[0]), at + 4


def _double(data: bytes, at: int) -> tuple[Any, int]:
    return canonical(struct.unpack_from("<d", data, at)[0]), at + 8


def _date(data: bytes, at: int) -> tuple[Any, int]:
    packed = int.from_bytes(data[at : at + 3], "little")
    return make_date(packed >> 9, packed >> 5 & 15, packed & 31), at + 3


def _year(data: bytes, at: int) -> tuple[Any, int]:
    return data[at] and data[at] + 1900, at + 1


def _micros(data: bytes, at: int, size: int) -> int:
    """Two digits of a fraction are in each byte."""
    return int.from_bytes(data[at : at + size], "big") * 10 ** (6 - 2 * size) if size else 0


def _moment(fraction: int) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        packed = int.from_bytes(data[at : at + 5], "big") - 0x8000000000
        year, month = divmod(packed >> 22, 13)
        clock = (packed >> 12 & 31, packed >> 6 & 63, packed & 63)
        end = at + 5 + fraction
        return make_moment(year, month, packed >> 17 & 31, *clock, _micros(data, at + 5, fraction)), end

    return read


def _instant(fraction: int) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        seconds, micros = int.from_bytes(data[at : at + 4], "big"), _micros(data, at + 4, fraction)
        if not seconds:
            raise Unfit("there is no moment 0000-00-00 00:00:00")
        return _EPOCH + timedelta(seconds=seconds, microseconds=micros), at + 4 + fraction

    return read


def _decode_text(value: bytes, charset: str) -> str:
    if charset == "latin1":
        return "".join([LATIN1[byte] for byte in value])
    return value.decode("ascii" if charset == "ascii" else "utf-8")


def _counted(width: int, kind: Kind) -> Read:
    charset, length = kind.charset, kind.length
    make: Callable[[bytes], Any] = {
        "bytes": bytes,
        "fixed bytes": lambda value: bytes(value).ljust(length, b"\0"),
        "char": lambda value: _decode_text(value, charset).rstrip(" "),
        "text": lambda value: _decode_text(value, charset),
        "json": json.text,
    }[kind.form]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + width
        end = start + int.from_bytes(data[at:start], "little")
        return make(data[start:end]), end

    return read


def _enumeration(size: int, values: Sequence[str]) -> Read:
    known = ["", *values]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return known[int.from_bytes(data[at : at + size], "little")], at + size

    return read


def _set(size: int, values: Sequence[str]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        chosen = int.from_bytes(data[at : at + size], "little")
        return ",".join([value for place, value in enumerate(values) if chosen >> place & 1]), at + size

    return read


def _time(digits: int) -> Read:
    """Hours in ten bits, minutes and seconds in six each, two digits of the fraction in a byte; offset for the sign."""
    bytes_ = (digits + 1) // 2
    size, zero = 3 + bytes_, 0x800000 << 8 * bytes_

    def read(data: bytes, at: int) -> tuple[Any, int]:
        packed = int.from_bytes(data[at : at + size], "big") - zero
        whole, part = divmod(abs(packed), 1 << 8 * bytes_)
        text = f"{'-' if packed < 0 else ''}{whole >> 12 & 1023:02}:{whole >> 6 & 63:02}:{whole & 63:02}"
        return (f"{text}.{part:0{2 * bytes_}}"[: len(text) + 1 + digits] if digits else text), at + size

    return read


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

    def complete(self, present: int) -> bool:
        """Whether an image with these columns has all that are wanted."""
        return present & self._all == self._all or all(present >> i & 1 for i in self._needed)

    def image(self, data: bytes, at: int, present: int) -> tuple[Row, int]:
        """One row image, and where it ends. Raises `Unfit` for a value that Spark cannot hold."""
        size = (bin(present).count("1") + 7) // 8 if present != self._all else self._bytes
        nulls = int.from_bytes(data[at : at + size], "little")
        at += size
        row: list[Any] = [None] * len(self.columns)
        slot = -1
        try:
            whole = not nulls and present == self._all
            for skip, read, slot in self._steps if whole else _there(self._steps, present, nulls):
                if read is not None:
                    row[slot], at = read(data, at)
                elif skip is not None:
                    at = skip(data, at)
        except Unfit as unfit:
            raise Unfit(f"column {self.columns[slot]}: {unfit}") from None
        return tuple(row), at


def _there(steps: Sequence[Step], present: int, nulls: int) -> Iterator[Step]:
    """The steps of the columns that are in an image and not NULL."""
    bit = 1
    for place, step in enumerate(steps):
        if present >> place & 1:
            if not nulls & bit:
                yield step
            bit <<= 1
