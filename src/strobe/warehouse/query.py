"""A query over the views at one commit, and its result as a stream of Arrow batches.

A large result is read partition by partition, in order: whoever wants the first rows of many does not wait for the
others, and memory holds one partition at a time. Values travel as Arrow, so that an instant stays one whatever the
local zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strobe.errors import UserError
from strobe.warehouse.reader import ViewsAtCommit
from strobe.warehouse.statement import Column, tables_of

SETTINGS = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}
"""What a query means does not depend on how a session was configured."""

FEW = 1000
"""A result of so many rows comes at once, in a fraction of the time that it takes to begin a stream."""


def prepare(session: SparkSession, views: ViewsAtCommit, text: str) -> DataFrame:
    """The query's result, not computed yet. The views go by their names in this session, which nobody else uses."""
    named = tables_of(text)
    for view in views.views:
        if view in named:
            views.table(view).createOrReplaceTempView(view)
        else:
            session.catalog.dropTempView(view)
    with spark_errors(views.views):
        return session.sql(text)


def columns(frame: DataFrame) -> list[Column]:
    return [Column(field.name, field.dataType.simpleString()) for field in frame.schema]


def batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """The rows in their order, under the names c0, c1, …: a query may give two columns one name."""

    def encoded(found: Iterable[Any]) -> Iterable[Any]:
        # Defined here, so that it travels by value: executors need no Strobe for it.
        for batch in found:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], ["batch"])

    numbered = frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))
    with spark_errors():
        few = numbered.limit(FEW + 1).toArrow()
        if few.num_rows <= FEW:
            yield from few.to_batches()
            return
        for row in numbered.mapInArrow(encoded, "batch binary").toLocalIterator():
            yield pa.ipc.open_stream(row.batch).read_next_batch()


@contextmanager
def spark_errors(views: Sequence[str] = ()) -> Iterator[None]:
    """What Spark has against a query is the user's to correct."""
    try:
        yield
    except PySparkException as error:
        lines = (error.getMessage() or str(error)).strip().splitlines()
        known = f"The views are {', '.join(views)}." if views else "Correct the query."
        raise UserError(lines[0] if lines else type(error).__name__, where="SQL", fix=known) from error
