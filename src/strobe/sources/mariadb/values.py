"""MariaDB's values as Spark's: what a column holds, and how its values come out of SELECT and go into a search.

The other way a value comes out, the binlog, is in `binlog.rows`; both name what they decode by a `Kind`, and the
stream goes on only while its kinds are those of the catalog. A value that Spark cannot hold (a zero date) is refused
and never bent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from strobe.algebra.bag import canonical
from strobe.errors import Unfit

CHARSETS = {"utf8mb4", "utf8mb3", "utf8", "latin1", "ascii"}
"""Character sets whose text comes out of the binlog as the server itself converts it."""
_INTEGERS = {"tinyint": "tinyint", "smallint": "smallint", "mediumint": "int", "int": "int", "bigint": "bigint"}
_UNSIGNED = {"tinyint": "smallint", "smallint": "int", "mediumint": "int", "int": "bigint", "bigint": "decimal(20,0)"}
_TEXT = {"varchar", "tinytext", "text", "mediumtext", "longtext"}
_BYTES = {"varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})", re.ASCII)
_MOMENT = re.compile(r"(\d{4})-(\d{2})-(\d{2}) (\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?", re.ASCII)
_FIRST, _LAST = datetime(1970, 1, 1, 0, 0, 1), datetime(2106, 2, 7, 6, 28, 15, 999999)


@dataclass(frozen=True)
class Kind:
    """What a column holds: its Spark type and what else decoding depends on."""

    type: str
    form: str
    """`number`, `bits`, `year`, `text`, `char`, `enum`, `set`, `bytes`, `fixed bytes`, `date`, `moment`, `time`,
    `json` (MySQL's)."""
    charset: str = ""
    length: int = 0
    """Of fixed bytes; of a time's fraction."""

    @property
    def searchable(self) -> bool:
        """Years are left out, since the server takes 0 to 99 for other years; so are times and MySQL's JSON, to which
        it compares text in ways of its own."""
        return self.form not in ("year", "time", "json")


def kind_of(data_type: str, column_type: str, charset: str | None, octets: int | None) -> Kind | None:
    """The kind of a column from information_schema, or None where the type is not supported."""
    declared = column_type.lower()
    if "compressed" in declared or "mariadb-5.3" in declared:
        return None
    if data_type in _INTEGERS:
        unsigned = " unsigned" in declared
        return Kind((_UNSIGNED if unsigned else _INTEGERS)[data_type], "number")
    if data_type == "decimal":
        found = re.match(r"decimal\((\d+)(?:,(\d+))?\)", declared)
        return decimal_kind(int(found[1]), int(found[2] or 0)) if found else None
    if data_type == "bit":
        return bit_kind(int(re.sub(r"\D", "", declared) or 1))
    if data_type in _TEXT or data_type in ("char", "enum", "set"):
        form = data_type if data_type in ("char", "enum", "set") else "text"
        return Kind("string", form, unalias(charset)) if charset in CHARSETS else None
    if data_type in _BYTES:
        return Kind("binary", "bytes")
    if data_type == "binary":
        return Kind("binary", "fixed bytes", length=octets or 0)
    if data_type == "time":
        return time_kind(int(re.sub(r"\D", "", declared) or 0))
    return PLAIN.get(data_type)


PLAIN = {
    "float": Kind("float", "number"),
    "double": Kind("double", "number"),
    "date": Kind("date", "date"),
    "datetime": Kind("timestamp_ntz", "moment"),
    "timestamp": Kind("timestamp", "moment"),
    "year": Kind("smallint", "year"),
    "json": Kind("string", "json"),
}


def decimal_kind(precision: int, scale: int) -> Kind | None:
    return Kind(f"decimal({precision},{scale})", "number") if precision <= 38 else None


def bit_kind(bits: int) -> Kind:
    """One bit is a truth value, up to 63 are a number, and 64 an unsigned one."""
    return Kind("boolean" if bits == 1 else "bigint" if bits < 64 else "decimal(20,0)", "bits")


def time_kind(digits: int) -> Kind:
    """A time of MariaDB may be negative and longer than a day: it stays the text that the server writes."""
    return Kind("string", "time", length=digits)


def unalias(charset: str | None) -> str:
    return "utf8mb3" if charset == "utf8" else charset or ""


def selected(kind: Kind, column: str) -> str:
    """The expression that reads a column. SELECT rounds what it shows of floats, so they are widened first."""
    if kind.type in ("float", "double"):
        return f"{column} * 1e0"  # MySQL before 8.0.17 has no CAST(… AS DOUBLE)
    return f"{column}+0" if kind.form == "bits" else column


# From SELECT


def decoder(kind: Kind) -> Callable[[Any], Any]:
    """What SELECT shows (never NULL) to the canonical value; raises `Unfit`."""
    return Decimal if kind.type.startswith("decimal") and kind.form == "bits" else _by_type(kind.type)


def _by_type(type_: str) -> Callable[[Any], Any]:
    return _DECODERS["decimal" if type_.startswith("decimal") else type_]


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    return value if value else abs(value)


def _float(text: str) -> float:
    return float(canonical(float(text)))


def _boolean(text: str) -> bool:
    return text != "0"


def _date(text: str) -> date:
    found = _DATE.fullmatch(text)
    if not found:
        raise Unfit("it is not a date")
    return make_date(*map(int, found.groups()))


def _ntz(text: str) -> datetime:
    found = _MOMENT.fullmatch(text)
    if not found:
        raise Unfit("it is not a date and time")
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    return make_moment(year, month, day, hour, minute, second, int((found[7] or "").ljust(6, "0")))


def _instant(text: str) -> datetime:
    return _ntz(text).replace(tzinfo=timezone.utc)


def make_date(year: int, month: int, day: int) -> date:
    try:
        return date(year, month, day)
    except ValueError:
        raise Unfit(f"there is no date {year:04}-{month:02}-{day:02}") from None


def make_moment(year: int, month: int, day: int, hour: int, minute: int, second: int, micro: int) -> datetime:
    try:
        return datetime(year, month, day, hour, minute, second, micro)
    except ValueError:
        shown = f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"
        raise Unfit(f"there is no moment {shown}") from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value, "utf-8")


_DECODERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), int),
    "decimal": _decimal,
    "float": _float,
    "double": _float,
    "boolean": _boolean,
    "string": _text,
    "binary": bytes,
    "date": _date,
    "timestamp_ntz": _ntz,
    "timestamp": _instant,
}


# Into a search


def encoder(kind: Kind, literal: Callable[[Any], str]) -> Callable[[Any], str | None]:
    """A key in the form of `data.keys` to a literal that finds every row Spark calls equal; None when no row can be.

    `literal` is the driver's own quoting of text.
    """
    if kind.type == "string":
        return lambda key: literal(key) if _encodable(key, kind.charset) else None
    if kind.type == "binary":
        return lambda key: f"X'{bytes(key).hex()}'"
    if kind.form in ("bits", "number") and kind.type not in ("float", "double"):
        return lambda key: f"{Decimal(key):f}"
    return _KEYS[kind.type]


def _float_key(key: Any) -> str | None:
    if not math.isfinite(key):
        return None
    text = repr(float(key))
    return text if "e" in text else f"{text}e0"


def _date_key(key: date) -> str:
    return f"DATE'{key.isoformat()}'"


def _ntz_key(key: datetime) -> str:
    return f"TIMESTAMP'{key.isoformat(' ', 'microseconds')}'"


def _instant_key(key: datetime) -> str | None:
    moment = key.astimezone(timezone.utc).replace(tzinfo=None)
    return _ntz_key(moment) if _FIRST <= moment <= _LAST else None


_KEYS: dict[str, Callable[[Any], str | None]] = {
    "float": _float_key,
    "double": _float_key,
    "date": _date_key,
    "timestamp_ntz": _ntz_key,
    "timestamp": _instant_key,
}


def _encodable(key: str, charset: str) -> bool:
    if charset == "ascii":
        return key.isascii()
    if charset == "latin1":
        return all(character in LATIN1 for character in key)
    return not any("\ud800" <= c <= "\udfff" or (c > "\uffff" and charset != "utf8mb4") for c in key)


def _latin1() -> str:
    """MariaDB's latin1 is cp1252, with the five bytes that cp1252 leaves open taken as they are."""
    return "".join(_latin1_character(byte) for byte in range(256))


def _latin1_character(byte: int) -> str:
    try:
        return bytes([byte]).decode("cp1252")
    except UnicodeDecodeError:
        return chr(byte)


LATIN1 = _latin1()
