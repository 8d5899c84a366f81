"""Half an hour of everything at once: three databases, 300 changes a second, and random kills of whatever runs.

STROBE_SOAK_SECONDS makes it shorter; STROBE_SOAK_PLOTS names a folder for the plots of freshness and memory.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from benchmarks.costs.chart import Axis, Chart, Series
from mariadb_server import Server
from postgres_server import PostgresServer

from strobe.client.wait import hear

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow]

SECONDS = float(os.environ.get("STROBE_SOAK_SECONDS", "1800"))
STROBE = [sys.executable, "-m", "strobe"]
IDS = 300
"""How many different keys there are: changes meet each other."""
ORDERS = (
    "CREATE TABLE orders (id int PRIMARY KEY, customer int, state text); "
    "CREATE INDEX ON orders (customer); ALTER TABLE orders REPLICA IDENTITY FULL"
)
PAYMENTS = "CREATE TABLE payments (id INT PRIMARY KEY, order_id INT, cents INT, KEY (order_id)) ENGINE=InnoDB"
CUSTOMERS = "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)"
VIEWS = {
    "paid": "SELECT o.id, o.state, c.name, p.id AS payment, p.cents FROM shop.orders o "
    "JOIN crm.customers c ON c.id = o.customer JOIN billing.payments p ON p.order_id = o.id",
    "named": "SELECT o.id, c.name FROM shop.orders o JOIN crm.customers c ON c.id = o.customer WHERE o.state <> 's0'",
    "money": "SELECT p.order_id, p.cents FROM billing.payments p WHERE p.cents > 500",
}
STATEMENTS = {
    "orders": ["DELETE FROM orders WHERE id = {id}", "INSERT INTO orders VALUES ({id}, {other}, 's{n}')"],
    "payments": ["DELETE FROM payments WHERE id = {id}", "INSERT INTO payments VALUES ({id}, {other}, {n})"],
    "customers": ["DELETE FROM customers WHERE id = {id}", "INSERT INTO customers VALUES ({id}, 'c{n}')"],
}


class World:
    """The three databases, their writers, and the coordinator that keeps being killed."""

    def __init__(self, folder: Path, postgres: PostgresServer, mariadb: Server) -> None:
        self.folder, self.postgres, self.mariadb = folder, postgres, mariadb
        self.database = postgres.database(ORDERS)
        self.address = mariadb.database("soak")
        mariadb.run(PAYMENTS, database="soak")
        with closing(sqlite3.connect(folder / "crm.db")) as connection:
            connection.execute(CUSTOMERS)
        self._project()
        self.written: Counter[str] = Counter()
        self.ended = threading.Event()
        self.process: subprocess.Popen[str] | None = None
        self.lock = threading.Lock()

    def _project(self) -> None:
        views = "".join(f'  {name}: {{sql: "{sql}", freshness: 500ms}}\n' for name, sql in VIEWS.items())
        (self.folder / "strobe.yml").write_text(
            "version: 1\nproject: soak\nspark: {spark.master: 'local[2]', spark.driver.memory: 1g}\nsources:\n"
            "  shop: {type: postgres, dsn: '${SHOP}'}\n  billing: {type: mariadb, dsn: '${BILLING}'}\n"
            f"  crm: {{type: sqlite, path: crm.db}}\nviews:\n{views}"
        )
        script = self.strobe("prepare", "shop", "--dry-run")
        self.postgres.publish(self.database, script.splitlines())
        self.strobe("prepare")

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SHOP": self.postgres.dsn(self.database), "BILLING": self.address}

    def strobe(self, *arguments: str, code: int = 0, timeout: float = 600) -> str:
        command = [*STROBE, *arguments, "--project", str(self.folder)]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == code, f"{arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self) -> None:
        log = (self.folder / "run.log").open("a")
        command = [*STROBE, "run", "--project", str(self.folder)]
        self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, text=True)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    # Writers: ten transactions of ten changes a second each. What could not be written while a server was down is
    # made up for.

    def write(self, table: str, connect: Callable[[], Any]) -> None:
        rng, began = random.Random(table), time.monotonic()
        while not self.ended.is_set():
            with suppress(psycopg.Error, pymysql.Error, sqlite3.Error), closing(connect()) as connection:
                while not self.ended.wait(max(0.0, began + self.written[table] / 100 - time.monotonic())):
                    cursor = connection.cursor()
                    for _ in range(5):
                        values = {"id": rng.randrange(IDS), "other": rng.randrange(IDS), "n": rng.randrange(1000)}
                        for statement in STATEMENTS[table]:
                            cursor.execute(statement.format(**values))
                    connection.commit()
                    self.written[table] += 10
            self.ended.wait(0.5)

    @contextmanager
    def load(self) -> Iterator[None]:
        connections: dict[str, Callable[[], Any]] = {
            "orders": lambda: psycopg.connect(self.postgres.admin_dsn(self.database)),
            "payments": lambda: self.mariadb.connect("soak"),
            "customers": lambda: sqlite3.connect(self.folder / "crm.db", timeout=30),
        }
        writers = [threading.Thread(target=self.write, args=item) for item in connections.items()]
        for writer in writers:
            writer.start()
        try:
            yield
        finally:
            self.ended.set()
            for writer in writers:
                writer.join()

    # What goes wrong.

    def coordinator_killed(self) -> None:
        self.kill()
        self.start()

    def postgres_crashes(self) -> None:
        self.postgres.stop("immediate")
        time.sleep(2)
        self.postgres.start()

    def mariadb_killed(self) -> None:
        self.mariadb.stop(kill=True)
        time.sleep(2)
        self.mariadb.start()

    def stream_ended(self) -> None:
        self.postgres.execute(
            "postgres", "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active"
        )

    def java_killed(self) -> None:
        for child in _children(self.process.pid) if self.process is not None else ():
            os.kill(child, signal.SIGKILL)

    # What should be there.

    def expected(self) -> dict[str, Counter[tuple[Any, ...]]]:
        orders = self.postgres.execute(self.database, "SELECT id, customer, state FROM orders")
        payments = self.mariadb.rows("SELECT id, order_id, cents FROM payments", database="soak")
        with closing(sqlite3.connect(self.folder / "crm.db")) as connection:
            names = dict(connection.execute("SELECT id, name FROM customers").fetchall())
        named = [(o, names[c], s) for o, c, s in orders if c in names]
        paid = [(o, s, name, p, cents) for o, name, s in named for p, order, cents in payments if order == o]
        return {
            "paid": Counter(paid),
            "named": Counter((o, name) for o, name, s in named if s != "s0"),
            "money": Counter((order, cents) for _, order, cents in payments if cents > 500),
        }

    def shown(self, view: str) -> Counter[tuple[Any, ...]]:
        rows = json.loads(self.strobe("sql", f"SELECT * FROM {view}", "--json"))["rows"]
        return Counter(tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in rows)


class Sampler(threading.Thread):
    """How far behind the slowest view is, and how much memory the coordinator's processes have, every two seconds."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self._world, self._began = world, time.monotonic()
        self.behind: list[tuple[float, float]] = []
        self.python: list[tuple[float, float]] = []
        self.java: list[tuple[float, float]] = []

    def run(self) -> None:
        while not self._world.ended.wait(2):
            at, heard = time.monotonic() - self._began, hear(self._world.folder / "warehouse")
            views = heard.document.get("views", {}) if heard.alive else {}
            behind = [max(view["behind"].values(), default=0.0) for view in views.values() if "behind" in view]
            if behind and self._world.process is not None:
                pid = self._world.process.pid
                self.behind.append((at, max(behind)))
                self.python.append((at, _megabytes(pid)))
                self.java.append((at, sum(_megabytes(child) for child in _children(pid))))

    def plot(self, folder: Path) -> None:
        last = max(at for at, _ in self.behind)
        for name, label, series in (
            ("freshness", "seconds", [Series("slowest view", "#1f77b4", self.behind)]),
            ("memory", "MB", [Series("Python", "#1f77b4", self.python), Series("Spark", "#d62728", self.java)]),
        ):
            top = max(value for one in series for _, value in one.line) or 1.0
            chart = Chart(f"Soak: {name}", Axis("seconds", 0, last), Axis(label, 0, 1.1 * top), series)
            (folder / f"soak-{name}.svg").write_text(chart.svg())


