"""The service over a PostgreSQL database whose tables change under it, on the test run's own Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from postgres_database import use_timing
from postgres_server import PostgresServer
from postgres_shop import PROJECT, PgShop
from pyspark.sql import SparkSession
from service_shop import still, wait_for

from strobe.client.audit import audit
from strobe.config.load import load_project
from strobe.coordinator.timing import Timing
from strobe.errors import LostGuarantee
from strobe.planning.topology import assemble
from strobe.retry import Policy
from strobe.sources.postgres.limits import Timing as StreamTiming
from strobe.warehouse.control import requests
from strobe.warehouse.layout import Layout

pytestmark = [pytest.mark.spark, pytest.mark.live]

LIMITED = PROJECT.replace('"${SALES_DSN}"', '"${SALES_DSN}", slot: {limit: 3MB, beyond: rebuild}').replace(
    "views:",
    "  billing: {type: sqlite, path: billing.db}\nviews:\n  paid: {sql: 'SELECT id, cents FROM billing.payments'}",
)


BY_MONTH = """
    CREATE TABLE customers (id int PRIMARY KEY, name text);
    CREATE TABLE orders (id int PRIMARY KEY, customer int, tags text[]) PARTITION BY RANGE (id);
    CREATE TABLE orders_january PARTITION OF orders FOR VALUES FROM (0) TO (100);
    CREATE TABLE orders_february PARTITION OF orders FOR VALUES FROM (100) TO (200);
    INSERT INTO customers VALUES (1, 'Ada');
    INSERT INTO orders VALUES (10, 1, NULL), (110, 1, NULL);
"""


IN_ONE = """
    CREATE TABLE customers (id int PRIMARY KEY, name text);
    CREATE TABLE orders (id int PRIMARY KEY, customer int, tags text[]) PARTITION BY RANGE (id);
    CREATE TABLE orders_all PARTITION OF orders FOR VALUES FROM (0) TO (100);
    INSERT INTO customers VALUES (1, 'Ada');
    INSERT INTO orders VALUES (10, 1, NULL);
"""


@pytest.fixture
def shop(
    postgres: PostgresServer, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PgShop]:
    made = PgShop(postgres, tmp_path, spark, monkeypatch, tables=IN_ONE)
    yield made
    postgres.drop(made.database)


def audited(shop: PgShop) -> None:
    """Views that stand still are not called wrong: nobody has the rows any more to compare them with."""
    verdict = audit(load_project(shop.folder), ())
    assert {name: view["verdict"] for name, view in verdict["views"].items()} == {
        "people": "valid",
        "placed": "unknown",
        "pairs": "unknown",
    }
    assert verdict["verdict"] == "unknown"
    assert "stands still" in verdict["views"]["placed"]["because"]
    assert audit(load_project(shop.folder), ["people"])["verdict"] == "valid"


def test_a_value_that_spark_cannot_hold(shop: PgShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The views of its table stop, and name the row by its key; the others go on. When it can be read they are loaded
    again by themselves; if the load meets another such row, they wait for that one."""
    shop.timing = Timing(probe=Policy((0.2,)))
    monkeypatch.setattr("strobe.coordinator.requests.REBUILD", Policy((0.2,)))
    with shop.running() as coordinator:
        shop.sql("INSERT INTO orders VALUES (11, 1, '{{a},{b}}')", "INSERT INTO customers VALUES (2, 'Bob')")
        wait_for(lambda: shop.rows("people") == [(1, "Ada"), (2, "Bob")])
        wait_for(lambda: "sales.orders (id=11)" in still(coordinator.status).get("placed", ""))
        shop.sql("INSERT INTO orders VALUES (13, 2, '{{e},{f}}')", "INSERT INTO orders VALUES (12, 2, '{d}')")
        shop.sql("UPDATE orders SET tags = '{c}' WHERE id = 11")
        wait_for(lambda: "sales.orders (id=13)" in still(coordinator.status).get("placed", ""))
        shop.sql("DELETE FROM orders WHERE id = 13")
        wait_for(lambda: shop.rows("placed") == [(10, None), (11, ["c"]), (12, ["d"])])
        wait_for(lambda: (12, 2, "Bob") in shop.rows("pairs"))


