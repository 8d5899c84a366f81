"""Faults of Spark: its Java process is killed or runs out of memory, an executor or a worker that reads is killed; each
while views are loaded and while they are kept. Every committed state is compared with a recomputation."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest
from shopfloor import PROJECT, SALES, Shop

from strobe.auditor.replay import states
from strobe.warehouse import inspect
from strobe.warehouse.layout import Layout

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(1200)]


def children(parent: int) -> Iterator[tuple[int, str]]:
    """The processes below a process, with their command lines."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                line = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:  # it has ended meanwhile
                continue
            if above == parent:
                yield int(folder.name), line
                yield from children(int(folder.name))


def below(process: Popen[str], what: str) -> list[int]:
    return [pid for pid, line in children(process.pid) if what in line]


def kill(process: Popen[str], what: str, patience: float = 200) -> int:
    """Kill one process below another, as soon as there is one, with -9; returns which."""
    end = time.monotonic() + patience
    while not (found := below(process, what)):
        assert process.poll() is None and time.monotonic() < end, f"there was no {what}"
        time.sleep(0.01)
    os.kill(found[-1], signal.SIGKILL)
    return found[-1]


def said(folder: Path, text: str, times: int = 1, patience: float = 300) -> None:
    """Wait until a process has said so."""
    end = time.monotonic() + patience
    while (folder / "said").read_text().count(text) < times:
        assert time.monotonic() < end, f"{text!r} was not said:\n{(folder / 'said').read_text()}"
        time.sleep(0.02)


@contextmanager
def running(shop: Shop) -> Iterator[Popen[str]]:
    """`strobe run`, whose output goes into the file `said`; killed in the end if it still runs."""
    process = shop.start("run", into=shop.folder / "said")
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def last_commit(shop: Shop) -> int:
    last = inspect.last_header(Layout(shop.folder / "warehouse"))
    return last.number if last is not None else 0


def judged(shop: Shop) -> None:
    for view, verdict in shop.judge().items():
        assert verdict.wrong == 0, f"{view}: {verdict.wrong} of {verdict.states} are wrong, first {verdict.first}"
        assert verdict.states > 3


def test_a_java_process_that_is_killed(tmp_path: Path) -> None:
    """While it loads, while it appends and while nothing happens: it is started again, and all goes on by itself."""
    shop = Shop(tmp_path)
    shop.archive.start()
    with running(shop) as process:
        with shop.load(writers=1):
            said(tmp_path, "loading paid")
            time.sleep(1)
            kill(process, "SparkSubmit")
            said(tmp_path, "killed (signal 9)")
            shop.wait_for_commits(process, 3)
            kill(process, "SparkSubmit")
            said(tmp_path, "killed (signal 9)", 2)
            shop.wait_for_commits(process, last_commit(shop) + 3)
        kill(process, "SparkSubmit")
        said(tmp_path, "killed (signal 9)", 3)
        shop.kill_at_the_end(process)
    judged(shop)


HUGE = "SELECT o.id, repeat(o.state, CAST(o.customer AS INT)) AS text FROM sales.orders o"
OF_MEMORY = f"""
version: 1
project: shop
spark: {{spark.master: "local[2]", spark.driver.memory: 600m}}
sources:
  sales: {{type: sqlite, path: sales.db}}
views:
  huge: {{sql: "{HUGE}", freshness: 100ms}}
"""


def test_a_java_process_that_runs_out_of_memory(tmp_path: Path) -> None:
    """A row that takes more memory than there is ends the run, loading and later, each time with the way out; without
    the row all is as it should be."""
    shop = Shop(tmp_path, OF_MEMORY, {"huge": HUGE}, {"sales": SALES})
    too_large = "INSERT INTO orders VALUES (99, 1500000000, 'x')"
    shop.write("sales", too_large)
    output = shop.strobe("run", "--until-idle", code=3, timeout=500)
    assert "ran out of memory" in output and "spark.driver.memory" in output
    assert inspect.last_header(Layout(tmp_path / "warehouse")) is None
    shop.write("sales", "DELETE FROM orders WHERE id = 99")
    shop.strobe("run", "--until-idle")
    before = inspect.last_header(Layout(tmp_path / "warehouse"))
    shop.write("sales", "INSERT INTO orders VALUES (98, 3, 'y')", too_large)
    output = shop.strobe("run", "--until-idle", code=3, timeout=500)
    assert "ran out of memory" in output and "goes on from the last commit" in output
    after = inspect.last_header(Layout(tmp_path / "warehouse"))
    assert before is not None and after is not None and after.number == before.number
    shop.write("sales", "DELETE FROM orders WHERE id = 99")
    shop.strobe("run", "--until-idle")
    loaded = [(10, "open"), (11, "openopen"), (12, "shutshutshut")]
    shown = [sorted(row for row, _ in state.views["huge"].items()) for state in states(tmp_path / "warehouse")]
    assert shown == [loaded, [*loaded, (98, "yyy")]]


EXECUTOR, WORKERS = "CoarseGrainedExecutorBackend", "pyspark.daemon"
FAULTS = {"local[2]": [WORKERS], "local-cluster[1,1,1024]": [WORKERS, EXECUTOR]}


@pytest.mark.parametrize("master", FAULTS)
def test_executors_and_workers_that_are_killed(tmp_path: Path, master: str) -> None:
    """While they read sources, for a load and for answers: what was read counts for nothing, and is read again. On a
    cluster Spark tries tasks again by itself, on one machine it does not."""
    shop = Shop(tmp_path, f'{PROJECT}evaluate: spark\nspark: {{spark.master: "{master}", spark.driver.memory: 1g}}\n')
    shop.archive.start()
    with running(shop) as process:
        said(tmp_path, "loading paid")
        for what in FAULTS[master]:
            kill(process, what)
        shop.wait_for_commits(process, 1)
        for number, what in enumerate(FAULTS[master] * 2):
            before = last_commit(shop)
            shop.write("sales", f"INSERT INTO orders VALUES ({20 + number}, 1, 'new')")
            shop.write("billing", f"INSERT INTO payments VALUES ({20 + number}, {20 + number}, 500)")
            for _ in range(3):
                kill(process, what)
                time.sleep(0.5)
            shop.wait_for_commits(process, before + 1)
        shop.kill_at_the_end(process)
    judged(shop)
