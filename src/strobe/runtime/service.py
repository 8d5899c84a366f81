"""`strobe run`: everything around the coordinator's loop.

    preflight ─▶ lock ─▶ Spark ─▶ fence ─▶ last header ─▶ (first time: load) ─▶ verify sources ─▶ loop ─▶ fold ─▶
    release

Nothing is written before preflight has passed. A second coordinator is refused while the first is alive; with
`take_over` the fence sees to it that the first can commit no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Protocol

from strobe import config
from strobe.algebra.relation import Relation
from strobe.algebra.view import View
from strobe.config import Project
from strobe.dataplane import staging
from strobe.errors import CommitUnknown, Fenced, LostGuarantee, NotNow, SourceUnavailable, StrobeError, UserError
from strobe.messages import Message, Query, Seen
from strobe.runtime import mailbox, status
from strobe.runtime.answerer import SparkAnswer
from strobe.runtime.assembly import Assembly, as_applied, assemble
from strobe.runtime.caretaker import Caretaker
from strobe.runtime.coordinator import Coordinator, Errand
from strobe.runtime.failpoints import reach
from strobe.runtime.loading import Snapshot, snapshot
from strobe.sources.base import Source
from strobe.warehouse import tables
from strobe.warehouse.header import Commit, Header
from strobe.warehouse.layout import Layout
from strobe.warehouse.lock import CoordinatorLock, read_heartbeat, write_heartbeat
from strobe.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PAUSE = 60.0
"""Seconds in which the sources must come to rest for an errand."""

BRING = 100.0
"""Seconds in which the views must come to a vector."""

FREEZE = 60.0
"""Seconds for which a coordinator stands still for an auditor that has gone silent."""


DETACH = 10.0
"""Seconds for which a source may be down before the views that do not need it go on without the others."""

RETRY = 2.0
"""Seconds between looks whether it is back."""

BEAT = 0.5
"""Seconds between heartbeats."""

ATTEMPTS = 5
"""Appends that may fail one after another, without a commit in between, before the run ends."""


class Reporter(Protocol):
    """Who tells a person what is going on."""

    def say(self, text: str) -> None: ...

    def loading(self, source: str, rows: int) -> None: ...

    def status(self, document: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Rebuild:
    """A view that is to be loaded anew: who asked, the sources as they were read, and how to let go of that."""

    view: str
    request: str
    assembly: Assembly
    taken: Snapshot
    release: ExitStack


class Service:
    def __init__(
        self, project: Project, reporter: Reporter, *, record: Callable[[Message], None] = lambda _: None
    ) -> None:
        self.project = project
        self._reporter = reporter
        self._record = record
        self._layout = Layout(project.warehouse)
        self._staging = project.warehouse / "staging"
        self._staged: list[staging.Staged] = []
        self._lock = CoordinatorLock(self._layout.control)
        self._spark: SparkSession | None = None
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="worker")
        self._stop = threading.Event()
        self.coordinator: Coordinator | None = None
        self._rebuild: Rebuild | None = None
        self._ended = threading.Event()
        self._epoch = 0
        self._document: dict[str, Any] = {"state": "starting"}
        self._next_document = 0.0
        self._detached: set[str] = set()
        """Sources that are down, whose views stand still."""
        self._regroup: set[str] | None = None
        self._down_since: dict[str, float] = {}
        self._next_try = 0.0
        self._failures: list[int] = []
        """The commits after which an append failed in an unknown way."""

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

    @property
    def rebuilding(self) -> Rebuild | None:
        """The view that will be loaded as soon as the loop has ended."""
        return self._rebuild

    # Starting.

    def run(
        self,
        *,
        until_idle: bool = False,
        seconds: float | None = None,
        take_over: bool = False,
        load: Collection[str] = (),
    ) -> None:
        """Keep the views; those named in `load` are loaded anew first, as strobe.yml has them now."""
        assembly = assemble(self.project, self.spark)
        try:
            preflight(assembly)
            tables.check_before_use(self._layout, self.project.name)
            self._lock.acquire(take_over)
            mailbox.clear(self.project.warehouse)
            heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            heart.start()
            try:
                warehouse, last = self._open(assembly, take_over, load)
                self._serve(assembly, warehouse, last, until_idle, seconds)
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
            self._workers.shutdown(wait=False, cancel_futures=True)

    def _say_goodbye(self, heart: threading.Thread) -> None:
        self._ended.set()
        heart.join(timeout=5)
        self._heartbeat(stopped=True)

    def spark(self) -> SparkSession:
        if self._spark is None:
            from strobe.dataplane.session import start

            self._spark = start(self.project.spark)
        return self._spark

    def _open(self, assembly: Assembly, take_over: bool, load: Collection[str]) -> tuple[Warehouse, Commit]:
        """Claim the warehouse, read where it stands, and load what has to be."""
        self._reporter.say("starting Spark")
        warehouse = Warehouse.create_or_open(
            self.spark(), self.project.warehouse, self.project.retention, self.project.name, at=reach
        )
        warehouse.lock = self._lock
        header = warehouse.fence(take_over)
        self._epoch = warehouse.epoch
        staging.sweep_leftovers(self._staging)
        last = Commit(0, datetime.fromtimestamp(0, timezone.utc), {}) if header is None else _commit_of(header)
        names = assembly.views if header is None else [name for name in assembly.views if name in load]
        return warehouse, self._load(assembly, warehouse, last, list(names)) if names else last

    def _serve(
        self, assembly: Assembly, warehouse: Warehouse, last: Commit, until_idle: bool, seconds: float | None
    ) -> None:
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            applied = {name: definition.sql for name, definition in warehouse.definitions.items()}
            assembly = as_applied(assembly, applied, self._reporter.say)
            unguarded = [name for name, planned in assembly.views.items() if planned.level == "none"]
            warehouse.use([planned.view for planned in assembly.views.values()], lenient=unguarded)
            present = self._without_detached(assembly)
            unreachable = self._verify(present, last)
            if unreachable:
                self._detached |= unreachable
                continue
            self._rebuild = self._regroup = None
            try:
                last = self._keep(present, warehouse, last, until_idle, deadline)
            except CommitUnknown as error:
                last = self._recover(warehouse, last, error)
                continue
            if self._rebuild is not None:
                last = self._swap(warehouse, last, self._rebuild)
                assembly = self._rebuild.assembly
            elif self._regroup is not None:
                self._detached = self._regroup
            else:
                return

    # Sources that are down.

    def _without_detached(self, assembly: Assembly) -> Assembly:
        """The views all of whose sources can be reached; the others stay at their last right state until they can."""
        views = {n: p for n, p in assembly.views.items() if not self._detached & set(p.view.sources)}
        waiting = sorted(set(assembly.views) - set(views))
        if waiting:
            self._reporter.say(f"waiting for {', '.join(sorted(self._detached))}: {', '.join(waiting)} stand still")
        return replace(assembly, views=views)

    def _mind_sources(self, coordinator: Coordinator) -> None:
        """Let views go on without those whose source is down, and take these in again when it is back."""
        now = time.monotonic()
        down = {name for name in coordinator.monitors if isinstance(coordinator.problem(name), SourceUnavailable)}
        self._down_since = {name: self._down_since.get(name, now) for name in down}
        lost = {name for name, since in self._down_since.items() if now - since > DETACH}
        if any(not lost & set(planned.view.sources) for planned in coordinator.assembly.views.values()) and lost:
            self._regroup = self._detached | lost
        elif self._detached and now >= self._next_try:
            self._next_try = now + RETRY
            back = {name for name in self._detached if _reachable(coordinator.assembly.sources[name])}
            self._regroup = self._detached - back if back else None

    def _verify(self, assembly: Assembly, last: Commit) -> set[str]:
        """Rule 8: the sources are the same, and their logs still reach back to where the views stand.

        Returns those that cannot be reached; they are verified when they are back.
        """
        unreachable: set[str] = set()
        for name in {s for planned in assembly.views.values() for s in planned.view.sources}:
            users = [view for view, planned in assembly.views.items() if name in planned.view.sources]
            try:
                _verify_source(assembly.sources[name], last, users)
            except SourceUnavailable as error:
                self._reporter.say(str(error))
                unreachable.add(name)
        return unreachable

    # Loading.

    def _load(self, assembly: Assembly, warehouse: Warehouse, last: Commit, names: list[str]) -> Commit:
        """Load views from one snapshot of each source."""
        views = [assembly.views[name].view for name in names]
        self._reporter.say(f"loading {', '.join(names)}")
        with snapshot(self.spark(), assembly.sources, views, self.project.warehouse, self._reporter.loading) as taken:
            return self._join(assembly, warehouse, last, views, taken)

    def _join(
        self, assembly: Assembly, warehouse: Warehouse, last: Commit, views: list[View], taken: Snapshot
    ) -> Commit:
        """Write the views' tables and bring them in with one commit."""
        vectors = {view.name: {s: taken.positions[s].text for s in view.sources} for view in views}
        commit = Commit(
            number=last.number + 1,
            committed_at=max(datetime.now(timezone.utc), last.committed_at + timedelta(microseconds=1)),
            positions={**last.positions, **vectors},
            as_of={view: times for view, times in last.as_of.items() if view not in vectors},
            identity={**last.identity, **{s: assembly.sources[s].identity() for s in taken.positions}},
        )
        loaded = [warehouse.load(view, taken.compute(self.spark(), view)) for view in views]
        warehouse.join(loaded, commit)
        self._reporter.say(f"loaded {', '.join(vectors)} at commit {commit.number}")
        return commit

    def _recover(self, warehouse: Warehouse, last: Commit, error: CommitUnknown) -> Commit:
        """An append with an unknown outcome counts as a crash: fence, read the last header, go on from there."""
        self._reporter.say(str(error))
        self._failures.append(last.number)
        in_a_row = self._failures[-ATTEMPTS:].count(last.number)
        if in_a_row == ATTEMPTS or self._stop.wait(in_a_row):
            raise error
        header = warehouse.fence(take_over=not self._lock.held)
        self._epoch = warehouse.epoch
        return _commit_of(header) if header is not None else last

    # Keeping.

    def _keep(
        self, assembly: Assembly, warehouse: Warehouse, last: Commit, until_idle: bool, deadline: float | None
    ) -> Commit:
        coordinator = Coordinator(
            assembly, warehouse, last, through_spark=self._answer_through_spark(assembly), record=self._record
        )
        self.coordinator = coordinator
        caretaker = Caretaker(coordinator, warehouse, self._reporter.say)
        errands = _Errands(self, coordinator)
        quiet = _Quiet(coordinator)
        self._document, self._next_document = status.document(coordinator, self._detached), 0.0
        self._heartbeat()

        def done() -> bool:
            errands.look()
            self._unstage(coordinator)
            if time.monotonic() >= self._next_document:
                self._document = status.document(coordinator, self._detached)
                self._next_document = time.monotonic() + BEAT
                self._mind_sources(coordinator)
            if self._stop.is_set() or (deadline is not None and time.monotonic() >= deadline):
                return True
            if self._rebuild is not None or self._regroup is not None:
                return True
            return until_idle and not self._detached and quiet.for_a_moment()

        try:
            caretaker.start()
            self._reporter.say(f"keeping {', '.join(assembly.views)} from commit {last.number}")
            coordinator.run(done)
            if self._regroup is None:
                self._reporter.say(f"stopping at commit {coordinator.committer.last.number}")
                caretaker.finish()
        finally:
            caretaker.stop()
            errands.abandon()
            self.coordinator = None
            self._document = status.document(coordinator, self._detached)
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
            self._heartbeat()
            if "sources" in self._document:
                self._reporter.status(self._document)

    def _heartbeat(self, stopped: bool = False) -> None:
        write_heartbeat(self._layout.control, {**self._document, "epoch": self._epoch, "stopped": stopped})

    def _answer_through_spark(self, assembly: Assembly) -> SparkAnswer:
        def answer(source: Source, query: Query) -> tuple[tuple[Relation, ...], Seen]:
            view = assembly.views[query.view].view
            with source.elsewhere() as taken:
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

    # Errands.

    def fold(self, coordinator: Coordinator, request: str) -> Errand:
        """Bring the view tables up to the last commit, on request."""
        folding = self._workers.submit(coordinator.warehouse.fold)
        while not folding.done():
            yield
        folding.result()
        mailbox.reply(self.project.warehouse, request, {"commit": coordinator.committer.last.number})

    def rebuild(self, coordinator: Coordinator, request: str, view: str) -> Errand:
        """Read the sources, bring everything else to exactly that vector, and leave the loop to load the view there."""
        release = ExitStack()
        try:
            self.project = config.load(self.project.directory)
            fresh = assemble(self.project, self.spark)
            if view not in fresh.views:
                known = ", ".join(fresh.views)
                raise UserError(f"there is no view {view!r}", where="strobe.yml", fix=f"It has {known}.")
            preflight(fresh)
            yield from coordinator.pause(PAUSE)
            reading = self._workers.submit(self._read, fresh, view, release)
            while not reading.done():
                yield
            taken = reading.result()
            held = {s: p for s, p in taken.positions.items() if s in coordinator.monitors}
            yield from coordinator.bring_to(held, BRING)
        except BaseException:
            release.close()
            raise
        self._rebuild = Rebuild(view, request, fresh, taken, release)

    def _read(self, assembly: Assembly, view: str, release: ExitStack) -> Snapshot:
        views = [assembly.views[view].view]
        return release.enter_context(
            snapshot(self.spark(), assembly.sources, views, self.project.warehouse, self._reporter.loading)
        )

    def _swap(self, warehouse: Warehouse, last: Commit, rebuild: Rebuild) -> Commit:
        """Load the view at the vector at which all the others now stand. If that fails the old one stays."""
        views = [rebuild.assembly.views[rebuild.view].view]
        try:
            with rebuild.release:
                last = self._join(rebuild.assembly, warehouse, last, views, rebuild.taken)
            reply: dict[str, Any] = {"commit": last.number}
        except UserError as error:
            self._reporter.say(str(error))
            reply = error.document()
        mailbox.reply(self.project.warehouse, rebuild.request, reply)
        return last


