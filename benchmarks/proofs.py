"""`python -m benchmarks.proofs`: what it takes to prove the definitions that an append rests on, by kind of source.

Milliseconds of one question for the fingerprints of three tables (a Delta source has one), which is asked once for each
append, over tables of a few rows and of many: it must not grow with them. The servers are those of the tests. Times
depend on the machine; what matters is that they are small beside an append, and the same for both sizes.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median, quantiles

import pyarrow as pa
from deltalake import write_deltalake
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import mariadb_server
import mysql_server
import postgres_server
from mariadb_shop import Shop
from patience import eventually
from postgres_database import Database

from strobe.config.model import DeltaSource as DeltaConfig
from strobe.sources.base import Source
from strobe.sources.delta.source import DeltaSource
from strobe.sources.sqlite.source import SqliteSource

SIZES = (100, 100_000)
"""Rows of each table."""

TABLES = ("orders", "customers", "payments")
PROOFS = 200
COLUMNS = "id INT PRIMARY KEY, a INT, b VARCHAR(20)"
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"


@contextmanager
def postgres(rows: int) -> Iterator[Source]:
    with postgres_server.running() as server:
        made = [f"CREATE TABLE {t} ({COLUMNS}); ALTER TABLE {t} REPLICA IDENTITY FULL;" for t in TABLES]
        made += [f"INSERT INTO {t} SELECT i, i, 'text' FROM generate_series(1, {rows}) i;" for t in TABLES]
        db = Database(server)
        with closing(db.make(" ".join(made), *TABLES)) as source:
            yield source


@contextmanager
def mariadb(rows: int) -> Iterator[Source]:
    with mariadb_server.new_template() as template, mariadb_server.running(template) as server:
        yield from _shop(server, rows)


@contextmanager
def mysql(rows: int) -> Iterator[Source]:
    with mysql_server.new_template(mysql_server.newest()) as template:
        with closing(mysql_server.MysqlServer(template)) as server:
            yield from _shop(server, rows)


def _shop(server: mariadb_server.Server, rows: int) -> Iterator[Source]:
    shop = Shop(server)
    recursion = "cte_max_recursion_depth" if server.mysql else "max_recursive_iterations"
    shop.run(f"SET GLOBAL {recursion} = 1000000")
    for table in TABLES:
        shop.run(f"CREATE TABLE {table} ({COLUMNS})")
        shop.run(f"INSERT INTO {table} {NUMBERS.format(rows=rows)} SELECT i, i, 'text' FROM n")
    with closing(shop.source()) as source:
        yield source


@contextmanager
def sqlite(rows: int) -> Iterator[Source]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        with closing(sqlite3.connect(path)) as connection, connection:
            for table in TABLES:
                connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, a INTEGER, b TEXT)")
                connection.executemany(f"INSERT INTO {table} VALUES (?, ?, 'text')", ((i, i) for i in range(rows)))
        with closing(SqliteSource("shop", path)) as source:
            source.prepare(TABLES)
            yield source


@contextmanager
def delta(rows: int) -> Iterator[Source]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "orders"
        numbers = pa.array(range(rows), pa.int32())
        table = pa.table({"id": numbers, "a": numbers, "b": pa.array(["text"] * rows)})
        write_deltalake(str(path), table, configuration={"delta.enableChangeDataFeed": "true"})
        config = DeltaConfig(type="delta", path=str(path), relation="orders", key=["id"])
        with closing(DeltaSource("shop", config, None)) as source:
            yield source


KINDS: dict[str, Callable[[int], object]] = {
    "PostgreSQL": postgres,
    "MariaDB": mariadb,
    "MySQL": mysql,
    "SQLite": sqlite,
    "Delta": delta,
}


def proofs(source: Source) -> list[float]:
    """Milliseconds of each proof, after the first, which connects."""
    names = [r.name for r in source.schemas() if r.name in TABLES]
    took = []
    eventually(lambda: source.fingerprints(names).keys() == set(names))  # not while they have only just been made
    for _ in range(PROOFS):
        began = time.perf_counter()
        source.fingerprints(names)
        took.append(1000 * (time.perf_counter() - began))
    return took


def main() -> None:
    shown = Table("source", "rows of a table", "median ms", "95 % below", title=f"{PROOFS} proofs of definitions")
    for kind, made in KINDS.items():
        for rows in SIZES:
            with made(rows) as source:  # type: ignore[attr-defined]
                took = proofs(source)
            shown.add_row(kind, f"{rows:,}", f"{median(took):.2f}", f"{quantiles(took, n=20)[-1]:.2f}")
    Console().print(shown)


if __name__ == "__main__":
    main()
