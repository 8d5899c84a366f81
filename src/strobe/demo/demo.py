"""`strobe demo`: a shop under load, its views kept by Strobe and by a naive maintainer, and every state judged.

Both keep the same views from the same sources at the same time. Beside them an archive records what the sources really
went through; afterwards every committed state is recomputed from it by SQLite, which shares nothing with Strobe.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from strobe.client.audit import audit
from strobe.config.load import load_project
from strobe.config.model import Project
from strobe.coordinator.coordinator import Coordinator
from strobe.demo import shop
from strobe.demo.history import Archive
from strobe.demo.oracle import Verdict, check_every_state
from strobe.demo.screen import Screen
from strobe.demo.server import Server
from strobe.errors import NotNow, StrobeError, UserError
from strobe.planning.topology import assemble

NAIVE = {f"{view}_naive": sql for view, sql in shop.VIEWS.items()}

PATIENCE = 120.0
"""Seconds until everything has to be visible after the load."""


def run(seconds: float = 40, keep: Path | None = None, console: Console | None = None) -> int:
    """Show it; 0 if Strobe passed through no wrong state and the audit agrees. `keep` is a folder for the project."""
    screen = Screen(console or Console(highlight=False), seconds)
    with _folder(keep) as folder:
        screen.introduce()
        screen.step("Starting PostgreSQL")
        with Server() as server:
            shop.create(folder, server.dsn)
            verdicts, audited = _show(load_project(folder), server.dsn, seconds, screen)
        screen.judge(verdicts, audited)
        screen.conclude(keep)
    right = all(verdicts[view].states > 1 and not verdicts[view].wrong for view in shop.VIEWS)
    return 0 if right and audited["verdict"] == "valid" else 1


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
            raise UserError("the folder is not empty", where=str(keep), fix="Name an absent or empty folder.")
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    folder = Path(tempfile.mkdtemp(prefix="strobe-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _show(project: Project, billing: str, seconds: float, screen: Screen) -> tuple[dict[str, Verdict], dict[str, Any]]:
    coordinator = _Coordinator(project, screen)
    archive = _archive(project, billing)
    with ExitStack() as cleanup:
        screen.step("Starting Spark, preparing a PostgreSQL and a SQLite database and a folder of CSV drops")
        coordinator.prepare()
        archive.start()
        cleanup.callback(archive.stop)
        screen.step("Loading two views, each kept twice: by Strobe, and by a naive maintainer")
        cleanup.callback(coordinator.stop)
        coordinator.start()
        with screen.live(archive), _people(project.directory, billing, seconds) as people:
            while any(person.poll() is None for person in people):
                coordinator.check()
                time.sleep(0.1)
        screen.step("The load is over: waiting until everything is visible")
        coordinator.wait_until_idle()
        screen.step("Auditing against the databases themselves")
        audited = audit(project, list(shop.VIEWS))
        screen.step("Stopping")
    screen.step("Recomputing every state that readers could have seen")
    verdicts = check_every_state(project.warehouse, archive, {**shop.VIEWS, **NAIVE}, tolerate=NAIVE.keys())
    _check_arrived(archive, verdicts)
    return verdicts, audited


def _archive(project: Project, billing: str) -> Archive:
    staged = project.warehouse / "staging" / "files" / "catalog"
    return Archive({"sales": project.directory / "sales.db"}, {"catalog": ("products", staged)}, {"billing": billing})


@contextmanager
def _people(folder: Path, billing: str, seconds: float) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The shop's people at work, each a process. They are sent home whatever happens."""
    command = [sys.executable, "-m", "strobe.demo.shop", str(folder), billing]
    people: list[subprocess.Popen[bytes]] = []
    try:
        names = (*shop.PEOPLE, shop.BUYER)
        people.extend(subprocess.Popen([*command, name, str(seconds)], start_new_session=True) for name in names)
        yield people
    finally:
        for process in people:
            process.terminate()
        codes = [process.wait() for process in people]
    if any(codes):
        raise StrobeError("somebody in the shop could not do their work", fix="What they said is above.")


def _check_arrived(archive: Archive, verdicts: Mapping[str, Verdict]) -> None:
    """The last commit is where the databases ended: nothing was right only because it never came."""
    for view in shop.VIEWS:
        for source, recorder in archive.recorders.items():
            if recorder.passed(verdicts[view].positions[source]) != recorder.changed:
                raise StrobeError(f"the last commit is not at the end of source {source}", where=f"view {view}")


class _Coordinator:
    """Strobe itself, in a thread of this process."""

    def __init__(self, project: Project, screen: Screen) -> None:
        self._coordinator = Coordinator(project, screen)
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)

    def _run(self) -> None:
        try:
            self._coordinator.run()
        except BaseException as error:  # raised again where somebody waits
            self._problem = error

    def prepare(self) -> None:
        topology = assemble(self._coordinator.project, self._coordinator.spark)
        with topology.sources:
            for name, source in topology.sources.items():
                source.prepare([relation.name for relation in topology.relations(name)])

    def start(self) -> None:
        self._thread.start()
        while self._coordinator.pipeline is None:
            self.check()
            time.sleep(0.05)

    def check(self) -> None:
        """Raise what has ended the coordinator, if anything has."""
        if self._problem is not None:
            raise self._problem

    def wait_until_idle(self) -> None:
        end = time.monotonic() + PATIENCE
        quiet = 0
        while quiet < 3:
            self.check()
            pipeline = self._coordinator.pipeline
            quiet = quiet + 1 if pipeline and pipeline.idle() and pipeline.settled else 0
            if time.monotonic() > end:
                raise NotNow("the views did not catch up with the load", fix="Is the machine very busy? Try again.")
            time.sleep(0.1)

    def stop(self) -> None:
        self._coordinator.stop()
        if self._thread.ident is not None:
            self._thread.join()
        if sys.exc_info()[0] is None:
            self.check()
