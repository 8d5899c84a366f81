"""Work that needs a coordinator: the one that runs is asked, or else one in this process does it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from strobe.client.wait import last_header
from strobe.config.model import Project
from strobe.errors import NotNow, UserError
from strobe.events import AskingCoordinator, CoordinatorReplied, Listener, MaintainingHere, RowsRead, SparkStarting
from strobe.planning.topology import unguaranteed
from strobe.warehouse import storage
from strobe.warehouse.control import requests
from strobe.warehouse.control.lock import CoordinatorLock
from strobe.warehouse.layout import Layout

if TYPE_CHECKING:
    from strobe.coordinator.coordinator import Coordinator
    from strobe.coordinator.status import Reporter
    from strobe.spark.session import SparkSession

FOLD_SECONDS = 600.0
"""How long a running coordinator may take to fold."""


def last_commit(project: Project) -> int | None:
    """The number of the last commit, None where nothing was committed yet."""
    header = last_header(project.warehouse)
    return header.number if header else None


def spark_starter(project: Project, tell: Listener) -> Callable[[], SparkSession]:
    """Starts Spark when it is really needed."""
    started: list[SparkSession] = []

    def spark() -> SparkSession:
        if not started:
            from strobe.spark.session import start

            tell(SparkStarting())
            started.append(start(project.spark, umask=project.umask))
        return started[0]

    return spark


def fold(project: Project, tell: Listener) -> int | None:
    """Bring the view tables up to the last commit; its number."""
    layout = Layout(project.warehouse)
    if not storage.exists(layout.log):
        raise UserError("nothing has been committed yet", where=str(layout.root), fix="Start `strobe run` first.")
    with _lock(project) as free:
        if free:
            return _fold_here(project, free, tell)
        tell(AskingCoordinator())
        reply = requests.request(layout.control, {"kind": "fold"}, timeout=FOLD_SECONDS)
        commit: int | None = reply["commit"]
        return commit


def _fold_here(project: Project, lock: CoordinatorLock, tell: Listener) -> int | None:
    from strobe.warehouse.warehouse import Warehouse

    spark = spark_starter(project, tell)()
    warehouse = Warehouse.create_or_open(spark, Layout(project.warehouse), project.retention, project.name, lock=lock)
    header = warehouse.fence()
    warehouse.use([], unguaranteed=unguaranteed(project))
    warehouse.fold()
    return header.number if header else None


def change(
    project: Project, wanted: dict[str, Any], seconds: float, reporter: Reporter, tell: Listener
) -> dict[str, Any]:
    """Have a coordinator change the views: the one that runs, or one in this process for as long as it takes.

    `reporter` is told what the latter does, `tell` how far the request is.
    """
    from strobe.coordinator.coordinator import Coordinator

    first = last_commit(project) is None
    with _lock(project) as free:
        pass
    if not free:
        tell(AskingCoordinator())
        control = Layout(project.warehouse).control
        return requests.request(control, wanted, timeout=seconds, say=partial(_tell_progress, tell))
    with coordinator_at_work(project, Coordinator(project, reporter, set_aside=True), tell):
        if first:  # everything is loaded already
            return {"commit": last_commit(project)}
        return requests.request(Layout(project.warehouse).control, wanted, timeout=seconds)


def _tell_progress(tell: Listener, said: dict[str, Any]) -> None:
    """How far a coordinator is with what it was asked for."""
    for source, (rows, total) in said.get("rows", {}).items():
        tell(RowsRead(source, rows, total))
    if "text" in said:
        tell(CoordinatorReplied(said["text"]))


@contextmanager
def coordinator_at_work(project: Project, coordinator: Coordinator, tell: Listener) -> Iterator[None]:
    """A coordinator at work: the one that runs already, or one in this process for as long as the caller needs it."""
    with _lock(project) as free:
        pass
    if not free:
        yield
        return
    failed: list[BaseException] = []

    def run() -> None:
        try:
            coordinator.run()
        except BaseException as error:  # told to the thread that waits
            failed.append(error)

    tell(MaintainingHere())
    thread = threading.Thread(target=run, name="coordinator", daemon=True)
    thread.start()
    try:
        while coordinator.pipeline is None and thread.is_alive():
            time.sleep(0.05)
        if failed:
            raise failed[0]
        yield
    finally:
        coordinator.stop()
        thread.join()
    if failed:
        raise failed[0]


@contextmanager
def _lock(project: Project) -> Iterator[CoordinatorLock | None]:
    """The coordinator's lock, held; None if a coordinator is at work, which then has to be asked."""
    layout = Layout(project.warehouse)
    layout.own_folders(project.umask, project.directory)
    lock = CoordinatorLock(layout.control)
    try:
        lock.acquire()
    except NotNow:
        yield None
        return
    try:
        yield lock
    finally:
        lock.release()
