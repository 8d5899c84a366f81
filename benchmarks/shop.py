"""The databases and the running service that measurements use."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

from strobe.config.load import load_project
from strobe.coordinator.coordinator import Coordinator
from strobe.coordinator.status import Status
from strobe.events import Event
from strobe.planning.topology import assemble

HEAD = """
version: 1
project: bench
sources:
  sales: {type: sqlite, path: sales.db}
  billing: {type: sqlite, path: billing.db}
views:
"""
"""Of a project, to which views are added."""


class Quiet:
    """A reporter that nobody listens to."""

    def tell(self, event: Event) -> None: ...

    def status(self, status: Status) -> None: ...


def make(folder: Path, orders: int, project: str) -> None:
    """A shop with so many orders, a tenth as many customers, and a payment for each order."""
    with sqlite3.connect(folder / "sales.db") as sales:
        sales.executescript(
            "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT);"
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, state TEXT);"
            "CREATE INDEX orders_customer ON orders (customer);"
        )
        sales.executemany("INSERT INTO customers VALUES (?, ?)", ((i, f"customer {i}") for i in range(orders // 10)))
        sales.executemany("INSERT INTO orders VALUES (?, ?, 'open')", ((i, i % (orders // 10)) for i in range(orders)))
    with sqlite3.connect(folder / "billing.db") as billing:
        billing.executescript(
            "CREATE TABLE payments (id INTEGER PRIMARY KEY, order_id INTEGER, cents INTEGER);"
            "CREATE INDEX payments_order ON payments (order_id);"
        )
        billing.executemany("INSERT INTO payments VALUES (?, ?, ?)", ((i, i, 100 + i % 900) for i in range(orders)))
    (folder / "strobe.yml").write_text(project)
    topology = assemble(load_project(folder))
    for name, source in topology.sources.items():
        source.prepare([relation.name for relation in topology.relations(name)])
    topology.sources.close()


def serve(folder: Path) -> tuple[Coordinator, threading.Thread]:
    coordinator = Coordinator(load_project(folder), Quiet())
    thread = threading.Thread(target=coordinator.run, daemon=True)
    thread.start()
    while coordinator.pipeline is None:
        if not thread.is_alive():
            raise RuntimeError("the coordinator did not start")
        time.sleep(0.1)
    return coordinator, thread
