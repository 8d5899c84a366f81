"""MySQL's JSON values as its binlog has them, to the text that the server itself writes of them.

A value is a type and its data. Objects and arrays begin with their number of elements and their size, followed by
entries: of keys (offset and length) and of values (type, and an offset or, where it fits, the value itself). Offsets
count from the beginning of their object. The small kind has offsets of two bytes, the large one of four.
"""

from __future__ import annotations

import base64
import struct
from decimal import Decimal

from strobe.errors import Unfit
from strobe.sources.mariadb.binlog.decimals import decimal_reader

OBJECTS, ARRAYS, LITERAL, DOUBLE, STRING, OPAQUE = {0, 1}, {2, 3}, 4, 11, 12, 15
INTEGERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
INLINED = {False: {4, 5, 6}, True: {4, 5, 6, 7, 8}}
LITERALS = {0: "null", 1: "true", 2: "false"}
DATE, TIME, DATETIMES, DECIMAL = 10, 11, {7, 12}, 246
F_FORMAT = 15
"""Beyond so many digits before the point, or zeros after it, the server writes exponents."""
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
ESCAPES = str.maketrans({**{chr(n): f"\\u{n:04x}" for n in range(32)}, **_ESCAPES})


def text(data: bytes) -> str:
    """What SELECT shows of a value."""
    if not data:
        return "null"
    try:
        return _value(data[0], data[1:])
    except (IndexError, struct.error, KeyError, UnicodeDecodeError):
        raise Unfit("it is JSON of a form that Strobe does not know") from None


def _value(type_: int, data: bytes) -> str:
    if type_ in OBJECTS or type_ in ARRAYS:
        return _container(type_ in OBJECTS, bool(type_ & 1), data)
    if type_ in INTEGERS:
        return str(struct.unpack_from(INTEGERS[type_], data)[0])
    if type_ == LITERAL:
        return LITERALS[data[0]]
    if type_ == DOUBLE:
        return number(struct.unpack_from("<d", data)[0])
    if type_ == STRING:
        return quoted(_counted(data).decode("utf-8"))
    if type_ == OPAQUE:
        return _opaque(data[0], _counted(data[1:]))
    raise KeyError(type_)


def _counted(data: bytes) -> bytes:
    """Data behind its length, of which each byte has seven bits."""
    size = at = 0
    while True:
        size |= (data[at] & 127) << 7 * at
        at += 1
        if data[at - 1] < 128:
            return data[at : at + size]


def _container(is_object: bool, large: bool, data: bytes) -> str:
    width = 4 if large else 2

    def integer(at: int, size: int = width) -> int:
        return int.from_bytes(data[at : at + size], "little")

    count, at, keys = integer(0), 2 * width, []
    if is_object:
        for _ in range(count):
            start, size = integer(at), integer(at + width, 2)
            keys.append(quoted(data[start : start + size].decode("utf-8")))
            at += width + 2
    values = []
    for _ in range(count):
        type_ = data[at]
        start = at + 1 if type_ in INLINED[large] else integer(at + 1)
        values.append(_value(type_, data[start:]))
        at += 1 + width
    if not is_object:
        return f"[{', '.join(values)}]"
    return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True)) + "}"


def quoted(string: str) -> str:
    return f'"{string.translate(ESCAPES)}"'


def number(value: float) -> str:
    """As few digits as tell it from others, which Python finds too; where the point stands is the server's own rule."""
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    found = "".join(map(str, digits)).rstrip("0")
    point = len(digits) + int(exponent)
    minus = "-" if sign else ""
    if not found:
        return f"{minus}0.0"
    if not (-F_FORMAT < point <= F_FORMAT or 0 < point < len(found)):
        return f"{minus}{found[0]}{'.' + found[1:] if len(found) > 1 else ''}e{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{found}"
    whole = found[:point].ljust(point, "0")
    return f"{minus}{whole}.{found[point:] or '0'}"


def _opaque(type_: int, data: bytes) -> str:
    if type_ == DECIMAL:
        return f"{decimal_reader(data[0], data[1])(data, 2)[0]:f}"
    if type_ in DATETIMES or type_ in (DATE, TIME):
        return f'"{_moment(type_, int.from_bytes(data[:8], "little", signed=True))}"'
    return f'"base64:type{type_}:{base64.b64encode(data).decode("ascii")}"'


def _moment(type_: int, packed: int) -> str:
    sign, (whole, micros) = "-" if packed < 0 else "", divmod(abs(packed), 1 << 24)
    clock = f"{whole >> 6 & 63:02}:{whole & 63:02}.{micros:06}"
    if type_ == TIME:
        return f"{sign}{whole >> 12 & 1023:02}:{clock}"
    days = whole >> 17
    (year, month), day = divmod(days >> 5, 13), days & 31
    date = f"{year:04}-{month:02}-{day:02}"
    return date if type_ == DATE else f"{date} {whole >> 12 & 31:02}:{clock}"
