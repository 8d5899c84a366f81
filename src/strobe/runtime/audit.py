"""`strobe audit`: recompute views from the live sources *while they change*, and compare.

The sources are read, each in one snapshot with its position; the coordinator commits exactly that vector; the view at
that commit must equal the recomputation, row for row. A running coordinator is asked to stand still while the sources
are being read, so that it cannot pass the vector before it is known; without one, this process keeps the views up to
there itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from strobe.auditor.compare import differences
from strobe.config import Project
from strobe.errors import NotNow, UserError
from strobe.runtime import mailbox
from strobe.runtime.assembly import Assembly, as_applied, assemble
from strobe.runtime.errands import FREEZE
from strobe.runtime.loading import Snapshot, snapshot
from strobe.runtime.service import Service
from strobe.warehouse import look, reader
from strobe.warehouse.layout import Layout
from strobe.warehouse.lock import CoordinatorLock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Silent:
    """Tells nobody."""

    def say(self, text: str) -> None: ...

    def loading(self, source: str, rows: int) -> None: ...

    def status(self, document: dict[str, Any]) -> None: ...


def audit(project: Project, names: Sequence[str], say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """The verdict over these views (all, if none are named), as the public JSON document."""
    service = Service(project, _Silent())
    assembly = assemble(project, service.spark)
    if look.exists(Layout(project.warehouse).log):
        stored = look.definitions(project.warehouse)
        assembly = as_applied(assembly, {d.view: d.sql for d in stored if d.to_commit is None}, say)
    unknown = [name for name in names if name not in assembly.views]
    if unknown:
        raise UserError(f"there is no view {unknown[0]!r}", fix=f"There are {', '.join(assembly.views)}.")
    chosen = list(names) or list(assembly.views)
    say("starting Spark")
    spark = service.spark()
    with coordinator_at_work(project, service, say):
        with _frozen(project) as freeze, _read(spark, assembly, chosen, project) as taken:
            say("bringing the views to the vector that was read")
            vector = {source: position.text for source, position in taken.positions.items()}
            bring = {"kind": "bring", "freeze": freeze, "positions": vector}
            reply = mailbox.request(project.warehouse, bring, timeout=120)
            say(f"comparing at commit {reply['commit']}")
            state = reader.snapshot(spark, project.warehouse, int(reply["commit"]))
            verdicts = {n: _verdict(spark, state, assembly, n, taken) for n in chosen}
    worst = "invalid" if any(v["verdict"] == "invalid" for v in verdicts.values()) else "valid"
    return {"verdict": worst, "commit": int(reply["commit"]), "views": verdicts}


def _verdict(
    spark: SparkSession, state: reader.Snapshot, assembly: Assembly, name: str, taken: Snapshot
) -> dict[str, Any]:
    planned, commit = assembly.views[name], state.commit
    total, rows = differences(state.table(name), taken.compute(spark, planned.view))
    if not total:
        because = f"commit {commit} equals a recomputation at exactly the positions that it names"
        return {"verdict": "valid", "level": planned.level, "because": because, "witness": None}
    because = f"{total} different rows differ from a recomputation at the positions of commit {commit}"
    return {"verdict": "invalid", "level": "none", "because": because, "witness": [str(row) for row in rows]}


@contextmanager
def _read(spark: SparkSession, assembly: Assembly, names: list[str], project: Project) -> Iterator[Snapshot]:
    views = [assembly.views[name].view for name in names]
    with snapshot(spark, assembly.sources, views, project.warehouse) as taken:
        yield taken


@contextmanager
def _frozen(project: Project) -> Iterator[str]:
    """The coordinator takes nothing new in, until it has been brought to a vector or nobody renews the request."""
    freeze = str(mailbox.request(project.warehouse, {"kind": "freeze"}, timeout=90)["freeze"])
    over = threading.Event()

    def renew() -> None:
        while not over.wait(FREEZE / 4):
            mailbox.post(project.warehouse, {"kind": "renew", "freeze": freeze})

    threading.Thread(target=renew, name="renew", daemon=True).start()
    try:
        yield freeze
    finally:
        over.set()


@contextmanager
def coordinator_at_work(project: Project, service: Service, say: Callable[[str], None]) -> Iterator[None]:
    """A coordinator at work: the one that runs already, or one in this process for as long as the audit takes."""
    lock = CoordinatorLock(Layout(project.warehouse).control)
    try:
        lock.acquire()
    except NotNow:
        yield
        return
    lock.release()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            service.run()
        except BaseException as error:  # told to the thread that waits
            failed.append(error)

    say("no coordinator is running: keeping the views here meanwhile")
    thread = threading.Thread(target=run, name="coordinator", daemon=True)
    thread.start()
    try:
        while service.coordinator is None and thread.is_alive():
            time.sleep(0.05)
        if failed:
            raise failed[0]
        yield
    finally:
        service.stop()
        thread.join()
    if failed:
        raise failed[0]