@pytest.mark.slow
def test_only_views_of_a_table_that_cannot_be_followed_stand_still(shop: PgShop) -> None:
    """TRUNCATE of a partitioned one: the others go on, also after a new start; no log is kept for views that stand
    still; a rebuild brings them back in."""
    with shop.running() as coordinator:
        shop.sql("INSERT INTO orders VALUES (11, 1, '{a,NULL}')")
        wait_for(lambda: (11, ["a", None]) in shop.rows("placed"))
        shop.sql("TRUNCATE orders", "INSERT INTO customers VALUES (2, 'Bob')")
        wait_for(lambda: shop.rows("people") == [(1, "Ada"), (2, "Bob")])
        wait_for(lambda: set(still(coordinator.status)) == {"placed", "pairs"})
        assert (
            "TRUNCATE" in still(coordinator.status)["placed"]
            and "strobe rebuild" in still(coordinator.status)["placed"]
        )
        assert shop.rows("placed") == [(10, None), (11, ["a", None])]
        assert shop.rows("pairs") == [(10, 1, "Ada"), (11, 1, "Ada")]
        audited(shop)
    with shop.running() as coordinator:
        wait_for(lambda: set(still(coordinator.status)) == {"placed", "pairs"})
        assert "TRUNCATE" not in still(coordinator.status)["placed"], "the server keeps no log for it"
        shop.sql("INSERT INTO orders VALUES (12, 2, '{}')")
        for view in ("placed", "pairs"):
            assert "commit" in requests.request(
                Layout(shop.warehouse).control, {"kind": "rebuild", "views": [view]}, timeout=300
            )
        wait_for(lambda: not still(coordinator.status))
        shop.sql("INSERT INTO orders VALUES (13, 1, '{b}')")
        wait_for(lambda: shop.rows("placed") == [(12, []), (13, ["b"])])
        wait_for(lambda: shop.rows("pairs") == [(12, 2, "Bob"), (13, 1, "Ada")])


