"""Rows of a transaction that were too many to hold, in files: a handle, until somebody reads them.

A source writes what a transaction does to a relation in *pieces*, Parquet files in the order of their names, each net
in itself. A handle stands for the sum of them. Two kinds of files:

* signed rows (`c0`, `c1`, …, `_count`): pieces are summed;
* where old rows are known by their keys: for each key (`k0`, …) that a piece touched, whether a row was there before it
  (`_before`), and the row that is there after it, if one is (`_count` 1). The first piece that touched a key says what
  was there before the transaction, the last one what is there after it.

Nothing is computed with a handle. The pipeline reads it into Spark (`spark.spilled`), where rows of any number are
summed and joined; where there is no Spark, into memory (`collect`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from strobe.algebra.bag import Bag, Row
from strobe.algebra.bounds import Bound
from strobe.algebra.relation import Relation
from strobe.data.arrow import from_arrow
from strobe.data.scratch import Lease
from strobe.errors import BrokenInvariant
from strobe.messages import Transaction

PIECE, BEFORE, COUNT = "_piece", "_before", "_count"


@dataclass(frozen=True)
class Spilled:
    """What a transaction did to a relation; or, of a relation without old row images, the keys that went (`gone`)."""

    lease: Lease
    """Of the whole transaction: its files go at once."""
    name: str
    """Of the folder that has the pieces."""
    pieces: int
    columns: Mapping[str, str]
    """With their Spark types."""
    key: tuple[str, ...] = ()
    """Where old rows are known by it."""
    gone: bool = False

    @property
    def attributes(self) -> tuple[str, ...]:
        return self.key if self.gone else tuple(self.columns)

    @property
    def known_empty(self) -> bool:
        return False

    @property
    def folder(self) -> Path:
        """In which the pieces are."""
        return self.lease.folder / self.name

    def schema(self) -> dict[str, str]:
        """The columns of the files, by name, with their Spark types."""
        return file_columns(self.columns, self.key)

    def collect(self) -> Bag:
        """The rows in memory."""
        if not self.key:
            return self._summed()
        width, keys = len(self.columns), len(self.key)
        before: dict[Row, bool] = {}
        after: dict[Row, Row] = {}
        for row in self._rows():
            before.setdefault(row[-keys:], row[width + 2])
            after[row[-keys:]] = row[: width + 1]
        if self.gone:
            return Bag(self.key, {key: 1 for key, there in before.items() if there})
        return Bag(self.attributes, {row[:-1]: row[-1] for row in after.values()})

    def _summed(self) -> Bag:
        found: dict[Row, int] = {}
        for row in self._rows():
            found[row[:-1]] = found.get(row[:-1], 0) + row[-1]
        return Bag(self.attributes, found)

    def _rows(self) -> Iterator[Row]:
        for file in sorted(self.folder.iterdir()):
            for batch in pq.ParquetFile(file).iter_batches():
                yield from from_arrow(batch)

    def plus(self, other: Relation) -> Relation:
        raise self._unread()

    def negate(self) -> Relation:
        raise self._unread()

    def join(self, other: Relation, on: Sequence[tuple[str, str]]) -> Relation:
        raise self._unread()

    def project(self, attributes: Sequence[str]) -> Relation:
        raise self._unread()

    def rename(self, names: Mapping[str, str]) -> Relation:
        raise self._unread()

    def keys(self, attributes: Sequence[str], *, nulls: bool = False) -> Relation:
        raise self._unread()

    def key_delete(self, keys: Relation, on: Sequence[tuple[str, str]]) -> Relation:
        raise self._unread()

    def outside(self, bound: Bound) -> Relation:
        raise self._unread()

    def part(self, sign: int) -> Relation:
        raise self._unread()

    def lift(self, other: Relation) -> Relation:
        raise self._unread()

    def _unread(self) -> BrokenInvariant:
        return BrokenInvariant("rows in files are computed with before they were read", where=str(self.folder))


def file_columns(columns: Mapping[str, str], key: Sequence[str]) -> dict[str, str]:
    """The columns of a piece, with their Spark types: named by position, since Parquet does not take every name."""
    found = {f"c{i}": ddl for i, ddl in enumerate(columns.values())} | {COUNT: "bigint"}
    if key:
        found |= {PIECE: "int", BEFORE: "boolean"} | {f"k{i}": columns[name] for i, name in enumerate(key)}
    return found


def release(transaction: Transaction) -> None:
    """The rows that a transaction has in files are needed no longer."""
    for relation in (*transaction.changes.values(), *transaction.gone.values()):
        if isinstance(relation, Spilled):
            relation.lease.release()
