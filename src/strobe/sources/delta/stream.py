"""Transactions of a Delta table: each commit of its log is one.

Where a commit wrote change data files they are the change; otherwise the rows of whole files that came and went are,
whose difference is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.errors import StrobeError
from strobe.messages import Position, Transaction
from strobe.sources.delta.data_files import changes_in, dataset_of_files
from strobe.sources.delta.key_check import KeyWatch
from strobe.sources.delta.limits import Limits, Timing
from strobe.sources.delta.log import Commit, DataFile, DeltaLog, Shape
from strobe.sources.delta.reader import reading


class Stream:
    """Follows the log from a position on, until it is told to stop."""

    def __init__(
        self,
        log: DeltaLog,
        key: Sequence[str],
        types: Mapping[str, str] | None,
        focus: Collection[str] | None,
        spark: Callable[[], Any] | None,
        stopped: Callable[[], bool],
        timing: Timing,
        limits: Limits,
    ) -> None:
        """`types` are those of the columns when the views were compiled, `focus` the columns that views use."""
        self._log, self._key, self._types, self._focus = log, tuple(key), types, focus
        self._spark, self._stopped, self._timing, self._limits = spark, stopped, timing, limits

    def transactions(self, after: Position) -> Iterator[Transaction]:
        self._log.verify(after)
        table = self._log.table(after.order[0])
        shape, protocol = self._log.shape(table)
        watched = self._watched(shape)
        start = Commit(after, shape=shape, protocol=protocol)
        self._readable(start, shape, watched)
        keys = KeyWatch(self._log, self._key, start) if self._key else None
        active, done = self._log.active(table), after
        while not self._stopped():
            commit = self._log.after(done)
            if commit is None:
                time.sleep(self._timing.poll)
                continue
            self._readable(commit, shape, watched)
            before, shape = shape, commit.shape or shape
            files = active.follow(commit)
            change = self._change(commit, files, before, shape, watched) if files and watched else None
            if keys is not None:
                keys.follow(commit, shape, change)
            changes = {} if change is None or change.known_empty else {self._log.relation: change}
            yield Transaction(self._log.name, commit.position, changes=changes, committed_at=commit.at)
            done = commit.position

    def _watched(self, start: Shape) -> dict[str, str]:
        """The columns that views use, and the key's, with the types that they had when the views were compiled."""
        known = start.types if self._types is None else self._types
        if self._focus is None:
            return dict(known)
        for column in self._focus:
            if column not in known:
                raise self._changed(column)
        return {name: ddl for name, ddl in known.items() if name in self._focus or name in self._key}

    def _readable(self, commit: Commit, before: Shape, watched: Mapping[str, str]) -> None:
        """Raise unless what a commit makes of the table is still what the views were made for."""
        shape, at = commit.shape or before, f"since version {commit.version}"
        if shape.id != before.id:
            fix = "Rebuild the views that use it. INSERT OVERWRITE replaces rows and keeps the table."
            raise self._log.lost(f"{at} it is another table (CREATE OR REPLACE TABLE)", fix)
        unknown = commit.protocol.unknown if commit.protocol else []
        if unknown or shape.mapped:
            what = ", ".join(unknown) or "column mapping"
            fix = "`strobe check` says how to mend it; then rebuild the views that use this source."
            raise self._log.lost(f"{at} it uses {what}, which this source cannot read", fix)
        for column, type_ in watched.items():
            if shape.types.get(column, type_) != type_ or (column in before.types and column not in shape.types):
                raise self._changed(column, at)

    def _changed(self, column: str, at: str = "") -> StrobeError:
        message = f"the column {column}, which a view uses, is gone or of another type {at}".rstrip()
        return self._log.lost(message, "Change the views that use it, and rebuild them.")

    def _change(
        self, commit: Commit, named: Sequence[DataFile], before: Shape, after: Shape, watched: Mapping[str, str]
    ) -> Relation:
        """What a commit changed, net. Everything is there or nothing is: a missing file was vacuumed."""
        gone = [file.path for file in named if not Path(file.path).exists()]
        if gone:
            self._log.verify(commit.position)
            raise self._log.lost(
                f"files of version {commit.version} have been vacuumed away, such as {gone[0]}",
                "Rebuild the views that use this source; for the future raise delta.deletedFileRetentionDuration.",
            )
        files = []
        for file in named:
            partitioned = before.partitioned if file.sign < 0 else after.partitioned
            if partitioned and file.partition is None:
                raise self._log.lost(f"version {commit.version} does not tell the partitions of files that it removed")
            files.append(file.partitioned_by(partitioned))
        with reading(self._log):
            many = dataset_of_files(files, watched).count_rows() > self._limits.driver_rows
            if many and self._spark is not None:
                from strobe.spark.failures import reading as through_spark
                from strobe.spark.parallel_read import read_pieces

                read = partial(changes_in, columns=watched)
                with through_spark(self._log.name):
                    return read_pieces(self._spark(), files, read, watched, self._limits.driver_rows)
            return _summed(watched, changes_in(files, watched))


def _summed(columns: Mapping[str, str], rows: Iterable[tuple[tuple[Any, ...], int]]) -> Bag:
    counts: dict[tuple[Any, ...], int] = {}
    for row, sign in rows:
        total = counts.get(row, 0) + sign
        if total:
            counts[row] = total
        else:
            del counts[row]
    return Bag(tuple(columns), counts)
