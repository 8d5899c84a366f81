"""Reads a drop with Spark and checks every record of it.

CSV and JSON Lines are read as text, exactly as written, and then cast, so that a value that does not fit its type is
found, and not turned into NULL as Spark's own readers would have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it
from pyspark.sql.types import StringType, StructField, StructType

from strobe.errors import UserError
from strobe.redaction import content

CORRUPT = "corrupt"
EMPTY = "\ue000empty\ue000"
"""What Spark is told to read for a quoted empty field, to tell it from one that is not there, which is NULL."""


def read_checked(
    spark: SparkSession,
    file: Path,
    format_: str,
    found: Sequence[str],
    columns: Mapping[str, str],
    key: Sequence[str],
    where: str,
) -> DataFrame:
    """The columns wanted (name to Spark type) of a file that has the columns `found`; `UserError` for a broken record,
    a value that does not fit, and a key that is NULL or comes twice. `where` is the file's name in messages."""
    try:
        frame = (
            _parquet(spark, file, columns)
            if format_ == "parquet"
            else _text(spark, file, format_, found, where, columns)
        )
        _check_key(frame, key, where)
        return frame
    except PySparkException as problem:
        raise UserError(f"Spark cannot read it: {str(problem).splitlines()[0]}", where=where) from problem


def _parquet(spark: SparkSession, file: Path, columns: Mapping[str, str]) -> DataFrame:
    frame = spark.read.parquet(str(file))
    return frame.select(*(_quoted(name).cast(ddl).alias(name) for name, ddl in columns.items()))


def _text(
    spark: SparkSession, file: Path, format_: str, found: Sequence[str], where: str, columns: Mapping[str, str]
) -> DataFrame:
    raw = _raw_csv(spark, file, found) if format_ == "csv" else _raw_json(spark, file, found)
    values = {name: F.col(f"c{found.index(name)}") for name in columns}
    fits = {name: _fits(values[name], ddl) for name, ddl in columns.items() if ddl != "string"}
    _check_records(raw, values, columns, fits, where)
    return raw.select(*(values[name].try_cast(ddl).alias(name) for name, ddl in columns.items()))


def _raw_csv(spark: SparkSession, file: Path, found: Sequence[str]) -> DataFrame:
    schema = StructType([StructField(f"c{i}", StringType()) for i in range(len(found))]).add(CORRUPT, StringType())
    options = {
        "header": "true",
        "multiLine": "true",
        "quote": '"',
        "escape": '"',
        "nullValue": "",
        "emptyValue": EMPTY,
        "columnPruning": "false",
        "columnNameOfCorruptRecord": CORRUPT,
    }
    frame = spark.read.options(**options).schema(schema).csv(str(file))
    texts = [F.when(F.col(f"c{i}") == EMPTY, "").otherwise(F.col(f"c{i}")).alias(f"c{i}") for i in range(len(found))]
    return frame.select(*texts, CORRUPT)


def _raw_json(spark: SparkSession, file: Path, found: Sequence[str]) -> DataFrame:
    """A property that a record does not have is NULL."""
    schema = StructType([StructField(name, StringType()) for name in found]).add("\ue000" + CORRUPT, StringType())
    frame = spark.read.option("columnNameOfCorruptRecord", "\ue000" + CORRUPT).schema(schema).json(str(file))
    return frame.toDF(*(f"c{i}" for i in range(len(found))), CORRUPT)


def _fits(value: Column, ddl: str) -> Column:
    cast = value.try_cast(ddl)
    fits = value.isNull() | cast.isNotNull()
    if ddl.startswith("decimal"):  # a cast rounds: compare with as many digits as there can be
        precision, scale = (int(n) for n in ddl[len("decimal(") : -1].split(","))
        fits = fits & F.coalesce(cast == value.try_cast(f"decimal(38,{38 - (precision - scale)})"), F.lit(True))
    return fits


def _check_records(
    raw: DataFrame, values: Mapping[str, Column], columns: Mapping[str, str], fits: Mapping[str, Column], where: str
) -> None:
    good = reduce(lambda a, b: a & b, fits.values(), F.col(CORRUPT).isNull())
    verdicts = [fit.alias(f"fits{i}") for i, fit in enumerate(fits.values())]
    texts = [value.alias(f"text{i}") for i, value in enumerate(values.values())]  # all: Spark refuses the record alone
    for row in raw.where(~good).select(CORRUPT, *verdicts, *texts).limit(1).collect():
        if row[0] is not None:
            raise UserError(content(row[0], "a broken record"), where=where, fix="mend the record and drop again")
        for i, name in enumerate(fits):
            if not row[f"fits{i}"]:
                text = row[f"text{list(values).index(name)}"]
                message = f"{content(text)} is no {columns[name]}"
                raise UserError(message, where=f"{where}: column {name}", fix="mend the value, or declare another type")


def _check_key(frame: DataFrame, key: Sequence[str], where: str) -> None:
    if not key:
        return
    columns = [_quoted(name) for name in key]
    bad = reduce(lambda a, b: a | b, (c.isNull() for c in columns), F.col("_n") > 1)
    for row in frame.groupBy(*columns).agg(F.count(F.lit(1)).alias("_n")).where(bad).limit(1).collect():
        values = ", ".join(f"{name}={_short(str(value))}" for name, value in zip(key, row, strict=False))
        what = "a key is empty" if None in row[: len(key)] else f"a key comes {row[-1]} times"
        raise UserError(f"{what}: {values}", where=f"{where}: column {', '.join(key)}", fix="keys must be unique")


def _quoted(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "…"
