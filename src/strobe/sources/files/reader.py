"""Answers from one version of the staged table, read without a JVM, on the driver or on executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow.dataset as ds
from deltalake import DeltaTable

from strobe.algebra.bag import Row
from strobe.data.arrow import from_arrow, matching
from strobe.errors import SourceUnavailable
from strobe.messages import Lookup, Seen
from strobe.sources.base import Reader
from strobe.sources.files.versions import identity_of, names_of, position_at


@lru_cache(maxsize=4)
def _opened(path: str, version: int) -> tuple[ds.Dataset, list[str], str]:
    """A version of a staged table: its rows, the names of its columns, and which table it is. It never changes."""
    table = DeltaTable(path, version=version)
    return table.to_pyarrow_dataset(), names_of(table), identity_of(table)


class FilesReader(Reader):
    """One version of the staged table, read without a JVM: the given one, or the newest."""

    def __init__(self, table: Path, version: int | None = None) -> None:
        self._path = str(table)
        self._version = version
        self._data: ds.Dataset | None = None
        self._names: list[str] = []
        self._staged = False

    def open(self) -> Seen:
        version = DeltaTable(self._path).version() if self._version is None else self._version
        self._data, self._names, identity = _opened(self._path, version)
        self._staged = version > 0
        return Seen(position_at(identity, version))

    def lookup(self, lookup: Lookup, keys: Iterable[Row] | None) -> Iterator[Row]:
        if keys is None or not lookup.on:
            return self._rows(lookup.columns, None)
        wanted = list(keys)
        if not wanted:
            return iter(())
        return self._rows(lookup.columns, matching(self._opened, self._stored(lookup.on), wanted))

    def scan(self, relation: str, columns: Sequence[str]) -> Iterator[Row]:
        return self._rows(columns, None)

    def rows(self, relation: str) -> int | None:
        """Not known before the first drop is staged."""
        return None if self._data is None or not self._staged else int(self._data.count_rows())

    def close(self) -> None:
        self._data = None

    def _rows(self, columns: Sequence[str], condition: ds.Expression | None) -> Iterator[Row]:
        batches = self._opened.to_batches(
            columns=self._stored(columns), filter=condition, batch_readahead=2, fragment_readahead=1
        )
        for batch in batches:
            yield from from_arrow(batch)

    @property
    def _opened(self) -> ds.Dataset:
        if self._data is None:
            raise SourceUnavailable("the reader is not open", where=self._path)
        return self._data

    def _stored(self, columns: Sequence[str]) -> list[str]:
        """The columns as they are stored."""
        return [f"c{self._names.index(c)}" for c in columns]
