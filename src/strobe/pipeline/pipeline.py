"""One run: the views of a project kept, live, from the last commit on.

    monitors (a thread per source) ──Transaction──▶ ┐
    answerer (a few threads per source) ──Answer──▶ ├─ events ─▶ this loop: the engine
    view workers (a thread per view) ─ActionList──▶ ┘                │                  │ warehouse transactions
        ▲ │ queries ▶ answerer                                       │                  ▼
        └─┴──────────────── updates, answers, cuts ◀─────────────────┘   committer (a thread, one append at a time)

Each pure box is touched by one thread only. The log in the warehouse is the only durable state: after a crash
everything in flight is forgotten, the last header is read (after fencing off whoever wrote it), and the sources are
read again from its positions.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Protocol

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.room import Room
from strobe.algebra.view import View
from strobe.data.spilled import release
from strobe.engine.engine import Effect, Engine, Promise, Submit, Tied, ToViews
from strobe.engine.halves import Half
from strobe.errors import BrokenInvariant, StrobeError
from strobe.failpoints import reach
from strobe.managers.base import Outbound
from strobe.managers.departures import Departures
from strobe.managers.inbox import Inbox
from strobe.messages import (
    ActionList,
    Answer,
    CommitHeader,
    Cut,
    Message,
    Parts,
    Position,
    Query,
    Seen,
    Transaction,
    Update,
)
from strobe.pipeline import run_end
from strobe.pipeline.answerer import Answerer, SparkAnswer
from strobe.pipeline.backpressure import Backpressure, Limits
from strobe.pipeline.barrier import Barrier, Operation
from strobe.pipeline.committer import Committer, utc_now
from strobe.pipeline.early_answers import EarlyAnswers
from strobe.pipeline.health import Health, Refused, Wait
from strobe.pipeline.in_flight import InFlight, Read, into_memory
from strobe.pipeline.monitor import Monitor
from strobe.pipeline.proving import Fingerprints, Prover
from strobe.pipeline.read_ahead import ReadAhead, joined_columns
from strobe.pipeline.run_end import RunEnd
from strobe.pipeline.sink import Sink
from strobe.pipeline.tap import Tap
from strobe.pipeline.view_worker import ViewWorker
from strobe.planning.topology import Topology
from strobe.sources.base import Source, contained

MOMENT = 0.3
"""Seconds without anything new after which nothing more is expected, by those who wait for the end."""

TURN = 0.02
"""Seconds between two turns while an operation is open, or a step is taken that does not say when it is due."""


AT_ONCE = 200
"""Messages that are handled, and transactions that are taken from what was read ahead, before anything else is done."""


@dataclass(frozen=True)
class ThreadFailed:
    """A thread of this run cannot go on."""

    error: BaseException


class Lift(Protocol):
    def __call__(self, bag: Bag, types: Mapping[str, str]) -> Relation:
        """A bag elsewhere than in memory, where more rows than memory holds can be computed with."""
        ...


class Woken:
    """Something has changed that no message reports."""


Event = Transaction | Answer | ActionList | ThreadFailed | Woken


class Pipeline:
    def __init__(
        self,
        topology: Topology,
        sink: Sink,
        last: CommitHeader,
        *,
        through_spark: SparkAnswer,
        read: Read = into_memory,
        lift: Lift | None = None,
        record: Callable[[Message], None] = lambda _: None,
        together: Collection[frozenset[str]] = (),
        fingerprints: Mapping[str, Fingerprints] | None = None,
        parts: Mapping[str, Parts] | None = None,
        halves: Iterable[Half] = (),
        limits: Limits = Limits(),  # noqa: B008  # frozen
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`last` is the last commit in the log, read after fencing; the topology holds exactly the views in it.

        `read` reads large transactions. `lift` is for what managers join beyond their room in memory; without it, and
        where everything is to be evaluated on the driver, they have as much as they need.

        `together` are sources that have taken part in one global transaction: their views are in one group.

        `fingerprints` are those of the relations that each view was loaded from, or was last proven with.

        `parts` are those of global transactions that the views have already, by source, if whoever begins knows them;
        `halves` are parts that they were loaded without.

        `record` is given every message that integrator and managers get, in each view's order: enough to replay them.
        In which commits the views meet depends on when their action lists come, too.

        `now` is the time that commits carry."""
        self.topology = topology
        self._sink = sink
        self._through_spark = through_spark
        self._read_rows, self._lift = read, lift
        self._record = record
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._woken = False
        """Whether a wake-up is among the events."""
        self._next_cut = math.inf
        """When a block ends by time alone."""
        self._operation: Operation | None = None
        self.tied: frozenset[str] = frozenset()
        """Sources that a global transaction ties together while their views are in different groups: then nothing more
        is taken in, and the loop is to end and to begin anew with them in one."""
        self._together = tuple(together)
        self._limits, self._now = limits, now
        self._settled = {source: known.ids for source, known in (parts or {}).items()}
        self._build(last, fingerprints or {}, halves)

    def _build(self, last: CommitHeader, fingerprints: Mapping[str, Fingerprints], halves: Iterable[Half]) -> None:
        """Everything that follows from the last header."""
        views = {name: planned.view for name, planned in self.topology.views.items()}
        positions = self._positions(last)
        self.engine = Engine(
            views,
            positions,
            {name: Promise(p.level, p.freshness, p.pace, p.eager) for name, p in self.topology.views.items()},
            order=self.topology.project.order,
            together=self._together,
            settled=self._parts,
            halves=halves,
        )
        self.vector = self.engine.vector
        unguaranteed = [name for name, planned in self.topology.views.items() if planned.level == "none"]
        self.in_flight = InFlight(self._read_rows, keep_files=bool(unguaranteed))
        self.workers = {
            name: ViewWorker(
                Inbox(Departures(partial(planned.manager, self.topology.views.values())), self.vector),
                self._room(planned.view),
                send=self._send,
                fail=self.fail,
                changed=self.wake,
            )
            for name, planned in self.topology.views.items()
        }
        self.health = Health()
        self.prover = Prover(self.topology.sources, views, fingerprints, self.health, self._together)
        self.committer = Committer(
            self._sink,
            last,
            views,
            positions,
            unguaranteed=unguaranteed,
            prove=self.prover.prove,
            fail=self.fail,
            changed=self.wake,
            now=self._now,
        )
        planned = self.topology.views.values()
        burdened = {source for each in planned if each.algorithm.burdened for source in each.view.sources}
        self.backpressure = Backpressure(
            self._limits,
            backlog=lambda: self.engine.backlog,
            queued=self._events.qsize,
            appends=lambda: self.committer.waiting,
            ahead=lambda source: len(self.ahead[source]),
            burden=lambda source: self.engine.backlog_of(source) if source in burdened else 0,
        )
        self.answerer = Answerer(
            {s: self.topology.sources[s] for s in self.vector},
            deliver=self.deliver,
            fail=self.fail,
            through_spark=self._through_spark,
            from_copy=self._from_copy,
            evaluate=self.topology.project.evaluate,
            most=self._limits.relation,
            health=self.health,
        )
        stops = {s: [p[s] for p in positions.values() if s in p] for s in self.vector}
        self.monitors = {
            s: Monitor(
                self.topology.sources[s],
                self.vector[s],
                stops[s],
                deliver=self.deliver,
                fail=self.fail,
                room=partial(self.backpressure.may_read, s),
                health=self.health,
            )
            for s in self.vector
        }
        self.barrier = Barrier(
            self.monitors, self.engine, self.committer, carry_out=self._carry_out, handled=lambda: self._handled
        )
        for name in self.vector:
            self.topology.sources[name].focus(self.topology.columns(name))
        self._told = last.number
        self._let_go_at: Mapping[str, Position] | None = None
        self._come = dict(self.vector)
        self._tap: Tap | None = None
        self._read: dict[str, str] = {}
        self._read_at = 0.0
        self.ahead = {s: ReadAhead(s, joined_columns(views.values(), s)) for s in self.vector}
        self._early = EarlyAnswers(self.ahead, positions)

    def _parts(self, source: str) -> frozenset[str]:
        """The global transactions whose part at a source the views had already at the start; none if it cannot tell
        now: then views wait for a part that was loaded, until the next start. Nobody asks before the first one."""
        if source not in self._settled:
            try:
                with contained(source):
                    known = self.topology.sources[source]
                    found = known.parts(self.vector[source]) if source in self.vector else Parts()
            except StrobeError:
                found = Parts()
            self._settled[source] = found.ids
        return self._settled[source]

    def _room(self, view: View) -> Room | None:
        if self._lift is None or self.topology.project.evaluate == "driver":
            return None
        return Room(self._limits.relation, partial(self._lift, types=view.attribute_types()))

    def _from_copy(self, query: Query) -> tuple[tuple[Relation, ...], Seen]:
        """Answer from what the warehouse holds, as of its last commit."""
        (lookup,) = query.lookups
        view = self.topology.views[query.view].view
        if query.own:
            rows, position = self._sink.shown(view, lookup)
        else:
            rows, position = self._sink.copy(query.source, lookup, view.attribute_types())
        return (rows,), Seen(self.topology.sources[query.source].position(position))

    def _positions(self, last: CommitHeader) -> dict[str, dict[str, Position]]:
        sources = self.topology.sources
        return {
            view: {s: sources[s].position(text) for s, text in vector.items()}
            for view, vector in last.positions.items()
            if view in self.topology.views
        }

    def deliver(self, event: Event) -> None:
        """Give the loop something to do. From any thread."""
        self._events.put(event)

    def fail(self, error: BaseException) -> None:
        """End the run with this error."""
        self.deliver(ThreadFailed(error))

    def wake(self) -> None:
        """Take a turn now. From any thread, and from a signal handler."""
        if not self._woken:
            self._woken = True
            self.deliver(Woken())

    # The loop.

    def run(
        self, step: Callable[[], RunEnd | None] = lambda: None, pause: Callable[[], float] = lambda: TURN
    ) -> RunEnd:
        """Keep the views until `step`, which is called in every turn, says why the run ends, or something fails; then
        commit what has been merged (after a failure, only what is being appended).

        `pause` is after how many seconds `step` is due again, if nothing happens before."""
        for thread in (*self.monitors.values(), *self.workers.values(), self.committer):
            thread.start()
        end = self._until(step, pause)
        self._come_to_rest(everything=not isinstance(end, run_end.Failure))
        return run_end.decided(end, self._left())

    def _until(self, step: Callable[[], RunEnd | None], pause: Callable[[], float]) -> RunEnd:
        try:
            while (end := step()) is None:
                self.turn(pause())
            return end
        except BaseException as error:  # whoever runs this decides what it means
            return run_end.ended_with(error)

    def _come_to_rest(self, *, everything: bool) -> None:
        producers: list[Monitor | ViewWorker] = [*self.monitors.values(), *self.workers.values()]
        for producer in producers:
            producer.stop()
        deadline = time.monotonic() + 10
        for producer in producers:
            producer.join(max(0.0, deadline - time.monotonic()))
        self.answerer.stop()
        self.committer.stop(everything=everything)
        self.committer.join()
        self.in_flight.end()

    def turn(self, pause: float = TURN) -> None:
        """Take what has come, and do what is due. If there is nothing, wait, up to `pause` seconds."""
        if self._operation is not None:
            pause = min(pause, TURN)
        pause = 0.0 if any(map(self._may_take, self.ahead)) else min(pause, self._next_cut - time.monotonic())
        try:
            self.handle(self._events.get(timeout=max(0.0, pause)))
            for _ in range(AT_ONCE):
                self.handle(self._events.get_nowait())
        except queue.Empty:
            pass
        self._tell_commits()
        self._let_go()
        self._take_from_ahead()
        self._give_answers()
        missing = frozenset().union(*self.engine.missing_parts().values())
        self.backpressure.look(self._early.wanted, self._early.needed, missing)
        waiting, now = self.committer.waiting, time.monotonic()
        self._carry_out(self.engine.cut_due(now, lambda view: self.workers[view].at_work, waiting))
        self._next_cut = self.engine.next_cut(now)
        for monitor in self.monitors.values():
            monitor.look_for_room()
        if self._operation is not None and next(self._operation, self) is self:
            self._operation = None

    def _tell_commits(self) -> None:
        """Inboxes need not remember what every copy shows from now on."""
        if self.committer.last.number != self._told:
            self._told = self.committer.last.number
            for worker in self.workers.values():
                worker.committed(self.committer.visible)

    def _let_go(self) -> None:
        """Rows and files are needed no longer than until they have been committed."""
        if self.committer.visible is not self._let_go_at:
            self._let_go_at = self.committer.visible
            self.in_flight.committed(self.visible)
            self.backpressure.committed(self.visible)

    def handle(self, event: Event) -> None:
        """Takes in what came from a source, a manager or a waker."""
        if isinstance(event, Transaction):
            self._arrive(event)
        elif isinstance(event, Answer):
            self._early.add(event)
            self._give_answers()
        elif isinstance(event, ActionList):
            self._carry_out(self.engine.receive(event, time.monotonic()))
        elif isinstance(event, Woken):
            self._woken = False  # before anything is looked at: what changes from now on wakes again
        else:
            raise event.error

    def _arrive(self, transaction: Transaction) -> None:
        """Take it in; if it came only for the sake of an answer, and there is no room, keep it to be taken in later."""
        source = transaction.source
        ahead = self.ahead[source]
        wanted = source in self._early.wanted and not self.backpressure.room(source, self._come[source])
        if len(ahead) or wanted:
            ahead.add(transaction)
        else:
            self._take_in(transaction)

    def _take_from_ahead(self) -> None:
        """As much as there is room for; everything, in some turns, if an operation waits for that."""
        for source, ahead in self.ahead.items():
            end = len(ahead) - AT_ONCE
            while len(ahead) > end and self._may_take(source):
                for transaction in ahead.take():
                    self._take_in(transaction)

    def _may_take(self, source: str) -> bool:
        room = self._operation is not None or self.backpressure.room(source, self._come[source])
        return room and len(self.ahead[source]) > 0

    def _give_answers(self) -> None:
        for answer in self._early.usable(self._come):
            self._record(answer)
            self.backpressure.answered(answer, self.topology.views[answer.view].view.sources)
            self.workers[answer.view].answer(answer)

    @property
    def _handled(self) -> bool:
        """Whether everything that has been read has been taken in."""
        return self._events.empty() and not any(map(len, self.ahead.values()))

    def _left(self) -> list[BaseException]:
        """What failed while the run came to rest; files of transactions that nobody has taken in are removed."""
        failed = []
        for ahead in self.ahead.values():
            ahead.close()
        while not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, Transaction):
                release(event)
            elif isinstance(event, ThreadFailed):
                failed.append(event.error)
        return failed

    def _take_in(self, transaction: Transaction) -> None:
        reach("received")
        self.in_flight.arrive(transaction)
        self.backpressure.arrived(transaction)
        self._come[transaction.source] = transaction.position  # before the tap is looked at: see `Tap.open`
        if (tap := self._tap) is not None:
            tap.arrive(transaction)
        effects = self.engine.receive(transaction, time.monotonic())
        if not self.engine.tied:
            self._record(transaction)
        self._carry_out(effects)
        reach("routed")

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Submit):
                reach("merged")
                self.backpressure.submitted(effect.transaction)
                self.committer.submit(effect.transaction, wait=effect.wait, keep=effect.keep)
            elif isinstance(effect, Tied):
                self.tied = effect.sources
            else:
                self._give(effect)

    def _give(self, given: ToViews) -> None:
        message = given.message
        if isinstance(message, Cut):
            self._record(message)
        for name in given.views:
            worker = self.workers[name]
            if isinstance(message, Update):
                worker.update(self._for_view(name, message))
            elif isinstance(message, Cut):
                worker.cut(message)
            else:
                worker.progress(message.source, message.position)

    def _for_view(self, name: str, update: Update) -> Update:
        """An update as the manager of a view can take it."""
        planned = self.topology.views[name]
        if update.transaction.departed:
            update = replace(update, transaction=self.prover.followed(name, update.transaction, planned.pace))
        return self.in_flight.readable(update, planned.view)

    def _send(self, message: Outbound) -> None:
        """What a manager sends, in its own thread."""
        if isinstance(message, Query):
            self._early.asked(message)
            self.answerer.ask(message)
        else:
            self.deliver(message)

    # Operations.

    @property
    def operation_open(self) -> bool:
        return self._operation is not None

    def start_operation(self, operation: Operation) -> None:
        if self._operation is not None:
            raise BrokenInvariant("two operations at a time")
        self._operation = operation

    def problem(self, source: str) -> StrobeError | None:
        """Why this source cannot be read or asked at the moment."""
        return self.health.problem(source)

    @property
    def refusals(self) -> Mapping[str, Refused]:
        """By view, a question of it that is not answered for a reason of one table."""
        return self.health.refusals

    def wait(self, view: str) -> Wait | None:
        """Why a view makes no progress at the moment, if there is a reason."""
        return self.health.wait(view, self.topology.views[view].view.sources)

    def visible(self, source: str) -> Position:
        """Up to where readers see this source now: a durable commit, or updates since that changed no view."""
        return self.committer.visible.get(source, self.vector[source])

    @contextmanager
    def tapped(self, view: View) -> Iterator[Tap]:
        """What comes in of the relations of a view, while this lasts. One at a time."""
        relations = {s: {r.name for r in view.relations if r.source == s} for s in view.sources}
        self._tap = tap = Tap(relations, self._come)
        try:
            tap.open()
            yield tap
        finally:
            self._tap = None

    def standing(self, view: str) -> tuple[CommitHeader, dict[str, Position]]:
        """The last durable commit, and the positions that a view reflects as it is after it."""
        passed = {s: self.visible(s) for s in self.topology.views[view].view.sources}
        last = self.committer.last
        reflected = {s: self.topology.sources[s].position(text) for s, text in last.positions[view].items()}
        return last, {s: max(reflected[s], passed[s], key=_order) for s in reflected}

    # Rest.

    @property
    def settled(self) -> bool:
        """Whether nothing is in flight: all that was read has been committed."""
        return not self.engine.size and not self.committer.busy and not any(map(len, self.ahead.values()))

    def idle(self) -> bool:
        """Whether everything that the sources had committed by now is in the warehouse."""
        return not self._busy() and self._all_read() and not self._busy()  # asking takes time, in which more may come

    def _busy(self) -> bool:
        return self._operation is not None or not self._handled or bool(self.engine.size or self.committer.waiting)

    def end_blocks(self) -> None:
        """What is less than a block of N is to be shown too, if nothing has come for a moment."""
        read = {name: monitor.position.text for name, monitor in self.monitors.items()}
        if read != self._read:
            self._read, self._read_at = read, time.monotonic()
        waited = time.monotonic() - self._read_at >= MOMENT
        if self.engine.begun and waited and self._operation is None and self._handled and self._all_read():
            self._carry_out(self.engine.cut_begun(time.monotonic()))

    def _all_read(self) -> bool:
        return all(self._caught_up(self.topology.sources[s], monitor) for s, monitor in self.monitors.items())

    @staticmethod
    def _caught_up(source: Source, monitor: Monitor) -> bool:
        try:
            with contained(source.name):
                return source.now() <= monitor.position
        except StrobeError:
            return False


def _order(position: Position) -> tuple[int, ...]:
    return position.order
