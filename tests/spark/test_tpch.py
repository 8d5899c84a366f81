"""TPC-H: every query is a view that is kept, and changes by exactly what a recomputation does."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import tpch
from tree_truth import check

from strobe.algebra.sql import compile_view

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("number", tpch.QUERIES)
@pytest.mark.parametrize("refreshes", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_query_is_kept(spark: SparkSession, refreshes: int, number: int) -> None:
    """Orders come and go with their lines, and rows of other tables change."""
    view = compile_view(f"q{number}", tpch.QUERIES[number], tpch.TABLES)
    check(spark, view, tpch.states(Random(number), refreshes))
