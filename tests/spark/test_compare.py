"""How an audit compares a view with a recomputation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strobe.auditor.compare import differences

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_columns_may_have_any_name(spark: SparkSession) -> None:
    """Names with a backtick, a dot or a blank, and the name that the comparison counts under itself, are compared and
    shown as they are, wherever the recomputation has them."""
    view = spark.createDataFrame([(1, "a", 5, "x"), (1, "a", 5, "x")], ["a`b", "c.d", "_count", "e f"])
    recomputed = spark.createDataFrame([("x", 5, "a", 1), ("y", 5, "a", 1)], ["e f", "_count", "c.d", "a`b"])
    total, found = differences(view, recomputed)
    assert total == 2
    assert [(difference.row, difference.count) for difference in found] == [
        ({"a`b": 1, "c.d": "a", "_count": 5, "e f": "x"}, 1),
        ({"a`b": 1, "c.d": "a", "_count": 5, "e f": "y"}, -1),
    ]
