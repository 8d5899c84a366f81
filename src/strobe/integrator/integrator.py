"""The integrator (multiple view consistency, 3.2).

It numbers transactions in the order in which they arrive and computes the relevant set REL of each: the views whose
rows it may change. A transaction is irrelevant to a view that

* mentions no relation that it changes, or reflects it already;
* uses none of the columns in which the rows that go differ from those that come;
* demands something of the relation's rows that none of them fulfils, neither those that go nor those that come.

Every transaction becomes a row of the view-update table, also one that is relevant to nobody: it moves the source's
position on. The part of a global transaction is relevant to every view of its source, so that nobody waits for a part
that was never sent on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.selection import Selection
from strobe.algebra.substitution import substitute
from strobe.algebra.view import Occurrence, View
from strobe.messages import GlobalTransaction, Position, Rel, Transaction, Update


@dataclass(frozen=True)
class Routed:
    """A numbered transaction and where it goes."""

    update: Update
    rel: Rel


class Integrator:
    def __init__(
        self,
        views: Mapping[str, View],
        positions: Mapping[str, Mapping[str, Position]],
        settled: Callable[[str], Collection[str]] = lambda _source: (),
    ) -> None:
        """`positions` says for every view which position of every source it reflects already; `settled` says for
        every source which global transactions had their part there before: it will not come again."""
        self._views = dict(views)
        self._positions = {view: dict(vector) for view, vector in positions.items()}
        self._selections = {name: Selection.of(view) for name, view in views.items()}
        self._settled = settled
        self._number = 0
        self._relevant_sets: dict[frozenset[str], frozenset[str]] = {}
        """Each once: under a backlog many rows wait that have the same."""
        self.dropped = dict.fromkeys(views, 0)
        """By view, the transactions that change a relation of it and were irrelevant all the same."""

    def receive(self, transaction: Transaction) -> Routed:
        self._number += 1
        if transaction.part_of:
            transaction = replace(transaction, part_of=self._unsettled(transaction.part_of))
        views = frozenset(name for name in self._views if self._relevant(name, transaction))
        views = self._relevant_sets.setdefault(views, views)
        update = Update(self._number, transaction)
        rel = Rel(
            self._number,
            transaction.info,
            views,
            empty=not (transaction.changes or transaction.gone or transaction.departed or transaction.part_of),
            rows=sum(len(rows) for rows in _all_rows(transaction) if isinstance(rows, Bag)),
        )
        return Routed(update, rel)

    def _unsettled(self, part_of: Iterable[GlobalTransaction]) -> tuple[GlobalTransaction, ...]:
        """The global transactions with the parts that can still come."""
        found = []
        for part in part_of:
            coming = frozenset(s for s in part.participants if part.id not in self._settled(s))
            if len(coming) > 1:
                found.append(replace(part, participants=coming))
        return tuple(found)

    def _relevant(self, name: str, transaction: Transaction) -> bool:
        view = self._views[name]
        reflected = self._positions.get(name, {}).get(transaction.source)
        if reflected is not None and transaction.position <= reflected:
            return False
        if transaction.part_of and transaction.source in view.sources:
            return True
        changes = (*transaction.changes.items(), *transaction.gone.items())
        changed = {relation for relation, change in changes if not change.known_empty}
        if any(o.source == transaction.source and o.relation.name in transaction.departed for o in view.occurrences):
            return True
        touched = [o for o in view.occurrences if o.source == transaction.source and o.relation.name in changed]
        if any(self._matters(name, occurrence, transaction) for occurrence in touched):
            return True
        self.dropped[name] += bool(touched)
        return False

    def _matters(self, name: str, occurrence: Occurrence, transaction: Transaction) -> bool:
        change = transaction.changes.get(occurrence.relation.name)
        if not isinstance(change, Bag) or not occurrence.relation.images:
            return True  # a change that is not here, or of which only the key is known
        used = substitute(occurrence, change)
        return not isinstance(used, Bag) or self._selections[name].admits(occurrence, used)


def _all_rows(transaction: Transaction) -> tuple[Relation, ...]:
    return (*transaction.changes.values(), *transaction.gone.values())