def test_a_dropped_partition_stops_its_views_before_a_row_is_wrong(
    postgres: PostgresServer, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log does not say that its rows went. A partition that comes stops nothing; one that goes while nobody looks
    is found at the next start; a rebuild follows the table as it is."""
    shop = PgShop(postgres, tmp_path, spark, monkeypatch, tables=BY_MONTH)
    try:
        with shop.running() as coordinator:
            wait_for(lambda: shop.rows("placed") == [(10, None), (110, None)])
            shop.sql("CREATE TABLE orders_march PARTITION OF orders FOR VALUES FROM (200) TO (300)")
            shop.sql("INSERT INTO orders VALUES (210, 1, NULL)")
            wait_for(lambda: (210, None) in shop.rows("placed"))
            assert not still(coordinator.status)
        shop.sql("ALTER TABLE orders DETACH PARTITION orders_january", "INSERT INTO orders VALUES (211, 1, NULL)")
        before = shop.rows("placed")
        with shop.running() as coordinator:
            wait_for(lambda: set(still(coordinator.status)) == {"placed", "pairs"})
            assert "orders_january" in still(coordinator.status)["placed"]
            assert "strobe rebuild placed" in still(coordinator.status)["placed"]
            shop.sql("INSERT INTO customers VALUES (2, 'Bob')")
            wait_for(lambda: shop.rows("people") == [(1, "Ada"), (2, "Bob")])
            assert shop.rows("placed") == before
            for view in ("placed", "pairs"):
                wanted = {"kind": "rebuild", "views": [view]}
                assert "commit" in requests.request(Layout(shop.warehouse).control, wanted, timeout=300)
            wait_for(lambda: not still(coordinator.status))
            assert shop.rows("placed") == [(110, None), (210, None), (211, None)]
            shop.sql("DROP TABLE orders_february")
            wait_for(lambda: set(still(coordinator.status)) == {"placed", "pairs"})
            assert shop.rows("placed") == [(110, None), (210, None), (211, None)]
    finally:
        postgres.drop(shop.database)


def test_partitions_that_leave_are_followed(
    postgres: PostgresServer, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the service runs, and while it does not; so is a table that is emptied. No view stops."""
    shop = PgShop(postgres, tmp_path, spark, monkeypatch, tables=BY_MONTH)
    try:
        topology = assemble(load_project(shop.folder))
        script = topology.sources["sales"].ddl_script()
        with shop.running() as coordinator:
            for statement in script:
                shop.sql(statement)
            wait_for(lambda: shop.rows("placed") == [(10, None), (110, None)])
            shop.sql("CREATE TABLE orders_march PARTITION OF orders FOR VALUES FROM (200) TO (300)")
            shop.sql("INSERT INTO orders VALUES (210, 1, NULL)", "ALTER TABLE orders DETACH PARTITION orders_january")
            shop.sql("CREATE TABLE january_again PARTITION OF orders FOR VALUES FROM (0) TO (100)")
            shop.sql("INSERT INTO orders VALUES (11, 1, NULL)")
            wait_for(lambda: shop.rows("placed") == [(11, None), (110, None), (210, None)])
            wait_for(lambda: shop.rows("pairs") == [(11, 1, "Ada"), (110, 1, "Ada"), (210, 1, "Ada")])
            assert not still(coordinator.status)
        shop.sql("INSERT INTO orders VALUES (111, 1, NULL), (211, 1, NULL)", "DROP TABLE orders_february")
        shop.sql("UPDATE customers SET name = 'Bea'")
        with shop.running() as coordinator:
            wait_for(lambda: shop.rows("pairs") == [(11, 1, "Bea"), (210, 1, "Bea"), (211, 1, "Bea")])
            shop.sql("TRUNCATE customers", "INSERT INTO customers VALUES (1, 'Cem')")
            wait_for(lambda: shop.rows("pairs") == [(11, 1, "Cem"), (210, 1, "Cem"), (211, 1, "Cem")])
            assert shop.rows("people") == [(1, "Cem")] and not still(coordinator.status)
        assert audit(load_project(shop.folder), ())["verdict"] == "valid"
        topology.sources.close()
    finally:
        postgres.drop(shop.database)


@pytest.mark.slow
def test_a_dropped_table_stops_its_views_only(shop: PgShop) -> None:
    """Though the log does not tell; and when the service starts anew without the table, too."""
    with shop.running() as coordinator:
        shop.sql("DROP TABLE orders", "INSERT INTO customers VALUES (2, 'Bob')")
        wait_for(lambda: set(still(coordinator.status)) == {"placed", "pairs"})
        wait_for(lambda: shop.rows("people") == [(1, "Ada"), (2, "Bob")])
        assert shop.rows("placed") == [(10, None)]
    with shop.running() as coordinator:
        shop.sql("INSERT INTO customers VALUES (3, 'Cem')")
        wait_for(lambda: (3, "Cem") in shop.rows("people"))
        assert set(still(coordinator.status)) == {"placed", "pairs"}
        audited(shop)


@pytest.mark.slow
def test_when_no_view_is_left_the_run_ends(shop: PgShop) -> None:
    """With the reason, and what to do."""
    with pytest.raises(LostGuarantee, match="dropped"), shop.running() as coordinator:
        shop.sql("DROP TABLE orders, customers")
        wait_for(lambda: coordinator.pipeline is None)


def test_beyond_the_limit_of_its_log_the_views_are_rebuilt(
    postgres: PostgresServer, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody leaves a transaction open: the log is let go, views of other sources go on, and the source's own are
    rebuilt by themselves as soon as that is possible, though Strobe is started anew in between and strobe.yml was
    edited."""
    use_timing(monkeypatch, StreamTiming(retained=0.1))
    shop = PgShop(postgres, tmp_path, spark, monkeypatch, LIMITED)
    kept = (
        "SELECT count(*) FROM pg_replication_slots WHERE database = %s AND pg_current_wal_lsn() - restart_lsn > 3000000"
    )
    try:
        with psycopg.connect(postgres.dsn(shop.database), autocommit=False) as forgotten:
            with shop.running() as coordinator:
                wait_for(lambda: coordinator.status and coordinator.status.sources)
                forgotten.execute("SELECT pg_current_xact_id()")
                shop.sql(
                    "CREATE TABLE other (a text)",
                    "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 5000)",
                )
                wait_for(lambda: set(still(coordinator.status)) == {"people", "placed", "pairs"})
                assert "rebuilt by themselves" in still(coordinator.status)["pairs"]
                shop.write("billing", "INSERT INTO payments VALUES (77, 10, 7)")
                wait_for(lambda: (77, 7) in shop.rows("paid"))
                wait_for(lambda: postgres.execute("postgres", kept, shop.database) == [(0,)])
            (tmp_path / "strobe.yml").write_text(LIMITED.replace("c.id AS c, c.name FROM", "c.name FROM"))
            shop.sql("INSERT INTO orders VALUES (11, 1, '{meanwhile}')")
            with shop.running() as coordinator:
                wait_for(lambda: set(still(coordinator.status)) == {"people", "placed", "pairs"})
                shop.write("billing", "INSERT INTO payments VALUES (78, 10, 7)")
                wait_for(lambda: (78, 7) in shop.rows("paid"))
                assert shop.rows("placed") == [(10, None)]
                forgotten.rollback()
                wait_for(lambda: not still(coordinator.status), 180)
                shop.sql("UPDATE customers SET name = 'Bea'")
                wait_for(lambda: shop.rows("pairs") == [(10, 1, "Bea"), (11, 1, "Bea")])
                assert shop.rows("placed") == [(10, None), (11, ["meanwhile"])]
        assert any("applied at commit" in said and said.count(", ") == 2 for said in shop.notes.said), (
            "all in one commit"
        )
        assert audit(load_project(shop.folder), ())["verdict"] == "valid"
    finally:
        postgres.drop(shop.database)
