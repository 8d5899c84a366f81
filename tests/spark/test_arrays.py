"""Arrays of scalars on their way through Spark and Delta."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strobe.algebra.bag import NAN, Bag
from strobe.data.arrow import from_arrow, to_arrow
from strobe.spark.relation import local_data

pytestmark = pytest.mark.spark

TYPES = {
    "i": "array<int>",
    "s": "array<string>",
    "d": "array<double>",
    "n": "array<decimal(10,2)>",
    "t": "array<timestamp>",
    "z": "array<timestamp_ntz>",
}
NOW = datetime(2024, 2, 29, 23, 59, 59, 1, tzinfo=timezone.utc)
ROWS = [
    ((1, None, -1), ("", "a,b", None), (0.0, NAN), (Decimal("1.50"),), (NOW, None), (NOW.replace(tzinfo=None),)),
    ((), (), (), (), (), ()),
    (None, None, None, None, None, None),
]


def test_arrays_are_the_same_in_spark_and_back(spark: SparkSession, tmp_path: Path) -> None:
    """Also by way of a Delta table, grouped, and joined null-safely: what folding and cancelling do."""
    names, types = tuple(TYPES), tuple(TYPES.values())
    frame = local_data(spark, to_arrow(names, types, ROWS * 2))
    assert [field.dataType.simpleString() for field in frame.schema] == list(types)
    frame.write.format("delta").save(str(tmp_path / "t"))
    stored = spark.read.format("delta").load(str(tmp_path / "t"))
    assert Bag.of(names, from_arrow(stored.toArrow())) == Bag.of(names, ROWS * 2)
    grouped = stored.groupBy(*names).count()
    assert Bag.of((*names, "count"), from_arrow(grouped.toArrow())) == Bag.of(
        (*names, "count"), [(*r, 2) for r in ROWS]
    )
    once = stored.distinct().alias("b")
    same = [stored[name].eqNullSafe(once[name]) for name in ("i", "s", "n")]
    assert stored.alias("a").join(once, same).count() == 6