class _Errands:
    """Takes up requests from the mailbox, one at a time, and answers every one of them."""

    def __init__(self, service: Service, coordinator: Coordinator) -> None:
        self._service, self._coordinator = service, coordinator
        self._warehouse = service.project.warehouse
        self._next_look = 0.0
        self._open: str | None = None
        self._brought: dict[str, Any] | None = None
        self._frozen_until = 0.0

    def look(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + 0.1
        for number, document in mailbox.requests(self._warehouse):
            self._take(number, document)

    def _take(self, number: str, document: dict[str, Any]) -> None:
        kind = document.get("kind")
        if kind in ("renew", "bring"):
            if document.get("freeze") != self._open:
                self._refuse(number, "the coordinator has gone on meanwhile")
            elif kind == "renew":
                self._frozen_until = time.monotonic() + FREEZE
            else:
                self._brought = {"request": number, **document}
        elif self._coordinator.errand_open:
            self._refuse(number, "the coordinator is busy with another request")
        elif kind == "freeze":
            self._start(number, self._audit(number))
        elif kind == "fold":
            self._start(number, self._service.fold(self._coordinator, number))
        elif kind == "rebuild":
            self._start(number, self._service.rebuild(self._coordinator, number, str(document["view"])))

    def _start(self, number: str, errand: Errand) -> None:
        self._open, self._brought = number, None
        self._coordinator.start_errand(self._answered(number, errand))

    def _answered(self, number: str, errand: Errand) -> Errand:
        """An errand that fails is answered with its error, and everything goes on."""
        try:
            yield from errand
        except (UserError, NotNow, SourceUnavailable) as error:
            self._coordinator.resume()
            mailbox.reply(self._warehouse, (self._brought or {}).get("request", number), error.document())
        self._open = None

    def abandon(self) -> None:
        """The coordinator ends or starts anew: whoever still waits for an answer is told."""
        if self._open is not None and self._service.rebuilding is None:
            self._refuse((self._brought or {}).get("request", self._open), "the coordinator was interrupted")

    def _refuse(self, number: str, why: str) -> None:
        mailbox.reply(self._warehouse, number, NotNow(why, fix="Try again.").document())

    def _audit(self, request: str) -> Errand:
        """Stand still until the auditor has read the sources, commit exactly the vector that it read, and go on."""
        yield from self._coordinator.pause(PAUSE)
        mailbox.reply(self._warehouse, request, {"freeze": request})
        self._frozen_until = time.monotonic() + FREEZE
        while self._brought is None:
            if time.monotonic() > self._frozen_until:
                self._coordinator.resume()
                return
            yield
        sources = self._coordinator.assembly.sources
        vector = {s: sources[s].position(text) for s, text in self._brought["positions"].items()}
        yield from self._coordinator.bring_to(vector, BRING)
        commit = self._coordinator.committer.last.number
        self._coordinator.resume()
        mailbox.reply(self._warehouse, self._brought["request"], {"commit": commit})


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
        if not self._coordinator.idle():
            self._since = None
            return False
        self._since = self._since or now
        return now - self._since >= 0.3


def _verify_source(source: Source, last: Commit, users: list[str]) -> None:
    identity, known = source.identity(), last.identity.get(source.name)
    if known is not None and identity != known:
        raise LostGuarantee(
            f"this is another database than before (it was {known}, it is {identity})",
            where=f"source {source.name}",
            fix=f"Put the old one back, or rebuild the views that use it: {', '.join(users)}.",
        )
    for view in users:
        source.verify(source.position(last.positions[view][source.name]))


def _reachable(source: Source) -> bool:
    try:
        source.now()
    except StrobeError:
        return False
    return True


def preflight(assembly: Assembly) -> None:
    """Raise for the first thing that is missing in a source."""
    for name, source in assembly.sources.items():
        relations = [relation.name for relation in assembly.relations(name)]
        for finding in source.check(relations) if relations else ():
            if finding.severity == "error":
                raise UserError(finding.message, where=finding.where, fix=finding.fix)


def _commit_of(header: Header) -> Commit:
    return Commit(header.number, header.committed_at, header.positions, header.as_of, header.identity)
