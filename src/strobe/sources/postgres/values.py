"""PostgreSQL's values as Spark's: one decoder of the server's text form, for the change stream, look-ups and scans.

The text form depends on settings of the session (date style, time zone, digits of floats), which every connection
fixes alike: see `connection`. A value that Spark's type cannot hold is refused and never bent. Encoding a key (in the
form of `data.keys`) may select too much, never too little; a key that no value of the column can equal is left out.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial
from typing import Any

from strobe.algebra.bag import canonical
from strobe.data.keys import exactly
from strobe.errors import Unfit, UserError
from strobe.redaction import content

Decode = Callable[[bytes], Any]
Encode = Callable[[Any], Any]

UNBOUNDED = "decimal(38,18)"
"""What `numeric` without precision is read as; a value that does not fit exactly is refused."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIMESTAMP = re.compile(r"(\d{4}-\d{2}-\d{2}) (\d{2}:\d{2}:\d{2})(?:\.(\d{1,6}))?(\+00)?", re.ASCII)


@dataclass(frozen=True)
class PgType:
    """A type of PostgreSQL, resolved: of a domain the type beneath it."""

    name: str
    """`int4`, `numeric`, … as in `pg_type`; of extensions and users by what it is: `citext`, or `enum`."""
    modifier: int = -1
    oid: int = 0
    """Of the type beneath domains."""
    sql: str = ""
    """Its name in SQL, for types of users."""
    element: PgType | None = None
    """Of an array."""

    @property
    def spark(self) -> str | None:
        """The Spark type; None where there is none."""
        if self.element is not None:
            return f"array<{self.element.spark}>" if self.element.spark else None
        if self.name == "numeric":
            return _decimal_type(self.modifier)
        return _SPARK.get(self.name)

    @property
    def searchable(self) -> bool:
        """Whether equality here and in Spark agree, or equality here is the wider one."""
        return self.element is None and self.name not in _AS_TEXT


def _decimal_type(modifier: int) -> str | None:
    if modifier < 4:
        return UNBOUNDED
    precision = ((modifier - 4) >> 16) & 0xFFFF
    scale = (((modifier - 4) & 0x7FF) ^ 1024) - 1024
    return f"decimal({precision},{scale})" if 1 <= precision <= 38 and 0 <= scale <= precision else None


_AS_TEXT = (
    *("json", "jsonb", "xml", "citext", "time", "timetz", "interval"),
    *("bit", "varbit", "inet", "cidr", "macaddr", "macaddr8"),
)
"""Read as the server writes them; what the server calls equal need not be the same text, or has no equality."""
_SPARK = {
    **dict.fromkeys(_AS_TEXT, "string"),
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "bool": "boolean",
    "float4": "float",
    "float8": "double",
    "text": "string",
    "varchar": "string",
    "bpchar": "string",
    "uuid": "string",
    "enum": "string",
    "bytea": "binary",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
}


def decoder(type_: PgType) -> Decode:
    """The server's text (never NULL) to a canonical value. Raises `Unfit` for one that Spark cannot hold, and
    ValueError or ArithmeticError for what no server writes of this type."""
    if type_.element is not None:
        return _arrays(decoder(type_.element))
    if type_.name == "numeric":
        return _decimals(type_.spark or UNBOUNDED)
    return _DECODERS.get(type_.name, _string)


def _string(text: bytes) -> str:
    return text.decode()


_ELEMENT = re.compile(rb'(?:"((?:[^"\\]|\\.)*)"|([^",{}]+))([,}])', re.DOTALL)


def _arrays(decode_element: Decode) -> Decode:
    """Arrays of one dimension, as tuples: `{1,NULL,"a b"}`."""

    def decode(text: bytes) -> tuple[Any, ...]:
        if text == b"{}":
            return ()
        if not text.startswith(b"{"):
            raise Unfit("its first element does not have the number 1")
        if text.startswith(b"{{"):
            raise Unfit("it has several dimensions")
        found: list[Any] = []
        place = 1
        while place < len(text):
            match = _ELEMENT.match(text, place)
            if match is None:
                raise Unfit("it is not an array")
            quoted, plain = match[1], match[2]
            if quoted is not None:
                found.append(decode_element(re.sub(rb"\\(.)", rb"\1", quoted, flags=re.DOTALL)))
            else:
                found.append(None if plain == b"NULL" else decode_element(plain))
            place = match.end()
        return tuple(found)

    return decode


