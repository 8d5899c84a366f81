"""Decimal numbers as the binlog has them: groups of nine digits, four bytes each, and fewer bytes at both ends."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from itertools import accumulate
from typing import Any

from strobe.data.byte_reader import ByteReader

Read = Callable[[ByteReader], Any]
"""Reads a value."""
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_size(precision: int, scale: int) -> int:
    whole, part = divmod(precision - scale, 9), divmod(scale, 9)
    return 4 * (whole[0] + part[0]) + _DIGIT_BYTES[whole[1]] + _DIGIT_BYTES[part[1]]


def decimal_reader(precision: int, scale: int) -> Read:
    """Groups of nine digits in four bytes, shorter ones first and last; negative numbers inverted. The precision is
    not 0, and the scale not larger."""
    (whole, first), (part, last) = divmod(precision - scale, 9), divmod(scale, 9)
    sizes = [_DIGIT_BYTES[first], *[4] * (whole + part), _DIGIT_BYTES[last]]
    units = [10**first, *[10**9] * (whole + part), 10**last]
    size = sum(sizes)
    sign, ones = 0x80 << 8 * (size - 1), (1 << 8 * size) - 1
    places = list(zip(accumulate(sizes), sizes, units, strict=True))

    def read(reader: ByteReader) -> Decimal:
        number = int.from_bytes(reader.take(size), "big") ^ sign
        negative = number & sign
        if negative:
            number ^= ones
        digits = 0
        for end, width, unit in places:
            group = number >> 8 * (size - end) & (1 << 8 * width) - 1
            if group >= unit:
                raise reader.damaged(f"{group} is where at most {unit - 1} can be")
            digits = digits * unit + group
        text = f"-{digits}e-{scale}" if negative and digits else f"{digits}e-{scale}"
        return Decimal(text)

    return read
