"""The SQL of a tree."""

from __future__ import annotations

import re

import pytest

from strobe.algebra.render import Tables, render
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.sql import compile_view

ORDERS = RelationSchema("s", "orders", (Column("id", "bigint"), Column("n", "int"), Column("word", "string")), ("id",))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(DISTINCT n) AS a, sum(n) AS b FROM s.orders",
        "SELECT o.id, t.c FROM s.orders o JOIN (SELECT count(*) AS c FROM s.orders WHERE n > 1) t ON o.id = t.c",
        "WITH w AS (SELECT max(n) AS m FROM s.orders) SELECT count(a.m) AS x FROM w a JOIN w b ON a.m = b.m",
        "SELECT id FROM s.orders WHERE n > (SELECT avg(n) FROM s.orders)",
    ],
)
def test_nothing_is_selected_from_twice(sql: str) -> None:
    """Spark computes a query once from which two others select, and has taken its columns for each other."""
    view = compile_view("v", sql, {"s.orders": ORDERS})
    assert view.tree is not None
    text = render(view.tree, view.outputs, Tables({o.index: f"rows{o.index}" for o in view.occurrences}, "units"))
    for name in re.findall(r"(_n\d+) AS \(", text):
        assert len(re.findall(rf"\b{name}\b", text)) == 2, name
