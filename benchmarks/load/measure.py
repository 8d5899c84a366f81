"""What a coordinator does under load, over one PostgreSQL and a three-way join, at *strong* and at *complete*:

* a backlog: it was down while so many single-row transactions were written, and meets them all;
* waits: from the commit at the source until a reader sees it, at steady rates;
* the highest rate at which waits do not grow.

Every committed state is judged (see `oracle`), and the view is recomputed by Spark in between, in the same run, for
comparison: that gives one state where the coordinator gives all. Times depend on the machine and on what else it does,
which the load average beside each figure tells.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import postgres_server
from pyspark.sql import SparkSession
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from benchmarks.load.oracle import Judged, Oracle, waits
from benchmarks.load.shop import VIEW, CoordinatorProcess, LoadedShop, became, need
from benchmarks.load.watch import Watch
from strobe.apply.load import snapshot
from strobe.config.load import load_project
from strobe.data.scratch import Scratch
from strobe.planning.topology import assemble
from strobe.spark import session

START = 300.0
"""Seconds that a start may take."""


@dataclass(frozen=True)
class Plan:
    levels: Sequence[str] = ("strong", "complete")
    orders: int = 100_000
    backlogs: Sequence[int] = (10_000, 40_000, 160_000)
    rates: Sequence[int] = (100, 500, 1000)
    seconds: int = 30
    probes: int = 4
    probe_seconds: int = 120
    from_rate: int = 1000
    patience: int = 600
    recompute: bool = True

    @classmethod
    def quick(cls) -> Plan:
        return cls(orders=2_000, backlogs=(200, 800), rates=(50,), seconds=4, probes=1, probe_seconds=8, from_rate=50)


@dataclass
class Drained:
    """A backlog that was met. Times are by the clock, since they are compared with what the watch saw."""

    transactions: int
    begun: float
    """When the coordinator began to read the log."""
    memory: float
    load: float
    recompute: float | None
    complete: bool = True
    """Whether it was worked off in time."""


@dataclass
class Steady:
    """Transactions at a rate."""

    rate: int
    begun: float
    ended: float
    load: float
    drained: bool
    after: float
    """Seconds from the last transaction until a look found all of them shown."""
    memory: float


class Run:
    """All measurements of one level, over one database; what readers saw is known in the end."""

    def __init__(self, shop: LoadedShop, plan: Plan, spark: SparkSession | None) -> None:
        self.shop, self._plan, self._spark = shop, plan, spark
        self._oracle = Oracle(shop.admin)
        self._watch = Watch(Path(shop.layout.log))
        self.backlogs: list[Drained] = []
        self.steady: list[Steady] = []
        self.probes: list[Steady] = []
        self.idle_memory = self.idle_cpu = 0.0

    def carry_out(self) -> None:
        self._watch.start()
        coordinator = self.shop.start()
        try:
            need(became(lambda: self.shop.shown() > 0, coordinator, START), "the view was not loaded")
            coordinator = self._rest(coordinator)
            for transactions in self._plan.backlogs:
                coordinator = self._backlog(coordinator, transactions)
                if not self.backlogs[-1].complete:
                    return
            for rate in self._plan.rates:
                self.steady.append(self._steadily(coordinator, rate, self._plan.seconds))
                if not self.steady[-1].drained:
                    return
            self._probe(coordinator)
        finally:
            coordinator.kill()
            self.versions = self._watch.stop()

    def judge(self) -> Judged:
        return self._oracle.judge(self.shop.layout.root)

    def _rest(self, coordinator: CoordinatorProcess) -> CoordinatorProcess:
        """Memory and processor of a coordinator that has started, made a commit and has nothing to do."""
        coordinator.stop()
        coordinator = self.shop.start()
        need(became(self.shop.streaming, coordinator, START), "the coordinator did not start")
        need(self._reached(coordinator, self.shop.end()), "a single transaction was not committed")
        time.sleep(3)
        used = coordinator.cpu()
        time.sleep(10)
        self.idle_cpu = (coordinator.cpu() - used) / 10
        self.idle_memory = coordinator.memory()
        return coordinator

    def _backlog(self, coordinator: CoordinatorProcess, transactions: int) -> CoordinatorProcess:
        coordinator.stop()
        end = self.shop.write(transactions)
        recompute = self._recompute()
        coordinator = self.shop.start()
        need(became(self.shop.streaming, coordinator, START, 0.02), "the coordinator did not start")
        found = Drained(transactions + 1, time.time(), 0, 0, recompute)
        self.backlogs.append(found)
        found.complete = self._reached(coordinator, end)
        found.memory, found.load = coordinator.memory(), os.getloadavg()[0]
        return coordinator

    def _steadily(self, coordinator: CoordinatorProcess, rate: int, seconds: int) -> Steady:
        begun = time.time()
        end = self.shop.write(rate * seconds, rate)
        ended, load = time.time(), os.getloadavg()[0]
        drained = self._reached(coordinator, end)
        return Steady(rate, begun, ended, load, drained, time.time() - ended, coordinator.memory())

    def _probe(self, coordinator: CoordinatorProcess) -> None:
        """Twice or half the rate until one is borne and one is not, then in between."""
        borne, not_borne, rate = 0, 0, self._plan.from_rate
        for _ in range(self._plan.probes):
            found = self._steadily(coordinator, rate, self._plan.probe_seconds)
            self.probes.append(found)
            if not found.drained:
                return
            if found.after < 3 + self._plan.probe_seconds / 20 and written_in_time(found, self._plan.probe_seconds):
                borne = rate
            else:
                not_borne = rate
            rate = rate * 2 if not not_borne else rate // 2 if not borne else round((borne * not_borne) ** 0.5)

    def _reached(self, coordinator: CoordinatorProcess, place: int) -> bool:
        return became(lambda: self.shop.shown() > place, coordinator, self._plan.patience)

    def _recompute(self) -> float | None:
        """Seconds that Spark takes to read the tables and write the view once more."""
        if self._spark is None:
            return None
        topology = assemble(load_project(self.shop.folder))
        scratch = Scratch(self.shop.folder / "recomputing")
        started = time.perf_counter()
        try:
            view = topology.views[VIEW].view
            with snapshot(self._spark, topology.sources, [view], scratch) as taken:
                target = str(self.shop.folder / "recomputed")
                taken.compute(self._spark, view).write.format("delta").mode("overwrite").save(target)
        finally:
            topology.sources.close()
            scratch.close()
        return time.perf_counter() - started


def written_in_time(found: Steady, seconds: int) -> bool:
    return found.ended - found.begun < seconds * 1.05 + 1


def measure(plan: Plan, command: str, out: Path | None) -> None:
    consoles = [Console(width=150)]
    file = out.open("w", encoding="utf-8") if out else None
    if file is not None:
        consoles.append(Console(file=file, width=150))
    for console in consoles:
        console.print(f"    {command}\n\n{machine()}\n", highlight=False)
    with tempfile.TemporaryDirectory(prefix="strobe-load-") as name, postgres_server.running() as server:
        folder = Path(name)
        spark = session.start({"spark.driver.memory": "1g"}, log=folder / "spark.log") if plan.recompute else None
        wrong = 0
        for level in plan.levels:
            run = Run(LoadedShop(server, folder / level, level, plan.orders), plan, spark)
            run.carry_out()
            judged = run.judge()
            wrong += len(judged.wrong)
            for table in tables(run, judged, plan, level):
                for console in consoles:
                    console.print(table, "")
            for console in consoles:
                console.print(verdict(judged, level), "", highlight=False)
            run.shop.remove()
        if spark is not None:
            spark.stop()
    if file is not None:
        file.close()
    if wrong:
        raise SystemExit(f"{wrong} committed states are wrong")


def verdict(judged: Judged, level: str) -> str:
    said = (
        f"At {level}: {judged.states:,} committed states judged over {judged.transactions:,} transactions, "
        f"{len(judged.wrong)} of them wrong; at most {judged.most_together:,} transactions from one state to the next."
    )
    return "\n".join([said, *judged.wrong[:3]])


def tables(run: Run, judged: Judged, plan: Plan, level: str) -> list[Table]:
    seen = waits(judged, run.versions)
    return [
        _backlogs(run, seen, plan, level),
        _waits(run.steady, seen, f"Waits at {level}, seconds from the commit at the source until a reader sees it"),
        _waits(run.probes, seen, f"Rates at {level} for {plan.probe_seconds} s: borne if waits do not grow"),
    ]


def _backlogs(run: Run, seen: list[tuple[float, float]], plan: Plan, level: str) -> Table:
    columns = ("transactions", "s", "per s", "after the first commit, per s", "MB", "MB / idle", "recompute s")
    table = _table(
        f"A backlog met at {level}; idle: {run.idle_memory:.0f} MB, {run.idle_cpu:.1%} of a core",
        *(*columns, "states / recompute", "load"),
    )
    for found, following in zip(run.backlogs, [*run.backlogs[1:], None], strict=True):
        until = following.begun if following else run.steady[0].begun if run.steady else float("inf")
        versions = [(at, commit) for at, commit in run.versions if found.begun <= at < until]
        times = sorted(at + wait for at, wait in seen if found.begun <= at + wait < until)
        if not found.complete or not times:
            shown = f"{len(times):,} in {plan.patience} s"
            table.add_row(f"{found.transactions:,}", shown, *("",) * 3, f"{found.memory:.0f}", *("",) * 3)
            continue
        took, first = times[-1] - found.begun, versions[0][0]
        after = sum(at > first for at in times)
        rate = after / (times[-1] - first) if after else 0.0
        per_s = found.transactions / took
        table.add_row(
            *(f"{found.transactions:,}", f"{took:.1f}", f"{per_s:,.0f}", f"{rate:,.0f}" if after else "one commit"),
            *(f"{found.memory:.0f}", f"{found.memory / run.idle_memory:.2f}"),
            f"{found.recompute:.1f}" if found.recompute else "",
            f"{per_s * found.recompute:,.0f}" if found.recompute else "",
            f"{found.load:.1f}",
        )
    return table


def _waits(steady: Sequence[Steady], seen: list[tuple[float, float]], title: str) -> Table:
    columns = ("per s", "written per s", "p50", "p99", "longest", "2nd quarter", "last quarter", "borne", "MB", "load")
    table = _table(title, *columns)
    for found in steady:
        length = found.ended - found.begun
        all_ = [(at, wait) for at, wait in seen if found.begun <= at <= found.ended]
        figures = [wait for _, wait in all_]
        if len(figures) < 8:
            table.add_row(str(found.rate), "", *("not seen",) * 3)
            continue
        second = median([w for at, w in all_ if 0.25 <= (at - found.begun) / length < 0.5] or [0.0])
        last = median([w for at, w in all_ if (at - found.begun) / length >= 0.75] or [0.0])
        in_time = written_in_time(found, round(length))
        borne = found.drained and in_time and last <= 1.5 * second + 0.2
        table.add_row(
            *(str(found.rate), f"{len(figures) / length:,.0f} shown"),
            *(f"{figure:.2f}" for figure in (median(figures), quantiles(figures, n=100)[98], max(figures))),
            *(f"{second:.2f}", f"{last:.2f}", "yes" if borne else "no", f"{found.memory:.0f}", f"{found.load:.1f}"),
        )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=MARKDOWN, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def machine() -> str:
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return (
        f"{os.cpu_count()} cores ({model}), {memory / 2**20:.0f} GB, Python {platform.python_version()}; "
        f"server, writers, coordinator and readers share them. Load average at the beginning: {os.getloadavg()[0]:.1f}."
    )


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []
