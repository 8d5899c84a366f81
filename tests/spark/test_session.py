"""The Spark session that Strobe starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_delta_in_utc(spark: SparkSession, tmp_path: Path) -> None:
    """The session writes and reads Delta tables, and its time zone is UTC."""
    table = str(tmp_path / "t")
    spark.range(3).write.format("delta").save(table)
    assert spark.read.format("delta").load(table).count() == 3
    assert spark.sql("SELECT current_timezone()").first()[0] == "UTC"  # type: ignore[index]
