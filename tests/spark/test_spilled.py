"""Rows of large transactions in files, read by Spark as the driver reads them."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from strobe.algebra.bag import NAN, Bag
from strobe.algebra.relation import Relation
from strobe.data.scratch import Scratch
from strobe.data.spilled import Spilled
from strobe.sources.base import Spill
from strobe.sources.net_changes import NetChanges
from strobe.spark.spilled import in_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = {
    "id": "int",
    "x": "double",
    "Odd `name": "decimal(10,2)",
    "t": "timestamp",
    "n": "timestamp_ntz",
    "a": "array<string>",
    "b": "binary",
    "s": "string",
}
POOLS: tuple[list[Any], ...] = (
    [1, 2, 3, 4, 5, 6],
    [None, 0.0, NAN, 1.5],
    [None, Decimal("0.00"), Decimal("-1.50")],
    [None, datetime(1, 1, 1, tzinfo=timezone.utc), datetime(2024, 3, 31, 1, 30, 0, 123456, tzinfo=timezone.utc)],
    [None, datetime(9999, 12, 31, 23, 59, 59, 999999)],
    [None, (), ("a", None)],
    [b"", b"\x00"],
    [None, "", "ß", "a "],
)


def test_spark_reads_pieces_as_the_driver_does(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that come, go and come again in different pieces, of every kind of value, with and without old row images;
    and what is computed from them, together with rows in memory."""
    rng, nets = random.Random(5), NetChanges(Spill(Scratch(tmp_path), rows=40))
    key = ("id", "x")

    def row() -> tuple[Any, ...] | None:
        return tuple(rng.choice(pool) for pool in POOLS) if rng.random() < 0.7 else None

    for _ in range(600):
        old, new = row(), row()
        nets.of("signed", COLUMNS).change(old, new)
        nets.of("keyed", COLUMNS, key).change(old and old[:2], new)
        nets.grew(0)
    changes, gone = nets.take()
    for spilled in (*changes.values(), *gone.values()):
        assert isinstance(spilled, Spilled) and spilled.pieces > 2
        found = in_spark(spark, spilled, COLUMNS)
        assert found.attributes == spilled.attributes and not found.known_empty
        expected = spilled.collect()
        assert len(expected) > 3 and found.collect() == expected
        assert found.keys(["id"]).collect() == expected.keys(["id"])
        few = Bag(spilled.attributes, dict(list(expected.items())[:2]))
        assert found.plus(few.negate()).collect() == expected.add(few.negate())


def test_plans_do_not_double_for_ever(spark: SparkSession) -> None:
    """What is new is what was not there before: twelve times over, a plan has thousands of leaves, unless it is cut."""
    from strobe.spark.relation import SparkRelation

    types = {"n": "int"}
    seen: Relation = Bag(("n",))
    for n in range(12):
        found = SparkRelation.of_bag(spark, Bag.of(("n",), [(n,), (n + 1,)]), types)
        seen = seen.plus(found.key_delete(seen, [("n", "n")]))
    assert seen.collect() == Bag.of(("n",), [(n,) for n in range(13)])
