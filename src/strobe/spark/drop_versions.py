"""Versions of the Delta table that drops of files are staged in: writes the next one, and compares two neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from strobe.spark.relation import SparkRelation

SETTINGS = {
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",  # the same rows again are a version too
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default does not hold the years 1 to 9999
}


def write_version(spark: SparkSession, frame: DataFrame, table: Path, note: str) -> None:
    """Replace the rows of a staged table; the commit carries the note. Columns are named by position."""
    for setting, value in SETTINGS.items():
        spark.conf.set(setting, value)
    writer = frame.toDF(*(f"c{i}" for i in range(len(frame.columns)))).write.format("delta").mode("overwrite")
    writer.option("userMetadata", note).save(str(table))


def difference(spark: SparkSession, table: Path, version: int, names: Sequence[str]) -> SparkRelation:
    """What a version of a staged table changed, net, over columns of these names."""
    after, before = (_rows_at(spark, table, at, names) for at in (version, version - 1))
    return after.plus(before.negate()).net()


def _rows_at(spark: SparkSession, table: Path, version: int, names: Sequence[str]) -> SparkRelation:
    frame = spark.read.format("delta").option("versionAsOf", version).load(str(table))
    return SparkRelation.of_rows(frame.toDF(*names), {})
