"""`make bench`: what an update costs, beside a full recompute by Spark in the same run.

For batches of 1, 100 and 10,000 updates: seconds from the source's commit until a reader has the new view, look-ups
and rows asked from the sources, Spark jobs of the commit; and, interleaved with it, the seconds of recomputing the
same view from the sources. Then throughput with 1, 5 and 20 views, what a slow view does to others, the driver's memory
for base tables of two sizes, and the speed of simulation. Times depend on the machine: read the ratios.
"""

from __future__ import annotations

import argparse
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.joining import cutover
from benchmarks.shop import HEAD, make, serve
from benchmarks.slow_view import slow_view
from strobe.apply.load import snapshot
from strobe.coordinator.coordinator import Coordinator
from strobe.data.scratch import Scratch
from strobe.managers.registry import ALGORITHMS
from strobe.simulator.explorer import all_schedules
from strobe.simulator.plans import Shape, judge, random_plan
from strobe.simulator.spectrum import cell, laboratory
from strobe.warehouse import reader
from strobe.warehouse.appender import APPENDS
from strobe.warehouse.layout import Layout

PROJECT = f"""{HEAD}  paid_orders:
    sql: |
      SELECT o.id, o.state, c.name, p.id AS payment, p.cents
      FROM sales.orders o
      JOIN sales.customers c ON c.id = o.customer
      JOIN billing.payments p ON p.order_id = o.id
      WHERE p.cents > 0
"""
BATCHES = (1, 100, 10_000)


@dataclass
class Measured:
    """One batch: how long until visible, and what it cost."""

    visible: float
    read: float
    recompute: float
    queries: int
    rows: int
    jobs: int


def jobs(coordinator: Coordinator) -> int:
    """How many Spark jobs appends have taken so far; folding in the background has jobs of its own."""
    return len(coordinator.spark().sparkContext.statusTracker().getJobIdsForGroup(APPENDS))


def measure(folder: Path, coordinator: Coordinator, batch: int, at: int) -> Measured:
    """Change `batch` orders in one transaction; wait until a commit shows it; read the view; then recompute it."""
    project = coordinator.project
    pipeline = coordinator.pipeline
    if pipeline is None:
        raise RuntimeError("the coordinator has ended")
    while not pipeline.settled:
        time.sleep(0.05)
    asked = [(a.queries, a.rows) for a in pipeline.answerer.asked.values()]
    before = jobs(coordinator)
    source = pipeline.topology.sources["sales"]
    with sqlite3.connect(folder / "sales.db") as connection:
        first = at * 20_011 % 100
        connection.execute("UPDATE orders SET state = ? WHERE id >= ? AND id < ?", (f"s{at}", first, first + batch))
        connection.commit()
        started = time.perf_counter()
    position = source.now()
    while not position <= source.position(pipeline.committer.last.positions["paid_orders"]["sales"]):
        time.sleep(0.002)
    visible = time.perf_counter() - started
    spent = jobs(coordinator) - before
    spark = coordinator.spark()
    started = time.perf_counter()
    reader.snapshot(spark, Layout(project.warehouse)).table("paid_orders").where(f"state = 's{at}'").count()
    read = time.perf_counter() - started
    started = time.perf_counter()
    view = pipeline.topology.views["paid_orders"].view
    with snapshot(spark, pipeline.topology.sources, [view], Scratch(Layout(project.warehouse).staging)) as taken:
        target = folder / "recomputed"
        taken.compute(spark, view).write.format("delta").mode("overwrite").save(str(target))
    recompute = time.perf_counter() - started
    now = [(a.queries, a.rows) for a in pipeline.answerer.asked.values()]
    queries = sum(n[0] - a[0] for n, a in zip(now, asked, strict=True))
    rows = sum(n[1] - a[1] for n, a in zip(now, asked, strict=True))
    return Measured(visible, read, recompute, queries, rows, spent)


def latency(console: Console, orders: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="strobe-bench-") as name:
        folder = Path(name)
        make(folder, orders, PROJECT)
        coordinator, thread = serve(folder)
        found: dict[int, list[Measured]] = {batch: [] for batch in BATCHES}
        measure(folder, coordinator, 1, 0)  # warms everything up
        for number in range(rounds):
            for batch in BATCHES:
                found[batch].append(
                    measure(folder, coordinator, batch, 1 + number * len(BATCHES) + BATCHES.index(batch))
                )
        coordinator.stop()
        thread.join()
    table = Table(title=f"{orders:,} orders, {orders:,} payments, {orders // 10:,} customers; medians of {rounds}")
    for column in ("updates", "visible s", "read s", "recompute s", "recompute / visible", "queries", "rows", "jobs"):
        table.add_column(column, justify="right")
    for batch, runs in found.items():
        visible, recompute = median(m.visible for m in runs), median(m.recompute for m in runs)
        table.add_row(
            f"{batch:,}",
            f"{visible:.2f}",
            f"{median(m.read for m in runs):.2f}",
            f"{recompute:.2f}",
            f"{recompute / visible:.1f}",
            f"{median(m.queries for m in runs):.0f}",
            f"{median(m.rows for m in runs):,.0f}",
            f"{median(m.jobs for m in runs):.0f}",
        )
    console.print(table)


