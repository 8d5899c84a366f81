"""`strobe run`: everything around the coordinator's loop.

    preflight ─▶ lock ─▶ Spark ─▶ fence ─▶ last header ─▶ (first time: load) ─▶ verify sources ─▶ run ─▶ fold ─▶
    release

Why a run has ended is a value, and what follows is in a table (see `coordinator.states`): another run from the last
header, after claiming the warehouse again or starting Spark again where that is needed, or the end.

Nothing is written before preflight has passed. A second coordinator is refused while the first is alive; with
`take_over` the fence sees to it that the first can commit no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from strobe.apply import plan
from strobe.apply.cutover import Cutover
from strobe.apply.first import load_first
from strobe.config.model import Project
from strobe.coordinator.availability import Availability
from strobe.coordinator.draining import Backlogs
from strobe.coordinator.maintenance import Maintenance
from strobe.coordinator.query_server import QueryServer
from strobe.coordinator.requests import RequestHandler
from strobe.coordinator.run import Run, Until
from strobe.coordinator.states import PHASES, Claimed, Opened, Phase
from strobe.coordinator.status import Reporter, Status, observe
from strobe.coordinator.tally import Tally
from strobe.coordinator.timing import USUAL, Timing
from strobe.coordinator.watchman import Watchman
from strobe.data.scratch import Scratch
from strobe.errors import (
    BrokenInvariant,
    CommitUnknown,
    Fenced,
    NotNow,
    SparkLost,
    UserError,
)
from strobe.events import (
    CommitInDoubt,
    DocumentRefused,
    Loaded,
    Loading,
    Maintaining,
    ProjectRefused,
    SparkRestarting,
    SparkStarting,
    Stopping,
)
from strobe.failpoints import reach
from strobe.messages import CommitHeader, Message
from strobe.pipeline import run_end
from strobe.pipeline.backpressure import Limits
from strobe.pipeline.pipeline import Pipeline
from strobe.pipeline.run_end import RunEnd
from strobe.planning.source_set import SourceSet
from strobe.planning.topology import Topology, compiled, preflight
from strobe.spark.answering import LargeAnswers
from strobe.spark.failures import SPARK, cause
from strobe.spark.relation import SparkRelation
from strobe.spark.spilled import reads_spilled
from strobe.warehouse import inspect, storage, tables
from strobe.warehouse.control import requests
from strobe.warehouse.control.heartbeat import read_heartbeat, write_heartbeat
from strobe.warehouse.control.lock import CoordinatorLock
from strobe.warehouse.control.store import Once
from strobe.warehouse.control.wakeup import Wakeups
from strobe.warehouse.layout import Layout
from strobe.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from strobe.spark.session import SparkSession


class Coordinator:
    def __init__(
        self,
        project: Project,
        reporter: Reporter,
        *,
        record: Callable[[Message], None] = lambda _: None,
        set_aside: bool = False,
        timing: Timing = USUAL,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        spark: SparkSession | None = None,
    ) -> None:
        """With `set_aside`, views that cannot be kept (their source was replaced, a column is gone) stand still instead
        of ending the run: for whoever wants to load or drop views. `spark` is one that has been started."""
        self.project = project
        self._reporter = reporter
        self._record = record
        self._timing, self._limits = timing, limits
        refused = Once(lambda name, why: reporter.tell(DocumentRefused(name, why)))
        self._layout = Layout(project.warehouse, refused=refused)
        self._availability = Availability(self._layout, reporter.tell, set_aside=set_aside, timing=timing)
        self._scratch = Scratch(self._layout.staging)
        self._lock = CoordinatorLock(self._layout.control)
        self._spark = spark
        self._stop, self._asked = threading.Event(), threading.Event()
        self.pipeline: Pipeline | None = None
        self._watchman: Watchman | None = None
        self._backlogs: Backlogs | None = None
        self._cutover = Cutover(project, self.spark, reporter.tell, timing.parts)
        self._ended = threading.Event()
        self._epoch = 0
        self._status: Status | None = None
        self._tally = Tally()
        self._unknown, self._without_spark = Failures(), Failures()

    def stop(self) -> None:
        """Finish the commit at hand, fold and end. May be called from a signal handler."""
        self._stop.set()
        self._wake()

    def _asked_for(self) -> None:
        """A request has been posted."""
        self._asked.set()
        self._wake()

    def _wake(self) -> None:
        if (pipeline := self.pipeline) is not None:
            pipeline.wake()

    @property
    def status(self) -> Status | None:
        """What the loop last said of itself; None before the views are kept."""
        return self._status

    # Starting.

    def run(
        self,
        *,
        until_idle: bool = False,
        seconds: float | None = None,
        take_over: bool = False,
    ) -> None:
        """Keep the views as they were last applied; the first run applies them. With `until_idle`, raises in the end if
        some stand still."""
        self._topology = self.assembled()
        try:
            tables.check_before_use(self._layout, self.project.name)
            self._layout.own_folders(self.project.umask, self.project.directory)
            self._lock.acquire(take_over)
            requests.clear(self._layout.control)
            heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            heart.start()
            try:
                with (
                    Wakeups(self._layout.control, self._asked_for),
                    QueryServer(self._layout, lambda: self._spark),
                ):
                    self.keep_views(Until(self._stop, idle=until_idle, seconds=seconds), take_over)
                if until_idle:
                    self._availability.complain()
            except Fenced:
                raise
            except BaseException:
                self._say_goodbye(heart)
                raise
            else:
                self._say_goodbye(heart)
            finally:
                self._ended.set()
                if self._lock.lost:
                    tables.remove_remains(self._layout, self._topology.views)
                self._lock.release()
        finally:
            self._topology.sources.close()
            self._scratch.close()

    def keep_views(self, until: Until, take_over: bool) -> None:
        """From opening the warehouse to the end, as the table says; raises what it ended with."""
        phase: Phase = PHASES.begins
        event: Opened | Claimed | RunEnd = Opened()
        while phase is not Phase.ENDED:
            try:
                if phase is Phase.OPENING:
                    event = self._open(event, take_over)
                elif phase is Phase.CLAIMING:
                    event = self._claim_again(event)
                else:
                    event = self._run(until)
            except Exception as error:
                event = self._failed(error)
            phase = PHASES.next(phase, type(event))
        if isinstance(event, RunEnd):
            event.check()

    def _failed(self, error: Exception) -> RunEnd:
        """How a phase has ended in which this happened. If Spark's process or the warehouse is gone, that is the
        reason."""
        if self._lock.lost:
            return run_end.Failed(tables.deleted(self._layout))
        if isinstance(error, Fenced):
            return run_end.Fenced(error)
        if isinstance(error, (UserError, NotNow)):
            return run_end.Failed(error)
        lost = self._spark_lost(patience=2.0)
        if lost is None:
            return run_end.Failed(error)
        lost.__cause__ = error
        if self._timing.start_spark.exhausted(self._without_spark.after(self.last_number())) or self._stop.is_set():
            return run_end.Failed(lost)
        return run_end.SparkEnded(lost)

    def _spark_lost(self, patience: float = 0.0) -> SparkLost | None:
        """That Spark's process has ended, if it has."""
        if self._spark is None:
            return None
        from strobe.spark.session import lost

        return lost(patience)

    def last_number(self) -> int:
        """The number of the last commit; 0 before the first."""
        last = inspect.last_header(self._layout) if storage.exists(self._layout.log) else None
        return last.number if last is not None else 0

    def assembled(self) -> Topology:
        """The project as strobe.yml has it. A mistake in it must not keep the views that are there from being kept.
        The sources are the caller's to close."""
        with SourceSet.open(self.project, self.spark).closed_on_error() as sources:
            try:
                topology = compiled(self.project, sources)
                preflight(topology)
                return topology
            except UserError as error:
                if not plan.applied(self.project.warehouse):
                    raise
                self._reporter.tell(ProjectRefused(str(error)))
                return Topology(self.project, sources, {}, {})

    def _say_goodbye(self, heart: threading.Thread) -> None:
        self._ended.set()
        heart.join(timeout=5)
        if not self._lock.lost:
            self._heartbeat(stopped=True)

    def spark(self) -> SparkSession:
        if self._spark is None:
            from strobe.spark.session import start

            self._spark = start(self.project.spark, umask=self.project.umask)
        return self._spark

    def _open(self, before: Opened | Claimed | RunEnd, take_over: bool) -> Opened:
        """Claim the warehouse, read where it stands; the first time, load all views. Again, if Spark has ended."""
        if isinstance(before, run_end.SparkEnded):
            self._reporter.tell(SparkRestarting(before.error.message))
            self._spark, self._epoch = None, 0
            self.project = self._cutover.interrupted() or self.project
            self._topology.sources.close()
            self._topology = self.assembled()
        self._reporter.tell(SparkStarting())
        self._warehouse = Warehouse.create_or_open(
            self.spark(), self._layout, self.project.retention, self.project.name, at=reach, lock=self._lock
        )
        header = self._warehouse.fence(take_over)
        self._epoch = self._warehouse.epoch
        self._scratch.sweep()
        self._last = header if header is not None else self._load_all()
        return Opened()

    def _load_all(self) -> CommitHeader:
        topology = self._topology
        self._reporter.tell(Loading(tuple(topology.views)))
        within, stopped = self._timing.parts, self._stop.is_set
        last = load_first(self._warehouse, self.spark(), topology, within, stopped, self._reporter.tell)
        self._reporter.tell(Loaded(tuple(topology.views), last.number))
        return last

    def _claim_again(self, before: Opened | Claimed | RunEnd) -> Claimed | RunEnd:
        """An append with an unknown outcome counts as a crash: fence, read the last header, go on from there."""
        if not isinstance(before, run_end.AppendUnknown):
            raise BrokenInvariant(f"the warehouse is claimed again after {before}")
        if self._lock.lost:
            return self._failed(before.error)
        self._reporter.tell(CommitInDoubt(str(before.error)))
        in_a_row = self._unknown.after(self._last.number)
        given_up = self._timing.append.exhausted(in_a_row) or self._spark_lost(patience=1.0)
        if given_up or self._stop.wait(self._timing.append.wait(in_a_row)):
            return self._failed(before.error)
        try:
            header = self._warehouse.fence(take_over=not self._lock.held)
        except CommitUnknown as again:
            return run_end.AppendUnknown(again)
        self._epoch = self._warehouse.epoch
        self._last = header if header is not None else self._last
        return Claimed()

    # Keeping.

    def _run(self, until: Until) -> RunEnd:
        """One run, from the last commit, with the views that can be kept."""
        until.begin()
        warehouse = self._warehouse
        self._topology = self._cutover.joined(warehouse, self._topology)
        self.project = self._topology.project
        topology = self._topology = self._availability.as_applied(self._topology, warehouse.definitions)
        unguaranteed = [name for name, planned in topology.views.items() if planned.level == "none"]
        warehouse.use([planned.view for planned in topology.views.values()], unguaranteed=unguaranteed)
        present = self._availability.present(topology, self._last)
        try:
            end = self._keep(present, until)
            if isinstance(end, run_end.Failure) and not isinstance(end, run_end.SourceLost):
                end.check()
        except CommitUnknown as error:
            return run_end.AppendUnknown(error)
        except SPARK as error:  # in a manager's thread: what it was computing is lost
            fix = "Strobe starts again from the last commit in the log."
            unknown = CommitUnknown(f"Spark failed: {cause(error)}", where=str(self._layout.root), fix=fix)
            return run_end.AppendUnknown(unknown)
        return end

    def _keep(self, topology: Topology, until: Until) -> RunEnd:
        answers = LargeAnswers(self.spark, lambda name: topology.views[name].view, self._scratch)
        pipeline = self.pipeline = Pipeline(
            topology,
            self._warehouse,
            self._last,
            through_spark=answers.answer,
            read=reads_spilled(self.spark()),
            lift=partial(SparkRelation.of_bag, self.spark()),
            limits=self._limits,
            record=self._record,
            together=self._availability.together,
            fingerprints={name: d.fingerprints for name, d in self._warehouse.definitions.items()},
        )
        maintenance = self._maintenance(pipeline)
        self._watchman = watchman = self._audit(pipeline)
        handler = RequestHandler(self._warehouse, self._cutover, pipeline, self._asked)
        run = Run(
            pipeline,
            handler,
            self._availability,
            self._cutover,
            until,
            timing=self._timing,
            status=partial(self._note_status, pipeline),
            release=answers.release,
        )
        self._backlogs = Backlogs(pipeline, time.monotonic)
        self._note_status(pipeline)
        self._heartbeat()
        try:
            maintenance.start()
            if watchman is not None:
                watchman.start()
            self._reporter.tell(Maintaining(tuple(topology.views), self._last.number))
            end = self._followed_up(pipeline.run(run.step, run.pause), handler)
            if isinstance(end, run_end.Stopped):
                self._reporter.tell(Stopping(pipeline.committer.last.number))
                maintenance.finish()
            if not isinstance(end, run_end.Failure) or isinstance(end, run_end.SourceLost):
                self._last = self._warehouse.last or self._last
            return end
        finally:
            maintenance.stop()
            if watchman is not None:
                watchman.stop()
            handler.abandon()
            self._cutover.abandon()
            answers.close()
            self.pipeline = None
            self._note_status(pipeline)
            self._tally = self._tally.plus(pipeline)

    def _followed_up(self, end: RunEnd, handler: RequestHandler) -> RunEnd:
        """What a run's end means to the views, and to an edit that is being applied."""
        if isinstance(end, run_end.SourceLost):
            self._availability.stand_still(end.error)
            handler.put_back()
        elif isinstance(end, run_end.Failure):
            return end
        elif isinstance(end, run_end.MembersChanged):
            self._availability.regroup(end.detached)
        elif self._cutover.ready:  # views may have joined in the last moment
            end = run_end.CutOver()
        if not self._cutover.ready:
            self._cutover.give_up(self._warehouse)
        return end

    def _maintenance(self, pipeline: Pipeline) -> Maintenance:
        maintenance = Maintenance(pipeline, self._warehouse, self._reporter.tell, self._timing, self.project.publish)
        maintenance.retained = self._tally.retained
        maintenance.logs_needed = lambda: self._cutover.change is not None
        maintenance.hurry = lambda: self._cutover.near
        maintenance.stopped = self._availability.stopped
        if self._warehouse.unpublished:
            maintenance.fold_soon()
        return maintenance

    def _audit(self, pipeline: Pipeline) -> Watchman | None:
        """The audit in the background, if the project asks for one."""
        if (period := self.project.audit) is None:
            return None
        warehouse, seconds = self._warehouse, period.total_seconds()
        return Watchman(pipeline, warehouse, self.spark(), self._scratch, seconds, self._timing)

    def _note_status(self, pipeline: Pipeline) -> None:
        apart = self._availability
        known = self._watchman.known if self._watchman is not None else {}
        backlogs = self._backlogs.look() if self._backlogs is not None else {}
        self._status = observe(
            pipeline, apart.outages, apart.problems, apart.refused, known, backlogs, apart.overdue, self._tally
        )

    def _beat(self) -> None:
        """Twice a second, in a thread of its own: say what the loop last said of itself, and see who else is there."""
        while not self._ended.wait(self._timing.beat):
            try:
                self._beat_once()
            except OSError:  # a full disk, a terminal that went away: the coordinator works on, and tries again
                continue
            except BaseException as error:  # without a heartbeat it would pass for dead
                if self.pipeline is not None:
                    self.pipeline.fail(error)

    def _beat_once(self) -> None:
        if self._epoch and not self._lock.held:
            self._lock.acquire(take_over=True)
        if self._lock.lost:
            if self.pipeline is not None:
                self.pipeline.fail(tables.deleted(self._layout))
            return
        self._lock.keep()
        other = read_heartbeat(self._layout.control) or {}
        if int(other.get("epoch", 0)) > self._epoch > 0 and self.pipeline is not None:
            taken = f"another coordinator has taken over (epoch {other['epoch']})"
            fix = "Nothing is lost: the other one goes on from the last commit."
            self.pipeline.fail(Fenced(taken, where=str(self._layout.root), fix=fix))
        elif self._epoch or self._lock.held:
            if self.pipeline is not None and (lost := self._spark_lost()) is not None:
                self.pipeline.fail(lost)
            self._heartbeat()
            if self._status is not None:
                self._reporter.status(self._status)

    def _heartbeat(self, stopped: bool = False) -> None:
        with suppress(OSError):  # a full disk: the coordinator works on, and tries again
            said = self._status.document() if self._status else {"state": "starting"}
            write_heartbeat(self._layout.control, {**said, "epoch": self._epoch, "stopped": stopped})


class Failures:
    """Failures one after another, without a commit in between."""

    def __init__(self) -> None:
        self._commit, self._number = -1, 0

    def after(self, commit: int) -> int:
        """One more; how many there have been since this commit, the last one."""
        self._commit, self._number = commit, self._number + 1 if commit == self._commit else 1
        return self._number
