"""Reading a source through Spark: one snapshot, Parquet files that everybody then reads the same.

A task that is tried again must not read another state, and executors cannot share a snapshot of every database. So a
single task opens the reader once and streams what it reads into Parquet files in a folder of its own; what it returns
is only where they are and what its snapshot had seen. An attempt that failed, or that lost a race, leaves a folder that
nobody looks into, and that goes with the rest.

Where a snapshot can be shared (PostgreSQL), several tasks do the same with a part of it each: portions of relations, or
a part of the keys. If one fails, all is read again, in another snapshot.
"""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.bag import Bag, Row, canonical
from strobe.algebra.relation import Relation
from strobe.algebra.schema import RelationSchema, quoted
from strobe.algebra.view import View
from strobe.data.arrow import arrow_schema, canonical_ddl, from_arrow, to_arrow
from strobe.data.scratch import READS, Lease, Scratch
from strobe.errors import BrokenInvariant, StrobeError
from strobe.messages import Lookup, Query, Seen
from strobe.sources.base import Reader, Shared
from strobe.spark.confidential import Confidential, handed
from strobe.spark.relation import SparkRelation

BATCH = 20_000
"""Rows held in memory at a time, and the size of a row group."""

Progress = Callable[[int], None]

Chosen = Sequence[tuple[RelationSchema, Sequence[str]]]
"""Relations, each with the columns that are read."""
_Work = tuple["_Part", int | None]
"""A part, and which portion of it: None for all of it."""


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
    lease: Lease
    files: Mapping[str, Sequence[Path]]
    """By part."""
    parts: tuple[_Part, ...]
    seen: Seen

    def rows(self, relation: RelationSchema) -> int:
        """How many rows of a relation there are."""
        return sum(pq.read_metadata(file).num_rows for file in self.files[relation.id])

    def dataframe(self, relation: RelationSchema) -> DataFrame:
        """The rows of a relation, under its column names and with its types."""
        part = next(p for p in self.parts if p.id == relation.id)
        schema = ", ".join(f"{name} {type_}" for name, type_ in zip(part.names, part.types, strict=True))
        files = map(str, self.files[part.id])
        return self.spark.read.schema(schema).parquet(*files).toDF(*part.columns)


def snapshot(
    spark: SparkSession,
    reader: Reader,
    relations: Chosen,
    scratch: Scratch,
    progress: Progress | None = None,
) -> Staged:
    """Read these columns of these relations of one source in one snapshot; `progress` is told the rows read so far."""
    parts = tuple(_Part.of(relation, columns) for relation, columns in relations)
    return _stage(spark, _one_row(spark), reader, parts, None, scratch, progress)


def answer(
    spark: SparkSession, reader: Reader, query: Query, view: View, scratch: Scratch
) -> tuple[tuple[SparkRelation, ...], Staged]:
    """Answer the first look-up of a query, whose keys may be of any number and anywhere; or all, where the query wants
    all in one snapshot, by reading the relations whole.

    The relations are over files: release what was staged when whatever uses them has been committed.
    """
    if query.whole:
        return _whole(spark, reader, query, view, scratch)
    lookup = query.lookups[0]
    relation = view.occurrences[lookup.occurrence].relation
    part = _Part.of(relation, lookup.columns)
    keys = _keys(spark, lookup, relation, view)
    if keys is None:
        staged = _stage(spark, _one_row(spark), reader, (part,), None, scratch, None)
    else:
        staged = _stage(spark, keys, reader, (part,), lookup, scratch, None)
    return (SparkRelation.of_rows(staged.dataframe(relation), view.attribute_types()),), staged


def _whole(
    spark: SparkSession, reader: Reader, query: Query, view: View, scratch: Scratch
) -> tuple[tuple[SparkRelation, ...], Staged]:
    used: dict[str, tuple[RelationSchema, list[str]]] = {}
    for lookup in query.lookups:
        relation = view.occurrences[lookup.occurrence].relation
        _, columns = used.setdefault(relation.id, (relation, []))
        columns += [c for c in lookup.columns if c not in columns]
    staged = snapshot(spark, reader, list(used.values()), scratch)
    relations = []
    for lookup in query.lookups:
        frame = staged.dataframe(view.occurrences[lookup.occurrence].relation)
        chosen = frame.select(*(F.col(quoted(c)) for c in lookup.columns))
        relations.append(SparkRelation.of_rows(chosen, view.attribute_types()))
    return tuple(relations), staged


def _one_row(spark: SparkSession) -> DataFrame:
    return spark.range(1, numPartitions=1)


