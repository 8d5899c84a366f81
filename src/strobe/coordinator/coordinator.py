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
from typing import TYPE_CHECKING, Any

from strobe.algebra.relation import Relation
from strobe.apply import catch_up, plan
from strobe.apply.cutover import Joining
from strobe.apply.load import load
from strobe.config.model import Project
from strobe.coordinator import status
from strobe.coordinator.availability import Absences
from strobe.coordinator.maintenance import Caretaker
from strobe.coordinator.requests import Errands
from strobe.errors import (
    CommitUnknown,
    Fenced,
    NotNow,
    SourceLost,
    SparkLost,
    UserError,
)
from strobe.events import Reporter
from strobe.failpoints import reach
from strobe.messages import Message, Query, Seen
from strobe.pipeline.answerer import SparkAnswer
from strobe.pipeline.pipeline import Coordinator
from strobe.planning.topology import Assembly, assemble, open_sources, preflight
from strobe.sources.base import Source
from strobe.spark import staging
from strobe.spark.failures import SPARK, cause, reading
from strobe.warehouse import inspect, tables
from strobe.warehouse.control import requests
from strobe.warehouse.control.lock import CoordinatorLock, read_heartbeat, write_heartbeat
from strobe.warehouse.layout import Layout
from strobe.warehouse.records import Commit, Header
from strobe.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BEAT = 0.5
"""Seconds between heartbeats."""

ATTEMPTS = 5
"""Appends that may fail one after another, without a commit in between, before the run ends."""


SPARK_STARTS = 3
"""Times that Spark may end, without a commit in between, before the run does."""


