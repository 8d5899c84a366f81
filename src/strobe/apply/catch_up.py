"""Views that are about to join: loaded and kept beside the others, until they are where these are.

Their rows go at once into the tables that they will have, where nobody sees them, because no header names them. What
changes from then on goes into a small log of their own, under `staging`, from a pipeline of their own with its own
streams of the sources: they catch up with the very machinery that keeps all views, and those that are there already go
on meanwhile. Most of that log is merged into the tables before anybody has to wait. When both stand at one vector, one
commit brings the views in, and carries the rest.

Nothing here is durable. After a crash it is swept away, and tables whose loads never joined are taken back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from strobe.apply.load import Loaded, load
from strobe.data.scratch import JOINING, Scratch
from strobe.engine.halves import halves
from strobe.errors import BrokenInvariant, NotNow, SourceUnavailable, UserError
from strobe.failpoints import reach
from strobe.messages import Commit, CommitHeader, Position
from strobe.pipeline.barrier import BRING, PAUSE, Operation, missing_part
from strobe.pipeline.pipeline import Pipeline
from strobe.pipeline.run_end import RunEnd, Stopped
from strobe.planning.topology import Topology, ViewPlan, as_applied
from strobe.spark.answering import LargeAnswers
from strobe.spark.failures import SPARK, cause
from strobe.spark.relation import SparkRelation
from strobe.spark.session import in_background, own_session
from strobe.spark.spilled import reads_spilled
from strobe.warehouse import inspect, view_table
from strobe.warehouse.records import Generation
from strobe.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from strobe.spark.session import SparkSession
    from strobe.warehouse.evaluation import Part

FIRST = 1
"""The commit that holds what was loaded."""

DOWN = 60.0
"""Seconds for which a source may be down before views that need it do not join."""

CLOSE = 60.0
"""Seconds to wait for the end of views that will not join."""


@dataclass(frozen=True)
class Arrivals:
    """Views that join: loaded, with what their tables do not hold yet, at the positions of a commit of their own."""

    loaded: Sequence[Generation] = ()
    carried: Mapping[str, Part] = field(default_factory=dict)
    at: CommitHeader = field(default_factory=CommitHeader)


class CatchUp:
    def __init__(
        self,
        main: Warehouse,
        spark: SparkSession,
        topology: Topology,
        names: Sequence[str],
        within: float,
        loaded: Loaded | None = None,
    ) -> None:
        """`topology` has sources of its own, not those that the others are kept with. `within` is how many seconds a
        global transaction may take. The views are loaded first, unless they are already."""
        self._main = main
        wanted = {name: topology.views[name].view.sql for name in names}
        kept = as_applied(topology, wanted, lambda _: None)
        self.topology = replace(kept, views={name: _in_haste(planned) for name, planned in kept.views.items()})
        self._main_session, self._spark = spark, own_session(spark)
        self._lease = Scratch(main.layout.staging).lease(JOINING)
        self._layout = main.layout.beside(self._lease.folder)
        self._scratch = Scratch(self._layout.staging)
        self._warehouse: Warehouse | None = None
        self._answers = LargeAnswers(lambda: self._spark, lambda name: self.topology.views[name].view, self._scratch)
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._within = within
        self._given = loaded
        self._loaded: Sequence[Generation] = ()
        self._settled = FIRST
        """The commit of the small log up to which it has been merged into the tables."""
        self._settle = threading.Event()
        self.rows: dict[str, tuple[int, int | None]] = {}
        """How many rows of each source have been read, and of about how many."""
        self._vector: Mapping[str, Position] = {}
        self._stands = False
        self._waiting: list[Commit] = []
        """What brings these views to the vector from where their own log ends: one append less that others wait for."""
        self.pipeline: Pipeline | None = None
        """At work as soon as the views are loaded."""
        self._thread = threading.Thread(target=self._work, name="beside", daemon=True)
        self._thread.start()

    # In a thread of its own: load, and keep.

    def _work(self) -> None:
        try:
            with in_background(self._main_session):
                self._keep()
        except BaseException as error:  # told to whoever waits for the views
            self._error = error

    def _keep(self) -> None:
        project = self.topology.project
        warehouse = Warehouse.create_or_open(  # `_merge_log` checks every row
            self._spark, self._layout, project.retention, project.name, checked=False
        )
        warehouse.fence()
        self._warehouse = warehouse
        planned = self.topology.views.values()
        compiled = [each.view for each in planned]
        loaded = self._given or self._load()
        self._loaded = loaded.generations
        last = warehouse.cut_over(self._loaded, Commit(loaded.at))
        self._main.prepare_log(self._loaded)
        reach("apply.loaded")
        warehouse.use(compiled, unguaranteed=[each.view.name for each in planned if each.level == "none"])
        used = frozenset(source for view in compiled for source in view.sources)
        self.pipeline = Pipeline(  # in one group: they meet the others at one vector anyhow
            self.topology,
            warehouse,
            last,
            through_spark=self._answers.answer,
            read=reads_spilled(self._spark),
            lift=partial(SparkRelation.of_bag, self._spark),
            together=[used],
            fingerprints={each.view.name: each.fingerprints for each in self._loaded},
            parts=loaded.parts,
            halves=halves(loaded.parts, datetime.now(timezone.utc), self._within),
        )
        self.pipeline.run(self._step).check()

    def _load(self) -> Loaded:
        self._main.fold()  # what was joined last is published before its tables may change
        views = [planned.view for planned in self.topology.views.values()]
        sources = self.topology.sources

        def told(source: str, rows: int, total: int | None) -> None:
            self.rows[source] = rows, total

        return load(self._spark, sources, self._main, views, self._scratch, told, self._ended.is_set)

    def _step(self) -> RunEnd | None:
        if self._at_work().settled and not self._stands:
            self._answers.release()
        if self._settle.is_set():
            self._merge_log()
            self._settle.clear()
        return Stopped() if self._ended.is_set() else None

    def _merge_log(self) -> None:
        """Merge what has changed by now into the tables."""
        own, through = self._own(), self._at_work().committer.last.number
        log = inspect.open_log(own.layout)
        for name in inspect.changes(log, self._settled, through):
            unguaranteed = self.topology.views[name].level == "none"
            after, definition = self._settled, own.definitions[name]
            view_table.catch_up(self._spark, self._main.layout, log, definition, after, through, unguaranteed)
        self._settled = through

    # For the pipeline of the others, in whose loop all this is called.

    def check(self) -> None:
        """Raise what went wrong here."""
        if isinstance(self._error, (UserError, NotNow, SourceUnavailable)):
            raise self._error
        if self._error is not None:
            lines = str(self._error).strip().splitlines() or [type(self._error).__name__]
            raise NotNow(f"the views could not be loaded: {lines[0]}", fix="Try again.")

    def arrive(self) -> Operation:
        """Come to where `arrivals` are whole, where there are no others to meet."""
        while self.pipeline is None:
            self.check()
            yield
        yield from self.meet(None)
        yield from self.complete()
        yield from self.settle()
        yield from self.hold()
        yield from self.pause(None, PAUSE)
        self.stand(BRING)
        while not self.stands:
            yield

    def meet(self, other: Pipeline | None) -> Operation:
        """Come to where the others were when this was called; `SourceUnavailable` if a source is down for long."""
        own, well = self._at_work(), time.monotonic()
        there = other.monitors if other is not None else {}
        goals = {s: there[s].position if s in there else self.topology.sources[s].now() for s in own.vector}
        while not all(goal <= own.visible(s) for s, goal in goals.items()):
            self.check()
            refused = [each.error for each in own.refusals.values()]
            problem = next(filter(None, [*map(own.problem, own.vector), *refused]), None)
            well = well if problem is not None else time.monotonic()
            if problem is not None and time.monotonic() - well > DOWN:
                raise SourceUnavailable(problem.message, where=problem.where, fix=problem.fix)
            yield

    def complete(self) -> Operation:
        """Wait for the parts of global transactions that the views were loaded without, while everything goes on."""
        yield from self._there(self._parts_come())

    def _parts_come(self) -> Operation:
        engine, until = self._at_work().engine, time.monotonic() + self._within
        while engine.halves:
            if time.monotonic() > until:
                for half in sorted(engine.halves, key=lambda half: half.id):
                    if half.certain:
                        raise missing_part(half.id, [half.source])
                engine.let_go(engine.halves)  # they were before the log begins
            yield

    def _there(self, operation: Operation) -> Operation:
        """Wait until this has been carried out in these views' own loop."""
        own, done = self._at_work(), threading.Event()

        def told() -> Operation:
            yield from operation
            done.set()

        own.start_operation(told())
        while own.operation_open or not done.is_set():
            self.check()
            yield

    def settle(self) -> Operation:
        """Bring the tables to where these views are, while everything goes on."""
        self._settle.set()
        while self._settle.is_set():
            self.check()
            yield

    def hold(self) -> Operation:
        """Begin no more appends here: what comes until the end goes into the commit with which the views join."""
        committer = self._at_work().committer
        committer.hold()
        while committer.working:
            self.check()
            yield

    def pause(self, other: Pipeline | None, seconds: float) -> Operation:
        """Let nothing more in, there and then here; afterwards `vector` is where both can meet, which holds all parts
        of every global transaction of which it holds one."""
        if other is not None:
            yield from other.barrier.pause(seconds)
        own, beyond = self._at_work(), other.monitors if other is not None else {}
        yield from self._there(own.barrier.pause(seconds, {s: monitor.position for s, monitor in beyond.items()}))
        self._vector = {s: monitor.position for s, monitor in own.monitors.items()}

    @property
    def vector(self) -> Mapping[str, Position]:
        return self._vector

    def stand(self, seconds: float) -> None:
        """Come to the vector, in this pipeline's own loop."""
        own = self._at_work()

        def operation() -> Operation:
            yield from own.barrier.bring_to(self._vector, seconds, hold=True)
            self._waiting, self._stands = own.committer.hand_over(), True

        own.start_operation(operation())

    @property
    def stands(self) -> bool:
        self.check()
        return self._stands

    def arrivals(self) -> Arrivals:
        """The views as they stand, when they can join."""
        own, pipeline = self._own(), self._at_work()
        self.check()
        last = self._waiting[-1].header if self._waiting else pipeline.committer.last
        for name, vector in last.positions.items():
            guarded = self.topology.views[name].level != "none"
            at = {s: self.topology.sources[s].position(text) for s, text in vector.items()}
            if guarded and any(position.order != self._vector[s].order for s, position in at.items()):
                wrong = f"it stands at {vector}, not at {self._vector}, and does not join"
                raise NotNow(wrong, where=f"view {name}", fix="Try again.")
        tables, proven = self._main.layout, pipeline.prover.known
        loaded = [
            replace(
                each,
                table_version=inspect.version(tables.view(each.view.name)),
                fingerprints=proven[each.view.name],
            )
            for each in self._loaded
        ]
        try:
            return Arrivals(loaded, own.unsettled(self._main_session, self._settled, self._waiting), last)
        except SPARK as error:
            raise NotNow(f"Spark failed: {cause(error)}", fix="Try again.") from error

    def close(self) -> None:
        """Let go of everything. A load that is still on its way ends by itself; the next start sweeps up after it."""
        self._ended.set()
        self._thread.join(CLOSE)
        if self._warehouse is not None:
            self._warehouse.close()
        if not self._thread.is_alive():
            self._answers.close()
            self._lease.release()

    def _at_work(self) -> Pipeline:
        if self.pipeline is None:
            raise BrokenInvariant("the views that are to join are not loaded yet")
        return self.pipeline

    def _own(self) -> Warehouse:
        if self._warehouse is None:
            raise BrokenInvariant("the views that are to join are not loaded yet")
        return self._warehouse


def _in_haste(planned: ViewPlan) -> ViewPlan:
    """Nobody reads the states in between: large batches catch up sooner, and sweep's blocks end whenever it suits."""
    level = "strong" if planned.level == "complete" else planned.level
    every = None if planned.algorithm.name == "sweep" else planned.every
    return replace(planned, level=level, freshness=0.0, every=every)
