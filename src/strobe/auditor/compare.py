"""A view as it is, against a recomputation from scratch: the rows that differ, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strobe.algebra.schema import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WITNESSES = 20
"""Differing rows that a verdict names."""


@dataclass(frozen=True)
class Difference:
    """A row and how many copies of it the view has too many (or, negative, too few)."""

    row: dict[str, Any]
    count: int

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.row.items())
        return f"{abs(self.count)} x ({shown}) {'should not be there' if self.count > 0 else 'is missing'}"


def differences(view: DataFrame, recomputed: DataFrame) -> tuple[int, list[Difference]]:
    """How many different rows differ, and the first of them; both are bags of rows over the same columns."""
    from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

    names = view.columns
    places = [f"c{i}" for i in range(len(names))]  # a name may need quoting, or be one of ours
    expected = recomputed.select(*map(quoted, names)).toDF(*places)
    both = view.toDF(*places).withColumn("_count", F.lit(1)).union(expected.withColumn("_count", F.lit(-1)))
    uneven = both.groupBy(*places).agg(F.sum("_count").alias("_count")).where("_count <> 0").persist()
    try:
        rows = uneven.orderBy(*places).limit(WITNESSES).collect()
        total = uneven.count() if len(rows) == WITNESSES else len(rows)
    finally:
        uneven.unpersist()
    return total, [Difference(dict(zip(names, row, strict=False)), int(row["_count"])) for row in rows]
