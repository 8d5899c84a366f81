"""Views that come, change and go while the others are kept: an edit, from the request to the commit that shows it.

New and changed views are loaded and catch up beside the others (`catch_up`). Then all come to one vector, and the
commit with which the others get there brings the new ones in: nobody waits for more than an ordinary commit. The run
ends, and the next one begins from its header.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from strobe.apply import plan
from strobe.apply.catch_up import Arrivals, CatchUp
from strobe.apply.plan import ApplyPlan
from strobe.apply.states import VIEW, ViewEvent, ViewState
from strobe.config.load import load_project
from strobe.config.model import Project
from strobe.errors import NotNow, SourceUnavailable, StrobeError, UserError
from strobe.events import (
    Applied,
    ApplyFailed,
    CatchingUp,
    CuttingOver,
    Event,
    Listener,
    Loading,
    RowsRead,
    ignore,
)
from strobe.failpoints import reach
from strobe.messages import Commit, CommitHeader
from strobe.pipeline.background import aside
from strobe.pipeline.barrier import BRING, PAUSE, Operation
from strobe.pipeline.pipeline import Pipeline
from strobe.planning.source_set import SourceSet
from strobe.planning.topology import Topology, as_applied, assemble, preflight
from strobe.retry import CATCH_UP
from strobe.warehouse.control import requests
from strobe.warehouse.control.store import Document
from strobe.warehouse.layout import Layout
from strobe.warehouse.records import Definition
from strobe.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from strobe.spark.session import SparkSession

CLOSE_BEHIND = 3.0
"""Seconds of catching up that the others can wait for."""


@dataclass
class Change:
    """An edit that is being applied: who asked for it, the project as it is to be, and the views that are to join."""

    request: str | None
    edit: ApplyPlan
    topology: Topology
    drop_tables: bool = False
    beside: CatchUp | None = None
    loaded: Mapping[str, int] = field(default_factory=dict)
    """The generations with which the views are to join."""
    state: ViewState = VIEW.begins
    """Of the views that are to join; of an edit that only lets views go, how far it has come all the same."""
    answered: bool = False

    def told(self, event: ViewEvent) -> None:
        self.state = VIEW.next(self.state, event)

    def close(self) -> None:
        if self.beside is not None:
            self.beside.close()


class Cutover:
    """The edit that is being applied, if there is one."""

    def __init__(self, project: Project, spark: Callable[[], SparkSession], tell: Listener, within: float) -> None:
        """`within` is how many seconds a global transaction may take."""
        self._project, self._spark, self._tell, self._within = project, spark, tell, within
        self.change: Change | None = None
        self._giving_up = threading.Lock()
        self.lost_again = 0
        """Attempts to load views anew in whose course log was let go again; none since views joined."""

    @property
    def near(self) -> bool:
        """Whether views are about to join."""
        return self.change is not None and self.change.state not in (ViewState.LOADING, ViewState.CATCHING_UP)

    @property
    def ready(self) -> bool:
        """Whether views join at this moment, or have; whoever asked is told."""
        return self.change is not None and (self.change.state is ViewState.CUTTING_OVER or self.over)

    @property
    def asked_by(self) -> str | None:
        """The request that is being done."""
        return self.change.request if self.change is not None else None

    @property
    def over(self) -> bool:
        """Whether views have joined, or could not."""
        return self.change is not None and self.change.state in (ViewState.MAINTAINED, ViewState.RETIRED)

    def abandon(self) -> None:
        """The loop has ended before everything stood at one vector."""
        with self._giving_up:  # nor is anything being given up when the next one begins
            if self.change is not None and not self.ready:
                self.change.close()
                self.change.topology.sources.close()
                self.change = None

    def rebuild(self, warehouse: Warehouse, pipeline: Pipeline, request: str, views: Sequence[str]) -> Operation:
        """Load views again, as strobe.yml defines them now."""
        wanted = partial(plan.rebuilt, views=views, kept=pipeline.topology.views)
        return self.carry_out(warehouse, pipeline, request, self._assembled, wanted)

    def apply(self, warehouse: Warehouse, pipeline: Pipeline, request: str, drop_tables: bool) -> Operation:
        """Make the views those of strobe.yml."""
        return self.carry_out(warehouse, pipeline, request, self._assembled, plan.edit, drop_tables)

    def reload(self, warehouse: Warehouse, pipeline: Pipeline, views: Sequence[str]) -> Operation:
        """Load views anew, as they were last applied; nobody has asked for it."""
        definitions = warehouse.definitions
        edit = ApplyPlan(rebuild=tuple(views), keep=tuple(name for name in definitions if name not in views))
        applied = {name: definitions[name].sql for name in views}
        assembled = partial(self._as_applied, pipeline.topology.project, applied)
        return self.carry_out(warehouse, pipeline, None, assembled, lambda *_: edit)

    def carry_out(
        self,
        warehouse: Warehouse,
        pipeline: Pipeline,
        request: str | None,
        assembled: Callable[[], Topology],
        wanted: Callable[[Topology, Mapping[str, Definition]], ApplyPlan],
        drop_tables: bool = False,
    ) -> Operation:
        """Load views beside the others while these go on, bring all to one vector, and join them there."""
        fresh = yield from aside(assembled, "apply")
        with fresh.sources.closed_on_error():
            change = Change(request, wanted(fresh, warehouse.definitions), fresh, drop_tables)
        if change.edit.nothing:
            self._answer(change, pipeline.committer.last)
            fresh.sources.close()
            return
        self.change = change
        try:
            if change.edit.load:
                yield from self._load_beside(warehouse, pipeline, change)
            else:
                yield from self._before_they_leave(warehouse, change)
            arrivals = change.beside.arrivals() if change.beside is not None else Arrivals()
        except Exception as error:
            pipeline.barrier.resume()
            yield from aside(partial(self.give_up, warehouse), "give up")
            if isinstance(error, SourceUnavailable):
                raise _refusal(error) from error
            raise
        change.loaded = {item.view.name: item.number for item in arrivals.loaded}
        change.told(ViewEvent.MET)
        pipeline.committer.end_with(partial(self._join, warehouse, change, arrivals))
        while not self.over:
            yield

    def _assembled(self) -> Topology:
        """The project as strobe.yml has it now, if nothing is wrong with it."""
        try:
            fresh = assemble(load_project(self._project.directory), self._spark)
            with fresh.sources.closed_on_error():
                preflight(fresh)
        except SourceUnavailable as error:
            raise _refusal(error) from error
        return fresh

    def _as_applied(self, project: Project, applied: Mapping[str, str]) -> Topology:
        """Some views as they were last applied, with sources of their own."""
        with SourceSet.open(project, self._spark).closed_on_error() as sources:
            fresh = as_applied(Topology(project, sources, {}, {}), applied, ignore)
            preflight(fresh)
        return fresh

    def _load_beside(self, warehouse: Warehouse, pipeline: Pipeline, change: Change) -> Operation:
        self._report(change, Loading(change.edit.load))
        for name in change.topology.sources.keys() & pipeline.topology.sources.keys():
            change.topology.sources[name].beside(pipeline.topology.sources[name])
        own = change.beside = CatchUp(warehouse, self._spark(), change.topology, change.edit.load, self._within)
        told: dict[str, tuple[int, int | None]] = {}
        while own.pipeline is None:
            own.check()
            if own.rows != told and (told := dict(own.rows)):
                self._tell_rows(change, told)
            yield
        change.told(ViewEvent.LOADED)
        self._report(change, CatchingUp(change.edit.load))
        yield from self._catch_up(pipeline, own)
        yield from own.complete()
        yield from own.settle()
        yield from own.meet(pipeline)
        yield from self._draw_near(warehouse, change)
        self._report(change, CuttingOver(change.edit.load))
        yield from own.hold()
        yield from own.pause(pipeline, PAUSE)
        own.stand(BRING)
        shared = {s: p for s, p in own.vector.items() if s in pipeline.monitors}
        yield from pipeline.barrier.bring_to(shared, BRING, hold=True)
        while not own.stands:
            yield
        reach("apply.met")

    def _before_they_leave(self, warehouse: Warehouse, change: Change) -> Operation:
        if warehouse.unpublished:  # while all views are there that came last
            yield from aside(warehouse.fold, "fold")
        change.told(ViewEvent.LOADED)  # nothing
        yield from self._draw_near(warehouse, change)

    @staticmethod
    def _draw_near(warehouse: Warehouse, change: Change) -> Operation:
        """Wait for the end of whatever takes long, and let nothing of the kind begin."""
        change.told(ViewEvent.CLOSE_BEHIND)
        while warehouse.folding:
            yield

    def _tell_rows(self, change: Change, rows: Mapping[str, tuple[int, int | None]]) -> None:
        for source, (number, total) in rows.items():
            self._tell(RowsRead(source, number, total))
        if change.request is not None:
            requests.tell_rows(Layout(self._project.warehouse).control, change.request, rows)

    @staticmethod
    def _catch_up(pipeline: Pipeline, own: CatchUp) -> Operation:
        before = float("inf")
        for _ in range(CATCH_UP.attempts):
            began = time.monotonic()
            yield from own.meet(pipeline)
            took = time.monotonic() - began
            if took < CLOSE_BEHIND or took > before / 2:  # it will not come much closer
                return
            before = took

    def give_up(self, warehouse: Warehouse) -> None:
        """Views that were to join will not: their tables are again what they were."""
        with self._giving_up:
            change, self.change = self.change, None
            if change is not None:
                change.close()
                change.topology.sources.close()
                if change.beside is not None:
                    warehouse.take_back()

    def _join(
        self, warehouse: Warehouse, change: Change, arrivals: Arrivals, last: CommitHeader, before: Sequence[Commit]
    ) -> CommitHeader | None:
        """Bring views in and let others go, in one commit, at the vector to which the commits `before` it bring all."""
        edit = change.edit
        commit = Commit(last.cut_over(datetime.now(timezone.utc), arrivals.at, edit.drop))
        try:
            header = warehouse.cut_over(
                arrivals.loaded, commit, edit.drop, arrivals.carried, before, empty=change.drop_tables
            )
        except (UserError, NotNow) as error:  # nothing was committed: the others go on
            self._fail(change, error)
            change.told(ViewEvent.GIVE_UP)
            return None
        self.lost_again = 0
        self._tell(Applied(header.number, edit.add, edit.rebuild, edit.drop))
        self._answer(change, header)
        change.told(ViewEvent.DURABLE)
        return header

    def joined(self, warehouse: Warehouse, topology: Topology) -> Topology:
        """The project to go on with: the new one if views have joined, which the last header says."""
        change, self.change = self.change, None
        if change is None:
            return topology
        change.close()
        self._fail(change, _interrupted())
        there = {name: definition.generation for name, definition in warehouse.definitions.items()}
        if change.loaded.items() <= there.items() and not set(change.edit.drop) & there.keys():
            topology.sources.close()
            return change.topology
        change.topology.sources.close()
        warehouse.take_back()
        return topology

    def interrupted(self) -> Project | None:
        """Spark has ended meanwhile: the project as it was to be, if an edit was on its way."""
        change, self.change = self.change, None
        if change is None:
            return None
        change.close()
        self._fail(change, _interrupted())
        change.topology.sources.close()
        return change.topology.project

    def _fail(self, change: Change, error: StrobeError) -> None:
        """Tell whoever asked, unless they know already."""
        if not change.answered:
            self._tell(ApplyFailed(str(error)))
            self._reply(change, error.document())
        change.answered = True

    def _answer(self, change: Change, last: CommitHeader) -> None:
        change.answered = True
        self._reply(change, {"commit": last.number, **change.edit.document()})

    def _report(self, change: Change, event: Event) -> None:
        self._tell(event)
        self._mail(change, event)

    def _mail(self, change: Change, event: Event) -> None:
        if change.request is not None:
            requests.tell(Layout(self._project.warehouse).control, change.request, str(event))

    def _reply(self, change: Change, document: Document) -> None:
        if change.request is not None:
            requests.reply(Layout(self._project.warehouse).control, change.request, document)


def _refusal(error: SourceUnavailable) -> UserError:
    return UserError(error.message, where=error.where, fix=error.fix or "Apply it when it is back.")


def _interrupted() -> NotNow:
    return NotNow("it was interrupted, and may have been applied", fix="Look at `strobe plan`, and try again.")
