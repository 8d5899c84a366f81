"""One run of the pipeline on virtual time: the very engine, inboxes and managers, with queues in the place of threads.

Everything that has a thread of its own in the live pipeline takes some time here, at random: the monitor that reads a
source, the view that works through its queue, the source that evaluates a question and the answer on its way, the
append. So all that can overtake each other do. A run begins with a header; it ends in order, with all that was merged
committed, or by a crash, with all that was on its way forgotten.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta

from strobe.engine.commits import Commits
from strobe.engine.engine import Effect, Engine, Progress, Promise, Submit, ToViews
from strobe.engine.gathering import Gathering
from strobe.errors import NotNow
from strobe.managers.base import Outbound, ViewManager
from strobe.managers.inbox import Inbox
from strobe.messages import (
    ActionList,
    Answer,
    Commit,
    CommitHeader,
    Cut,
    Query,
    Transaction,
    Update,
    WarehouseTransaction,
)
from strobe.simulator.virtual_time import Clock
from strobe.simulator.world import THEN, MemorySource, position

TURN = 0.1
"""Seconds between two turns of the loop in which nothing has come."""

QUIET = 3.0
"""Seconds after which positions that moved without rows are made durable."""

Steps = Iterator[None]
"""Work that takes several turns: it yields when it has to wait."""

Durable = Callable[[list[Commit]], None]

Work = Update | Progress | Cut | Answer


class SimulatedRun:
    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        sources: Mapping[str, MemorySource],
        managers: Mapping[str, ViewManager],
        promises: Mapping[str, Promise],
        header: CommitHeader,
        *,
        order: str,
        together: Collection[frozenset[str]],
        reachable: Callable[[str], bool],
        durable: Durable,
        tied: Callable[[frozenset[str]], None],
    ) -> None:
        """`durable` is given commits as they are in the log; `tied` the sources that must be in one group."""
        self._clock, self._rng, self._sources = clock, rng, sources
        self._reachable, self._durable, self._tied = reachable, durable, tied
        views = {name: manager.view for name, manager in managers.items()}
        self.floors = {
            name: {s: position(int(header.positions[name][s])) for s in view.sources} for name, view in views.items()
        }
        unguaranteed = [name for name in views if promises[name].level == "none"]
        self.guaranteed = frozenset(views) - frozenset(unguaranteed)
        self.engine = Engine(views, self.floors, promises, order=order, together=together, settled=self._settled)
        self.commits = Commits(header, views, self.floors, unguaranteed)
        self.read = {source: reached.order[0] for source, reached in self.engine.vector.items()}
        self._inboxes = {name: Inbox(manager, self.engine.vector) for name, manager in managers.items()}
        self._queues: dict[str, deque[Work]] = {name: deque() for name in managers}
        self._pace = {name: rng.choice([0.01, 0.1, 0.5]) for name in (*managers, *self.read)}
        """How long a view takes with a message, a source with a question, on the average."""
        self._cuts = dict.fromkeys(managers, (0, 0))
        """By view, the last cut that was posted and the last that was handled."""
        self._events: deque[Transaction | Answer | ActionList] = deque()
        self._limits: dict[str, int] | None = None
        """Up to where sources are read, if not to their ends."""
        self._gathering = Gathering(QUIET)
        self._appending: list[Commit] = []
        self._held = self._flush = False
        self.alive = True
        for source in self.read:
            self._later(0.1, lambda source=source: self._monitor(source))  # type: ignore[misc]  # its default
        self._later(TURN, self._tick)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        """After about so many seconds, if the run still is."""
        self._clock.after(self._rng.uniform(0.2, 2) * seconds, lambda: do() if self.alive else None)

    def _settled(self, source: str) -> frozenset[str]:
        reached = self.engine.vector.get(source)
        log = self._sources[source].log[: reached.order[0]] if reached is not None else ()
        return frozenset(part.id for transaction in log for part in transaction.part_of)

    # Monitors, views, answers: what threads do.

    def _monitor(self, source: str) -> None:
        end = self._sources[source].now
        if self._limits is not None:
            end = min(end, self._limits[source])
        for _ in range(self._rng.choice([1, 1, 5])):
            if self._reachable(source) and self.read[source] < end:
                self._events.append(self._sources[source].reported(self.read[source], look=False, gate=True))
                self.read[source] += 1
        self._later(self._rng.choice([0.05, 0.3]), lambda: self._monitor(source))

    def _post(self, view: str, work: Work) -> None:
        if isinstance(work, Cut):
            self._cuts[view] = (work.number, self._cuts[view][1])
        self._queues[view].append(work)
        self._later(self._pace[view], lambda: self._work(view))

    def _work(self, view: str) -> None:
        inbox, work = self._inboxes[view], self._queues[view].popleft()
        if isinstance(work, Update):
            sent = inbox.update(work)
        elif isinstance(work, Progress):
            sent = inbox.progress(work.source, work.position)
        elif isinstance(work, Answer):
            sent = inbox.answer(work)
        else:
            sent = inbox.cut(work)
            self._cuts[view] = (self._cuts[view][0], work.number)
        for message in sent:
            self._send(message)

    def _send(self, message: Outbound) -> None:
        if isinstance(message, Query):
            self._later(self._pace[message.source], lambda: self._evaluate(message))
        else:
            self._events.append(message)
            self._later(0.02, self._turn)

    def _evaluate(self, query: Query) -> None:
        if not self._reachable(query.source):
            self._later(0.5, lambda: self._evaluate(query))
            return
        answer = self._sources[query.source].answer(query)
        self._later(self._pace[query.source], lambda: self._events.append(answer))

    def _at_work(self, view: str) -> bool:
        posted, handled = self._cuts[view]
        return handled < posted or self._inboxes[view].asking

    # The loop.

    def _tick(self) -> None:
        self._turn()
        self._later(TURN, self._tick)

    def _turn(self) -> None:
        while self._events and self.alive:
            event = self._events.popleft()
            if isinstance(event, Answer):
                self._post(event.view, event)
            else:
                self._carry_out(self.engine.receive(event, self._clock.now))
        self._carry_out(self.engine.cut_due(self._clock.now, self._at_work, len(self._gathering)))
        self._append()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Submit):
                self._gathering.add(effect.transaction, effect.wait, effect.keep, self._clock.now)
            elif isinstance(effect, ToViews):
                for view in effect.views:
                    self._post(view, effect.message)
            else:
                self._tied(effect.sources)

    # Commits.

    def _append(self) -> None:
        """Begin an append with some of what waits."""
        if self._appending or self._held:
            return
        now = self._clock.now
        if self._flush and not self._gathering.empty:
            self._appending = self._all_waiting()
        elif self._gathering.due(now, enough=1):
            self._appending = [self._commit(t) for t in self._gathering.take(self._rng.randint(1, 5), now)]
        if self._appending:
            self._later(self._rng.choice([0.05, 0.5, 2]), self._appended)

    def _all_waiting(self) -> list[Commit]:
        return [self._commit(transaction) for transaction in self._gathering.take_all(self._clock.now)]

    def _commit(self, transaction: WarehouseTransaction) -> Commit:
        return self.commits.next(transaction, THEN + timedelta(seconds=self._clock.now))

    def _appended(self) -> None:
        appended, self._appending = self._appending, []
        self._durable(appended)
        self._append()

    @property
    def committed(self) -> bool:
        """Whether nothing that was merged waits for its commit."""
        return not self._appending and self._gathering.empty

    def hand_over(self) -> list[Commit]:
        """All that is waiting, as commits that somebody else appends."""
        self._flush = True
        return self._all_waiting()

    # Standing at an exact vector.

    def pause(self) -> None:
        self._limits = dict(self.read)

    def bring_to(self, vector: Mapping[str, int], deadline: float, *, hold: bool = False) -> Steps:
        """Commit exactly this vector, or hold what brings the views there."""
        if any(self.read[source] > number for source, number in vector.items()):
            raise NotNow("a source is past the position that was read")
        self._limits = {**self.read, **vector}
        while self._events or any(self.read[source] < number for source, number in vector.items()):
            yield from self._until(deadline)
        self._held = hold
        self._carry_out(self.engine.stop_here(self._clock.now))
        self._limits = None
        while not self.engine.stands:
            yield from self._until(deadline)
        self._flush = not hold
        while self._appending if hold else not self.committed:
            yield from self._until(deadline)
        self._flush = False

    def _until(self, deadline: float) -> Steps:
        if self._clock.now > deadline:
            raise NotNow("the views could not be brought to the vector in time")
        yield

    def resume(self) -> None:
        """Go on, however that ended."""
        self._limits = None
        self._held = self._flush = False
        self._carry_out(self.engine.go_on())

    # The end.

    def settle(self) -> bool:
        """Whether everything that the sources hold has been committed. Blocks of N that have begun are ended."""
        if self.engine.tied or self._events or any(self.read[s] < self._sources[s].now for s in self.read):
            return False
        self._carry_out(self.engine.cut_begun(self._clock.now))
        return not self.engine.size and not len(self._gathering) and not self._appending

    def end(self) -> None:
        """In order: what was merged is committed."""
        self.alive = False
        appending, self._appending = self._appending, []
        self._flush = True
        self._durable([*appending, *self._all_waiting()])

    def crash(self) -> None:
        """At any moment: nobody knows whether the append that was on its way happened."""
        self.alive = False
        if self._rng.random() < 0.5:
            self._durable(self._appending)
