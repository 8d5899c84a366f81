"""Values that are easily mistaken for others, as every type has them, and when Spark calls two of them equal."""

from __future__ import annotations

import math
import struct
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

_INTEGERS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
_NUMBERS = sorted(
    {
        Fraction(sign * n)
        for sign in (1, -1)
        for n in (
            *(0, 1, 2, 15, 97, 1991, 2024, 10**17, 10**19, 10**37, 10**38 - 1, 2**53, 2**53 + 1),
            *(2**bits + near for bits in (7, 8, 15, 16, 31, 32, 63, 64) for near in (-1, 0)),
            *(Decimal(text) for text in ("0.1", "0.5", "1.5", "0.10001", "12345678.91", "99999999.99")),
            *(Fraction(1, 10**scale) for scale in (2, 10, 18, 37, 38)),
        )
    }
)
_FLOATS = [
    *(0.0, -0.0, 0.1, -0.1, 0.5, 3.0, -1.5, 1e22, 2.0**53, 2.0**53 + 2, 16777216.0, 16777217.0, 123456789.123456789),
    *(5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, -1.7976931348623157e308, 1e-45, 3.4028234663852886e38),
    *(math.inf, -math.inf, math.nan),
]
_UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
_TEXTS = [
    *(
        "",
        " ",
        "  ",
        "x",
        "X",
        " x",
        "x ",
        "x  ",
        "x" + " " * 4,
        "x\0",
        "\0",
        "x\t",
        "x\n",
        "a",
        "A",
        "b",
        "a,b",
        "b,a",
    ),
    *(
        "ß",
        "ss",
        "SS",
        "e\u0301",
        "\u00e9",
        "\u00c9",
        "e",
        "i",
        "I",
        "\u0130",
        "\u0131",
        "\ufb00",
        "ff",
        "\u00e6",
        "ae",
    ),
    *("1", "01", "1.0", "1e0", "+1", "0", "-0", "NULL", "null", "{a,b}", "{}", '"x"', "'", "''", "\\", "\\\\", "\\0"),
    *("%", "_", "日本語", "🦆", "\u200b", "\ufeff", "\ufffd", "\uffff", "\x7f", "\x80", "\x81", "€"),
    *(_UUID, _UUID.upper(), f"{{{_UUID}}}", _UUID.replace("-", "")),
    *("12:00:00", "12:00", "1 day", "24:00:00", "192.168.0.1", "192.168.0.1/32", '{"a": 1}', '{"a":1}', "2024-02-29"),
    *("x" * 600, "x" * 599 + "X", "日" * 200),
]
_BYTES = [
    b"",
    b"\0",
    b"\0\0",
    b"x",
    b"X",
    b"x\0",
    b"x\0\0\0\0",
    b"x ",
    b"\\x",
    b"'",
    b"\xff",
    bytes(range(256)),
    b"x" * 600,
]
_DATES = [
    *(date(1, 1, 1), date(4, 2, 29), date(1582, 10, 4), date(1582, 10, 10), date(1582, 10, 15), date(1969, 12, 31)),
    *(date(1970, 1, 1), date(2024, 2, 29), date(2038, 1, 19), date(9999, 12, 31)),
]
_MOMENTS = [
    *(datetime(1, 1, 1), datetime(1582, 10, 10), datetime(1883, 11, 18, 12, 3, 58), datetime(1901, 12, 13, 20, 45, 52)),
    *(datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(1970, 1, 1), datetime(1970, 1, 1, 0, 0, 1)),
    *(datetime(2024, 3, 31, 0, 59, 59), datetime(2024, 3, 31, 1), datetime(2024, 3, 31, 2, 30)),
    *(datetime(2024, 10, 27, 0, 30), datetime(2024, 10, 27, 1, 30), datetime(2024, 10, 27, 2, 30, 0, 1)),
    *(datetime(2016, 12, 31, 23, 59, 59, 500000), datetime(2038, 1, 19, 3, 14, 7), datetime(2038, 1, 19, 3, 14, 8)),
    *(datetime(2106, 2, 7, 6, 28, 16), datetime(9999, 12, 31, 23, 59, 59, 999999)),
]

TYPES = (
    *_INTEGERS,
    *("decimal(20,0)", "decimal(38,0)", "decimal(18,0)", "decimal(10,2)", "decimal(38,10)", "decimal(38,18)"),
    *("decimal(1,1)", "decimal(38,37)", "decimal(38,38)", "float", "double", "string", "binary", "boolean"),
    *("date", "timestamp", "timestamp_ntz"),
)
"""Types of columns that other sources may have."""


def special(type_: str) -> list[Any]:
    """The special values of a Spark type, in the form in which a source hands them over; zero also as -0.0."""
    if type_ in _INTEGERS:
        bound = 2 ** _INTEGERS[type_]
        return [int(n) for n in _NUMBERS if n.denominator == 1 and -bound <= n < bound]
    if type_.startswith("decimal"):
        precision, scale = map(int, type_[8:-1].split(","))
        return [d for n in _NUMBERS if (d := _decimal(n, precision, scale)) is not None]
    if type_ == "float":
        return list({repr(v): v for v in map(_single, _FLOATS)}.values())
    if type_ == "timestamp":
        return [moment.replace(tzinfo=timezone.utc) for moment in _MOMENTS]
    return list(
        {
            "double": _FLOATS,
            "string": _TEXTS,
            "binary": _BYTES,
            "boolean": [True, False],
            "date": _DATES,
            "timestamp_ntz": _MOMENTS,
        }[type_]
    )


def _decimal(number: Fraction, precision: int, scale: int) -> Decimal | None:
    digits = number * 10**scale
    if digits.denominator != 1 or abs(digits) >= 10**precision:
        return None
    with localcontext() as context:
        context.prec = 80
        return Decimal(int(digits)).scaleb(-scale)


def _single(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def equal_in_spark(left: Any, right: Any) -> bool:
    """Whether Spark calls values of two columns equal that may be joined (`algebra.schema.joinable`).

    Numbers are compared exactly; NaN equals itself, and 0.0 equals -0.0; text and bytes are compared byte by byte, with
    trailing blanks and zeros; moments with a zone are instants.
    """
    if isinstance(left, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, datetime) and left.tzinfo:
        return bool(left - right == timedelta(0))
    if isinstance(left, (int, Decimal)) and not isinstance(left, bool):
        return Fraction(left) == Fraction(right)
    if isinstance(left, str):
        return left.encode() == right.encode()
    return bool(left == right)
