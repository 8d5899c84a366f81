"""A Delta table as a source: versions are positions, and a version's change data is one transaction.

Delta has no transaction over several tables, so a source is one table. A commit is read from the table's log: where
change data files were written they are the change; otherwise the rows of whole files that came and went are, whose
difference is the same. Nothing is written to the table, and nothing in it has to be kept for Strobe but what its
retention settings keep anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.schema import Column, RelationSchema
from strobe.errors import StrobeError, UserError
from strobe.messages import Position, Transaction
from strobe.sources.base import Finding, Reader, Source, SourceContext
from strobe.sources.delta.data_files import changes_in, dataset_of_files, searchable
from strobe.sources.delta.key_check import KeyWatch
from strobe.sources.delta.log import Commit, DataFile, DeltaLog, Shape
from strobe.sources.delta.preflight import enable, findings
from strobe.sources.delta.reader import DeltaReader, reading

DRIVER_ROWS = 100_000
"""A change of more rows than this is read by Spark, and stays there unless little of it is left net."""
POLL = 0.1


class Config(Protocol):
    """What `strobe.yml` says about such a source."""

    @property
    def path(self) -> Any: ...
    @property
    def relation(self) -> str | None: ...
    @property
    def key(self) -> list[str]: ...


class DeltaSource(Source):
    """One table. `spark` is called only for changes of very many rows."""

    def __init__(self, name: str, config: Config, spark: Callable[[], Any] | None) -> None:
        self.name = name
        root = Path(config.path).absolute()
        self._relation = config.relation or root.name
        self._log = DeltaLog(name, root, self._relation)
        self._key = tuple(config.key)
        self._spark = spark
        self._focus: Collection[str] | None = None
        self._types: Mapping[str, str] | None = None

    @classmethod
    def from_config(cls, name: str, config: Config, context: SourceContext) -> DeltaSource:
        return cls(name, config, context.spark)

    # What it is

    def schemas(self) -> tuple[RelationSchema, ...]:
        """Rows are found without a scan by the columns by which the table is partitioned."""
        shape = self._shape()
        self._types = shape.types
        columns = tuple(Column(name, ddl, searchable(ddl)) for name, ddl in shape.types.items())
        indexes = tuple((c.name,) for c in columns if c.name in shape.partitioned and c.searchable)
        return (RelationSchema(self.name, self._relation, columns, self._key, indexes),)

    def focus(self, columns: Mapping[str, Collection[str]]) -> None:
        self._focus = columns.get(self._relation, ())

    def check(self, relations: Sequence[str]) -> list[Finding]:
        unknown = [relation for relation in relations if relation != self._relation]
        if unknown:
            return [self._unknown(relation) for relation in unknown]
        try:
            return list(findings(self._log, self._key))
        except StrobeError as error:
            return [Finding("error", error.where, error.message, error.fix)]

    def _unknown(self, relation: str) -> Finding:
        where = f"source {self.name}, relation {relation}"
        return Finding("error", where, "there is no such relation", f"Its relation is {self._relation}.")

    def prepare_script(self, relations: Sequence[str]) -> list[str]:
        return [] if self._shape().has_feed else [enable(self._log)]

    def prepare(self, relations: Sequence[str]) -> None:
        """Nothing is done to the table: its properties are its owner's."""
        for finding in [self._unknown(relation) for relation in relations if relation != self._relation]:
            raise UserError(finding.message, where=finding.where, fix=finding.fix)
        if not self._shape().has_feed:
            fix = f"Let the table's owner run {enable(self._log)}"
            raise UserError("the change data feed is off", where=self._log.where, fix=fix)

    def undo(self) -> list[str]:
        return []

    def _shape(self) -> Shape:
        return self._log.shape(self._log.table(self._log.versions()[-1]))[0]

    # Where it is

    def identity(self) -> str:
        return f"delta:{self._shape().id}"

    def position(self, text: str) -> Position:
        version, _, digest = text.partition("@")
        if not version.isdecimal() or not digest:
            raise UserError(f"{text!r} is no position", where=self.name, fix="A position looks like 12@0a1b2c3d4e5f.")
        return Position(text, (int(version),))

    def now(self) -> Position:
        return self._log.position(self._log.versions()[-1])

    def verify(self, position: Position) -> None:
        self._log.verify(position)

    def reader(self, *, at_a_position: bool = False) -> Reader:
        """Every version is a position."""
        types = self._types
        if types is None:
            types = self._types = self._shape().types
        return DeltaReader(self._log, types)

    def discard(self, through: Position) -> None:
        """Nothing: how long versions and change data stay is the owner's decision."""

    # What happens

    def transactions(
        self, after: Position, stops: Sequence[Position], stopped: Callable[[], bool]
    ) -> Iterator[Transaction]:
        self.verify(after)
        table = self._log.table(after.order[0])
        shape, protocol = self._log.shape(table)
        watched = self._watched(shape)
        start = Commit(after, shape=shape, protocol=protocol)
        self._readable(start, shape, watched)
        keys = KeyWatch(self._log, self._key, start) if self._key else None
        active, done = self._log.active(table), after
        while not stopped():
            commit = self._log.after(done)
            if commit is None:
                time.sleep(POLL)
                continue
            self._readable(commit, shape, watched)
            shape = commit.shape or shape
            files = active.follow(commit)
            change = self._change(commit, files, shape, watched) if files and watched else None
            if keys is not None:
                keys.follow(commit, shape, change)
            changes = {} if change is None or change.known_empty else {self._relation: change}
            yield Transaction(self.name, commit.position, changes, commit.at)
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

    def _change(self, commit: Commit, files: Sequence[DataFile], shape: Shape, watched: Mapping[str, str]) -> Relation:
        """What a commit changed, net. Everything is there or nothing is: a missing file was vacuumed."""
        gone = [file.path for file in files if not Path(file.path).exists()]
        if gone:
            self._log.verify(commit.position)
            raise self._log.lost(
                f"files of version {commit.version} have been vacuumed away, such as {gone[0]}",
                "Rebuild the views that use this source; for the future raise delta.deletedFileRetentionDuration.",
            )
        if shape.partitioned and any(file.partition is None for file in files):
            raise self._log.lost(f"version {commit.version} does not tell the partitions of files that it removed")
        with reading(self._log):
            many = dataset_of_files(files, watched, shape.partitioned).count_rows() > DRIVER_ROWS
            if many and self._spark is not None:
                from strobe.spark.failures import reading as through_spark
                from strobe.spark.parallel_read import read_pieces

                read = partial(changes_in, columns=watched, partitioned=shape.partitioned)
                with through_spark(self.name):
                    return read_pieces(self._spark(), files, read, watched, DRIVER_ROWS)
            return _summed(watched, changes_in(files, watched, shape.partitioned))


def _summed(columns: Mapping[str, str], rows: Iterable[tuple[tuple[Any, ...], int]]) -> Bag:
    counts: dict[tuple[Any, ...], int] = {}
    for row, sign in rows:
        total = counts.get(row, 0) + sign
        if total:
            counts[row] = total
        else:
            del counts[row]
    return Bag(tuple(columns), counts)
