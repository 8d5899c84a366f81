"""Reads the rows of a large transaction, which lie in files, into Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.relation import Relation
from strobe.data.spilled import BEFORE, COUNT, PIECE, Spilled
from strobe.spark.relation import SparkRelation


def reads_spilled(spark: SparkSession) -> Callable[[Relation, Mapping[str, str]], Relation]:
    """Makes of a relation that is not in memory one that can be computed with, in the types of a view's attributes."""

    def read(relation: Relation, types: Mapping[str, str]) -> Relation:
        if isinstance(relation, Spilled):
            return in_spark(spark, relation, types)
        return relation.typed(types) if isinstance(relation, SparkRelation) else relation

    return read


def in_spark(spark: SparkSession, spilled: Spilled, types: Mapping[str, str]) -> SparkRelation:
    """The rows as data in Spark; `types` are those of the attributes that they may be joined with."""
    schema = ", ".join(f"{name} {ddl}" for name, ddl in spilled.schema().items())
    frame = spark.read.schema(schema).parquet(str(spilled.folder))
    names = [*(f"c{i}" for i in range(len(spilled.columns))), COUNT]
    if not spilled.key:
        return SparkRelation(frame.select(*names), spilled.attributes, types, net=spilled.pieces == 1)
    by_key = frame.groupBy(*(f"k{i}" for i in range(len(spilled.key))))
    if spilled.gone:
        first = by_key.agg(F.min_by(BEFORE, PIECE).alias(BEFORE)).where(BEFORE)
        keys = [F.col(f"k{i}").alias(f"c{i}") for i in range(len(spilled.key))]
        return SparkRelation(first.select(*keys, F.lit(1).cast("bigint").alias(COUNT)), spilled.key, types, net=True)
    last = by_key.agg(F.max_by(F.struct(*names), PIECE).alias("last")).select("last.*")
    return SparkRelation(last.where(F.col(COUNT) == 1), spilled.attributes, types, net=True)
