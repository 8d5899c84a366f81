"""`strobe run`: everything around the coordinator's loop.

    preflight ─▶ lock ─▶ Spark ─▶ fence ─▶ last header ─▶ (first time: load) ─▶ verify sources ─▶ loop ─▶ fold ─▶
    release

Nothing is written before preflight has passed. A second coordinator is refused while the first is alive; with
`take_over` the fence sees to it that the first can commit no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from strobe.algebra.relation import Relation
from strobe.apply import catch_up, plan
from strobe.apply.cutover import Cutover
from strobe.apply.load import load
from strobe.config.model import Project
from strobe.coordinator.availability import Availability
from strobe.coordinator.maintenance import Maintenance
from strobe.coordinator.requests import RequestHandler
from strobe.coordinator.status import Reporter, Status, observe
from strobe.errors import (
    CommitUnknown,
    Fenced,
    NotNow,
    SourceLost,
    SparkLost,
    UserError,
)
from strobe.failpoints import reach
from strobe.messages import CommitHeader, Message, Query, Seen
from strobe.pipeline.answerer import SparkAnswer
from strobe.pipeline.pipeline import Pipeline
from strobe.planning.topology import Topology, assemble, open_sources, preflight
from strobe.retry import APPEND, START_SPARK
from strobe.sources.base import Source
from strobe.spark import staging
from strobe.spark.failures import SPARK, cause, reading
from strobe.spark.spilled import reads_spilled
from strobe.warehouse import inspect, storage, tables
from strobe.warehouse.control import requests
from strobe.warehouse.control.heartbeat import read_heartbeat, write_heartbeat
from strobe.warehouse.control.lock import CoordinatorLock
from strobe.warehouse.layout import Layout
from strobe.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from strobe.spark.session import SparkSession


BEAT = 0.5
"""Seconds between heartbeats."""


class Coordinator:
    def __init__(
        self,
        project: Project,
        reporter: Reporter,
        *,
        record: Callable[[Message], None] = lambda _: None,
        set_aside: bool = False,
    ) -> None:
        """With `set_aside`, views that cannot be kept (their source was replaced, a column is gone) stand still instead
        of ending the run: for whoever wants to load or drop views."""
        self.project = project
        self._reporter = reporter
        self._record = record
        self._layout = Layout(project.warehouse)
        self._availability = Availability(self._layout, reporter.say, set_aside=set_aside)
        self._staging = self._layout.staging
        self._staged: list[staging.Staged] = []
        self._lock = CoordinatorLock(self._layout.control)
        self._spark: SparkSession | None = None
        self._stop = threading.Event()
        self._deadline: float | None = None
        """When the run ends by itself: so many seconds after it has begun to keep the views."""
        self.pipeline: Pipeline | None = None
        self._cutover = Cutover(project, self.spark, reporter)
        self._ended = threading.Event()
        self._epoch = 0
        self._status: Status | None = None
        self._next_status = 0.0
        self._failures: list[int] = []
        """The commits after which an append failed in an unknown way."""
        self._without_spark: list[int] = []
        """The commits after which Spark ended."""

    def stop(self) -> None:
        """Finish the commit at hand, fold and end. May be called from a signal handler."""
        self._stop.set()
        pipeline = self.pipeline
        if pipeline is not None:
            pipeline.stop_requested.set()

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
        topology = self.assembled()
        try:
            tables.check_before_use(self._layout, self.project.name)
            self._lock.acquire(take_over)
            requests.clear(self._layout.control)
            heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            heart.start()
            try:
                while not self._kept(topology, until_idle, seconds, take_over):
                    topology.close()
                    topology = self.assembled()
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
                self._lock.release()
        finally:
            topology.close()

    def _kept(self, topology: Topology, until_idle: bool, seconds: float | None, take_over: bool) -> bool:
        """Keep the views, from the last commit in the log; False if Spark has ended and all is to begin anew."""
        try:
            warehouse, last = self._open(topology, take_over)
            self._serve(topology, warehouse, last, until_idle, seconds)
        except (UserError, Fenced, NotNow):
            raise
        except Exception as error:
            lost = self._spark_lost(patience=2.0)
            if lost is None:
                raise
            self._without_spark.append(number := self.last_number())
            if self._stop.is_set() or START_SPARK.exhausted(self._without_spark.count(number)):
                raise lost from error
            self._reporter.say(f"{lost.message}: it is started again")
            self._spark, self._epoch, self._staged = None, 0, []
            self.project = self._cutover.interrupted() or self.project
            return False
        return True

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
        """The project as strobe.yml has it. A mistake in it must not keep the views that are there from being kept."""
        try:
            topology = assemble(self.project, self.spark)
            preflight(topology)
            return topology
        except UserError as error:
            if not plan.applied(self.project.warehouse):
                raise
            self._reporter.say(f"the views are kept as they were last applied: {error}")
            return Topology(self.project, open_sources(self.project, self.spark), {}, {})

    def _say_goodbye(self, heart: threading.Thread) -> None:
        self._ended.set()
        heart.join(timeout=5)
        self._heartbeat(stopped=True)

    def spark(self) -> SparkSession:
        if self._spark is None:
            from strobe.spark.session import start

            self._spark = start(self.project.spark)
        return self._spark

    def _open(self, topology: Topology, take_over: bool) -> tuple[Warehouse, CommitHeader]:
        """Claim the warehouse, read where it stands; the first time, load all views."""
        self._reporter.say("starting Spark")
        warehouse = Warehouse.create_or_open(
            self.spark(), self._layout, self.project.retention, self.project.name, at=reach, lock=self._lock
        )
        header = warehouse.fence(take_over)
        self._epoch = warehouse.epoch
        staging.sweep_leftovers(self._staging)
        catch_up.sweep_leftovers(self._staging)
        if header is not None:
            return warehouse, header
        self._reporter.say(f"loading {', '.join(topology.views)}")
        views = [planned.view for planned in topology.views.values()]
        last = load(self.spark(), topology.sources, warehouse, views, self._reporter.loading)
        self._reporter.say(f"loaded {', '.join(topology.views)} at commit {last.number}")
        return warehouse, last

    def _serve(
        self, topology: Topology, warehouse: Warehouse, last: CommitHeader, until_idle: bool, seconds: float | None
    ) -> None:
        if seconds is not None and self._deadline is None:
            self._deadline = time.monotonic() + seconds
        while True:
            topology = self._availability.as_applied(topology, warehouse.definitions)
            unguaranteed = [name for name, planned in topology.views.items() if planned.level == "none"]
            warehouse.use([planned.view for planned in topology.views.values()], unguaranteed=unguaranteed)
            present = self._availability.present(topology, last)
            self._cutover.change = self._availability.regroup = None
            stopped = True
            try:
                last = self._keep(present, warehouse, last, until_idle)
            except CommitUnknown as error:
                last, stopped = self._recover(warehouse, last, error), False
            except SPARK as error:  # in a manager's thread: what it was computing is lost
                fix = "Strobe starts again from the last commit in the log."
                unknown = CommitUnknown(f"Spark failed: {cause(error)}", where=str(self._layout.root), fix=fix)
                last, stopped = self._recover(warehouse, last, unknown), False
            if self._cutover.change is not None:
                topology = self._cutover.joined(warehouse, topology, self._cutover.change)
                self.project = topology.project
            elif self._availability.regroup is not None:
                self._availability.detached = self._availability.regroup
            elif stopped:
                return

    def _recover(self, warehouse: Warehouse, last: CommitHeader, error: CommitUnknown) -> CommitHeader:
        """An append with an unknown outcome counts as a crash: fence, read the last header, go on from there."""
        self._reporter.say(str(error))
        self._failures.append(last.number)
        in_a_row = self._failures.count(last.number)
        given_up = APPEND.exhausted(in_a_row) or self._spark_lost(patience=1.0)
        if given_up or self._stop.wait(APPEND.wait(in_a_row)):
            raise error
        try:
            header = warehouse.fence(take_over=not self._lock.held)
        except CommitUnknown as again:
            return self._recover(warehouse, last, again)
        self._epoch = warehouse.epoch
        return header if header is not None else last

    # Keeping.

    def _keep(self, topology: Topology, warehouse: Warehouse, last: CommitHeader, until_idle: bool) -> CommitHeader:
        pipeline = Pipeline(
            topology,
            warehouse,
            last,
            through_spark=self._answer_through_spark(topology),
            read=reads_spilled(self.spark()),
            record=self._record,
            together=self._availability.together,
        )
        self.pipeline = pipeline
        maintenance = Maintenance(pipeline, warehouse, self._reporter.say)
        maintenance.logs_needed = lambda: self._cutover.change is not None
        maintenance.hurry = lambda: self._cutover.near
        maintenance.still, maintenance.given_up = set(self._availability.still), self._availability.given_up
        if warehouse.unpublished:
            maintenance.fold_soon()
        handler = RequestHandler(warehouse, self._cutover, pipeline)
        quiet = _Quiet(pipeline)
        self._status = observe(pipeline, self._availability.down, self._availability.problems)
        self._next_status = 0.0
        self._heartbeat()

        def done() -> bool:
            if self._cutover.over:
                return True
            handler.look()
            self._unstage(pipeline)
            if time.monotonic() >= self._next_status:
                self._status = observe(pipeline, self._availability.down, self._availability.problems)
                self._next_status = time.monotonic() + BEAT
                self._availability.mind(pipeline)
            if self._stop.is_set() or (self._deadline is not None and time.monotonic() >= self._deadline):
                return True
            if self._cutover.ready:  # the loop will begin anew anyhow, when the views have joined
                return False
            if pipeline.tied:
                self._availability.tie(pipeline.tied)
            if self._availability.regroup is not None:
                return True
            handler.rebuild(self._availability)
            waited_for = self._availability.down or self._availability.ready
            return until_idle and not waited_for and quiet.for_a_moment()

        try:
            maintenance.start()
            self._reporter.say(f"keeping {', '.join(topology.views) or 'no view'} from commit {last.number}")
            pipeline.run(done)
            if not self._cutover.ready:
                self._cutover.give_up(warehouse)
            if self._availability.regroup is None and not self._cutover.ready:
                self._reporter.say(f"stopping at commit {pipeline.committer.last.number}")
                maintenance.finish()
        except SourceLost as error:
            self._availability.stand_still(error)
            self._availability.regroup = set(self._availability.detached)
            handler.put_back()
            if not self._cutover.ready:
                self._cutover.give_up(warehouse)
        finally:
            maintenance.stop()
            handler.abandon()
            self._cutover.abandon()
            self.pipeline = None
            self._status = observe(pipeline, self._availability.down, self._availability.problems)
        return pipeline.committer.last

    def _beat(self) -> None:
        """Twice a second, in a thread of its own: say what the loop last said of itself, and see who else is there."""
        while not self._ended.wait(BEAT):
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

    def _answer_through_spark(self, topology: Topology) -> SparkAnswer:
        def answer(source: Source, query: Query) -> tuple[tuple[Relation, ...], Seen]:
            view = topology.views[query.view].view
            with source.elsewhere() as taken, reading(source.name):
                relations, staged = staging.answer(self.spark(), source.reader(), query, view, self._staging)
                taken(staged.seen)
            self._staged.append(staged)
            return relations, staged.seen

        return answer

    def _unstage(self, pipeline: Pipeline) -> None:
        """Large answers are kept as files until everything that was computed from them has been committed."""
        if self._staged and pipeline.settled:
            for staged in self._staged:
                staged.remove()
            self._staged = []


class _Quiet:
    """Idle, and still idle a moment later."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._coordinator = pipeline
        self._since: float | None = None
        self._next_look = 0.0

    def for_a_moment(self) -> bool:
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + 0.1
        self._coordinator.end_blocks()
        if not self._coordinator.idle():
            self._since = None
            return False
        self._since = self._since or now
        return now - self._since >= 0.3
