"""`python -m benchmarks.fan_out`: the memory of a coordinator's Python process for small changes of many view rows.

* 1,200 rows that come in one transaction and join with 1,200 others, by one key, to 1,440,000;
* one row that joins with 2,000,000.

Each over PostgreSQL and over SQLite; the highest memory before the change and after it, and the seconds until it is
shown.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import postgres_server
import psycopg
from rich.console import Console

from benchmarks.load.measure import machine
from benchmarks.load.shop import CoordinatorProcess, became, need
from strobe.config.load import load_project
from strobe.planning.topology import assemble
from strobe.warehouse import inspect, storage
from strobe.warehouse.layout import Layout

PROJECT = """
version: 1
project: fan_out
spark: {{spark.driver.memory: 1g}}
sources:
  shop: {source}
views:
  pairs: {{sql: "SELECT l.id, r.id AS r FROM shop.lefts l JOIN shop.rights r ON r.k = l.k", freshness: 0s}}
"""
TABLES = (
    "CREATE TABLE lefts (id integer PRIMARY KEY, k integer)",
    "CREATE TABLE rights (id integer PRIMARY KEY, k integer)",
    "CREATE INDEX rights_k ON rights (k)",
)
FULL = ("ALTER TABLE lefts REPLICA IDENTITY FULL", "ALTER TABLE rights REPLICA IDENTITY FULL")
PATIENCE = 900.0

Execute = Callable[..., None]
"""Statements, in one transaction."""


def series(table: str, rows: int) -> str:
    numbers = f"WITH RECURSIVE s(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM s WHERE i < {rows})"
    return f"INSERT INTO {table} {numbers} SELECT i, 1 FROM s"


def measure(execute: Execute, folder: Path, project: str, rows: int, others: int) -> tuple[float, float, float]:
    """MB at rest and at the end, and seconds. So many `rows` come, and each joins with so many `others`."""
    (folder / "strobe.yml").write_text(project)
    execute(series("rights", others))
    topology = assemble(load_project(folder))
    relations = [relation.name for relation in topology.relations("shop")]
    for statement in topology.sources["shop"].prepare_script(relations):
        if "PUBLICATION" in statement:
            execute(statement)
    topology.sources["shop"].prepare(relations)
    topology.sources.close()
    coordinator = CoordinatorProcess(folder, dict(os.environ))
    layout = Layout(folder / "warehouse")

    def commits() -> int:
        header = inspect.last_header(layout) if storage.exists(layout.log) else None
        return header.number if header else 0

    try:
        need(became(lambda: commits() > 0, coordinator, PATIENCE), "the view was not loaded")
        execute("INSERT INTO rights VALUES (100000000, 7)")
        execute("INSERT INTO lefts VALUES (100000000, 7)")
        need(became(lambda: shown(layout) >= 1, coordinator, PATIENCE), "a single row was not shown")
        time.sleep(5)
        before, started = coordinator.memory(), time.perf_counter()
        execute(series("lefts", rows))
        need(became(lambda: shown(layout) > rows * others, coordinator, PATIENCE), "the change was not shown")
        return before, coordinator.memory(), time.perf_counter() - started
    finally:
        coordinator.kill()


def shown(layout: Layout) -> int:
    """Rows that the log has brought to the view; while it is not folded these are the view's."""
    return sum(rows for _, rows in inspect.changes(inspect.open_log(layout), 1, 10**9).values())


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.fan_out", description=__doc__)
    parser.add_argument("--cases", default="1200x1200,1x2000000", help="rows that come x rows that each joins with")
    parser.add_argument("--sources", default="postgres,sqlite")
    given = parser.parse_args()
    console = Console(width=150, highlight=False)
    console.print(machine())
    console.print("Memory of the coordinator's Python process (VmHWM):\n")
    console.print(
        "| source | rows that come | view rows | MB before | MB after | ratio | s |\n|---|--:|--:|--:|--:|--:|--:|"
    )
    for source in given.sources.split(","):
        for case in given.cases.split(","):
            rows, others = map(int, case.split("x"))
            before, after, seconds = CASES[source](rows, others)
            figures = f"{before:.0f} | {after:.0f} | {after / before:.2f} | {seconds:.0f}"
            console.print(f"| {source} | {rows:,} | {rows * others:,} | {figures} |")


def over_postgres(rows: int, others: int) -> tuple[float, float, float]:
    with postgres_server.running() as server, tempfile.TemporaryDirectory(prefix="strobe-fan-") as name:
        database = server.database(";".join((*TABLES, *FULL)))
        os.environ["SHOP_DSN"] = server.dsn(database)

        def execute(*statements: str) -> None:
            with psycopg.connect(server.admin_dsn(database)) as connection:
                for statement in statements:
                    connection.execute(statement.encode())

        project = PROJECT.format(source='{type: postgres, dsn: "${SHOP_DSN}"}')
        return measure(execute, Path(name), project, rows, others)


def over_sqlite(rows: int, others: int) -> tuple[float, float, float]:
    with tempfile.TemporaryDirectory(prefix="strobe-fan-") as name:
        file = Path(name) / "shop.db"

        def execute(*statements: str) -> None:
            with closing(sqlite3.connect(file, timeout=60)) as connection, connection:
                for statement in statements:
                    connection.execute(statement)

        execute("PRAGMA journal_mode = wal")
        execute(*TABLES)
        return measure(execute, Path(name), PROJECT.format(source="{type: sqlite, path: shop.db}"), rows, others)


CASES = {"postgres": over_postgres, "sqlite": over_sqlite}


if __name__ == "__main__":
    main()
