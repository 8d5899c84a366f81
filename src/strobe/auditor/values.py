"""Values as JSON, by their Spark type, so that each comes back as it was.

64-bit integers and decimals are strings, since JSON's readers make floating-point numbers of them; dates and timestamps
are ISO 8601, binary is hexadecimal, NULL is null.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

from strobe.algebra.bag import canonical
from strobe.errors import Unfit

_INTEGERS = {"tinyint": 1 << 7, "smallint": 1 << 15, "int": 1 << 31, "bigint": 1 << 63}
_DECIMAL = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")
_DIGITS = re.compile(r"-?[0-9]+(\.[0-9]*)?")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def normal_type(text: str) -> str:
    """A type as Strobe writes it; `Unfit` if values of it cannot stand in a history."""
    type_ = re.sub(r"\s+", "", text.lower())
    if type_ == "decimal":
        type_ = "decimal(10,0)"
    type_ = re.sub(r"^decimal\((\d+)\)$", r"decimal(\1,0)", type_)
    exact = _DECIMAL.fullmatch(type_)
    if type_ not in _DECODERS and not (exact and int(exact[2]) <= int(exact[1]) <= 38 and int(exact[1])):
        raise Unfit(f"the type {text!r} is not one of {', '.join([*_DECODERS, 'decimal(p,s)'])}")
    return type_


def decode(value: Any, type_: str) -> Any:
    """The value that JSON holds, in the form that cancels and joins."""
    if value is None:
        return None
    if type_ == "void":
        raise Unfit(f"{value!r} is not NULL, and nothing else can be there")
    decoder = _DECODERS.get(type_)
    return canonical(decoder(value) if decoder else _decimal(value, type_))


def encode(value: Any, type_: str) -> Any:
    """The value as JSON; `Unfit` if it would not come back as it is."""
    written = _written(value, type_)
    if decode(written, type_) != canonical(value) and value == value:
        raise Unfit(f"{value!r} is not a {type_}")
    return written


def _written(value: Any, type_: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, datetime):
        moment = value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
        return moment.isoformat() + ("Z" if value.tzinfo else "")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return next((word for word, special in _SPECIAL.items() if repr(special) == repr(value)), value)
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value) if type_ == "bigint" else value


def _integer(type_: str) -> Callable[[Any], int]:
    bound = _INTEGERS[type_]

    def decoder(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]+", value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Unfit(f"{value!r} is not a whole number")
        if not -bound <= value < bound:
            raise Unfit(f"{value} does not fit into {type_}")
        return value

    return decoder


def _decimal(value: Any, type_: str) -> Decimal:
    precision, scale = (int(number) for number in _DECIMAL.fullmatch(type_).groups())  # type: ignore[union-attr]
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not _DIGITS.fullmatch(str(value)):
        raise Unfit(f"{value!r} is not an exact decimal: write its digits as a string")
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
    try:
        return Decimal(value).quantize(Decimal(1).scaleb(-scale), context=exact)
    except (InvalidOperation, Inexact):
        raise Unfit(f"{value} does not fit into {type_}") from None


def _floating(value: Any) -> float:
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unfit(f"{value!r} is not a number, nor NaN, Infinity or -Infinity as a string")
    try:
        return float(value)
    except OverflowError:
        raise Unfit(f"{value} is too large") from None


def _single(value: Any) -> float:
    try:
        single: float = struct.unpack("<f", struct.pack("<f", _floating(value)))[0]
    except OverflowError:
        raise Unfit(f"{value} does not fit into float") from None
    return single


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unfit(f"{value!r} is not a string")
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unfit(f"{value!r} is neither true nor false")
    return value


def _date(value: Any) -> date:
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise Unfit(f"{value!r} is not a date written YYYY-MM-DD")


def _moment(value: Any, zoned: bool) -> datetime:
    match = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if match is None or bool(match[2]) != zoned:
        zone = "Z or +HH:MM" if zoned else "no time zone"
        raise Unfit(f"{value!r} is not a timestamp written YYYY-MM-DDTHH:MM:SS.ffffff with {zone} at its end")
    fraction = (match[1] or ".0").ljust(7, "0")
    zone = (match[2] or "").replace("Z", "+00:00")
    try:
        found = datetime.fromisoformat(value[:10] + "T" + value[11:19] + fraction + zone)
        return found.astimezone(timezone.utc) if zoned else found
    except (ValueError, OverflowError) as error:
        raise Unfit(f"{value!r} is not a timestamp: {error}") from None


def _binary(value: Any) -> bytes:
    if isinstance(value, str) and re.fullmatch(r"([0-9a-fA-F]{2})*", value):
        return bytes.fromhex(value)
    raise Unfit(f"{value!r} is not binary written in hexadecimal digits")


_DECODERS: dict[str, Callable[[Any], Any]] = {
    **{type_: _integer(type_) for type_ in _INTEGERS},
    "float": _single,
    "double": _floating,
    "string": _text,
    "boolean": _boolean,
    "date": _date,
    "timestamp": lambda value: _moment(value, True),
    "timestamp_ntz": lambda value: _moment(value, False),
    "binary": _binary,
}
