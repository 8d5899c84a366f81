"""How long other views wait while a new one is loaded and joins: seconds until updates are seen, before and then."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.shop import HEAD, make, serve
from strobe.coordinator.coordinator import Coordinator
from strobe.sources.sqlite.triggers import LOG
from strobe.warehouse.control import requests
from strobe.warehouse.layout import Layout

PROJECT = f"""{HEAD}  paid:
    sql: SELECT o.id, o.state, p.cents FROM sales.orders o JOIN billing.payments p ON p.order_id = o.id
    freshness: 0s
"""
NEW = """
  named:
    sql: SELECT o.id, o.state, c.name FROM sales.orders o JOIN sales.customers c ON c.id = o.customer
    freshness: 0s
"""
PAUSE = 0.1


def cutover(console: Console, orders: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="strobe-bench-") as name:
        folder = Path(name)
        make(folder, orders, PROJECT + NEW)
        (folder / "strobe.yml").write_text(PROJECT)
        coordinator, thread = serve(folder)
        usual = _waits(coordinator, folder, "a", threading.Event(), seconds)
        (folder / "strobe.yml").write_text(PROJECT + NEW)
        applied = threading.Event()
        applying = threading.Thread(target=_apply, args=(coordinator, applied))
        applying.start()
        meanwhile = _waits(coordinator, folder, "b", applied)
        applying.join()
        coordinator.stop()
        thread.join()
    table = Table(title=f"A view over {orders:,} orders joins: seconds until an update of another view is seen")
    for column in ("", "updates", "median", "longest"):
        table.add_column(column, justify="right" if column else "left")
    for title, waits in (("before", usual), ("while it is loaded and joins", meanwhile)):
        table.add_row(title, str(len(waits)), f"{median(waits):.2f}", f"{max(waits):.2f}")
    console.print(table)


def _apply(coordinator: Coordinator, applied: threading.Event) -> None:
    try:
        requests.request(
            Layout(coordinator.project.warehouse).control, {"kind": "apply", "drop_tables": False}, timeout=600
        )
        time.sleep(2)  # the first commits with it
    finally:
        applied.set()


def _waits(
    coordinator: Coordinator, folder: Path, state: str, ended: threading.Event, seconds: float = 600.0
) -> list[float]:
    """Write one update after another, and see how long each takes until the view shows it."""
    open_: dict[int, float] = {}
    found: list[float] = []
    deadline, number = time.monotonic() + seconds, 0
    shown = 0
    with closing(sqlite3.connect(folder / "sales.db", timeout=30)) as connection:
        while open_ or not (ended.is_set() or time.monotonic() > deadline):
            if not (ended.is_set() or time.monotonic() > deadline):
                number += 1
                with connection:
                    connection.execute("UPDATE orders SET state = ? WHERE id = ?", (f"{state}{number}", number))
                (place,) = connection.execute(f"SELECT max(seq) FROM {LOG}").fetchone()
                open_[place] = time.perf_counter()
            pipeline = coordinator.pipeline
            if pipeline is not None:
                text = pipeline.committer.last.positions["paid"]["sales"]
                shown = pipeline.topology.sources["sales"].position(text).order[0]
            now = time.perf_counter()
            found += [now - open_.pop(place) for place in list(open_) if place <= shown]
            time.sleep(PAUSE)
    return found
