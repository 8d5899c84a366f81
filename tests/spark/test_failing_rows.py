"""Which rows make a view impossible to load."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.sql import compile_view
from strobe.spark.recompute import recompute
from strobe.warehouse.failing_rows import failing_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ITEMS = RelationSchema("s", "items", tuple(Column(c, t) for c, t in (("id", "bigint"), ("n", "string"))), ("id",))
PAIRS = RelationSchema("t", "pairs", tuple(Column(c, "bigint") for c in ("a", "b")), ("a", "b"))
LOOSE = RelationSchema("t", "loose", (Column("c", "bigint"),))
RELATIONS = {relation.id: relation for relation in (ITEMS, PAIRS, LOOSE)}


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("SELECT id, CAST(n AS INT) AS n FROM s.items", ["s.items (id=137)"]),
        (
            "SELECT i.id, p.b, CAST(i.n AS INT) + p.b AS m FROM s.items i JOIN t.pairs p ON p.a = i.id",
            ["s.items (id=137)", "t.pairs (a=137, b=1)"],
        ),
        ("SELECT i.id, CAST(i.n AS INT) AS n FROM s.items i JOIN t.loose o ON o.c = i.id", ["s.items (id=137)", None]),
        ("SELECT x.a, x.b, y.b AS c, 1 / (x.b + y.b - 1) AS q FROM t.pairs x JOIN t.pairs y ON x.a = y.a", []),
        ("SELECT id, n FROM s.items", []),
    ],
)
def test_a_row_of_each_relation_is_named(spark: SparkSession, sql: str, named: list[str | None]) -> None:
    """One of each relation that has a key. None, if it takes two rows of one relation, or if nothing fails."""
    view = compile_view("v", sql, RELATIONS)
    rows = {
        ITEMS.id: spark.range(200).selectExpr("id", "CASE WHEN id = 137 THEN 'x' ELSE CAST(id AS STRING) END AS n"),
        PAIRS.id: spark.range(300).selectExpr("id DIV 2 AS a", "CASE WHEN id DIV 2 = 137 THEN 1 ELSE id % 2 END AS b"),
        LOOSE.id: spark.range(200).toDF("c"),
    }
    rows[PAIRS.id] = rows[PAIRS.id].distinct()
    found = failing_rows(view, rows, partial(recompute, spark, view))
    assert [None if row is None else str(row) for row in found] == named
