"""Reading a source through Spark: one task, one snapshot, Parquet files that everybody then reads the same.

A task that is tried again must not read another state, and executors cannot share a snapshot of every database. So a
single task opens the reader once and streams what it reads into Parquet files in a folder of its own; what it returns
is only where they are and what its snapshot had seen. An attempt that failed, or that lost a race, leaves a folder that
nobody looks into, and that goes with the rest.
"""

from __future__ import annotations

import pickle
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.bag import Bag, Row, canonical
from strobe.algebra.relation import Relation
from strobe.algebra.schema import RelationSchema
from strobe.algebra.view import View
from strobe.dataplane.arrow import arrow_schema, canonical_ddl, from_arrow, to_arrow
from strobe.dataplane.relation import COUNT, SparkRelation
from strobe.dataplane.spilled import FOLDER
from strobe.errors import BrokenInvariant, StrobeError
from strobe.messages import Lookup, Query, Seen
from strobe.sources.base import Reader

BATCH = 20_000
"""Rows held in memory at a time, and the size of a row group."""
READS = "reads"
"""The folder under `staging` in which everything is temporary."""

Progress = Callable[[int], None]


@dataclass(frozen=True)
class _Part:
    """Columns of one relation, in a file of their own. `id` tells it from others."""

    id: str
    relation: str
    columns: tuple[str, ...]
    types: tuple[str, ...]

    @classmethod
    def of(cls, relation: RelationSchema, columns: Sequence[str]) -> _Part:
        types = tuple(canonical_ddl(relation.column(c).type) for c in columns)
        return cls(relation.id, relation.name, tuple(columns), types)

    @property
    def names(self) -> list[str]:
        """Names by position, since Parquet and Spark do not take every name that a database does."""
        return [f"c{i}" for i in range(len(self.columns))]

    @property
    def file(self) -> str:
        return self.id.encode().hex() + ".parquet"


@dataclass(frozen=True)
class Staged:
    """What one snapshot of a source held, as files; `seen` is what that snapshot had seen."""

    spark: SparkSession
    folder: Path
    files: Path
    parts: tuple[_Part, ...]
    seen: Seen

    def dataframe(self, relation: RelationSchema) -> DataFrame:
        """The rows of a relation, under its column names and with its types."""
        part = next(p for p in self.parts if p.id == relation.id)
        schema = ", ".join(f"{name} {type_}" for name, type_ in zip(part.names, part.types, strict=True))
        return self.spark.read.schema(schema).parquet(str(self.files / part.file)).toDF(*part.columns)

    def remove(self) -> None:
        """The rows are no longer needed; what is yet to be computed from them no longer can be."""
        shutil.rmtree(self.folder, ignore_errors=True)


def sweep_leftovers(folder: Path) -> None:
    """Remove what an earlier run left behind."""
    for temporary in (READS, FOLDER):
        shutil.rmtree(folder / temporary, ignore_errors=True)


def snapshot(
    spark: SparkSession,
    reader: Reader,
    relations: Sequence[tuple[RelationSchema, Sequence[str]]],
    folder: Path,
    progress: Progress | None = None,
) -> Staged:
    """Read these columns of these relations of one source in one snapshot; `progress` is told the rows read so far."""
    parts = tuple(_Part.of(relation, columns) for relation, columns in relations)
    return _stage(spark, _one_row(spark), reader, parts, None, folder, progress)


def answer(
    spark: SparkSession, reader: Reader, query: Query, view: View, folder: Path
) -> tuple[tuple[SparkRelation, ...], Staged]:
    """Answer the first look-up of a query, whose keys may be of any number and anywhere; or all, where the query wants
    all in one snapshot, by reading the relations whole.

    The relations are over files: call `remove` of what was staged when whatever uses them has been committed.
    """
    if query.whole:
        return _whole(spark, reader, query, view, folder)
    lookup = query.lookups[0]
    relation = view.occurrences[lookup.occurrence].relation
    part = _Part.of(relation, lookup.columns)
    keys = _keys(spark, lookup, relation, view)
    if keys is None:
        staged = _stage(spark, _one_row(spark), reader, (part,), None, folder, None)
    else:
        staged = _stage(spark, keys, reader, (part,), replace(lookup, keys=None), folder, None)
    return (SparkRelation.of_rows(staged.dataframe(relation), view.attribute_types()),), staged


def _whole(
    spark: SparkSession, reader: Reader, query: Query, view: View, folder: Path
) -> tuple[tuple[SparkRelation, ...], Staged]:
    used: dict[str, tuple[RelationSchema, list[str]]] = {}
    for lookup in query.lookups:
        relation = view.occurrences[lookup.occurrence].relation
        _, columns = used.setdefault(relation.id, (relation, []))
        columns += [c for c in lookup.columns if c not in columns]
    staged = snapshot(spark, reader, list(used.values()), folder)
    relations = []
    for lookup in query.lookups:
        frame = staged.dataframe(view.occurrences[lookup.occurrence].relation)
        chosen = frame.select(*(F.col("`" + c.replace("`", "``") + "`") for c in lookup.columns))
        relations.append(SparkRelation.of_rows(chosen, view.attribute_types()))
    return tuple(relations), staged


