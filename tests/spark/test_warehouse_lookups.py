"""Look-ups that the warehouse answers: copies of relations, and views that are asked for their own rows."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strobe.algebra.bag import Bag, Row
from strobe.algebra.copies import copy_of
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.view import Occurrence, Output, View
from strobe.data.arrow import to_arrow
from strobe.messages import Commit, CommitHeader, Lookup
from strobe.spark.relation import SparkRelation
from strobe.warehouse.layout import Layout, Sizes
from strobe.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.spark

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
TYPES = {"id": "bigint", "n": "bigint", "who": "string", "day": "date"}
PEOPLE = RelationSchema("shop", "people", tuple(Column(c, t) for c, t in TYPES.items()), ("id",))
COLUMNS = tuple(TYPES)
DAY = date(2024, 2, 29)
STORED: list[Row] = [(1, 1, "ada", DAY), (2, None, "ada", None), (3, 1, None, DAY), (4, None, None, None)]
LOGGED: list[Row] = [(5, None, "bob", DAY), (6, 1, None, None), (7, None, None, DAY)]


def test_null_finds_null(spark: SparkSession, tmp_path: Path) -> None:
    """In the table and in the log since; of keys in memory and in Spark; in a copy, and in a view of its own rows."""
    occurrence = Occurrence(0, "p", PEOPLE, COLUMNS)
    outputs = tuple(Output(c, occurrence.attribute(c)) for c in COLUMNS)
    name = copy_of("shop", "people")
    view = View(name, "SELECT * FROM shop.people", (occurrence,), (), None, outputs, ("id",))
    layout = Layout(tmp_path / "w", sizes=Sizes())
    warehouse = Warehouse.create_or_open(spark, layout, timedelta(days=7), "tests")
    warehouse.fence()
    table = spark.createDataFrame(to_arrow(COLUMNS, list(TYPES.values()), STORED))
    positions = {name: {"shop": "p"}}
    warehouse.cut_over([warehouse.load(view, table)], Commit(CommitHeader(1, NOW, positions)))
    change = Bag.of(view.attributes, LOGGED).add(Bag.of(view.attributes, STORED[:1], -1))
    warehouse.append([Commit(CommitHeader(2, NOW, positions), {name: change})])
    rows = [*STORED[1:], *LOGGED]
    types = {occurrence.attribute(c): t for c, t in TYPES.items()}
    for on, keys in {
        ("n",): [(None,)],
        ("who",): [(None,), ("ada",)],
        ("day",): [(None,), (DAY,)],
        ("n", "who"): [(None, None), (None, "ada"), (1, None)],
        ("day", "n"): [(None, None)],
    }.items():
        wanted = {row for row in rows if tuple(row[COLUMNS.index(c)] for c in on) in keys}
        asked = Bag.of([occurrence.attribute(c) for c in on], keys)
        for given in (asked, SparkRelation.of_bag(spark, asked, types)):
            lookup = Lookup(0, "people", COLUMNS, on, given, null_safe=True)
            found, position = warehouse.copy("shop", lookup, TYPES)
            assert position == "p"
            assert {(row, 1) for row in wanted} <= set(found.collect().items()) <= {(row, 1) for row in rows}
        unsafe, _ = warehouse.copy("shop", Lookup(0, "people", COLUMNS, on, asked), TYPES)
        assert unsafe == Bag.of(COLUMNS, [row for row in wanted if all(row[COLUMNS.index(c)] for c in on)])
        found, _ = warehouse.shown(view, Lookup(0, "people", COLUMNS, on, asked, null_safe=True))
        assert {(row, 1) for row in wanted} <= set(found.collect().items()) <= {(row, 1) for row in rows}
