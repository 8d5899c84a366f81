"""`python -m benchmarks.idle`: the processor that a coordinator uses while nothing happens, over PostgreSQL and SQLite.

Time of a processor and not of a clock, of the coordinator's process and all below it (Java): so it says little about
what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import postgres_server
from postgres_server import PostgresServer

from benchmarks.load.measure import machine
from benchmarks.load.shop import CoordinatorProcess, became, need
from strobe.config.load import load_project
from strobe.planning.topology import assemble
from strobe.warehouse import inspect, storage
from strobe.warehouse.layout import Layout

PROJECT = """
version: 1
project: idle
spark: {spark.driver.memory: 1g}
sources:
  shop: {type: postgres, dsn: "${SHOP_DSN}"}
  crm: {type: sqlite, path: crm.db}
views:
  named: {sql: "SELECT o.id, c.name FROM shop.orders o JOIN shop.customers c ON c.id = o.customer"}
  called: {sql: "SELECT t.id, c.name FROM crm.tickets t JOIN crm.customers c ON c.id = t.customer"}
"""
POSTGRES = """
    CREATE TABLE customers (id int PRIMARY KEY, name text);
    CREATE TABLE orders (id int PRIMARY KEY, customer int);
    ALTER TABLE customers REPLICA IDENTITY FULL;
    ALTER TABLE orders REPLICA IDENTITY FULL;
    INSERT INTO customers VALUES (1, 'Ada');
    INSERT INTO orders SELECT n, 1 FROM generate_series(1, 1000) n;
"""
SQLITE = """
    CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT);
    CREATE TABLE tickets (id INTEGER PRIMARY KEY, customer INTEGER);
    INSERT INTO customers VALUES (1, 'Ada');
    INSERT INTO tickets VALUES (1, 1);
"""
SETTLE = 45.0
"""Seconds until folding and the like are over."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.idle", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="strobe-idle-") as name, postgres_server.running() as server:
        coordinator = start(server, Path(name))
        try:
            time.sleep(SETTLE)
            before = used(coordinator.process.pid)
            time.sleep(given.seconds)
            after = used(coordinator.process.pid)
        finally:
            coordinator.stop()
    shares = defaultdict[str, float](float)
    for one, seconds in after.items():
        shares[one[1]] += (seconds - before.get(one, 0.0)) / given.seconds
    for name, share in [*sorted(shares.items()), ("in all", sum(shares.values()))]:
        print(f"{name:12} {share:.2%} of a core")


def start(server: PostgresServer, folder: Path) -> CoordinatorProcess:
    """A coordinator that has loaded its views."""
    database = server.database(POSTGRES)
    os.environ["SHOP_DSN"] = server.dsn(database)
    with closing(sqlite3.connect(folder / "crm.db")) as connection:
        connection.executescript(SQLITE)
    (folder / "strobe.yml").write_text(PROJECT)
    topology = assemble(load_project(folder))
    for name, source in topology.sources.items():
        relations = [relation.name for relation in topology.relations(name)]
        if name == "shop":
            server.publish(database, source.prepare_script(relations))
        source.prepare(relations)
    topology.sources.close()
    coordinator, layout = CoordinatorProcess(folder, dict(os.environ)), Layout(folder / "warehouse")
    loaded = became(lambda: storage.exists(layout.log) and bool(inspect.last_header(layout)), coordinator, 600)
    need(loaded, "the views were not loaded")
    return coordinator


def used(pid: int) -> dict[tuple[int, str], float]:
    """Seconds of a processor that a process and those below it have used, each with the name of its program."""
    below, seconds, names = defaultdict[int, list[int]](list), dict[int, float](), dict[int, str]()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                head, _, tail = (folder / "stat").read_text().rpartition(")")
            except OSError:
                continue  # it has ended
            fields = tail.split()
            below[int(fields[1])].append(int(folder.name))
            names[int(folder.name)] = head.partition("(")[2]
            seconds[int(folder.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    found, todo = dict[tuple[int, str], float](), [pid]
    while todo:
        one = todo.pop()
        found[one, names[one]] = seconds[one]
        todo += below[one]
    return found


if __name__ == "__main__":
    main()
