"""A small project whose coordinator runs in this process, on the test run's own Spark."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memory_live import HEAD
from pyspark.sql import SparkSession
from shopfloor import DATABASES, PROJECT

from strobe.client.local import coordinator_at_work
from strobe.config.load import load_project
from strobe.coordinator.coordinator import Coordinator
from strobe.coordinator.status import StaleView, Status
from strobe.coordinator.timing import USUAL, Timing
from strobe.events import Event, RowsRead, ViewsWritten
from strobe.planning.topology import assemble
from strobe.warehouse import reader
from strobe.warehouse.control import requests
from strobe.warehouse.layout import Layout

DOWN = (
    HEAD
    + """\
  orders: {sql: "SELECT o.id, o.state FROM sales.orders o", freshness: 100ms}
  paid: {sql: "SELECT o.id, p.cents FROM sales.orders o JOIN billing.payments p ON p.order_id = o.id", freshness: 100ms}
"""
)


class Notes:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.last_status: Status | None = None

    def tell(self, event: Event) -> None:
        if not isinstance(event, (RowsRead, ViewsWritten)):
            self.said.append(str(event))

    def status(self, status: Status) -> None:
        self.last_status = status

    @property
    def document(self) -> dict[str, Any]:
        return self.last_status.document() if self.last_status else {}


def still(status: Status | None) -> dict[str, str]:
    """The views that have to be rebuilt, and why."""
    views = status.views if status else {}
    return {name: view.problem for name, view in views.items() if isinstance(view, StaleView) and view.problem}


class Shop:
    timing: Timing = USUAL

    def __init__(
        self, folder: Path, spark: SparkSession, yml: str = PROJECT, databases: Mapping[str, str] = DATABASES
    ) -> None:
        self.folder, self.spark, self.notes = folder, spark, Notes()
        for name, script in databases.items():
            connection = sqlite3.connect(folder / f"{name}.db")
            connection.executescript(script)
            connection.close()
        (folder / "strobe.yml").write_text(yml)
        self.prepare()
        self.warehouse = folder / "warehouse"

    def prepare(self) -> None:
        topology = assemble(load_project(self.folder), lambda: self.spark)
        for name, source in topology.sources.items():
            source.prepare([relation.name for relation in topology.relations(name)])

    def coordinator(self) -> Coordinator:
        return Coordinator(load_project(self.folder), self.notes, timing=self.timing, spark=self.spark)

    def write(self, source: str, *statements: str) -> None:
        connection = sqlite3.connect(self.folder / f"{source}.db", timeout=20)
        with connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()

    def ask(self, kind: str, **more: Any) -> dict[str, Any]:
        """What `strobe rebuild` and `strobe apply` do where no coordinator is running."""
        coordinator = Coordinator(load_project(self.folder), self.notes, set_aside=True, spark=self.spark)
        with coordinator_at_work(coordinator.project, coordinator, self.notes.tell):
            return requests.request(Layout(self.warehouse).control, {"kind": kind, **more}, timeout=300)

    @contextmanager
    def written(self, source: str, statement: Callable[[int], str]) -> Iterator[None]:
        """One write after another, meanwhile."""
        over = threading.Event()

        def write() -> None:
            for n in itertools.count():
                if over.wait(0.03):
                    return
                self.write(source, statement(n))

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @contextmanager
    def running(self) -> Iterator[Coordinator]:
        coordinator, failed = self.coordinator(), []

        def run() -> None:
            try:
                coordinator.run()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            wait_for(lambda: coordinator.pipeline is not None or failed)
            yield coordinator
        finally:
            coordinator.stop()
            thread.join()
        if failed:
            raise failed[0]

    def rows(self, view: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in reader.snapshot(self.spark, Layout(self.warehouse)).table(view).collect())


def wait_for(condition: Callable[[], Any], seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
