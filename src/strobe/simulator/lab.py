"""The laboratory: one view in the model of the papers, where everything that can happen is one of three events.

    execute x     source x executes its next transaction and sends it to the warehouse
    evaluate x    source x evaluates the next query on its present state and sends the answer
    receive x     the warehouse receives the next message of source x, and its manager does all that follows from it

Messages of one source arrive in the order in which they were sent (Strobe paper, 3.3); there is no order between
sources. What happens next is chosen outside. What each source will execute is fixed, so that a schedule is nothing but
a sequence of events. A laboratory can be forked: exploring all schedules shares their beginnings.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from strobe.algebra.bag import Bag
from strobe.algebra.view import View
from strobe.managers.base import Outbound, ViewManager
from strobe.messages import ActionList, Answer, Cut, GlobalTransaction, Query, Seen, Transaction, Update
from strobe.simulator.world import Contents, MemorySource, added, evaluate, installed, position

Changes = Mapping[str, Bag]
"""What one update does: by relation, rows that come and go."""
Event = tuple[str, str]
"""(`execute`, `evaluate` or `receive`; the source)."""


@dataclass(frozen=True)
class Step:
    """A transaction at one source: its updates, in order; and the global transaction it is a part of, if any."""

    id: str
    updates: tuple[Changes, ...]
    part_of: tuple[GlobalTransaction, ...] = ()

    @cached_property
    def net(self) -> dict[str, Bag]:
        total: dict[str, Bag] = {}
        for update in self.updates:
            for relation, change in update.items():
                total[relation] = total[relation].add(change) if relation in total else change
        return total


@dataclass(frozen=True)
class Plan:
    """What will happen at every source, and what was there before."""

    view: View
    initial: Mapping[str, Contents]
    steps: Mapping[str, tuple[Step, ...]]

    @cached_property
    def states(self) -> dict[str, list[Contents]]:
        """The contents of each source after each number of its transactions."""
        found: dict[str, list[Contents]] = {}
        for source, contents in self.initial.items():
            found[source] = [dict(contents)]
            for step in self.steps.get(source, ()):
                after = dict(found[source][-1])
                for relation, change in step.net.items():
                    after[relation] = after[relation].add(change)
                found[source].append(after)
        return found

    def messages(self, source: str, number: int, single: bool) -> list[Transaction]:
        """What a source reports of its transaction of this number: all in one, or (`single`) update by update."""
        step = self.steps[source][number]
        if not single:
            return [Transaction(source, position(number + 1), changes=step.net, part_of=step.part_of)]
        return [Transaction(source, position(number + 1), changes=dict(u), part_of=step.part_of) for u in step.updates]


class Lab:
    def __init__(self, plan: Plan, manager: ViewManager, *, single: bool = False) -> None:
        """With `single` the sources report every update on its own: to such a manager there are no transactions."""
        self.plan = plan
        self.manager = manager
        self.single = single
        self.executed = dict.fromkeys(plan.initial, 0)
        self.channels: dict[str, deque[Transaction | Answer]] = {s: deque() for s in plan.initial}
        self.queries: dict[str, deque[Query]] = {s: deque() for s in plan.initial}
        self.copies = {source: dict(contents) for source, contents in plan.initial.items()}
        """What the warehouse would keep of each source: all that it has received."""
        self.reached = {source: position(0) for source in plan.initial}
        self.received = 0
        self.cut = 0
        self.asked = 0
        """Queries sent: each is two messages with its answer."""
        self.view = evaluate(plan.view, {s: states[0] for s, states in plan.states.items()})
        self.states: tuple[Bag, ...] = (self.view,)
        self.last: tuple[Outbound, ...] = ()
        """What the manager sent in the last event."""

    def fork(self) -> Lab:
        twin = copy.copy(self)
        twin.manager = copy.deepcopy(self.manager)
        twin.executed = dict(self.executed)
        twin.reached = dict(self.reached)
        twin.copies = {s: dict(contents) for s, contents in self.copies.items()}
        twin.channels = {s: deque(channel) for s, channel in self.channels.items()}
        twin.queries = {s: deque(queries) for s, queries in self.queries.items()}
        return twin

    def choices(self) -> list[Event]:
        found = [("execute", s) for s, n in self.executed.items() if n < len(self.plan.steps.get(s, ()))]
        found += [("evaluate", s) for s, queries in self.queries.items() if queries]
        found += [("receive", s) for s, channel in self.channels.items() if channel]
        return found

    def step(self, event: Event) -> None:
        kind, source = event
        self.last = ()
        if kind == "execute":
            self.channels[source] += self.plan.messages(source, self.executed[source], self.single)
            self.executed[source] += 1
        elif kind == "evaluate":
            self.channels[source].append(self._evaluate(self.queries[source].popleft()))
        else:
            self._receive(self.channels[source].popleft())

    def _evaluate(self, query: Query) -> Answer:
        done = self.executed[query.source]
        found = MemorySource(query.source, self.plan.states[query.source][done]).answer(query)
        return replace(found, seen=Seen(position(done)))

    def _from_copy(self, query: Query) -> Answer:
        """At home and at once: no message."""
        found = MemorySource(query.source, self.copies[query.source]).answer(query)
        if query.own:
            (lookup,) = query.lookups
            occurrence = self.plan.view.occurrences[lookup.occurrence]
            key = [(c, occurrence.attribute(c)) for c in occurrence.relation.key]
            unknown = found.relations[0].key_delete(self.view, key)
            found = replace(found, relations=(found.relations[0].plus(unknown.negate()),))
        return replace(found, seen=Seen(self.reached[query.source]))

    def _receive(self, message: Transaction | Answer) -> None:
        if isinstance(message, Answer):
            self._send(self.manager.receive([message]))
        else:
            self.received += 1
            self.reached[message.source] = message.position
            copies = self.copies[message.source]
            for relation, change in message.changes.items():
                copies[relation] = added(copies[relation], change)
            self._send(self.manager.receive([Update(self.received, message)]))
        self._cut_when_quiet()

    def _cut_when_quiet(self) -> None:
        """A block ends when nothing is on its way."""
        if self.received > self.cut and self.quiet:
            self.cut = self.received
            self._send(self.manager.receive([Cut(self.cut)]))

    @property
    def quiet(self) -> bool:
        """Whether no question is open."""
        if any(self.queries.values()):
            return False
        return not any(isinstance(m, Answer) for channel in self.channels.values() for m in channel)

    def _send(self, messages: Sequence[Outbound]) -> None:
        waiting = deque(messages)
        while waiting:
            message = waiting.popleft()
            self.last += (message,)
            if isinstance(message, Query) and message.at_home:
                waiting += self.manager.receive([self._from_copy(message)])
            elif isinstance(message, Query):
                self.asked += 1
                self.queries[message.source].append(message)
            else:
                self._install(message)

    def _install(self, actions: ActionList) -> None:
        self.view = installed(self.plan.view, self.view, actions)
        self.states += (self.view,)
