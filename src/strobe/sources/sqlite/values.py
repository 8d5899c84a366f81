"""SQLite's values as Spark's: one decoder for the change stream, look-ups and scans, and its inverse for look-ups.

SQLite types values, not columns, so a column's declared type is a promise that every value is held to here. A value
that breaks it is refused and never bent: bent values would not cancel. Encoding a key may select too much, never too
little; a key that no readable value of the column can equal is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from strobe.algebra.bag import canonical
from strobe.data.keys import exactly
from strobe.errors import Unfit

Decode = Callable[[Any], Any]
Encode = Callable[[Any], Any]

_INTEGER = re.compile(r"(?<![A-Z])(TINY|SMALL|MEDIUM|BIG)?INT(EGER)?[248]?(?![A-Z])")
_DECIMAL = re.compile(r"(DECIMAL|NUMERIC|DEC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIMESTAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2})[ T](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?(?:\s?(Z)|([+-])(\d{2}):?(\d{2}))?", re.ASCII
)


def spark_type(declared: str) -> str | None:
    """The Spark type of a column by its declared type; None where SQLite's declaration promises nothing usable."""
    text = re.sub(r"\s*GENERATED ALWAYS$", "", declared.upper()).strip()
    if match := _DECIMAL.fullmatch(text):
        precision, scale = int(match[2]), int(match[3] or 0)
        return f"decimal({precision},{scale})" if 1 <= precision <= 38 and scale <= precision else None
    if _INTEGER.search(text):
        return "bigint"
    for part, type_ in _BY_NAME:
        if part in text:
            return type_
    return None


_BY_NAME = (
    ("CHAR", "string"),
    ("CLOB", "string"),
    ("TEXT", "string"),
    ("BLOB", "binary"),
    ("REAL", "double"),
    ("FLOA", "double"),
    ("DOUB", "double"),
    ("BOOL", "boolean"),
    ("TIMESTAMP", "timestamp"),
    ("DATETIME", "timestamp"),
    ("DATE", "date"),
)


def searchable(type_: str) -> bool:
    """Whether equal values have one stored form that SQLite can compare; an instant has many spellings."""
    return type_ != "timestamp"


def decoder(type_: str) -> Decode:
    """Stored value (never NULL) to canonical value; raises `Unfit`."""
    if type_.startswith("decimal"):
        return _decimals(type_)
    return _DECODERS[type_]


def encoder(type_: str) -> Encode:
    """A key in the form of `data.keys` to the value to search for; None when no readable value equals it."""
    return _encode_number if type_.startswith("decimal") else _ENCODERS[type_]


def _integer(value: Any) -> int:
    if isinstance(value, int):
        return value
    raise Unfit("it is not a 64-bit integer")


def _decimals(type_: str) -> Decode:
    exact = exactly(type_)
    return lambda value: exact(_number(value))


def _number(value: Any) -> Decimal:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Unfit("it is not a finite number")
        if float(f"{value:.15g}") != value:
            raise Unfit("it is a binary fraction with more than 15 digits, so the decimal that was meant is not known")
        return Decimal(repr(value))
    if isinstance(value, int) or (isinstance(value, str) and _NUMBER.fullmatch(value)):
        return Decimal(value)
    raise Unfit("it is not a number")


def _significant(number: Decimal) -> int:
    return len("".join(map(str, number.as_tuple().digits)).strip("0"))


def _double(value: Any) -> float:
    if isinstance(value, float):
        return float(canonical(value))
    if isinstance(value, int) and int(float(value)) == value:
        return float(value)
    raise Unfit("it is not a floating-point number")


@dataclass(frozen=True)
class NotUtf8:
    """Text that is stored in another encoding than the database's."""

    stored: bytes

    def __repr__(self) -> str:
        return repr(self.stored)


def text(stored: bytes) -> str | NotUtf8:
    """Text as SQLite stores it: it does not check that it is UTF-8."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return NotUtf8(stored)


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, NotUtf8):
        raise Unfit("it is not UTF-8")
    raise Unfit("it is not text")


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    raise Unfit("it is not a blob")


def _boolean(value: Any) -> bool:
    if isinstance(value, int) and value in (0, 1):
        return value == 1
    raise Unfit("it is neither 0 nor 1")


def _date(value: Any) -> date:
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise Unfit("it is not a date written YYYY-MM-DD")


def _timestamp(value: Any) -> datetime:
    match = _TIMESTAMP.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise Unfit("it is not a timestamp written YYYY-MM-DD HH:MM:SS")
    day, hour, minute, second, fraction, _, sign, off_hours, off_minutes = match.groups()
    fraction = (fraction or "").rstrip("0")
    if len(fraction) > 6:
        raise Unfit("it is finer than a microsecond")
    offset = timedelta(hours=int(off_hours or 0), minutes=int(off_minutes or 0))
    try:
        local = datetime.fromisoformat(f"{day}T{hour}:{minute}:{second or '00'}.{fraction:0<6}+00:00")
        return (local + offset if sign == "-" else local - offset).astimezone(timezone.utc)
    except (ValueError, OverflowError) as error:
        raise Unfit("there is no such moment") from error


_DECODERS: dict[str, Decode] = {
    "bigint": _integer,
    "double": _double,
    "string": _string,
    "binary": _binary,
    "boolean": _boolean,
    "date": _date,
    "timestamp": _timestamp,
}


def _encode_number(key: Decimal) -> int | float | None:
    """Numbers compare by value in SQLite. A fraction is stored as REAL (a DECIMAL column turns numeric text into one),
    and a REAL is read only if it has at most 15 digits, so that at most one key has that REAL."""
    if key == key.to_integral_value() and -(2**63) <= key < 2**63:
        return int(key)
    return float(key) if _significant(key) <= 15 else None


def _as_it_is(key: Any) -> Any:
    return key


_ENCODERS: dict[str, Encode] = {
    "bigint": _as_it_is,
    "double": _as_it_is,
    "string": _as_it_is,
    "binary": _as_it_is,
    "boolean": int,
    "date": date.isoformat,
}
