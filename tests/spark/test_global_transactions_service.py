"""Views over two servers that are loaded and rebuilt while global transactions are written: no commit has a part of one
without the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from mariadb_server import Server
from patience import Writing, eventually
from postgres_server import PostgresServer
from pyspark.sql import SparkSession
from service_shop import Shop, wait_for

from strobe.auditor.replay import states
from strobe.config.load import load_project
from strobe.coordinator.timing import Timing
from strobe.errors import NotNow
from strobe.pipeline.background import begin
from strobe.planning.topology import assemble
from strobe.warehouse.control import requests
from strobe.warehouse.layout import Layout

pytestmark = [pytest.mark.spark, pytest.mark.live]

WRITERS = (1, 2)
LATE = 9
"""The account whose global transactions are written one part at a time, when a test says so."""
TABLE = "CREATE TABLE totals (id int PRIMARY KEY, n int)"
ROWS = "INSERT INTO totals VALUES (1, 0), (2, 0), (9, 0)"
PROJECT = """
version: 1
project: shop
sources:
  sales: {type: postgres, dsn: "${SALES_DSN}", global_transactions: strobe}
  billing: {type: mariadb, dsn: "${BILLING_DSN}", global_transactions: marks.name}
views:
  strong: {sql: "SELECT s.id, s.n AS s, b.n AS b FROM sales.totals s JOIN billing.totals b ON b.id = s.id",
           freshness: 300ms}
  complete: {sql: "SELECT b.n AS b, s.n AS s, s.id FROM billing.totals b JOIN sales.totals s ON b.id = s.id",
             freshness: 300ms, consistency: complete}
"""
"""Each global transaction sets the number of one account to the same at both."""


class Accounts(Shop):
    def __init__(
        self,
        postgres: PostgresServer,
        mariadb: Server,
        folder: Path,
        spark: SparkSession,
        monkeypatch: pytest.MonkeyPatch,
        timing: Timing,
    ) -> None:
        self.postgres, self.mariadb, self.timing = postgres, mariadb, timing
        self.sales = postgres.database(f"{TABLE}; ALTER TABLE totals REPLICA IDENTITY FULL; {ROWS}")
        self.billing = f"billing_{self.sales}"
        monkeypatch.setenv("SALES_DSN", postgres.dsn(self.sales))
        monkeypatch.setenv("BILLING_DSN", mariadb.database(self.billing))
        marks = "CREATE TABLE marks (id int AUTO_INCREMENT PRIMARY KEY, name varchar(99))"
        mariadb.run(TABLE, ROWS, marks, database=self.billing)
        super().__init__(folder, spark, PROJECT)

    def prepare(self) -> None:
        with assemble(load_project(self.folder)).sources as sources:
            self.postgres.publish(self.sales, sources["sales"].prepare_script(["totals"]))
            sources["sales"].prepare(["totals"])

    def at_sales(self, account: int, n: int) -> None:
        with psycopg.connect(self.postgres.admin_dsn(self.sales)) as connection:
            connection.execute("UPDATE totals SET n = %s WHERE id = %s", (n, account))
            text = f"g{account}-{n} sales,billing"
            connection.execute("SELECT pg_logical_emit_message(true, 'strobe', %s)", (text,))

    def at_billing(self, account: int, n: int, *, named_only: bool = False) -> None:
        changes = [] if named_only else [f"UPDATE totals SET n = {n} WHERE id = {account}"]
        mark = f"INSERT INTO marks (name) VALUES ('g{account}-{n} sales,billing')"
        self.mariadb.run("BEGIN", *changes, mark, "COMMIT", database=self.billing)

    @contextmanager
    def written(self) -> Iterator[list[int]]:  # type: ignore[override]  # other writers than of SQLite
        """Meanwhile, by all accounts but one; how many global transactions each has written."""
        over, numbers = Writing(1e9), [0 for _ in WRITERS]

        def write(place: int, account: int) -> None:
            while over.goes_on:
                n = numbers[place] + 1
                self.at_sales(account, n)
                over.rest(0.05)
                self.at_billing(account, n)
                numbers[place] = n
                over.rest(0.1)

        threads = [threading.Thread(target=write, args=each) for each in enumerate(WRITERS)]
        for thread in threads:
            thread.start()
        try:
            yield numbers
        finally:
            over.stop()
            for thread in threads:
                thread.join()

    def rebuild(self, view: str) -> dict[str, Any]:
        return requests.request(Layout(self.warehouse).control, {"kind": "rebuild", "views": [view]}, timeout=300)

    def torn(self) -> list[tuple[int, str]]:
        """Commits with rows that show one part of a global transaction and not the other, read without Spark."""
        found = []
        for state in states(self.warehouse):
            for rows in state.views.values():
                shown = [dict(zip(rows.attributes, row, strict=True)) for row, _ in rows.items()]
                found += [(state.commit, str(row)) for row in shown if row["s"] != row["b"]]
        return found


@pytest.fixture
def accounts(
    postgres: PostgresServer, mariadb: Server, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Accounts]:
    made = Accounts(postgres, mariadb, tmp_path, spark, monkeypatch, Timing(parts=30.0))
    yield made
    postgres.drop(made.sales)


def test_no_commit_has_half_a_global_transaction(accounts: Accounts) -> None:
    """Neither the first one, though one was half done when the sources were read, nor that with which a view is rebuilt
    meanwhile."""
    said = accounts.notes.said
    accounts.at_sales(LATE, 1)

    def other_half() -> None:
        eventually(lambda: any("catching up" in each for each in said))
        accounts.at_billing(LATE, 1)

    late = threading.Thread(target=other_half)
    with ExitStack() as writing:
        numbers = writing.enter_context(accounts.written())
        wait_for(lambda: min(numbers) > 3)
        late.start()
        with accounts.running() as coordinator:
            late.join()
            loaded = max(numbers)
            wait_for(lambda: coordinator.last_number() > 3 and min(numbers) > loaded)
            accounts.at_sales(LATE, 2)
            rebuilt = begin(partial(accounts.rebuild, "complete"), "rebuild")
            wait_for(partial(said.count, "complete: catching up"))
            accounts.at_billing(LATE, 2)
            assert "commit" in rebuilt.result()
            writing.close()
            wait_for(lambda: accounts.rows("strong") == [(1, *[numbers[0]] * 2), (2, *[numbers[1]] * 2), (LATE, 2, 2)])
    assert accounts.torn() == []


def test_a_part_that_never_comes_stops_the_load(accounts: Accounts) -> None:
    """With a message that names it; told that it will not come, views are loaded."""
    accounts.timing = Timing(parts=0.2)
    since = time.time()
    wait_for(lambda: time.time() > since + 2)  # then the log of the other one goes back for long enough
    accounts.at_sales(LATE, 1)
    with pytest.raises(NotNow, match=r"g9-1.*part at billing is missing") as error:
        accounts.coordinator().run(until_idle=True)
    assert "at billing that has this name" in error.value.fix
    accounts.at_billing(LATE, 1, named_only=True)
    accounts.coordinator().run(until_idle=True)
    assert accounts.rows("strong") == [(1, 0, 0), (2, 0, 0), (9, 1, 0)]