class Service:
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
        self._absent = Absences(self._layout, reporter.say, set_aside=set_aside)
        self._staging = project.warehouse / "staging"
        self._staged: list[staging.Staged] = []
        self._lock = CoordinatorLock(self._layout.control)
        self._spark: SparkSession | None = None
        self._stop = threading.Event()
        self._deadline: float | None = None
        """When the run ends by itself: so many seconds after it has begun to keep the views."""
        self.coordinator: Coordinator | None = None
        self._joining = Joining(project, self.spark, reporter)
        self._ended = threading.Event()
        self._epoch = 0
        self._document: dict[str, Any] = {"state": "starting"}
        self._next_document = 0.0
        self._failures: list[int] = []
        """The commits after which an append failed in an unknown way."""
        self._without_spark: list[int] = []
        """The commits after which Spark ended."""

    def stop(self) -> None:
        """Finish the commit at hand, fold and end. May be called from a signal handler."""
        self._stop.set()
        coordinator = self.coordinator
        if coordinator is not None:
            coordinator.stop_requested.set()

    @property
    def document(self) -> dict[str, Any]:
        """What the loop last said of itself; it has sources once the views are kept."""
        return self._document

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
        assembly = self.assembled()
        try:
            tables.check_before_use(self._layout, self.project.name)
            self._lock.acquire(take_over)
            requests.clear(self.project.warehouse)
            heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            heart.start()
            try:
                while not self._kept(assembly, until_idle, seconds, take_over):
                    assembly.close()
                    assembly = self.assembled()
                if until_idle:
                    self._absent.complain()
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
            assembly.close()

    def _kept(self, assembly: Assembly, until_idle: bool, seconds: float | None, take_over: bool) -> bool:
        """Keep the views, from the last commit in the log; False if Spark has ended and all is to begin anew."""
        try:
            warehouse, last = self._open(assembly, take_over)
            self._serve(assembly, warehouse, last, until_idle, seconds)
        except (UserError, Fenced, NotNow):
            raise
        except Exception as error:
            lost = self._spark_lost(patience=2.0)
            if lost is None:
                raise
            self._without_spark.append(self.last_number())
            if self._stop.is_set() or self._without_spark[-SPARK_STARTS:].count(self.last_number()) == SPARK_STARTS:
                raise lost from error
            self._reporter.say(f"{lost.message}: it is started again")
            self._spark, self._epoch, self._staged = None, 0, []
            self.project = self._joining.interrupted() or self.project
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
        last = inspect.last_header(self.project.warehouse) if inspect.exists(self._layout.log) else None
        return last.number if last is not None else 0

    def assembled(self) -> Assembly:
        """The project as strobe.yml has it. A mistake in it must not keep the views that are there from being kept."""
        try:
            assembly = assemble(self.project, self.spark)
            preflight(assembly)
            return assembly
        except UserError as error:
            if not plan.applied(self.project.warehouse):
                raise
            self._reporter.say(f"the views are kept as they were last applied: {error}")
            return Assembly(self.project, open_sources(self.project, self.spark), {}, {})

    def _say_goodbye(self, heart: threading.Thread) -> None:
        self._ended.set()
        heart.join(timeout=5)
        self._heartbeat(stopped=True)

    def spark(self) -> SparkSession:
        if self._spark is None:
            from strobe.spark.session import start

            self._spark = start(self.project.spark)
        return self._spark

    def _open(self, assembly: Assembly, take_over: bool) -> tuple[Warehouse, Commit]:
        """Claim the warehouse, read where it stands; the first time, load all views."""
        self._reporter.say("starting Spark")
        warehouse = Warehouse.create_or_open(
            self.spark(), self.project.warehouse, self.project.retention, self.project.name, at=reach
        )
        warehouse.lock = self._lock
        header = warehouse.fence(take_over)
        self._epoch = warehouse.epoch
        staging.sweep_leftovers(self._staging)
        catch_up.sweep_leftovers(self._staging)
        if header is not None:
            return warehouse, _commit_of(header)
        self._reporter.say(f"loading {', '.join(assembly.views)}")
        views = [planned.view for planned in assembly.views.values()]
        last = load(self.spark(), assembly.sources, warehouse, views, self._reporter.loading)
        self._reporter.say(f"loaded {', '.join(assembly.views)} at commit {last.number}")
        return warehouse, last

    def _serve(
        self, assembly: Assembly, warehouse: Warehouse, last: Commit, until_idle: bool, seconds: float | None
    ) -> None:
        if seconds is not None and self._deadline is None:
            self._deadline = time.monotonic() + seconds
        while True:
            assembly = self._absent.as_applied(assembly, warehouse.definitions)
            unguarded = [name for name, planned in assembly.views.items() if planned.level == "none"]
            warehouse.use([planned.view for planned in assembly.views.values()], lenient=unguarded)
            present = self._absent.present(assembly, last)
            self._joining.change = self._absent.regroup = None
            stopped = True
            try:
                last = self._keep(present, warehouse, last, until_idle)
            except CommitUnknown as error:
                last, stopped = self._recover(warehouse, last, error), False
            except SPARK as error:  # in a manager's thread: what it was computing is lost
                fix = "Strobe starts again from the last commit in the log."
                unknown = CommitUnknown(f"Spark failed: {cause(error)}", where=str(self._layout.root), fix=fix)
                last, stopped = self._recover(warehouse, last, unknown), False
            if self._joining.change is not None:
                assembly = self._joining.joined(warehouse, assembly, self._joining.change)
                self.project = assembly.project
            elif self._absent.regroup is not None:
                self._absent.detached = self._absent.regroup
            elif stopped:
                return

    def _recover(self, warehouse: Warehouse, last: Commit, error: CommitUnknown) -> Commit:
        """An append with an unknown outcome counts as a crash: fence, read the last header, go on from there."""
        self._reporter.say(str(error))
        self._failures.append(last.number)
        in_a_row = self._failures[-ATTEMPTS:].count(last.number)
        if in_a_row == ATTEMPTS or self._spark_lost(patience=1.0) or self._stop.wait(in_a_row):
            raise error
        try:
            header = warehouse.fence(take_over=not self._lock.held)
        except CommitUnknown as again:
            return self._recover(warehouse, last, again)
        self._epoch = warehouse.epoch
        return _commit_of(header) if header is not None else last

    # Keeping.

    def _keep(self, assembly: Assembly, warehouse: Warehouse, last: Commit, until_idle: bool) -> Commit:
        coordinator = Coordinator(
            assembly,
            warehouse,
            last,
            through_spark=self._answer_through_spark(assembly),
            spark=self.spark,
            record=self._record,
            together=self._absent.together,
        )
        self.coordinator = coordinator
        caretaker = Caretaker(coordinator, warehouse, self._reporter.say)
        caretaker.logs_needed = lambda: self._joining.change is not None
        caretaker.hurry = lambda: self._joining.near
        caretaker.still, caretaker.given_up = set(self._absent.still), self._absent.given_up
        if warehouse.unpublished:
            caretaker.fold_soon()
        errands = Errands(self.project.warehouse, self._joining, coordinator)
        quiet = _Quiet(coordinator)
        self._document, self._next_document = (
            status.document(coordinator, self._absent.down, self._absent.problems),
            0.0,
        )
        self._heartbeat()

        def done() -> bool:
            if self._joining.over:
                return True
            errands.look()
            self._unstage(coordinator)
            if time.monotonic() >= self._next_document:
                self._document = status.document(coordinator, self._absent.down, self._absent.problems)
                self._next_document = time.monotonic() + BEAT
                self._absent.mind(coordinator)
            if self._stop.is_set() or (self._deadline is not None and time.monotonic() >= self._deadline):
                return True
            if self._joining.ready:  # the loop will begin anew anyhow, when the views have joined
                return False
            if coordinator.tied:
                self._absent.tie(coordinator.tied)
            if self._absent.regroup is not None:
                return True
            errands.rebuild(self._absent)
            waited_for = self._absent.down or self._absent.ready
            return until_idle and not waited_for and quiet.for_a_moment()

        try:
            caretaker.start()
            self._reporter.say(f"keeping {', '.join(assembly.views) or 'no view'} from commit {last.number}")
            coordinator.run(done)
            if not self._joining.ready:
                self._joining.give_up(warehouse)
            if self._absent.regroup is None and not self._joining.ready:
                self._reporter.say(f"stopping at commit {coordinator.committer.last.number}")
                caretaker.finish()
        except SourceLost as error:
            self._absent.stand_still(error)
            self._absent.regroup = set(self._absent.detached)
            errands.put_back()
            if not self._joining.ready:
                self._joining.give_up(warehouse)
        finally:
            caretaker.stop()
            errands.abandon()
            self._joining.abandon()
            self.coordinator = None
            self._document = status.document(coordinator, self._absent.down, self._absent.problems)
        return coordinator.committer.last

    def _beat(self) -> None:
        """Twice a second, in a thread of its own: say what the loop last said of itself, and see who else is there."""
        while not self._ended.wait(BEAT):
            try:
                self._beat_once()
            except OSError:  # a full disk, a terminal that went away: the coordinator works on, and tries again
                continue
            except BaseException as error:  # without a heartbeat it would pass for dead
                if self.coordinator is not None:
                    self.coordinator.fail(error)

    def _beat_once(self) -> None:
        if self._epoch and not self._lock.held:
            self._lock.acquire(take_over=True)
        other = read_heartbeat(self._layout.control) or {}
        if int(other.get("epoch", 0)) > self._epoch > 0 and self.coordinator is not None:
            taken = f"another coordinator has taken over (epoch {other['epoch']})"
            fix = "Nothing is lost: the other one goes on from the last commit."
            self.coordinator.fail(Fenced(taken, where=str(self._layout.root), fix=fix))
        elif self._epoch or self._lock.held:
            if self.coordinator is not None and (lost := self._spark_lost()) is not None:
                self.coordinator.fail(lost)
            self._heartbeat()
            if "sources" in self._document:
                self._reporter.status(self._document)

    def _heartbeat(self, stopped: bool = False) -> None:
        with suppress(OSError):  # a full disk: the coordinator works on, and tries again
            write_heartbeat(self._layout.control, {**self._document, "epoch": self._epoch, "stopped": stopped})

    def _answer_through_spark(self, assembly: Assembly) -> SparkAnswer:
        def answer(source: Source, query: Query) -> tuple[tuple[Relation, ...], Seen]:
            view = assembly.views[query.view].view
            with source.elsewhere() as taken, reading(source.name):
                relations, staged = staging.answer(self.spark(), source.reader(), query, view, self._staging)
                taken(staged.seen)
            self._staged.append(staged)
            return relations, staged.seen

        return answer

    def _unstage(self, coordinator: Coordinator) -> None:
        """Large answers are kept as files until everything that was computed from them has been committed."""
        if self._staged and coordinator.settled:
            for staged in self._staged:
                staged.remove()
            self._staged = []


class _Quiet:
    """Idle, and still idle a moment later."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
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


def _commit_of(header: Header) -> Commit:
    return Commit(header.number, header.committed_at, header.positions, header.as_of, header.identity)
