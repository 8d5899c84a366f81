"""The service over Delta tables, one of which becomes something else, on the test run's own Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from service_shop import Shop, still, wait_for

from strobe.warehouse.control import requests
from strobe.warehouse.layout import Layout

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow]

PROJECT = """
version: 1
project: shop
sources:
  orders: {type: delta, path: orders}
  people: {type: delta, path: people}
views:
  placed: {sql: "SELECT id, tags FROM orders.orders", freshness: 50ms}
  names: {sql: "SELECT id, name FROM people.people", freshness: 50ms}
  pairs: {sql: "SELECT o.id, p.name FROM orders.orders o JOIN people.people p ON p.id = o.person", freshness: 50ms}
"""
ORDERS = pa.schema([("id", pa.int64()), ("person", pa.int64()), ("tags", pa.list_(pa.string()))])
PEOPLE = pa.schema([("id", pa.int64()), ("name", pa.string())])
FEED = {"delta.enableChangeDataFeed": "true"}


class DeltaShop(Shop):
    def __init__(self, folder: Path, spark: SparkSession) -> None:
        for name, schema in (("orders", ORDERS), ("people", PEOPLE)):
            DeltaTable.create(str(folder / name), schema, configuration=FEED)
        super().__init__(folder, spark, PROJECT)

    def append(self, name: str, *rows: tuple[Any, ...]) -> None:
        schema = {"orders": ORDERS, "people": PEOPLE}[name]
        table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=schema)
        write_deltalake(str(self.folder / name), table, mode="append")


def test_only_views_of_a_table_that_cannot_be_followed_stand_still(tmp_path: Path, spark: SparkSession) -> None:
    """A used column gets another type: the other table's views go on, also in a new start; a rebuild brings it back."""
    shop = DeltaShop(tmp_path, spark)
    shop.append("people", (1, "Ada"))
    shop.append("orders", (10, 1, ["a", None]))
    with shop.running() as coordinator:
        shop.append("orders", (11, 1, []))
        wait_for(lambda: shop.rows("placed") == [(10, ["a", None]), (11, [])])
        retyped = pa.table({"id": [12], "person": [1], "tags": ["text"]})
        write_deltalake(str(tmp_path / "orders"), retyped, mode="overwrite", schema_mode="overwrite")
        shop.append("people", (2, "Bob"))
        wait_for(lambda: set(still(coordinator.status)) == {"placed", "pairs"})
        wait_for(lambda: shop.rows("names") == [(1, "Ada"), (2, "Bob")])
        assert shop.rows("placed") == [(10, ["a", None]), (11, [])]
        assert shop.rows("pairs") == [(10, "Ada"), (11, "Ada")]
        assert "column tags" in still(coordinator.status)["placed"]
    with shop.running() as coordinator:
        shop.append("people", (3, "Cem"))
        wait_for(lambda: (3, "Cem") in shop.rows("names"))
        assert "placed" in still(coordinator.status)
        for view in ("placed", "pairs"):
            assert "commit" in requests.request(
                Layout(shop.warehouse).control, {"kind": "rebuild", "views": [view]}, timeout=300
            )
        wait_for(lambda: not still(coordinator.status))
        wait_for(lambda: shop.rows("placed") == [(12, "text")] and shop.rows("pairs") == [(12, "Ada")])
