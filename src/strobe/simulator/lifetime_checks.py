"""What must hold at every commit of a lifetime, whatever happened before it.

* Every view is a recomputation over the sources at the positions that its header names.
* Positions never go back, and numbers go on by one.
* One prefix of every source for all views (`order: source`); a view that began further on waits there for the others.
* A global transaction is in all views or in none, unless some view began with a part of it; each single view has all
  that its sources have of it, or nothing, from its first commit on.
* At the end every view is at the end of all its sources, and the auditor, who shares no code with the rest, finds the
  level that was promised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from strobe.algebra.bag import Bag
from strobe.algebra.view import View
from strobe.auditor.levels import HistoryTransaction, Judge
from strobe.messages import CommitHeader
from strobe.simulator.world import MemorySource, evaluate

Vector = Mapping[str, int]


class Wrong(Exception):
    """Something that must hold does not."""


@dataclass(frozen=True)
class Logged:
    """A commit as a reader sees it: where the views stand, and their rows."""

    header: CommitHeader
    views: Mapping[str, Bag]

    def place(self, view: str) -> dict[str, int]:
        return {source: int(text) for source, text in self.header.positions[view].items()}


@dataclass(frozen=True)
class Kept:
    """The views that a run keeps, with where it began."""

    floors: Mapping[str, Vector]
    order: str


class Checks:
    def __init__(self, sources: Mapping[str, MemorySource], views: Mapping[str, View], unguaranteed: str) -> None:
        self._sources, self._views, self._unguaranteed = sources, views, unguaranteed

    def commit(self, before: Logged, after: Logged, kept: Kept | None) -> None:
        """`kept` is missing where views came or went."""
        if after.header.number != before.header.number + 1:
            raise Wrong(f"commit {after.header.number} follows {before.header.number}")
        for view in after.header.positions:
            if view in before.header.positions:
                self._never_back(view, before.place(view), after.place(view))
            if view != self._unguaranteed:
                self._recomputed(view, before, after)
                self._not_by_half(view, after)
        if kept is not None:
            places = {view: after.place(view) for view in kept.floors if view != self._unguaranteed}
            if kept.order == "source":
                self._one_prefix(after.header.number, places, kept.floors)
            self._whole(after.header.number, places, kept.floors)

    def _never_back(self, view: str, before: Vector, after: Vector) -> None:
        back = [source for source in after if after[source] < before[source]]
        if back:
            raise Wrong(f"{view} goes back, from {before} to {after}")

    def _recomputed(self, view: str, before: Logged, after: Logged) -> None:
        same = view in before.views and before.views[view] is after.views[view]
        if same and before.header.positions[view] == after.header.positions[view]:
            return
        place = after.place(view)
        expected = evaluate(self._views[view], {s: self._sources[s].states[n] for s, n in place.items()})
        if after.views[view] != expected:
            raise Wrong(f"{view} at {place} in commit {after.header.number}: {after.views[view]}, not {expected}")

    def _not_by_half(self, view: str, after: Logged) -> None:
        place = after.place(view)
        for name, parts in self.global_transactions().items():
            seen = {source: place[source] >= part for source, part in parts.items() if source in place}
            if len(set(seen.values())) > 1:
                raise Wrong(f"commit {after.header.number} shows {name} in {view} by half: {seen}")

    def _one_prefix(self, number: int, places: Mapping[str, Vector], floors: Mapping[str, Vector]) -> None:
        for source in self._sources:
            at = {view: place[source] for view, place in places.items() if source in place}
            reached = {n for view, n in at.items() if n > floors[view][source]}
            behind = [view for view, n in at.items() if reached and n < max(reached)]
            if len(reached) > 1 or behind:
                raise Wrong(f"commit {number} has views at different prefixes of {source}: {at}")

    def _whole(self, number: int, places: Mapping[str, Vector], floors: Mapping[str, Vector]) -> None:
        for name, parts in self.global_transactions().items():
            seen = {
                (view, source): place[source] >= part
                for view, place in places.items()
                for source, part in parts.items()
                if source in place
            }
            begun = [(s, n) for floor in floors.values() for s, n in floor.items() if s in parts]
            fresh = all(n < parts[s] for s, n in begun)
            if fresh and len(set(seen.values())) > 1:
                raise Wrong(f"commit {number} tears {name}, which is at {parts}: {seen}")

    def global_transactions(self) -> dict[str, dict[str, float]]:
        """By identifier, the position of each part; one that has not happened yet is beyond all."""
        found: dict[str, dict[str, float]] = {}
        for name, source in self._sources.items():
            for transaction in source.log:
                for part in transaction.part_of:
                    parts = found.setdefault(part.id, dict.fromkeys(part.participants, float("inf")))
                    parts[name] = transaction.position.order[0]
        return found

    def end(self, log: Sequence[Logged], level: str) -> None:
        """After all that happened has been committed."""
        for view in log[-1].header.positions:
            ends = {source: self._sources[source].now for source in self._views[view].sources}
            if view != self._unguaranteed and log[-1].place(view) != ends:
                raise Wrong(f"{view} ends at {log[-1].place(view)}, not at {ends}")
        always = [v for v in log[0].header.positions if all(v in each.header.positions for each in log)]
        for view in always:
            if view != self._unguaranteed:
                self._audit(view, log, level)

    def _audit(self, name: str, log: Sequence[Logged], level: str) -> None:
        view = self._views[name]
        initial = {source: self._sources[source].states[0] for source in view.sources}
        judge = Judge(initial, self._history(view.sources), lambda at: {name: evaluate(view, at)})
        states = [{name: each.views[name]} for each in log]
        verdict = judge.verdict(states, level, [{name: each.place(name)} for each in log])
        if verdict.verdict != "valid":
            found = verdict.together
            raise Wrong(f"the auditor finds {name} {verdict.level}, not {level}: {found.because}: {found.witness}")

    def _history(self, sources: Collection[str]) -> list[HistoryTransaction]:
        """What happened at these sources, in one order that agrees with every source's own, global transactions in one
        piece. What is not watched ties nothing, so other sources count for the order only."""
        done = dict.fromkeys(self._sources, 0)
        found: list[HistoryTransaction] = []
        while any(done[s] < source.now for s, source in self._sources.items()):
            heads = {s: source.log[done[s]] for s, source in self._sources.items() if done[s] < source.now}
            for first, transaction in heads.items():
                parts = transaction.part_of[0].participants if transaction.part_of else {first}
                if all(s in heads and heads[s].part_of == transaction.part_of for s in parts):
                    changes = {
                        s: {r: bag.collect() for r, bag in heads[s].changes.items()} for s in sources if s in parts
                    }
                    if changes:
                        found.append(HistoryTransaction(f"T{len(found) + 1}", changes))
                    for s in parts:
                        done[s] += 1
                    break
        return found
