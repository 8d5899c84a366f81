"""A change that lies in many pieces (files, say), read by Spark's executors as the driver would read it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from strobe.algebra.bag import Bag, Row
from strobe.algebra.relation import Relation
from strobe.data.arrow import from_arrow, to_arrow
from strobe.spark.relation import COUNT, SparkRelation

BATCH = 20_000
"""Rows that a task holds at a time."""

Read = Callable[[Sequence[Any]], Iterator[tuple[Row, int]]]


def read_pieces(
    spark: SparkSession, pieces: Sequence[Any], read: Read, columns: Mapping[str, str], limit: int
) -> Relation:
    """What `read` finds in all pieces, net: rows over these columns (name to Spark type) with their counts. It stays in
    Spark if it has more rows than `limit`."""
    names, types = [*(f"c{i}" for i in range(len(columns))), COUNT], [*columns.values(), "bigint"]

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows: list[Row] = []
            for row, count in read([pickle.loads(value) for value in batch["piece"].to_pylist()]):
                rows.append((*row, count))
                if len(rows) >= BATCH:
                    yield from to_arrow(names, types, rows).to_batches()
                    rows = []
            yield from to_arrow(names, types, rows).to_batches()

    listed = spark.createDataFrame([(pickle.dumps(piece),) for piece in pieces], "piece binary")
    schema = ", ".join(f"{name} {ddl}" for name, ddl in zip(names, types, strict=True))
    tasks = min(len(pieces), spark.sparkContext.defaultParallelism)
    change = SparkRelation(listed.repartition(tasks).mapInArrow(task, schema), list(columns), {}).net()
    found = list(from_arrow(change.dataframe().limit(limit + 1).toArrow()))
    return change if len(found) > limit else Bag(tuple(columns), {row[:-1]: row[-1] for row in found})