def _decimals(type_: str) -> Decode:
    exact = exactly(type_)

    def decode(text: bytes) -> Decimal:
        value = Decimal(text.decode())
        if not value.is_finite():
            raise Unfit("it is not a finite number")
        return exact(value)

    return decode


def _integers(bits: int) -> Decode:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def decode(text: bytes) -> int:
        value = int(text)
        if least <= value <= most:
            return value
        raise ValueError("it is out of range")

    return decode


def _boolean(text: bytes) -> bool:
    if text not in (b"t", b"f"):
        raise ValueError("it is neither true nor false")
    return text == b"t"


def _double(text: bytes) -> float:
    return float(canonical(float(text)))


def _float(text: bytes) -> float:
    """The 32-bit number that is meant, as the 64-bit one that equals it."""
    return float(canonical(struct.unpack("f", struct.pack("f", float(text)))[0]))


def _binary(text: bytes) -> bytes:
    if text[:2] != rb"\x":
        raise ValueError("it does not begin as it should")
    return bytes.fromhex(text[2:].decode())


def _date(text: bytes) -> date:
    if not _DATE.fullmatch(text.decode()):
        raise Unfit("it is not a date between the years 1 and 9999")
    return date.fromisoformat(text.decode())


def _moment(text: bytes) -> datetime:
    match = _TIMESTAMP.fullmatch(text.decode())
    if match is None:
        raise Unfit("it is not a moment between the years 1 and 9999")
    return datetime.fromisoformat(f"{match[1]}T{match[2]}.{match[3] or '':0<6}")


def _instant(text: bytes) -> datetime:
    return _moment(text).replace(tzinfo=timezone.utc)


_DECODERS: dict[str, Decode] = {
    "int2": _integers(16),
    "int4": _integers(32),
    "int8": _integers(64),
    "bool": _boolean,
    "float4": _float,
    "float8": _double,
    "bytea": _binary,
    "date": _date,
    "timestamp": _moment,
    "timestamptz": _instant,
}


@dataclass(frozen=True)
class Encoding:
    """How keys of a column are handed to the server: as text, in an array of this type."""

    array: str
    encode: Encode
    """A value of the column's type (never None) as text; None when the column cannot hold it."""


def encoding(type_: PgType, codec: str = "utf-8") -> Encoding:
    """`codec` is Python's for what the database can store as text."""
    if type_.name in ("int2", "int4", "int8"):
        return Encoding("bigint[]", str)
    if type_.name in _ENCODINGS:
        return _ENCODINGS[type_.name]
    return Encoding("bpchar[]" if type_.name == "bpchar" else "text[]", partial(_encode_text, codec))


def _encode_text(codec: str, key: str) -> str | None:
    """None for what the database's text cannot hold, which the server refuses: NUL, and what its encoding lacks."""
    try:
        key.encode(codec)
    except UnicodeEncodeError:
        return None
    return None if "\0" in key else key


CODECS = {
    **{f"LATIN{n}": f"iso8859-{part}" for n, part in enumerate((1, 2, 3, 4, 9, 10, 13, 14, 15, 16), 1)},
    **{f"ISO_8859_{part}": f"iso8859-{part}" for part in range(5, 9)},
    **{f"WIN{page}": f"cp{page}" for page in (866, 874, *range(1250, 1259))},
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
}
"""Encodings of one byte, in which a database can store few characters, with Python's names for them."""


def _encode_uuid(key: Any) -> str | None:
    return key if _UUID.fullmatch(key) else None


_ENCODINGS = {
    "numeric": Encoding("numeric[]", lambda key: f"{key:f}"),
    "bool": Encoding("boolean[]", lambda key: "t" if key else "f"),
    "float4": Encoding("real[]", repr),
    "float8": Encoding("double precision[]", repr),
    "uuid": Encoding("uuid[]", _encode_uuid),
    "bytea": Encoding("bytea[]", lambda key: "\\x" + key.hex()),
    "date": Encoding("date[]", date.isoformat),
    "timestamp": Encoding("timestamp[]", lambda key: key.isoformat(" ")),
    "timestamptz": Encoding("timestamptz[]", lambda key: key.isoformat(" ")),
}


def unfit_error(where: str, column: str, type_: PgType, value: bytes, reason: str) -> UserError:
    return UserError(
        f"{content(value.decode(errors='replace'))} cannot be read as {type_.spark}: {reason}",
        where=f"{where}, column {column}",
        fix="Change the value, or leave the column out of the views.",
    )
