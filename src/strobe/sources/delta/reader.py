"""Answers from one version of a Delta table, read without a JVM, on the driver or on executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from strobe.algebra.bag import Row
from strobe.data.arrow import from_arrow, matching
from strobe.errors import SourceUnavailable, UserError
from strobe.messages import Lookup, Position, Seen
from strobe.sources.base import Reader
from strobe.sources.delta.data_files import dataset_of, schema_of
from strobe.sources.delta.log import DeltaLog, Shape


def opened(log: DeltaLog, position: Position) -> tuple[ds.Dataset, Shape]:
    """The rows of a version, which never change, and what the table was then."""
    return _opened(log.name, log.root, log.relation, position.order[0], position.text)


@lru_cache(maxsize=4)
def _opened(name: str, root: Path, relation: str, version: int, position: str) -> tuple[ds.Dataset, Shape]:
    log = DeltaLog(name, root, relation)
    table = log.table(version)
    shape, protocol = log.shape(table)
    if protocol.unknown or shape.mapped:
        raise UserError("the table has become one that this source cannot read", where=log.where, fix="`strobe check`")
    dataset = dataset_of(table, log.data_path, schema_of(shape.types))
    if log.position(version).text != position:
        raise SourceUnavailable("the table was replaced while it was opened", where=log.where)
    return dataset, shape


@contextmanager
def reading(log: DeltaLog) -> Iterator[None]:
    """What goes wrong in data files, in plain words."""
    try:
        yield
    except OSError as problem:
        reason = str(problem).splitlines()[0]
        raise SourceUnavailable(f"a file cannot be read: {reason}", where=log.where) from problem
    except pa.ArrowException as problem:
        reason = str(problem).splitlines()[0]
        raise UserError(f"a file does not hold what the table's schema says: {reason}", where=log.where) from problem


class DeltaReader(Reader):
    """The newest version. `types` are those that the columns had when the views were compiled."""

    def __init__(self, log: DeltaLog, types: Mapping[str, str]) -> None:
        self._table, self._types = (log.name, log.root, log.relation), dict(types)
        self._data: ds.Dataset | None = None

    @property
    def _log(self) -> DeltaLog:
        return DeltaLog(*self._table)

    def open(self) -> Seen:
        log = self._log
        position = log.position(log.versions()[-1])
        self._data, self._shape = opened(log, position)
        return Seen(position)

    def lookup(self, lookup: Lookup, keys: Iterable[Row] | None) -> Iterator[Row]:
        if keys is None or not lookup.on:
            return self._rows(lookup.columns, None)
        wanted = list(keys)
        self._require(lookup.on)
        if not wanted:
            return iter(())
        with reading(self._log):
            condition = matching(self._opened, lookup.on, wanted)
        return self._rows(lookup.columns, condition)

    def scan(self, relation: str, columns: Sequence[str]) -> Iterator[Row]:
        return self._rows(columns, None)

    def rows(self, relation: str) -> int | None:
        with reading(self._log):
            return int(self._opened.count_rows())

    def close(self) -> None:
        self._data = None

    @property
    def _opened(self) -> ds.Dataset:
        if self._data is None:
            raise SourceUnavailable("the reader is not open", where=self._log.where)
        return self._data

    def _rows(self, columns: Sequence[str], condition: ds.Expression | None) -> Iterator[Row]:
        self._require(columns)
        with reading(self._log):
            batches = self._opened.to_batches(
                columns=list(columns), filter=condition, batch_readahead=2, fragment_readahead=1
            )
            for batch in batches:
                yield from from_arrow(batch)

    def _require(self, columns: Iterable[str]) -> None:
        for column in columns:
            if column not in self._types or self._shape.types.get(column) != self._types[column]:
                raise self._log.lost(
                    f"the column {column}, which a view uses, is gone or of another type",
                    "Change the views that use it, and rebuild them.",
                )