def _keys(spark: SparkSession, lookup: Lookup, relation: RelationSchema, view: View) -> DataFrame | None:
    """The distinct keys, each with the count 1, and one row of NULLs with the count 0, which is no key but makes sure
    that there is a task; None where reading everything once costs less than a look-up for every batch of keys."""
    if lookup.keys is None:
        return None
    if isinstance(lookup.keys, Bag):
        few = len(lookup.keys) <= BATCH
        keys = SparkRelation.of_bag(spark, lookup.keys, view.attribute_types())
    else:
        few, keys = False, _in_spark(lookup.keys).keys(lookup.keys.attributes, nulls=lookup.null_safe)
    if not few and not any(relation.indexed(c) and relation.column(c).searchable for c in lookup.on):
        return None
    frame = keys.dataframe()
    nulls = [F.lit(None).cast(field.dataType) for field in frame.schema.fields[:-1]]
    return frame.union(_one_row(spark).select(*nulls, F.lit(0).cast("bigint")))


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
    scratch: Scratch,
    progress: Progress | None,
) -> Staged:
    lease = scratch.lease(READS)
    own = lease.folder
    own.mkdir(parents=True)
    few = lookup is not None and isinstance(lookup.keys, Bag)  # one task is soon done with them
    most = 1 if few else spark.sparkContext.defaultParallelism
    try:
        with reader.shared([part.relation for part in parts], most) as shared, _reported(own, progress):
            works = _works(parts, shared)
            if shared is None:
                given = keys.coalesce(1)
            elif lookup is None:
                given = spark.range(0, len(works), 1, len(works))
            else:
                given = keys.repartition(shared.tasks, *keys.columns)
            through = reader if shared is None else shared.reader
            asked = None if lookup is None else replace(lookup, keys=None)
            with handed(through, own) as reference:
                task = partial(_task, reader=reference, works=works, lookup=asked, folder=own)
                rows = given.mapInArrow(task, "outcome binary").collect()
            outcomes = [pickle.loads(row.outcome) for row in rows]
            for outcome in outcomes:
                if isinstance(outcome, StrobeError):
                    raise outcome
    except BaseException:
        lease.release()
        raise
    files: dict[str, list[Path]] = {part.id: [] for part in parts}
    for attempt, _, written in outcomes:
        for part in written:
            files[part.id].append(own / attempt / part.file)
    return Staged(spark, lease, files, parts, shared.seen if shared is not None else outcomes[0][1])


def _works(parts: Sequence[_Part], shared: Shared | None) -> list[list[_Work]]:
    """What each task reads, where it is not given keys."""
    if shared is None:
        return [[(part, None) for part in parts]]
    portions: list[_Work] = [(part, n) for part in parts for n in range(shared.portions[part.relation])]
    return [portions[task :: shared.tasks] for task in range(min(shared.tasks, len(portions)))]


def _task(
    batches: Iterator[pa.RecordBatch],
    reader: Confidential,
    works: list[list[_Work]],
    lookup: Lookup | None,
    folder: Path,
) -> Iterator[pa.RecordBatch]:
    """What a task does: read in one snapshot, write, and say where and what it had seen, or what went wrong."""
    attempt = uuid.uuid4().hex
    files = folder / attempt
    files.mkdir(parents=True)
    outcome: tuple[str, Seen, list[_Part]] | StrobeError
    try:
        outcome = attempt, *_read(batches, reader.resolve(), works, lookup, files)
    except StrobeError as problem:
        outcome = problem
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(outcome)], pa.binary())], ["outcome"])


def _read(
    batches: Iterator[pa.RecordBatch], reader: Reader, works: list[list[_Work]], lookup: Lookup | None, files: Path
) -> tuple[Seen, list[_Part]]:
    seen = reader.open()
    try:
        found: dict[_Part, list[Iterator[Row]]] = {}
        if lookup is not None:
            ((part, _),) = works[0][:1]
            found[part] = [_found(reader, lookup, map(from_arrow, batches))]
        else:
            numbers = [int(number) for batch in batches for (number,) in from_arrow(batch)]
            for part, portion in (work for number in numbers for work in works[number]):
                found.setdefault(part, []).append(_scanned(reader, part, portion))
        done = 0
        for part, rows in found.items():
            done = _write(part, chain.from_iterable(rows), files, done)
        for _ in batches:  # Spark wants its input read
            pass
        return seen, list(found)
    finally:
        reader.close()


def _scanned(reader: Reader, part: _Part, portion: int | None) -> Iterator[Row]:
    if portion is None:
        return reader.scan(part.relation, part.columns)
    return reader.scan_portion(part.relation, part.columns, portion)


def _found(reader: Reader, lookup: Lookup, batches: Iterable[Iterator[Row]]) -> Iterator[Row]:
    """The rows with exactly these keys: since the keys of different batches differ, no row is found twice."""
    places = [lookup.columns.index(c) for c in lookup.on]
    for batch in batches:
        given = (row[:-1] for row in batch if row[-1])
        keys = {key for key in given if lookup.null_safe or None not in key}
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
            rows = sum(_number(file) for file in folder.glob("*/rows"))
            if rows > last:  # a file that is being written anew is empty for a moment
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
