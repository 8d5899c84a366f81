"""How much a view that is ten times slower delays another: whose sources it shares, or not, in either order."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.shop import make, serve
from strobe.pipeline.pipeline import Pipeline
from strobe.sources.base import Reader

PROJECT = """
version: 1
project: bench
order: {order}
sources:
  sales: {{type: sqlite, path: sales.db}}
  billing: {{type: sqlite, path: billing.db}}
views:
  quick: {{sql: "SELECT a.id, b.state FROM sales.orders a JOIN sales.orders b ON a.id = b.id", freshness: 0s}}
  slow: {{sql: "SELECT a.* FROM {slow} a JOIN {slow} b ON a.id = b.id", freshness: 0s}}
"""
CASES = [
    ("no source shared", "source", "billing.payments", "UPDATE payments SET cents = ? WHERE id = 1"),
    ("no relation shared, order: views", "views", "sales.customers", "UPDATE customers SET name = ? WHERE id = 1"),
    ("no relation shared, order: source", "source", "sales.customers", "UPDATE customers SET name = ? WHERE id = 1"),
]
TIMES = 10


def slow_view(console: Console, orders: int, rounds: int) -> None:
    table = Table(
        title=f"A view whose answers take {TIMES} times as long: seconds until an update of the other is seen"
    )
    for column in ("", "slow one at rest", "slow one at work", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    for title, order, relation, statement in CASES:
        rest, work = _measure(orders, rounds, order, relation, statement)
        table.add_row(title, f"{rest:.2f}", f"{work:.2f}", f"{work / rest:.1f}")
    console.print(table)


def _measure(orders: int, rounds: int, order: str, relation: str, statement: str) -> tuple[float, float]:
    """The medians of both kinds of rounds, which alternate."""
    with tempfile.TemporaryDirectory(prefix="strobe-bench-") as name:
        folder = Path(name)
        make(folder, orders, PROJECT.format(order=order, slow=relation))
        coordinator, thread = serve(folder)
        pipeline = coordinator.pipeline
        if pipeline is None:
            raise RuntimeError("the coordinator has ended")
        usual = median(_visible(folder, pipeline, number) for number in range(5))
        source, _, table = relation.partition(".")
        _slow_down(pipeline, source, table, TIMES * usual)
        found: dict[bool, list[float]] = {False: [], True: []}
        for number in range(rounds):
            for busy in (False, True):
                while not pipeline.settled:
                    time.sleep(0.05)
                with _writing(folder / f"{source}.db", statement, usual) if busy else _nothing():
                    time.sleep(2.5 * usual)  # between two writes: SQLite reports what comes at once as one
                    found[busy].append(_visible(folder, pipeline, 10 + 2 * number + busy))
        coordinator.stop()
        thread.join()
    return median(found[False]), median(found[True])


def _visible(folder: Path, pipeline: Pipeline, number: int) -> float:
    """Seconds from a commit at the source until the quick view shows it."""
    source = pipeline.topology.sources["sales"]
    with closing(sqlite3.connect(folder / "sales.db", timeout=30)) as connection, connection:
        connection.execute("UPDATE orders SET state = ? WHERE id = ?", (f"n{number}", number))
    started, position = time.perf_counter(), source.now()
    while not position <= source.position(pipeline.committer.last.positions["quick"]["sales"]):
        time.sleep(0.005)
    return time.perf_counter() - started


def _slow_down(pipeline: Pipeline, source: str, table: str, seconds: float) -> None:
    """Let look-ups of this table take longer."""
    original = pipeline.topology.sources[source].reader

    def reader(**options: Any) -> Reader:
        found = original(**options)
        lookup = found.lookup

        def slow(asked: Any, keys: Any) -> Any:
            time.sleep(seconds if asked.relation == table else 0)
            return lookup(asked, keys)

        found.lookup = slow  # type: ignore[method-assign]  # for this run only
        return found

    pipeline.topology.sources[source].reader = reader  # type: ignore[method-assign]


@contextmanager
def _writing(database: Path, statement: str, pause: float) -> Iterator[None]:
    ended = threading.Event()

    def write() -> None:
        number = 0
        with closing(sqlite3.connect(database, timeout=30)) as connection:
            while not ended.wait(pause):
                number += 1
                with connection:
                    connection.execute(statement, (number,))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


@contextmanager
def _nothing() -> Iterator[None]:
    yield
