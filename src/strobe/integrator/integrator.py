"""The integrator (multiple view consistency, 3.2).

It numbers transactions in the order in which they arrive and computes the relevant set REL of each: the views that
mention a changed relation and do not reflect the transaction yet. Every transaction becomes a row of the view-update
table, also one that is relevant to nobody: it moves the source's position on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strobe.algebra.view import View
from strobe.messages import Cut, Position, Rel, Transaction, Update


@dataclass(frozen=True)
class Routed:
    """A numbered transaction and where it goes."""

    update: Update
    rel: Rel


class Integrator:
    def __init__(self, views: Mapping[str, View], positions: Mapping[str, Mapping[str, Position]]) -> None:
        """`positions` says for every view which position of every source it reflects already."""
        self._views = dict(views)
        self._positions = {view: dict(vector) for view, vector in positions.items()}
        self._number = 0
        self._cut = 0

    @property
    def uncut(self) -> int:
        """How many transactions have arrived since the last cut."""
        return self._number - self._cut

    def receive(self, transaction: Transaction) -> Routed:
        self._number += 1
        views = frozenset(name for name, view in self._views.items() if self._relevant(view, transaction))
        update = Update(self._number, transaction)
        rel = Rel(self._number, transaction.source, transaction.position, views, transaction.committed_at)
        return Routed(update, rel)

    def cut(self) -> Cut:
        """End a block here, for all views alike."""
        self._cut = self._number
        return Cut(self._number)

    def _relevant(self, view: View, transaction: Transaction) -> bool:
        reflected = self._positions.get(view.name, {}).get(transaction.source)
        if reflected is not None and transaction.position <= reflected:
            return False
        changed = {name for name, change in transaction.changes.items() if not change.known_empty}
        return any(o.source == transaction.source and o.relation.name in changed for o in view.occurrences)
