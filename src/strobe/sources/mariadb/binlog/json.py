"""MySQL's JSON values as its binlog has them, to the text that the server itself writes of them.

A value is a type and its data. Objects and arrays begin with their number of elements and their size, followed by
entries: of keys (offset and length) and of values (type, and an offset or, where it fits, the value itself). Offsets
count from the beginning of their object. The small kind has offsets of two bytes, the large one of four.
"""

from __future__ import annotations

import base64
import math
from decimal import Decimal
from struct import Struct

from strobe.data.byte_reader import ByteReader
from strobe.sources.mariadb.binlog.decimals import decimal_reader

OBJECTS, ARRAYS, LITERAL, DOUBLE, STRING, OPAQUE = {0, 1}, {2, 3}, 4, 11, 12, 15
INTEGERS = {5: Struct("<h"), 6: Struct("<H"), 7: Struct("<i"), 8: Struct("<I"), 9: Struct("<q"), 10: Struct("<Q")}
_DOUBLE, _PACKED = Struct("<d"), Struct("<q")
DEEPEST = 100
"""As the server has it itself."""
INLINED = {False: {4, 5, 6}, True: {4, 5, 6, 7, 8}}
LITERALS = {0: "null", 1: "true", 2: "false"}
DATE, TIME, DATETIMES, DECIMAL = 10, 11, {7, 12}, 246
F_FORMAT = 15
"""Beyond so many digits before the point, or zeros after it, the server writes exponents."""
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
ESCAPES = str.maketrans({**{chr(n): f"\\u{n:04x}" for n in range(32)}, **_ESCAPES})


def text(data: bytes) -> str:
    """What SELECT shows of a value. Raises `Damaged` for what is none."""
    if not data:
        return "null"
    reader = ByteReader(data)
    return _Document(len(data)).value(reader.byte(), reader, 1)


class _Document:
    """One document. Its parts lie side by side, so that no more is read than it has bytes, whatever its offsets say."""

    def __init__(self, size: int) -> None:
        self._unread = size

    def _read(self, size: int, reader: ByteReader) -> int:
        self._unread -= size
        if self._unread < 0:
            raise reader.damaged("parts of a JSON value overlap")
        return size

    def value(self, type_: int, reader: ByteReader, depth: int) -> str:
        """The value that begins where the reader stands, which ends where its container ends."""
        if type_ in OBJECTS or type_ in ARRAYS:
            if depth > DEEPEST:
                raise reader.damaged("a JSON value is nested too deeply")
            return self._container(type_ in OBJECTS, bool(type_ & 1), reader, depth)
        if type_ in INTEGERS:
            return str(reader.unpack(INTEGERS[type_])[0])
        if type_ == LITERAL:
            return self._literal(reader)
        if type_ == DOUBLE:
            return self._double(reader)
        if type_ == STRING:
            return quoted(reader.text(self._read(_length(reader), reader)))
        if type_ == OPAQUE:
            kind = reader.byte()
            return _opaque(kind, reader.part(self._read(_length(reader), reader)))
        raise reader.damaged(f"a JSON value is of type {type_}")

    def _container(self, is_object: bool, large: bool, reader: ByteReader, depth: int) -> str:
        width, begin = 4 if large else 2, reader.at
        count, size = reader.number(width), reader.number(width)
        if not 2 * width <= size <= reader.end - begin:
            raise reader.damaged(f"a JSON value has {size} bytes where {reader.end - begin} are left")
        inside = ByteReader(reader.data, reader.at, begin + size)
        entries = count * (1 + width + (width + 2 if is_object else 0))
        if entries > inside.left:
            raise reader.damaged(f"a JSON value has {count} elements in {size} bytes")
        self._read(2 * width + entries, reader)
        names = [(inside.number(width), inside.number(2)) for _ in range(count if is_object else 0)]
        keys = [self._key(inside, begin + start, length) for start, length in names]
        values = [self._element(inside, begin, large, depth) for _ in range(count)]
        if not is_object:
            return f"[{', '.join(values)}]"
        return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True)) + "}"

    def _key(self, inside: ByteReader, at: int, length: int) -> str:
        return quoted(ByteReader(inside.data, at, inside.end).text(self._read(length, inside)))

    def _element(self, inside: ByteReader, begin: int, large: bool, depth: int) -> str:
        width, type_ = 4 if large else 2, inside.byte()
        if type_ in INLINED[large]:
            return self.value(type_, inside.part(width), depth + 1)
        return self.value(type_, ByteReader(inside.data, begin + inside.number(width), inside.end), depth + 1)

    def _literal(self, reader: ByteReader) -> str:
        found = reader.byte()
        if found not in LITERALS:
            raise reader.damaged(f"a JSON literal is {found}")
        return LITERALS[found]

    def _double(self, reader: ByteReader) -> str:
        (found,) = reader.unpack(_DOUBLE)
        if not math.isfinite(found):
            raise reader.damaged("a JSON number is not finite")
        return number(found)


def _length(reader: ByteReader) -> int:
    """Seven bits in each byte, the lowest ones first."""
    size = 0
    for shift in range(0, 35, 7):
        byte = reader.byte()
        size |= (byte & 127) << shift
        if byte < 128:
            return size
    raise reader.damaged("a length has no end")


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


def _opaque(type_: int, reader: ByteReader) -> str:
    if type_ == DECIMAL:
        precision, scale = reader.byte(), reader.byte()
        if not (1 <= precision <= 65 and scale <= min(precision, 30)):
            raise reader.damaged(f"a JSON number has {precision} digits, {scale} of them after the point")
        found = f"{decimal_reader(precision, scale)(reader):f}"
        reader.finish()
        return found
    if type_ in DATETIMES or type_ in (DATE, TIME):
        (packed,) = reader.unpack(_PACKED)
        reader.finish()
        return f'"{_moment(type_, packed)}"'
    return f'"base64:type{type_}:{base64.b64encode(reader.rest()).decode("ascii")}"'


def _moment(type_: int, packed: int) -> str:
    sign, (whole, micros) = "-" if packed < 0 else "", divmod(abs(packed), 1 << 24)
    clock = f"{whole >> 6 & 63:02}:{whole & 63:02}.{micros:06}"
    if type_ == TIME:
        return f"{sign}{whole >> 12 & 1023:02}:{clock}"
    days = whole >> 17
    (year, month), day = divmod(days >> 5, 13), days & 31
    date = f"{year:04}-{month:02}-{day:02}"
    return date if type_ == DATE else f"{date} {whole >> 12 & 31:02}:{clock}"