def _megabytes(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@pytest.mark.timeout(SECONDS + 1800)
def test_nothing_is_lost_or_doubled(tmp_path: Path, mariadb_template: Path) -> None:
    """Audits while it goes on, and the end compared with the databases themselves."""
    postgres, mariadb = PostgresServer(), Server(mariadb_template)
    try:
        postgres.start()
        world = World(tmp_path, postgres, mariadb)
        sampler, rng, faults = Sampler(world), random.Random(7), Counter[str]()
        databases = (world.postgres_crashes, world.mariadb_killed, world.stream_ended)
        kinds = (world.coordinator_killed, world.java_killed, *databases)
        with world.load():
            world.start()
            sampler.start()
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                time.sleep(rng.uniform(20, 60))
                happens = rng.choice(kinds)
                happens()
                faults[happens.__name__] += 1
                assert world.process is not None and world.process.poll() is None, (tmp_path / "run.log").read_text()
            time.sleep(20)
            verdict = json.loads(world.strobe("audit", "--json"))
        world.kill()
        world.strobe("run", "--until-idle")
        expected = world.expected()
        assert all(expected.values())
        for view, rows in expected.items():
            assert world.shown(view) == rows, view
        sampler.plot(Path(os.environ.get("STROBE_SOAK_PLOTS", tmp_path)))
        print(f"written {dict(world.written)}, faults {dict(faults)}, last audit {verdict}")
    finally:
        postgres.remove()
        mariadb.close()
