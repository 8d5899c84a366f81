"""The rows of its sources that a part of a view is computed from, at exactly the positions of a commit.

A part of a view is the rows that it has for some keys of one relation. They are computed from the rows of that relation
with these keys, and from those that these join with, found by one look-up after another, each in a snapshot of its own.
A snapshot is later than the commit; the transactions between the two are known (see `tap`), and are taken out again,
row by row: `R@commit = R@snapshot - (R@snapshot - R@commit)`. So nothing is paused, and nothing has to be quiet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from strobe.algebra.bag import Bag, Row
from strobe.algebra.substitution import Step, join_pairs, next_fragment, substitute
from strobe.algebra.view import Occurrence, View
from strobe.errors import NotNow
from strobe.messages import Lookup, Position, Seen
from strobe.pipeline.tap import Tap
from strobe.sources.base import Source, TooLarge
from strobe.sources.lookups import read_bag

COVERED = ("strong", "complete")
"""Levels at which a commit says at which positions a view is right."""

STEP = 0.02
"""Seconds between two looks whether a stream has been read as far as a snapshot had seen."""


class Contested(NotNow):
    """Rows of the part changed in a way that cannot be taken back: their old contents are not known."""


def anchor(view: View) -> Occurrence | None:
    """The occurrence by whose keys a view is taken apart: it shows the whole key, and the others are found from there
    at the least cost. None if it shows no key."""
    known = [o for o in view.occurrences if view.key_of(o)]
    return min(known, key=lambda o: (sum(step.cost for step in _steps(view, o.index)), o.index), default=None)


def _steps(view: View, first: int) -> list[Step]:
    known, steps = [first], list[Step]()
    while found := next_fragment(view, known):
        steps.append(found[0])
        known.append(found[0].occurrence)
    return steps


class PartReader:
    def __init__(
        self, view: View, sources: Mapping[str, Source], tap: Tap, stopped: Callable[[], bool], most: int, wait: float
    ) -> None:
        """At most so many rows are held, and a stream is waited for so many seconds."""
        self._view, self._sources, self._tap, self._stopped = view, sources, tap, stopped
        self._most, self._wait = most, wait

    def read(self, at: Mapping[str, Position], first: Occurrence | None, keys: Collection[Row]) -> dict[str, Bag]:
        """By relation, all its rows at these positions that rows of the part are made of, over the columns that the
        view uses. The part has these keys in the `first` occurrence, or is all of the view if there is none.

        `TooLarge` if there are too many rows; `Contested` if it cannot be told what they were.
        """
        if self._view.tree is not None:
            return self._whole(at)
        view, found, known = self._view, dict[str, Bag](), list[int]()
        term = Bag((), {(): 1})
        while len(known) < len(view.occurrences) and not term.known_empty:
            if first is not None and not known:
                occurrence, on = first, first.relation.key
                wanted: Bag | None = Bag(on, dict.fromkeys(keys, 1))
            else:
                step = next_fragment(view, known)[0]
                occurrence, on = view.occurrences[step.occurrence], tuple(own for own, _, _ in step.on)
                others = [view.occurrences[other].attribute(column) for _, other, column in step.on]
                wanted = Bag(on, dict(term.keys(others).items())) if on else None
            rows = self._at(at[occurrence.source], occurrence, on, wanted)
            pairs = join_pairs(view, known, occurrence.index)
            joined = term.join(substitute(occurrence, rows), pairs)
            term, known = joined.collect(), [*known, occurrence.index]
            relation = occurrence.relation.id
            found[relation] = _either(found[relation], rows) if relation in found else rows
            if len(term) + sum(map(len, found.values())) > self._most:
                raise TooLarge
        return found

    def _whole(self, at: Mapping[str, Position]) -> dict[str, Bag]:
        """All rows of all relations of a view that is a tree of operators."""
        found: dict[str, Bag] = {}
        for occurrence in self._view.occurrences:
            if occurrence.relation.id not in found:
                found[occurrence.relation.id] = self._at(at[occurrence.source], occurrence, (), None)
            if sum(map(len, found.values())) > self._most:
                raise TooLarge
        return found

    def _at(self, position: Position, occurrence: Occurrence, on: Sequence[str], keys: Bag | None) -> Bag:
        """The rows of an occurrence's relation with some keys, at a position."""
        relation, source = occurrence.relation, self._sources[occurrence.source]
        columns = self._view.columns_of(relation)
        reader = source.reader()
        try:
            seen = reader.open()
            lookup = Lookup(occurrence.index, relation.name, columns, tuple(on), keys)
            wanted = None if keys is None else [key for key, _ in keys.items()]
            rows = read_bag(reader, lookup, wanted, self._most)
        finally:
            reader.close()
        self._await(source.name, seen)
        rows = self._brought_back(rows, source.name, relation.name, seen, position)
        if keys is not None:
            places, among = [columns.index(c) for c in on], set(wanted or ())
            rows = Bag(columns, {row: n for row, n in rows.items() if tuple([row[i] for i in places]) in among})
        if any(n < 0 for _, n in rows.items()):
            raise Contested("the log takes away rows that were not found", where=f"source {source.name}")
        return rows

    def _await(self, source: str, seen: Seen) -> None:
        deadline = time.monotonic() + self._wait
        if seen.through < self._tap.since[source]:
            raise Contested("a snapshot does not show yet what the log has brought", where=f"source {source}")
        while not self._tap.has(source, seen.through):
            if self._stopped() or time.monotonic() > deadline:
                raise NotNow("its log has not been read as far as a snapshot had seen", where=f"source {source}")
            time.sleep(STEP)

    def _brought_back(self, rows: Bag, source: str, relation: str, seen: Seen, position: Position) -> Bag:
        for transaction in self._tap.kept(source):
            sign = int(transaction.position <= position) - int(seen.saw(transaction))
            if not sign or not transaction.touched(relation):
                continue
            change = transaction.changes.get(relation, Bag(rows.attributes))
            if relation in transaction.gone or relation in transaction.departed or not isinstance(change, Bag):
                message = f"rows of {relation} are changing whose old contents are not known, or too many"
                raise Contested(message, where=f"source {source}")
            change = change.project(rows.attributes)
            rows = rows.add(change if sign > 0 else change.negate())
        return rows


def _either(some: Bag, others: Bag) -> Bag:
    """Rows that were found in two ways: each is as often there as either says, which is how often there is one."""
    return Bag(some.attributes, dict(some.items()) | dict(others.items()))
