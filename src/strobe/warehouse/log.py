"""Appends commits to the log: one append, one Spark job, whatever views they touch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.schema import quoted
from strobe.messages import Commit, CommitHeader
from strobe.spark.relation import COUNT
from strobe.warehouse.evaluation import Part, Stored, changed_rows
from strobe.warehouse.layout import Layout, sql_path, struct
from strobe.warehouse.layout import field as column
from strobe.warehouse.records import Generation
from strobe.warehouse.removal_plan import COMMIT
from strobe.warehouse.view_table import allow_types

_TEXTS = pa.map_(pa.string(), pa.string())
_TIME = pa.timestamp("us", tz="UTC")
_HEADER = pa.schema(
    [
        ("commit", pa.int64()),
        ("committed_at", _TIME),
        ("epoch", pa.int64()),
        ("positions", pa.map_(pa.string(), _TEXTS)),
        ("as_of", pa.map_(pa.string(), pa.map_(pa.string(), _TIME))),
        ("identity", _TEXTS),
        ("view", pa.string()),
        ("count", pa.int64()),
        ("generations", pa.map_(pa.string(), pa.int64())),
    ]
)


@dataclass(frozen=True)
class Batch:
    """Commits with the same views in force. The last of them also brings what is `carried`: net changes of views'
    columns, with `_count`."""

    commits: Sequence[Commit]
    members: Mapping[str, Generation]
    generations: Mapping[str, int]
    carried: Mapping[str, Part] = field(default_factory=dict)

    def headers(self, epoch: int) -> list[CommitHeader]:
        """As they stand in the log, appended under an epoch."""
        return [replace(c.header, epoch=epoch, generations=dict(self.generations)) for c in self.commits]


def append(spark: SparkSession, layout: Layout, epoch: int, batches: Sequence[Batch], stored: Stored) -> None:
    """Append all commits, atomically."""
    frames, fields, all_small = [], [], True
    for batch in batches:
        parts = changed_rows(spark, batch.members, batch.commits, stored, layout.sizes.together)
        last = F.lit(batch.commits[-1].number).cast("bigint")
        parts |= {name: (frame.withColumn(COMMIT, last), small) for name, (frame, small) in batch.carried.items()}
        frames.append(_headers(spark, batch.headers(epoch)))
        frames += [_data(frame, batch.members[name], epoch) for name, (frame, _) in parts.items()]
        fields += [column(name, batch.members[name].number) for name in parts]
        all_small = all_small and all(small for _, small in parts.values())
    whole = _union(frames, list(dict.fromkeys(fields)))
    if all_small:
        whole = whole.coalesce(1)
    whole = whole.withColumn("range", F.expr(f"commit div {layout.sizes.range}"))
    whole.write.format("delta").mode("append").save(layout.log)


def add_fields(spark: SparkSession, layout: Layout, loaded: Sequence[Generation]) -> None:
    """Give the log a struct for the rows of each new generation."""
    schema = spark.read.format("delta").load(layout.log).schema
    there = set(schema["rows"].dataType.fieldNames()) if "rows" in schema.names else set()  # type: ignore[attr-defined]
    fields = {column(item.view.name, item.number): item.schema for item in loaded}
    new = {name: struct(ddl) for name, ddl in fields.items() if name not in there}
    if not new:
        return
    if "rows" in schema.names:
        added = ", ".join(f"rows.{name} {type_}" for name, type_ in new.items())
    else:
        added = f"rows STRUCT<{', '.join(f'{name}: {type_}' for name, type_ in new.items())}> AFTER `count`"
    allow_types(spark, layout.log, new.values())
    spark.sql(f"ALTER TABLE {sql_path(layout.log)} ADD COLUMNS ({added})")


def _data(frame: DataFrame, member: Generation, epoch: int) -> DataFrame:
    columns = [F.col(quoted(output.name)) for output in member.view.outputs]
    return frame.select(
        F.col(COMMIT).alias("commit"),
        F.lit(epoch).cast("bigint").alias("epoch"),
        F.lit(member.view.name).alias("view"),
        F.col(COUNT).alias("count"),
        F.struct(*columns).alias(column(member.view.name, member.number)),
    )


def _headers(spark: SparkSession, headers: Sequence[CommitHeader]) -> DataFrame:
    rows = [
        {
            "commit": header.number,
            "committed_at": header.committed_at,
            "epoch": header.epoch,
            "positions": [(view, list(sources.items())) for view, sources in header.positions.items()],
            "as_of": [(view, list(sources.items())) for view, sources in header.as_of.items()],
            "identity": list(header.identity.items()),
            "generations": list(header.generations.items()),
        }
        for header in headers
    ]
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=_HEADER)).coalesce(1)


def _union(frames: Sequence[DataFrame], fields: Sequence[str]) -> DataFrame:
    """The frames as one, with their fields gathered into the struct `rows`."""
    whole = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)
    if not fields:
        return whole
    columns = [F.col(name) for name in whole.columns if name not in fields]
    rows = F.when(F.col("view").isNotNull(), F.struct(*fields)).alias("rows")
    return whole.select(*columns, rows)