def _one_row(spark: SparkSession) -> DataFrame:
    return spark.range(1, numPartitions=1)


def _keys(spark: SparkSession, lookup: Lookup, relation: RelationSchema, view: View) -> DataFrame | None:
    """The distinct keys, and one row of NULLs, which is no key but makes sure that there is a task; None where reading
    everything once costs less than a look-up for every batch of keys."""
    if lookup.keys is None:
        return None
    if isinstance(lookup.keys, Bag):
        few = len(lookup.keys) <= BATCH
        keys = SparkRelation.of_bag(spark, lookup.keys, view.attribute_types())
    else:
        few, keys = False, _in_spark(lookup.keys).keys(lookup.keys.attributes)
    if not few and not any(relation.indexed(c) and relation.column(c).searchable for c in lookup.on):
        return None
    frame = keys.dataframe().drop(COUNT)
    nulls = [F.lit(None).cast(field.dataType) for field in frame.schema.fields]
    return frame.union(_one_row(spark).select(*nulls))


def _in_spark(relation: Relation) -> SparkRelation:
    if not isinstance(relation, SparkRelation):
        raise BrokenInvariant(f"keys of kind {type(relation).__name__} cannot be read by Spark")
    return relation


def _stage(
    spark: SparkSession,
    keys: DataFrame,
    reader: Reader,
    parts: tuple[_Part, ...],
    lookup: Lookup | None,
    folder: Path,
    progress: Progress | None,
) -> Staged:
    own = (folder / READS / uuid.uuid4().hex).absolute()
    own.mkdir(parents=True)
    task = partial(_task, reader=reader, parts=parts, lookup=lookup, folder=own)
    try:
        with _reported(own, progress):
            (row,) = keys.coalesce(1).mapInArrow(task, "outcome binary").collect()
        outcome = pickle.loads(row.outcome)
        if isinstance(outcome, StrobeError):
            raise outcome
    except BaseException:
        shutil.rmtree(own, ignore_errors=True)
        raise
    attempt, seen = outcome
    return Staged(spark, own, own / attempt, parts, seen)


def _task(
    batches: Iterator[pa.RecordBatch], reader: Reader, parts: tuple[_Part, ...], lookup: Lookup | None, folder: Path
) -> Iterator[pa.RecordBatch]:
    """What the one task does: read in one snapshot, write, and say where and what it had seen, or what went wrong."""
    attempt = uuid.uuid4().hex
    files = folder / attempt
    files.mkdir(parents=True)
    outcome: tuple[str, Seen] | StrobeError
    try:
        outcome = attempt, _read(batches, reader, parts, lookup, files)
    except StrobeError as problem:
        outcome = problem
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(outcome)], pa.binary())], ["outcome"])


def _read(
    batches: Iterator[pa.RecordBatch], reader: Reader, parts: tuple[_Part, ...], lookup: Lookup | None, files: Path
) -> Seen:
    seen = reader.open()
    try:
        done = 0
        for part in parts:
            if lookup is None:
                rows = reader.scan(part.relation, part.columns)
            else:
                rows = _found(reader, lookup, map(from_arrow, batches))
            done = _write(part, rows, files, done)
        for _ in batches:  # Spark wants its input read
            pass
        return seen
    finally:
        reader.close()


def _found(reader: Reader, lookup: Lookup, batches: Iterable[Iterator[Row]]) -> Iterator[Row]:
    """The rows with exactly these keys: since the keys of different batches differ, no row is found twice."""
    places = [lookup.columns.index(c) for c in lookup.on]
    for batch in batches:
        keys = {key for key in batch if None not in key}
        if not keys:
            continue
        for row in reader.lookup(lookup, list(keys)):
            if tuple(canonical(row[i]) for i in places) in keys:
                yield row


def _write(part: _Part, rows: Iterator[Row], files: Path, done: int) -> int:
    with pq.ParquetWriter(files / part.file, arrow_schema(part.names, part.types)) as writer:
        while batch := list(islice(rows, BATCH)):
            writer.write_table(to_arrow(part.names, part.types, batch))
            done += len(batch)
            (files / "rows").write_text(str(done))
    return done


@contextmanager
def _reported(folder: Path, progress: Progress | None) -> Iterator[None]:
    """Tell how many rows the task has read so far, a few times a second while the body runs."""
    if progress is None:
        yield
        return
    finished = threading.Event()

    def watch() -> None:
        last = -1
        while True:
            over = finished.wait(0.2)
            rows = max((_number(file) for file in folder.glob("*/rows")), default=0)
            if rows != last:
                progress(rows)
                last = rows
            if over:
                return

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()


def _number(file: Path) -> int:
    try:
        return int(file.read_text() or 0)
    except (OSError, ValueError):
        return 0