def simulation(console: Console) -> None:
    """Schedules per second on one core: all of one plan, sharing their beginnings, and random ones of many plans."""
    plan = random_plan(random.Random(8), "single source", Shape((0, 1)), 4)
    verdict, count, started = judge(plan), 0, time.perf_counter()
    for _, lab in all_schedules(laboratory(ALGORITHMS["eca"], plan)):
        verdict.level(verdict.key([{plan.view.name: state} for state in lab.states]))
        count += 1
    exhaustive = count / (time.perf_counter() - started)
    started = time.perf_counter()
    cell(ALGORITHMS["sweep"], "source-local", schedules=2000)
    table = Table(title="Simulation: schedules run and judged per second, on one core")
    table.add_column("all of one plan", justify="right")
    table.add_column("random, of many plans", justify="right")
    table.add_row(f"{exhaustive:,.0f}", f"{2000 / (time.perf_counter() - started):,.0f}")
    console.print(table)


def throughput(console: Console, orders: int, seconds: float) -> None:
    """Transactions and commits per second with 1, 5 and 20 views over the same sources, while one writer does what it
    can."""
    table = Table(title=f"{orders:,} orders; a writer for {seconds:.0f} s, then until everything is visible")
    for column in ("views", "transactions/s written", "transactions/s visible", "commits/s", "appends/s"):
        table.add_column(column, justify="right")
    for number in (1, 5, 20):
        with tempfile.TemporaryDirectory(prefix="strobe-bench-") as name:
            folder = Path(name)
            make(folder, orders, many_views(number))
            coordinator, thread = serve(folder)
            pipeline = coordinator.pipeline
            if pipeline is None:
                raise RuntimeError("the coordinator has ended")
            first, begun, written = pipeline.committer.last.number, time.perf_counter(), 0
            with closing(sqlite3.connect(folder / "sales.db")) as connection:
                while time.perf_counter() < begun + seconds:
                    with connection:
                        connection.execute(
                            "UPDATE orders SET state = ? WHERE id = ?", (f"n{written}", written % orders)
                        )
                    written += 1
            wrote = time.perf_counter() - begun
            while not pipeline.idle():
                time.sleep(0.05)
            took = time.perf_counter() - begun
            commits, appends = pipeline.committer.last.number - first, pipeline.committer.appends
            coordinator.stop()
            thread.join()
        figures = (written / wrote, written / took, commits / took, appends / took)
        table.add_row(str(number), *(f"{figure:,.1f}" for figure in figures))
    console.print(table)


def many_views(number: int) -> str:
    head, body = PROJECT.split("  paid_orders:\n")
    return head + "".join(f"  paid_{n}:\n{body.replace('cents > 0', f'cents > {n}')}" for n in range(number))


def memory(orders: int) -> float:
    """The driver's peak memory in MB after loading and a hundred updates."""
    with tempfile.TemporaryDirectory(prefix="strobe-bench-") as name:
        folder = Path(name)
        make(folder, orders, PROJECT)
        coordinator, thread = serve(folder)
        measure(folder, coordinator, 100, 1)
        coordinator.stop()
        thread.join()
    return _peak()


def _peak() -> float:
    """Of this process alone: what `getrusage` tells also counts the process that started it, before it was one."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise RuntimeError("the kernel does not tell the peak of a process's memory")
    return int(found[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks")
    parser.add_argument("--orders", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20, help="how long the writer writes")
    parser.add_argument("--memory", type=int, help="print the driver's peak memory for so many orders, and end")
    arguments = parser.parse_args()
    if arguments.memory:
        print(f"{memory(arguments.memory):.0f}")
        return
    console = Console()
    simulation(console)
    latency(console, arguments.orders, arguments.rounds)
    throughput(console, arguments.orders // 10, arguments.seconds)
    slow_view(console, arguments.orders // 10, arguments.rounds)
    cutover(console, arguments.orders, arguments.seconds)
    table = Table(title="Driver's peak memory (Python process), by size of the base tables")
    table.add_column("orders", justify="right")
    table.add_column("MB", justify="right")
    for orders in (arguments.orders // 10, arguments.orders):
        command = [sys.executable, "-m", "benchmarks", "--memory", str(orders)]
        measured = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
        table.add_row(f"{orders:,}", measured)
    console.print(table)


if __name__ == "__main__":
    main()
