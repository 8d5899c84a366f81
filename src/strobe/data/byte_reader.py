"""A cursor over bytes that somebody else wrote. Every read is checked before it is made, nothing is allocated for what
is only claimed, and the one failure is `Damaged`, which names the byte."""

from __future__ import annotations

from struct import Struct
from typing import Any

from strobe.errors import Damaged


class ByteReader:
    """Reads `data` from `at` up to `end`. Where every microsecond counts, decoders move `at` themselves."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data, self.at = data, at
        self.end = len(data) if end is None else end
        if not 0 <= at <= self.end <= len(data):
            raise Damaged("it ends too early", min(at, len(data)))

    @property
    def left(self) -> int:
        return self.end - self.at

    def damaged(self, reason: str) -> Damaged:
        return Damaged(reason, self.at)

    def _past(self, size: int) -> int:
        """Moves on by so many bytes, and returns where they begin."""
        at = self.at
        end = at + size
        if not at <= end <= self.end:
            raise Damaged(f"{size} bytes should follow, and {self.end - at} do", at)
        self.at = end
        return at

    def skip(self, size: int) -> None:
        self._past(size)

    def take(self, size: int) -> bytes:
        at = self._past(size)
        return self.data[at : self.at]

    def rest(self) -> bytes:
        return self.take(self.left)

    def byte(self) -> int:
        return self.data[self._past(1)]

    def number(self, size: int) -> int:
        """An unsigned integer, the lowest byte first."""
        at = self._past(size)
        return int.from_bytes(self.data[at : self.at], "little")

    def unpack(self, layout: Struct) -> tuple[Any, ...]:
        at = self.at
        end = at + layout.size
        if end > self.end:
            raise Damaged(f"{layout.size} bytes should follow, and {self.end - at} do", at)
        self.at = end
        return layout.unpack_from(self.data, at)

    def text(self, size: int) -> str:
        """In UTF-8."""
        at = self._past(size)
        return self._decoded(at, self.at)

    def terminated(self) -> str:
        """Text in UTF-8 up to a zero byte."""
        at, zero = self.at, self.data.find(b"\0", self.at, self.end)
        if zero < 0:
            raise Damaged("a text has no end", at)
        self.at = zero + 1
        return self._decoded(at, zero)

    def _decoded(self, at: int, end: int) -> str:
        try:
            return self.data[at:end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise Damaged("a text is not UTF-8", at + error.start) from None

    def part(self, size: int) -> ByteReader:
        """A reader of the next bytes alone, past which this one moves on."""
        at = self._past(size)
        return ByteReader(self.data, at, self.at)

    def finish(self) -> None:
        """Nothing may be left."""
        if self.at != self.end:
            raise Damaged(f"{self.end - self.at} bytes are left over", self.at)
