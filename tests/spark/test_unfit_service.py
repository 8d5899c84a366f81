"""A value of MariaDB, MySQL or SQLite that Spark cannot hold, from the stop to the view that is loaded again.

PostgreSQL's are in test_postgres_service.py.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from mariadb_shop import Shop as Database
from memory_live import HEAD
from pyspark.sql import SparkSession
from service_shop import Shop, still, wait_for
from shopfloor import DATABASES

from strobe.coordinator.timing import Timing
from strobe.retry import Policy

pytestmark = [pytest.mark.spark, pytest.mark.live]

VIEWS = """\
  people: {sql: "SELECT id, name FROM sales.customers", freshness: 50ms}
  placed: {sql: "SELECT id, day FROM sales.orders", freshness: 50ms}
  days: {sql: "SELECT day FROM sales.orders", freshness: 50ms}
"""
TABLES = [
    "CREATE TABLE customers (id INT PRIMARY KEY, name VARCHAR(20))",
    "CREATE TABLE orders (id INT PRIMARY KEY, day DATE)",
    "INSERT INTO orders VALUES (1, '2024-02-29')",
]


class MariadbShop(Shop):
    def __init__(self, database: Database, folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database = database
        database.run(*TABLES)
        monkeypatch.setenv("SALES_DSN", database.dsn)
        head = HEAD.replace("{type: sqlite, path: sales.db}", '{type: mariadb, dsn: "${SALES_DSN}"}')
        super().__init__(folder, spark, head + VIEWS)

    def write(self, source: str, *statements: str) -> None:
        self.database.run("SET SESSION sql_mode = ''", *statements)


@pytest.mark.parametrize("kind", ["mariadb", "mysql", "sqlite"])
def test_a_value_that_spark_cannot_hold(
    request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The views of its table stop, and name the row by its key if they use it; the others go on. When it can be read
    they are loaded again by themselves, also the view that does not use the key; if the load meets another such row,
    they wait for that one."""
    if kind == "sqlite":
        shop = Shop(tmp_path, spark, HEAD + VIEWS, {**DATABASES, "sales": ";".join(TABLES)})
    else:
        shop = MariadbShop(Database(request.getfixturevalue(kind)), tmp_path, spark, monkeypatch)
    shop.timing = Timing(probe=Policy((0.2,)), verify=Policy((0.5,)))
    monkeypatch.setattr("strobe.coordinator.requests.REBUILD", Policy((0.2,)))
    with shop.running():
        shop.write("sales", "INSERT INTO orders VALUES (2, '0000-00-00')")
        wait_for(lambda: "sales.orders (id=2)" in still(shop.notes.last_status).get("placed", ""))
        shop.write("sales", "INSERT INTO customers VALUES (1, 'Ada')")
        wait_for(lambda: shop.rows("people") == [(1, "Ada")])
        assert shop.rows("placed") == [(1, date(2024, 2, 29))]
        shop.write("sales", "INSERT INTO orders VALUES (3, '0000-00-00')")
        shop.write("sales", "UPDATE orders SET day = '2024-03-01' WHERE id = 2")
        wait_for(lambda: "sales.orders (id=3)" in still(shop.notes.last_status).get("placed", ""))
        shop.write("sales", "DELETE FROM orders WHERE id = 3")
        wait_for(lambda: shop.rows("placed") == [(1, date(2024, 2, 29)), (2, date(2024, 3, 1))])
        wait_for(lambda: shop.rows("days") == [(date(2024, 2, 29),), (date(2024, 3, 1),)])
        wait_for(lambda: not still(shop.notes.last_status))
