"""Views that come, change and go while the others are kept: an edit, from the request to the commit that shows it.

New and changed views are loaded and catch up beside the others (`beside`), then all stand at one vector; the loop ends,
one commit brings them in, and the boxes are built anew from its header.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strobe import config
from strobe.config import Project
from strobe.errors import CommitUnknown, Fenced, NotNow, SourceUnavailable, StrobeError, UserError
from strobe.runtime import edits, mailbox
from strobe.runtime.assembly import Assembly, assemble, preflight
from strobe.runtime.beside import Beside
from strobe.runtime.coordinator import BRING, PAUSE, Coordinator, Errand
from strobe.runtime.edits import Edit
from strobe.runtime.failpoints import reach
from strobe.runtime.loading import NOTHING, next_commit
from strobe.runtime.reporter import Reporter
from strobe.warehouse.header import Commit, Definition
from strobe.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 5
"""How often views that are about to join come to where the others are, before they join however far behind they are."""

CLOSE_BEHIND = 3.0
"""Seconds of catching up that the others can wait for."""


@dataclass
class Change:
    """An edit that is being applied: who asked for it, the project as it is to be, and the views that are to join."""

    request: str
    edit: Edit
    assembly: Assembly
    drop_tables: bool = False
    beside: Beside | None = None
    near: bool = False
    """The views will join in a moment: nothing that takes long is begun."""
    ready: bool = False
    """Everything stands at one vector: the loop ends, and the views join."""
    answered: bool = False

    def close(self) -> None:
        if self.beside is not None:
            self.beside.close()


class Joining:
    """The edit that is being applied, if there is one."""

    def __init__(self, project: Project, spark: Callable[[], SparkSession], reporter: Reporter) -> None:
        self._project, self._spark, self._reporter = project, spark, reporter
        self.change: Change | None = None

    @property
    def near(self) -> bool:
        """Whether views are about to join."""
        return self.change is not None and self.change.near

    @property
    def ready(self) -> bool:
        """Whether views will join as soon as the loop has ended; then whoever asked is told."""
        return self.change is not None and self.change.ready

    def abandon(self) -> None:
        """The loop has ended before everything stood at one vector."""
        if self.change is not None and not self.change.ready:
            self.change.close()
            self.change.assembly.close()
            self.change = None

    def rebuild(self, coordinator: Coordinator, request: str, view: str) -> Errand:
        """Load one view anew, as strobe.yml defines it now."""
        return self._change(coordinator, request, lambda fresh, there: edits.rebuilt(fresh, there, view))

    def apply(self, coordinator: Coordinator, request: str, drop_tables: bool) -> Errand:
        """Make the views those of strobe.yml."""
        return self._change(coordinator, request, edits.edit, drop_tables)

    def _change(
        self,
        coordinator: Coordinator,
        request: str,
        wanted: Callable[[Assembly, Mapping[str, Definition]], Edit],
        drop_tables: bool = False,
    ) -> Errand:
        """Load views beside the others while these go on, bring all to one vector, and leave the loop to join them."""
        warehouse = coordinator.warehouse
        fresh = assemble(config.load(self._project.directory), self._spark)
        change = Change(request, wanted(fresh, warehouse.definitions), fresh, drop_tables)
        try:
            preflight(fresh)
            if change.edit.nothing:
                self._answer(change, coordinator.committer.last)
                fresh.close()
                return
            self.change = change
            if change.edit.load:
                yield from self._load_beside(coordinator, change)
        except Exception as error:
            self.give_up(warehouse)
            fresh.close()
            if isinstance(error, SourceUnavailable):
                raise UserError(
                    error.message, where=error.where, fix=error.fix or "Apply it when it is back."
                ) from error
            raise
        change.ready = True

    def _load_beside(self, coordinator: Coordinator, change: Change) -> Errand:
        names = ", ".join(change.edit.load)
        self._tell(change, f"loading {names}")
        for name in change.assembly.sources.keys() & coordinator.assembly.sources.keys():
            change.assembly.sources[name].beside(coordinator.assembly.sources[name])
        own = change.beside = Beside(coordinator.warehouse, self._spark(), change.assembly, change.edit.load)
        told: dict[str, int] = {}
        while own.coordinator is None:
            own.check()
            if own.rows != told and (told := dict(own.rows)):
                self._tell_rows(change, told)
            yield
        self._tell(change, f"{names}: catching up")
        yield from self._catch_up(coordinator, own)
        yield from own.settle()
        yield from own.meet(coordinator)
        change.near = True
        while coordinator.warehouse.folding:
            yield
        self._tell(change, f"{names}: joining")
        yield from own.pause(coordinator, PAUSE)
        own.stand(BRING)
        yield from coordinator.bring_to({s: p for s, p in own.vector.items() if s in coordinator.monitors}, BRING)
        while not own.stands:
            yield
        reach("apply.met")

    def _tell_rows(self, change: Change, rows: Mapping[str, int]) -> None:
        for source, number in rows.items():
            self._reporter.loading(source, number)
        read = ", ".join(f"{number:,} rows of {source}" for source, number in rows.items())
        mailbox.tell(self._project.warehouse, change.request, f"read {read}")

    @staticmethod
    def _catch_up(coordinator: Coordinator, own: Beside) -> Errand:
        before = float("inf")
        for _ in range(ROUNDS):
            began = time.monotonic()
            yield from own.meet(coordinator)
            took = time.monotonic() - began
            if took < CLOSE_BEHIND or took > before / 2:  # it will not come much closer
                return
            before = took

    def give_up(self, warehouse: Warehouse) -> None:
        """Views that were to join will not: their tables are again what they were."""
        change, self.change = self.change, None
        if change is not None:
            change.close()
            if change.beside is not None:
                warehouse.take_back()

    def join(self, warehouse: Warehouse, last: Commit, change: Change) -> Commit:
        """Bring views in and let others go, in one commit, at the vector at which all the others stand."""
        edit, own = change.edit, change.beside
        try:
            loaded, rest, stands = own.finish() if own is not None else ([], [], NOTHING)
        except (Fenced, CommitUnknown):
            raise
        except Exception as error:  # nothing was committed: the others go on
            warehouse.take_back()
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self._fail(change, error if isinstance(error, UserError) else NotNow(lines[0], fix="Try again."))
            return last
        if warehouse.unpublished:
            warehouse.fold()  # what was joined last is published while all its views are there
        if not change.drop_tables:
            warehouse.settle(edit.drop)
        last = next_commit(last, stands.positions, stands.identity, stands.as_of, edit.drop)
        warehouse.join(loaded, last, edit.drop, rest)
        if change.drop_tables:
            warehouse.empty(edit.drop)
        self._reporter.say(f"applied at commit {last.number}: {edit}")
        self._answer(change, last)
        return last

    def joined(self, warehouse: Warehouse, assembly: Assembly, change: Change) -> Assembly:
        """The project to go on with: the new one if the views have joined, which the last header says."""
        change.close()
        self._fail(change, _interrupted())
        there = warehouse.definitions.keys()
        if set(change.edit.load) <= there and not set(change.edit.drop) & there:
            assembly.close()
            return change.assembly
        change.assembly.close()
        return assembly

    def interrupted(self) -> Project | None:
        """Spark has ended meanwhile: the project as it was to be, if an edit was on its way."""
        change, self.change = self.change, None
        if change is None:
            return None
        change.close()
        self._fail(change, _interrupted())
        change.assembly.close()
        return change.assembly.project

    def _fail(self, change: Change, error: StrobeError) -> None:
        """Tell whoever asked, unless they know already."""
        if not change.answered:
            self._reporter.say(str(error))
            mailbox.reply(self._project.warehouse, change.request, error.document())
        change.answered = True

    def _answer(self, change: Change, last: Commit) -> None:
        change.answered = True
        mailbox.reply(self._project.warehouse, change.request, {"commit": last.number, **change.edit.document()})

    def _tell(self, change: Change, text: str) -> None:
        self._reporter.say(text)
        mailbox.tell(self._project.warehouse, change.request, text)


def _interrupted() -> NotNow:
    return NotNow("it was interrupted, and may have been applied", fix="Look at `strobe plan`, and try again.")
