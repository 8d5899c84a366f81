"""A laboratory in which one site reports a global transaction whole (Strobe paper, 5.4).

The site at which the last part is executed sends all parts in one message; the other sites send nothing of theirs. So
what a source did can arrive on another's channel, and the order in which the papers trust is lost. Updates carry
sequence numbers, and one that comes before an earlier update of its source has been received waits (this is also what
knowing each transaction's dependencies would make it wait for). That alone is not enough: an answer may still overtake
the report of what it had seen. `stamped` answers say what they had seen, and wait for it too.
"""

from __future__ import annotations

from strobe.algebra.bag import Bag
from strobe.managers.base import ViewManager
from strobe.messages import ActionList, Answer, Transaction, Update
from strobe.simulator.lab import Event, Lab, Plan
from strobe.simulator.world import installed, position


class OneSiteLab(Lab):
    def __init__(self, plan: Plan, manager: ViewManager, *, stamped: bool) -> None:
        super().__init__(plan, manager)
        self.stamped = stamped
        self.unreported: dict[str, tuple[Transaction, ...]] = {}
        """By global transaction, the parts that have been executed before the last."""

    def fork(self) -> OneSiteLab:
        twin = super().fork()
        if not isinstance(twin, OneSiteLab):
            raise TypeError(type(twin).__name__)
        twin.unreported = dict(self.unreported)
        return twin

    def choices(self) -> list[Event]:
        return [e for e in super().choices() if e[0] != "receive" or self._ready(self.channels[e[1]][0])]

    def _ready(self, message: Transaction | Answer) -> bool:
        if isinstance(message, Answer):
            return not self.stamped or message.seen.through <= self.reached[message.source]
        return all(self.reached[t.source] == position(t.position.order[0] - 1) for t in self._parts(message))

    def _parts(self, message: Transaction) -> tuple[Transaction, ...]:
        """All that a message reports."""
        reported = self.unreported.get(message.part_of[0].id, ()) if message.part_of else ()
        return (*reported, message)

    def step(self, event: Event) -> None:
        kind, source = event
        if kind != "execute":
            super().step(event)
            return
        (message,) = self.plan.messages(source, self.executed[source], single=False)
        self.executed[source] += 1
        self.last = ()
        if message.part_of and len(self._parts(message)) < len(message.part_of[0].participants):
            self.unreported[message.part_of[0].id] = self._parts(message)
        else:
            self.channels[source].append(message)

    def _receive(self, message: Transaction | Answer) -> None:
        if isinstance(message, Answer):
            super()._receive(message)
            return
        updates = []
        for part in self._parts(message):
            self.received += 1
            self.reached[part.source] = part.position
            updates.append(Update(self.received, part))
        self._send(self.manager.receive(updates))
        self._cut_when_quiet()

    def _install(self, actions: ActionList) -> None:
        """As the paper does, "without adding duplicate tuples": in order they never come, but here there is none."""
        rows = installed(self.plan.view, self.view, actions)
        self.view = Bag(rows.attributes, dict.fromkeys((row for row, _ in rows.items()), 1))
        self.states += (self.view,)
