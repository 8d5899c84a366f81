"""Small changes that join to many rows, through the whole service: neither a manager nor an answer holds more than the
limit in memory, and every committed state is recomputed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_server import PostgresServer
from postgres_shop import PgShop
from pyspark.sql import SparkSession
from service_shop import wait_for

from strobe.algebra.bag import Bag
from strobe.algebra.room import Room
from strobe.config.load import load_project
from strobe.coordinator.coordinator import Coordinator
from strobe.demo.history import Archive
from strobe.demo.oracle import check_every_state
from strobe.pipeline.backpressure import Limits
from strobe.warehouse import lookups

pytestmark = [pytest.mark.spark, pytest.mark.live]

MOST = 50
TABLES = """
    CREATE TABLE lefts (id int PRIMARY KEY, k int, price numeric(10,2));
    CREATE TABLE rights (id int PRIMARY KEY, k int);
    CREATE INDEX ON lefts (k);
    CREATE INDEX ON rights (k);
    ALTER TABLE lefts REPLICA IDENTITY FULL;
    ALTER TABLE rights REPLICA IDENTITY FULL;
    INSERT INTO rights SELECT n, 1 FROM generate_series(1, 12) n;
    INSERT INTO rights SELECT n, 2 FROM generate_series(101, 300) n;
    INSERT INTO rights SELECT n, 3 FROM generate_series(301, 303) n;
    INSERT INTO rights VALUES (501, 5);
"""
VIEWS = {
    "pairs": ("strong", "SELECT l.id, r.id AS r FROM sales.lefts l JOIN sales.rights r ON r.k = l.k"),
    "triples": (
        "complete",
        "SELECT l.id, r.id AS r, p.id AS p FROM sales.lefts l JOIN sales.rights r ON r.k = l.k "
        "JOIN billing.payments p ON p.order_id = r.k",
    ),
    "copied": (
        "strong, cache: [billing.payments]",
        "SELECT l.id, p.id AS p FROM sales.lefts l JOIN billing.payments p ON p.order_id = l.k",
    ),
}
PROJECT = """
version: 1
project: shop
sources:
  sales: {type: postgres, dsn: "${SALES_DSN}"}
  billing: {type: sqlite, path: billing.db}
views:
""" + "".join(f'  {n}: {{sql: "{sql}", consistency: {at}, freshness: 0s}}\n' for n, (at, sql) in VIEWS.items())
COUNTED = (
    "WITH RECURSIVE s(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM s WHERE i < {n}) SELECT {first} + i, {k}, i FROM s"
)
PAYMENTS = [(1, 2000, 5), (2, 2100, 1), (3, 2200, 40), (5, 2300, 120)]
"""Payments of a key: the first id, and how many."""

CHANGES: list[tuple[str, str]] = [
    ("twelve rows that find twelve each", "INSERT INTO lefts SELECT n, 1, n FROM generate_series(1, 12) n"),
    ("one row that finds 200", "INSERT INTO lefts VALUES (20, 2, 1.50)"),
    ("one row that finds 3, which find 40 each", "INSERT INTO lefts VALUES (30, 3, 2)"),
    ("one row that finds 1, which finds 120 in SQLite", "INSERT INTO lefts VALUES (50, 5, 2)"),
    ("rows that leave 12 and find 200 each", "UPDATE lefts SET k = 2 WHERE id IN (1, 2)"),
    (
        "both sides at once",
        "INSERT INTO lefts SELECT n, 4, n FROM generate_series(401, 410) n;"
        "INSERT INTO rights SELECT n, 4 FROM generate_series(401, 410) n",
    ),
    ("few rows of few", "INSERT INTO lefts VALUES (60, 9, 2)"),
    ("all go", "DELETE FROM lefts"),
]


class FanningShop(PgShop):
    def coordinator(self) -> Coordinator:
        return Coordinator(load_project(self.folder), self.notes, limits=Limits(relation=MOST), spark=self.spark)

    def change(self, statements: str) -> None:
        """One transaction."""
        with psycopg.connect(self.server.admin_dsn(self.database)) as connection:
            connection.execute(statements.encode())


class Held:
    """The largest bag that a manager had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.lifted = 0
        made, within, room = Bag.__init__, Bag.within, Room.__init__

        def count(bag: Bag, attributes: Any, rows: Mapping[Any, int] | None = None, room: Room | None = None) -> None:
            made(bag, attributes, rows, room)
            if room is not None:
                self.most = max(self.most, len(bag))

        def given(bag: Bag, room: Room) -> Bag:
            self.most = max(self.most, len(bag))
            return within(bag, room)

        def lifting(own: Room, rows: int, lift: Any) -> None:
            room(own, rows, lambda bag: (self._lifts(), lift(bag))[1])

        monkeypatch.setattr(Bag, "__init__", count)
        monkeypatch.setattr(Bag, "within", given)
        monkeypatch.setattr(Room, "__init__", lifting)

    def _lifts(self) -> None:
        self.lifted += 1


def test_a_change_that_grows_by_joining_moves_to_spark(
    postgres: PostgresServer, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what one look-up finds, and by what several come to together; rows that come, change and go, at strong and
    complete, with answers of PostgreSQL, SQLite and a copy at the warehouse."""
    monkeypatch.setattr(lookups, "MOST_ROWS", MOST)
    shop = FanningShop(postgres, tmp_path, spark, monkeypatch, PROJECT, TABLES)
    shop.write("billing", *(COUNTED.format(n=n, first=f, k=k) for k, f, n in PAYMENTS))
    held = Held(monkeypatch)
    databases = {"sales": postgres.admin_dsn(shop.database)}
    with Archive({"billing": tmp_path / "billing.db"}, postgres=databases) as archive, shop.running() as coordinator:
        for what, statements in CHANGES:
            shop.change(statements)
            if what == "both sides at once":
                shop.write("billing", COUNTED.format(n=9, first=2500, k=4))
            pipeline = coordinator.pipeline
            wait_for(lambda: pipeline.idle())  # noqa: B023  # waited for in this turn
        shop.write("billing", "DELETE FROM payments WHERE order_id = 3 AND id % 2 = 0")
        wait_for(lambda: pipeline.idle())
        through_spark = {name: asked.through_spark for name, asked in pipeline.answerer.asked.items()}
    verdicts = check_every_state(shop.warehouse, archive, {name: sql for name, (_, sql) in VIEWS.items()})
    assert {name: verdict.wrong for name, verdict in verdicts.items()} == dict.fromkeys(VIEWS, 0)
    assert all(verdict.states >= len(CHANGES) - 1 for verdict in verdicts.values())
    assert held.lifted > 0 and all(through_spark.values()), (held.lifted, through_spark)
    assert 12 <= held.most <= MOST
    postgres.drop(shop.database)
