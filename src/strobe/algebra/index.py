"""Rows of a signed bag, found by the values of some attributes: to be joined with again and again, while rows come and
go. What it costs is in proportion to the rows that match."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from strobe.algebra.bag import Bag, Row, picker
from strobe.algebra.relation import Relation
from strobe.algebra.room import Room


class Index:
    def __init__(
        self, attributes: Sequence[str], on: Sequence[str], rows: Iterable[Bag] = (), *, null_safe: bool = False
    ) -> None:
        """Rows over `attributes`, found by those in `on`; with `null_safe` NULL finds NULL."""
        self.attributes = tuple(attributes)
        self._on = tuple(on)
        self._key = picker([self.attributes.index(a) for a in on])
        self._null_safe = null_safe
        self._by_key: dict[Row, dict[Row, int]] = {}
        self._room: Room | None = None
        for bag in rows:
            self.add(bag)

    def add(self, rows: Bag, sign: int = 1) -> None:
        """Add these rows, or with -1 take them out."""
        self._room = self._room or rows.room
        for row, n in rows.project(self.attributes).items():
            key = self._key(row)
            if not self._null_safe and None in key:
                continue  # joins with nothing
            found = self._by_key.setdefault(key, {})
            total = found.get(row, 0) + sign * n
            if total:
                found[row] = total
            else:
                del found[row]
                if not found:
                    del self._by_key[key]

    def join(self, rows: Bag, on: Sequence[str]) -> Relation:
        """These rows, joined by their attributes `on` with the ones that are here."""
        key = picker([rows.attributes.index(a) for a in on])
        room = rows.room or self._room
        left = math.inf if room is None else room.left
        counts: dict[Row, int] = {}
        for row, n in rows.items():
            found = self._by_key.get(key(row), _NONE)
            left -= len(found)
            if room is not None and left < 0:
                return room.lift(rows).join(self.bag(), list(zip(on, self._on, strict=True)))
            for match, m in found.items():
                counts[row + match] = n * m
        if room is not None:
            room.left -= len(counts)
        return Bag(rows.attributes + self.attributes, counts, room)

    def bag(self) -> Bag:
        """Everything that can be found here."""
        rows = {row: n for found in self._by_key.values() for row, n in found.items()}
        return Bag(self.attributes, rows, self._room)


_NONE: dict[Row, int] = {}
