"""What warehouse transactions become: numbered commits, whose headers say where every view stands."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from strobe.algebra.view import View
from strobe.merge.removals import combined, fragments
from strobe.messages import Commit, CommitHeader, Position, WarehouseTransaction


class Commits:
    """Makes one commit after the other, from a header on."""

    def __init__(
        self,
        last: CommitHeader,
        views: Mapping[str, View],
        floors: Mapping[str, Mapping[str, Position]],
        unguaranteed: Collection[str] = (),
    ) -> None:
        """`floors` is what each view reflects at the start: one may be ahead of others until they have caught up.

        Views in `unguaranteed` keep no step with the others: they are where their own action lists say.
        """
        self.last = last
        self._views = dict(views)
        self._floors = floors
        self._unguaranteed = frozenset(unguaranteed)

    def next(self, transaction: WarehouseTransaction, now: datetime) -> Commit:
        as_of = {
            v: {**self.last.as_of.get(v, {}), **self._times(v, view, transaction)}
            for v, view in self._views.items()
            if view.sources[0] in transaction.positions
        }
        self.last = self.last.following(now, self._vectors(transaction), as_of)
        removals, changes = combined(transaction.actions)
        return Commit(self.last, changes, removals, fragments(transaction.actions))

    def _times(self, name: str, view: View, transaction: WarehouseTransaction) -> dict[str, datetime]:
        """The sources' own commit times; not of transactions that a view which is ahead has reflected long ago."""
        positions, floors = transaction.positions, self._floors[name]
        return {s: t for s, t in transaction.as_of.items() if s in view.sources and floors[s] <= positions[s]}

    def _vectors(self, transaction: WarehouseTransaction) -> dict[str, dict[str, str]]:
        """Where the views stand whose sources took part; other groups' stay where they are."""
        found = {}
        for name, view in self._views.items():
            ahead, floors = transaction.ahead.get(name, {}), self._floors[name]
            if name in self._unguaranteed:
                found[name] = {**self.last.positions[name], **{s: p.text for s, p in ahead.items()}}
            elif view.sources[0] in transaction.positions:
                places = {s: (transaction.positions[s], floors[s], ahead.get(s, floors[s])) for s in view.sources}
                found[name] = {s: max(of, key=lambda p: p.order).text for s, of in places.items()}
        return found


def absorbed(before: WarehouseTransaction | None, transaction: WarehouseTransaction) -> WarehouseTransaction:
    """A transaction that also moves what an earlier one without rows moved."""
    if before is None:
        return transaction
    return replace(
        transaction,
        positions={**before.positions, **transaction.positions},
        as_of={**before.as_of, **transaction.as_of},
        ahead={**before.ahead, **transaction.ahead},
    )


def divided(
    transaction: WarehouseTransaction, sources: Collection[str]
) -> tuple[WarehouseTransaction | None, WarehouseTransaction | None]:
    """Of a transaction without rows: what it moves of these sources, and of the others."""

    def part(chosen: Collection[str]) -> WarehouseTransaction | None:
        if not chosen:
            return None
        return replace(
            transaction,
            positions={s: p for s, p in transaction.positions.items() if s in chosen},
            as_of={s: t for s, t in transaction.as_of.items() if s in chosen},
            ahead={view: vector for view, vector in transaction.ahead.items() if vector.keys() <= set(chosen)},
        )

    inside = transaction.positions.keys() & set(sources)
    return part(inside), part(transaction.positions.keys() - inside)
