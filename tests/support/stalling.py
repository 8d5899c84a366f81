"""A source in memory whose snapshots may have seen a later transaction without an earlier one, as PostgreSQL's do."""

from __future__ import annotations

import random
from collections.abc import Mapping

from strobe.algebra.bag import Bag
from strobe.messages import Answer, GlobalTransaction, Query, SeenByXid, Transaction
from strobe.simulator.world import MemorySource, position


class Stalling(MemorySource):
    """A source some of whose commits are in the log and not visible yet. With `gate` what was reported is visible."""

    def __init__(self, name: str, relations: Mapping[str, Bag], rng: random.Random) -> None:
        super().__init__(name, dict(relations))
        self._rng = rng
        self.gate = True
        self.told = 0
        self.visible: set[int] = set()

    def commit(self, changes: Mapping[str, Bag], part_of: tuple[GlobalTransaction, ...] = ()) -> None:
        super().commit(changes, part_of)
        last = self.log[-1]
        self.log[-1] = Transaction(last.source, last.position, changes=last.changes, xid=len(self.log))

    def reported(self, after: int, look: bool, gate: bool) -> Transaction:
        self.told = after + 1
        return super().reported(after, look, gate)

    def answer(self, query: Query) -> Answer:
        first = self.told if self.gate else 0
        stalled = {t.xid for t in self.log[first:] if t.xid is not None and self._rng.random() < 0.4}
        self.visible |= {t.xid for t in self.log if t.xid is not None} - stalled
        unseen = stalled - self.visible
        state = dict(self.states[0])
        for transaction in self.log:
            if transaction.xid not in unseen:
                for name, change in transaction.changes.items():
                    assert isinstance(change, Bag)
                    state[name] = state[name].add(change)
        found = MemorySource(self.name, state).answer(query)
        seen = SeenByXid(position(self.now), self.now + 1, frozenset(unseen))
        return Answer(query.view, query.id, self.name, found.relations, seen)
