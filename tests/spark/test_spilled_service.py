"""Large transactions through the whole service: files, Spark, Delta; every committed state is recomputed."""

from __future__ import annotations

import random
import sqlite3
import threading
from functools import partial
from pathlib import Path

import psycopg
import pytest
from postgres_server import PostgresServer
from pyspark.sql import SparkSession
from service_shop import Notes, Shop, wait_for

from strobe.config.load import load_project
from strobe.coordinator.coordinator import Coordinator
from strobe.data.scratch import SPILLED
from strobe.data.spilled import Spilled
from strobe.demo.history import Archive
from strobe.demo.oracle import check_every_state
from strobe.messages import Message, Transaction
from strobe.planning import source_set
from strobe.planning.topology import assemble
from strobe.sources.base import Spill

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow]

SALES = """
    CREATE TABLE customers (id int PRIMARY KEY, name text);
    CREATE TABLE orders (id int PRIMARY KEY, customer int, state text);
    CREATE INDEX ON orders (customer);
    ALTER TABLE customers REPLICA IDENTITY FULL;
    ALTER TABLE orders REPLICA IDENTITY FULL;
    INSERT INTO customers SELECT n, 'c' || n FROM generate_series(1, 9) n;
    INSERT INTO orders SELECT n, n % 9 + 1, 'open' FROM generate_series(1, 200) n;
    CREATE TABLE payments (id int PRIMARY KEY, order_id int, cents int);
    CREATE INDEX ON payments (order_id);
    INSERT INTO payments SELECT n, n % 200, n FROM generate_series(1, 150) n;
"""
DEPOT = """
    CREATE TABLE parcels (id INTEGER PRIMARY KEY, order_id INTEGER, grams INTEGER);
    CREATE INDEX parcels_order ON parcels (order_id);
    INSERT INTO parcels VALUES (1, 10, 250), (2, 11, 900);
"""
VIEWS = {
    "pairs": "SELECT o.state, c.name FROM sales.orders o JOIN sales.customers c ON c.id = o.customer",
    "sent": "SELECT o.id, o.state, p.grams FROM sales.orders o JOIN depot.parcels p ON p.order_id = o.id "
    "WHERE p.grams > 100",
    "paid": "SELECT o.id, o.state, p.id AS payment, p.cents FROM sales.orders o "
    "JOIN sales.payments p ON p.order_id = o.id",
}
WRITES = {
    "sales": [
        "UPDATE orders SET state = 's{n}' WHERE id % 3 = {n} % 3",
        "DELETE FROM orders WHERE id % 4 = {n} % 4",
        "INSERT INTO orders SELECT i, i % 9 + 1, 'n{n}' FROM generate_series({n} % 50, {n} % 50 + 130) i"
        " ON CONFLICT (id) DO UPDATE SET customer = orders.customer % 9 + 1",
        "UPDATE customers SET name = 'c{n}' WHERE id = {n} % 9 + 1",
        "UPDATE orders SET customer = {n} % 9 + 1 WHERE id = {n} % 200",
        "UPDATE payments SET cents = cents + {n} WHERE id % 2 = {n} % 2",
        "DELETE FROM payments WHERE id % 3 = {n} % 3",
        "INSERT INTO payments SELECT i, i % 200, {n} FROM generate_series(1, 120) i ON CONFLICT (id) DO NOTHING",
        "UPDATE payments SET id = id + 1000 WHERE id = {n} % 120",
        "DELETE FROM payments WHERE id > 1000",
    ],
    "depot": [
        "INSERT OR REPLACE INTO parcels WITH RECURSIVE s(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM s WHERE i < 90)"
        " SELECT i, (i + {n}) % 200, {n} + i FROM s",
        "DELETE FROM parcels WHERE id % 2 = {n} % 2",
        "UPDATE parcels SET grams = grams + 1 WHERE order_id = {n} % 200",
    ],
}
PROJECT = """
version: 1
project: large
sources:
  sales: {type: postgres, dsn: "${SALES_DSN}"}
  depot: {type: sqlite, path: depot.db}
views:
"""


class LargeShop(Shop):
    def __init__(
        self,
        server: PostgresServer,
        folder: Path,
        spark: SparkSession,
        monkeypatch: pytest.MonkeyPatch,
        views: dict[str, str],
        level: str,
    ) -> None:
        self.folder, self.spark, self.notes, self.server = folder, spark, Notes(), server
        self.database = server.database(SALES)
        monkeypatch.setenv("SALES_DSN", server.dsn(self.database))
        with sqlite3.connect(folder / "depot.db") as connection:
            connection.executescript(DEPOT)
        connection.close()
        listed = "".join(
            f'  {n}: {{sql: "{sql}", freshness: 50ms, consistency: {level}}}\n' for n, sql in views.items()
        )
        (folder / "strobe.yml").write_text(PROJECT + listed)
        self.warehouse = folder / "warehouse"
        self.large: list[str] = []
        topology = assemble(load_project(folder))
        for name, source in topology.sources.items():
            relations = [relation.name for relation in topology.relations(name)]
            if name == "sales":
                server.publish(self.database, source.prepare_script(relations))
            source.prepare(relations)
        topology.sources.close()

    def coordinator(self) -> Coordinator:
        return Coordinator(load_project(self.folder), self.notes, record=self._note, spark=self.spark)

    def _note(self, message: Message) -> None:
        if isinstance(message, Transaction):
            rows = (*message.changes.values(), *message.gone.values())
            self.large += [message.source] * any(isinstance(relation, Spilled) for relation in rows)

    def change(self, source: str, transactions: int) -> None:
        """Random transactions, most of them large."""
        rng = random.Random(source)
        for n in range(transactions):
            chosen = [s.format(n=n * 7 + i) for i, s in enumerate(rng.choices(WRITES[source], k=rng.randint(1, 2)))]
            if source == "sales":
                with psycopg.connect(self.server.admin_dsn(self.database)) as connection:
                    for statement in chosen:
                        connection.execute(statement.encode())
            else:
                self.write(source, *chosen)


@pytest.mark.parametrize("level", ["strong", "complete"])
def test_every_committed_state_is_one_of_the_sources(
    postgres: PostgresServer, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """With and without old row images, by sweeping and by key-deletes, in PostgreSQL and SQLite, under concurrent
    writers; and no file is left, neither of these transactions nor of an earlier run."""
    monkeypatch.setattr(source_set, "Spill", partial(Spill, rows=40))
    views = {name: sql for name, sql in VIEWS.items() if level == "strong" or name != "paid"}
    shop = LargeShop(postgres, tmp_path, spark, monkeypatch, views, level)
    leftover = shop.warehouse / "staging" / SPILLED / "leftover"
    databases = {"sales": postgres.admin_dsn(shop.database)}
    with Archive({"depot": tmp_path / "depot.db"}, postgres=databases) as archive:
        shop.coordinator().run(until_idle=True)
        leftover.mkdir(parents=True)
        with shop.running() as coordinator:
            wait_for(lambda: not leftover.exists())
            writers = [threading.Thread(target=shop.change, args=(name, 5)) for name in WRITES]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            wait_for(lambda: coordinator.pipeline is not None and coordinator.pipeline.idle(), 300)
            wait_for(lambda: list((shop.warehouse / "staging" / SPILLED).glob("*")) == [])
    assert set(shop.large) == set(WRITES)
    verdicts = check_every_state(shop.warehouse, archive, views)
    assert {name: verdict.wrong for name, verdict in verdicts.items()} == dict.fromkeys(views, 0)
    assert all(verdict.states > 1 for verdict in verdicts.values())
    postgres.drop(shop.database)
