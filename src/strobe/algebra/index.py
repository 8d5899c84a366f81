"""Rows of a signed bag, found by the values of some attributes: to be joined with again and again, while rows come and
go. What it costs is in proportion to the rows that match."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strobe.algebra.bag import Bag, Row, picker


class Index:
    def __init__(self, attributes: Sequence[str], on: Sequence[str], rows: Iterable[Bag] = ()) -> None:
        """Rows over `attributes`, found by those in `on`."""
        self.attributes = tuple(attributes)
        self._key = picker([self.attributes.index(a) for a in on])
        self._by_key: dict[Row, dict[Row, int]] = {}
        for bag in rows:
            self.add(bag)

    def add(self, rows: Bag, sign: int = 1) -> None:
        """Add these rows, or with -1 take them out."""
        for row, n in rows.project(self.attributes).items():
            key = self._key(row)
            if None in key:
                continue  # joins with nothing
            found = self._by_key.setdefault(key, {})
            total = found.get(row, 0) + sign * n
            if total:
                found[row] = total
            else:
                del found[row]
                if not found:
                    del self._by_key[key]

    def join(self, rows: Bag, on: Sequence[str]) -> Bag:
        """These rows, joined by their attributes `on` with the ones that are here."""
        key = picker([rows.attributes.index(a) for a in on])
        counts: dict[Row, int] = {}
        for row, n in rows.items():
            for match, m in self._by_key.get(key(row), _NONE).items():
                counts[row + match] = n * m
        return Bag(rows.attributes + self.attributes, counts)

    def bag(self) -> Bag:
        """Everything that can be found here."""
        return Bag(self.attributes, {row: n for found in self._by_key.values() for row, n in found.items()})


_NONE: dict[Row, int] = {}
