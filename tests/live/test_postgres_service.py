"""The service over a PostgreSQL database whose tables change under it, on the test run's own Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer
from pyspark.sql import SparkSession
from test_service import Shop, wait_for

from strobe import config
from strobe.errors import LostGuarantee
from strobe.runtime import mailbox
from strobe.runtime.assembly import assemble
from strobe.runtime.audit import audit
from strobe.sources import postgres_definitions

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow]

TABLES = """
    CREATE TABLE customers (id int PRIMARY KEY, name text);
    CREATE TABLE orders (id int PRIMARY KEY, customer int, tags text[]);
    INSERT INTO customers VALUES (1, 'Ada');
    INSERT INTO orders VALUES (10, 1, NULL);
"""
PROJECT = """
version: 1
project: shop
sources:
  sales: {type: postgres, dsn: "${SALES_DSN}"}
views:
  people: {sql: "SELECT id, name FROM sales.customers", freshness: 50ms}
  placed: {sql: "SELECT id, tags FROM sales.orders", freshness: 50ms}
  pairs: {sql: "SELECT o.id, c.id AS c, c.name FROM sales.orders o JOIN sales.customers c ON c.id = o.customer",
          freshness: 50ms}
"""


class PgShop(Shop):
    def __init__(
        self, server: PostgresServer, folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.server, self.database = server, server.database(TABLES)
        monkeypatch.setenv("SALES_DSN", server.dsn(self.database))
        super().__init__(folder, spark, PROJECT)

    def prepare(self) -> None:
        assembly = assemble(config.load(self.folder))
        for name, source in assembly.sources.items():
            relations = [relation.name for relation in assembly.relations(name)]
            self.server.publish(self.database, source.prepare_script(relations))
            source.prepare(relations)
        assembly.close()

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.server.execute(self.database, statement)


@pytest.fixture
def shop(
    postgres: PostgresServer, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PgShop]:
    monkeypatch.setattr(postgres_definitions, "LOOK_SECONDS", 0.2)
    made = PgShop(postgres, tmp_path, spark, monkeypatch)
    yield made
    postgres.drop(made.database)


def still(document: dict[str, Any]) -> dict[str, str]:
    return {name: view["problem"] for name, view in document.get("views", {}).items() if view.get("problem")}


def audited(shop: PgShop) -> None:
    """Views that stand still are not called wrong: nobody has the rows any more to compare them with."""
    verdict = audit(config.load(shop.folder), ())
    assert {name: view["verdict"] for name, view in verdict["views"].items()} == {
        "people": "valid",
        "placed": "unknown",
        "pairs": "unknown",
    }
    assert verdict["verdict"] == "unknown"
    assert "stands still" in verdict["views"]["placed"]["because"]
    assert audit(config.load(shop.folder), ["people"])["verdict"] == "valid"


def test_only_views_of_a_table_that_cannot_be_followed_stand_still(shop: PgShop) -> None:
    """TRUNCATE: the others go on, also after a new start; no log is kept for views that stand still; a rebuild
    brings them back in."""
    with shop.running() as service:
        shop.sql("INSERT INTO orders VALUES (11, 1, '{a,NULL}')")
        wait_for(lambda: (11, ["a", None]) in shop.rows("placed"))
        shop.sql("TRUNCATE orders", "INSERT INTO customers VALUES (2, 'Bob')")
        wait_for(lambda: shop.rows("people") == [(1, "Ada"), (2, "Bob")])
        wait_for(lambda: set(still(service.document)) == {"placed", "pairs"})
        assert "TRUNCATE" in still(service.document)["placed"] and "strobe rebuild" in still(service.document)["placed"]
        assert shop.rows("placed") == [(10, None), (11, ["a", None])]
        assert shop.rows("pairs") == [(10, 1, "Ada"), (11, 1, "Ada")]
        audited(shop)
    with shop.running() as service:
        wait_for(lambda: set(still(service.document)) == {"placed", "pairs"})
        assert "TRUNCATE" not in still(service.document)["placed"], "the server keeps no log for it"
        shop.sql("INSERT INTO orders VALUES (12, 2, '{}')")
        for view in ("placed", "pairs"):
            assert "commit" in mailbox.request(shop.warehouse, {"kind": "rebuild", "view": view}, timeout=300)
        wait_for(lambda: not still(service.document))
        shop.sql("INSERT INTO orders VALUES (13, 1, '{b}')")
        wait_for(lambda: shop.rows("placed") == [(12, []), (13, ["b"])])
        wait_for(lambda: shop.rows("pairs") == [(12, 2, "Bob"), (13, 1, "Ada")])


def test_a_dropped_table_stops_its_views_only(shop: PgShop) -> None:
    """Though the log does not tell; and when the service starts anew without the table, too."""
    with shop.running() as service:
        shop.sql("DROP TABLE orders", "INSERT INTO customers VALUES (2, 'Bob')")
        wait_for(lambda: set(still(service.document)) == {"placed", "pairs"})
        wait_for(lambda: shop.rows("people") == [(1, "Ada"), (2, "Bob")])
        assert shop.rows("placed") == [(10, None)]
    with shop.running() as service:
        shop.sql("INSERT INTO customers VALUES (3, 'Cem')")
        wait_for(lambda: (3, "Cem") in shop.rows("people"))
        assert set(still(service.document)) == {"placed", "pairs"}
        audited(shop)


def test_when_no_view_is_left_the_run_ends(shop: PgShop) -> None:
    """With the reason, and what to do."""
    with pytest.raises(LostGuarantee, match="TRUNCATE"), shop.running() as service:
        shop.sql("TRUNCATE orders, customers")
        wait_for(lambda: service.coordinator is None)
