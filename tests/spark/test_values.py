"""What the tests of look-ups take for Spark's equality is Spark's equality, in memory and in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from special_values import TYPES, equal_in_spark, special

from strobe.algebra.bag import Bag
from strobe.algebra.schema import joinable
from strobe.data.arrow import to_arrow
from strobe.spark.relation import local_data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("left", TYPES)
def test_equality_is_sparks(spark: SparkSession, left: str) -> None:
    """For all pairs of types that may be joined and all special values, Spark's `=`, the oracle of the tests and a join
    of bags in memory say the same."""
    for right in TYPES:
        if not joinable(left, right):
            continue
        ours, theirs = special(left), special(right)
        local_data(spark, to_arrow(["i", "a"], ["int", left], enumerate(ours))).createOrReplaceTempView("ours")
        local_data(spark, to_arrow(["j", "b"], ["int", right], enumerate(theirs))).createOrReplaceTempView("theirs")
        found = {(row.i, row.j) for row in spark.sql("SELECT i, j FROM ours, theirs WHERE a = b").collect()}
        expected = {(i, j) for i, a in enumerate(ours) for j, b in enumerate(theirs) if equal_in_spark(a, b)}
        assert found == expected, f"{left} = {right}"
        assert {row[::2] for row, _ in _joined(ours, theirs).items()} == expected, f"{left} = {right} in memory"


def _joined(ours: list[Any], theirs: list[Any]) -> Bag:
    left, right = Bag.of(("i", "a"), enumerate(ours)), Bag.of(("j", "b"), enumerate(theirs))
    return left.join(right, [("a", "b")]).collect()
