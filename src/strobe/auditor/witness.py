"""Says in plain words why a warehouse state is wrong: which rows differ from where the sources nearly were, and which
transactions it would take to explain them.

A state that the sources never were in is often one that they would have been in with a transaction, or a part of one,
and without an earlier one. Such a set of changes is looked for, by leaving out or adding as few as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

from strobe.algebra.bag import Bag, Row
from strobe.auditor.timeline import Contents, Timeline, Vector

Views = Mapping[str, Bag]
Evaluate = Callable[[Mapping[str, Contents]], Views]

ROWS = 20
"""Differing rows that a witness names."""

_TRIED = 2_000
"""Sets of changes that are tried out to explain a state."""

_ROWS_TRIED = 200_000
"""Rows over which those sets are computed, all in all."""

_AROUND = 8
"""Parts of transactions before a vector, and after it, of which explanations are made."""

_LOOKED_AT = 200
"""Vectors that are compared where any of them would do."""


@dataclass(frozen=True)
class _Unit:
    """A change that happened, or a part of it: what explanations are made of."""

    number: int
    source: str
    changes: tuple[tuple[str, Row, int], ...]
    """(relation, row, count)"""


class Witness:
    """Explains states of some views: of one alone, or of several together."""

    def __init__(
        self, timeline: Timeline, evaluate: Evaluate, views_at: Callable[[Vector], Views], views: Sequence[str]
    ) -> None:
        self._timeline = timeline
        self._evaluate = evaluate
        self._views_at = views_at
        self._views = tuple(views)

    # ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def place(self, vector: Vector) -> str:
        """`x after T2, y at the start`."""
        timeline = self._timeline
        parts = [
            f"{source} after {timeline.transactions[queue[n - 1]].id}" if n else f"{source} at the start"
            for source, queue, n in zip(timeline.sources, timeline.queues, vector, strict=True)
            if queue
        ]
        return ", ".join(parts) or "the start"

    def parts(self, pairs: Iterable[tuple[int, str]]) -> str:
        """`x's T2 (+r2[2, 3]) and y's T1 (-r1[4, 2])`."""
        return _listed([self._unit(unit) for unit in (self._part(number, source) for number, source in pairs)])

    def _unit(self, unit: _Unit) -> str:
        changes = [f"{_signed(count)}{relation}{_inside(row)}" for relation, row, count in unit.changes]
        shown = ", ".join(changes[:3]) + (", …" if len(changes) > 3 else "")
        return f"{unit.source}'s {self._timeline.transactions[unit.number].id} ({shown})"

    def _part(self, number: int, source: str) -> _Unit:
        changes = self._timeline.transactions[number].parts[source]
        return _Unit(number, source, tuple((name, row, n) for name, bag in changes.items() for row, n in bag.items()))

    def _rows(self, rows: Mapping[tuple[str, Row], int]) -> str:
        """`(4, 2, 3)`, with its view where there are several, and how often where it is not once."""
        prefix = len(self._views) > 1
        shown = [
            f"{view + ' ' if prefix else ''}({', '.join(value_text(v) for v in row)})" + (f" × {n}" if n > 1 else "")
            for (view, row), n in rows.items()
        ]
        return _listed(shown[:5]) + (f" and {len(shown) - 5} other rows" if len(shown) > 5 else "")

    # ── differences ──────────────────────────────────────────────────────────────────────────────────────────────────

    def difference(self, state: Views, right: Views) -> dict[tuple[str, Row], int]:
        """Rows that the state has too often (positive) or not often enough (negative)."""
        return {
            (view, row): count
            for view in self._views
            for row, count in sorted(right[view].negate().add(state[view]).items(), key=repr)
        }

    def rows_that_differ(self, number: int, state: Views, vector: Vector) -> list[str]:
        """A sentence for each of the first rows that differ from the views at a vector."""
        difference = self.difference(state, self._views_at(vector))
        found = [
            f"{self._rows({key: abs(count)})} "
            + (f"is in state {number} and should not be there" if count > 0 else f"is missing from state {number}")
            for key, count in islice(difference.items(), ROWS)
        ]
        more = len(difference) - len(found)
        compared = [f"compared with the sources at {self.place(vector)}:"] if found else []
        return [*compared, *found, *([f"and {more} more rows"] if more > 0 else [])]

    def nearest(self, state: Views, candidates: Iterable[Vector]) -> Vector:
        """The vector at which the fewest rows differ; of several, a whole one, and the first."""

        def distance(vector: Vector) -> tuple[int, bool]:
            differing = sum(abs(n) for n in self.difference(state, self._views_at(vector)).values())
            return differing, self._timeline.whole(vector) != vector

        return min(candidates, key=distance)

    # ── explanations ─────────────────────────────────────────────────────────────────────────────────────────────────

    def nowhere(self, number: int, state: Views, candidates: Sequence[Vector]) -> list[str]:
        """A state that is the views at no vector, not at these."""
        near = self.nearest(state, candidates)
        alone = {view: self._closest(state, view, near, candidates) for view in self._views}
        if len(alone) > 1 and all(alone.values()):
            places = _listed([f"{view} at ({self.place(vector)})" for view, vector in alone.items() if vector])
            headline = f"state {number} shows {places}; the sources never were there at once"
        else:
            headline = self._impossible(number, state, near)
        return [headline, *self.rows_that_differ(number, state, near)]

    def _closest(self, state: Views, view: str, near: Vector, candidates: Iterable[Vector]) -> Vector | None:
        """Where one view alone is as in the state."""
        fits = [v for v in candidates if state[view] == self._views_at(v)[view]]
        return min(fits, key=lambda v: sum(abs(a - b) for a, b in zip(v, near, strict=True)), default=None)

    def _impossible(self, number: int, state: Views, near: Vector) -> str:
        difference = self.difference(state, self._views_at(near))
        extra = {key: n for key, n in difference.items() if n > 0}
        lacking = {key: -n for key, n in difference.items() if n < 0}
        shows = [f"shows {self._rows(extra)}"] if extra else []
        shows += [f"lacks {self._rows(lacking)}"] if lacking else []
        headline = f"state {number} {' and '.join(shows)}"
        explained = self._explanation(state, near)
        if explained:
            seen, unseen = explained
            needs = f"which needs {self._units(seen)} without {self._units(unseen)}"
            return f"{headline}, {needs}; the sources never were there"
        return f"{headline}, which no choice of transactions explains; the nearest is {self.place(near)}"

    def _units(self, units: Iterable[_Unit]) -> str:
        return _listed([self._unit(unit) for unit in units])

    def _explanation(self, state: Views, near: Vector) -> tuple[list[_Unit], list[_Unit]] | None:
        """Changes, and earlier ones without which they make the state: whole parts of transactions, or single rows."""
        timeline = self._timeline
        happened = timeline.between(timeline.start, near)[-_AROUND:]
        later = timeline.between(near, timeline.end)[:_AROUND]
        sources = [source for _, source in happened]
        base = tuple(n - sources.count(source) for source, n in zip(timeline.sources, near, strict=True))
        contents = timeline.contents(base)
        tried = min(_TRIED, _ROWS_TRIED // max(1, sum(len(bag) for own in contents.values() for bag in own.values())))
        for split in (False, True):
            present = [unit for pair in happened for unit in self._split(pair, split)]
            absent = [unit for pair in later for unit in self._split(pair, split)]
            for chosen in islice(_flips(present, absent), tried):
                found = self._early(chosen, present + absent)
                if found and self._makes(base, chosen, state):
                    return found
        return None

    def _split(self, pair: tuple[int, str], split: bool) -> list[_Unit]:
        part = self._part(*pair)
        return [_Unit(part.number, part.source, (change,)) for change in part.changes] if split else [part]

    @staticmethod
    def _early(chosen: Sequence[_Unit], units: Sequence[_Unit]) -> tuple[list[_Unit], list[_Unit]] | None:
        """The chosen changes before which others at the same source are missing, or with which; and those others."""
        missing = [unit for unit in units if unit not in chosen]
        needed = [u for u in chosen if any(m.source == u.source and m.number <= u.number for m in missing)]
        without = [m for m in missing if any(m.source == u.source and m.number <= u.number for u in needed)]
        return (needed, without) if needed else None

    def _makes(self, base: Vector, chosen: Iterable[_Unit], state: Views) -> bool:
        """Whether the views over the contents at a vector and just these changes are the state."""
        contents = {source: dict(relations) for source, relations in self._timeline.contents(base).items()}
        for unit in chosen:
            for relation, row, count in unit.changes:
                before = contents[unit.source][relation]
                contents[unit.source][relation] = before.add(Bag(before.attributes, {row: count}))
        if any(n < 0 for relations in contents.values() for bag in relations.values() for _, n in bag.items()):
            return False
        return not self.difference(state, self._evaluate(contents))

    def torn(self, number: int, vectors: Iterable[Vector]) -> list[str]:
        """A state that is the views only at vectors with a part of a global transaction."""

        def missing(vector: Vector) -> list[tuple[int, str]]:
            return self._timeline.between(vector, self._timeline.whole(vector))

        vector = min(islice(vectors, _LOOKED_AT), key=lambda v: len(missing(v)))
        lacks = missing(vector)
        torn = {n for n, _ in lacks}
        shows = [pair for pair in self._timeline.between(self._timeline.start, vector) if pair[0] in torn]
        headline = f"state {number} shows {self.parts(shows)} without {self.parts(lacks)}, which are one transaction"
        if not shows or any(n not in {m for m, _ in shows} for n in torn):
            headline = f"state {number} shows a part of what happened together: it lacks {self.parts(lacks)}"
        return [headline, f"it is the sources at {self.place(vector)}"]

    def back(self, number: int, earlier: str, passed: Iterable[Vector], places: Iterable[Vector]) -> list[str]:
        """A state that can only be placed before one that was shown earlier."""
        seen = list(islice(passed, _LOOKED_AT))
        pairs = ((u, v) for v in islice(places, _LOOKED_AT) for u in seen)
        u, v = min(pairs, key=lambda pair: len(self._lost(*pair)))
        lost = self.parts(self._lost(u, v))
        return [f"state {number} is the sources at {self.place(v)}, without {lost}, which {earlier} showed already"]

    def _lost(self, u: Vector, v: Vector) -> list[tuple[int, str]]:
        both = tuple(min(a, b) for a, b in zip(u, v, strict=True))
        return self._timeline.between(both, u)

    def unfinished(self, number: int, state: Views, reached: Vector | None) -> list[str]:
        """A last state that is not the views at the end; `reached` is where it is instead, if that is known."""
        end = self._timeline.end
        headline = []
        if reached is not None and not self.difference(state, self._views_at(reached)):
            missing = self.parts(self._timeline.between(reached, end)[:5])
            headline = [f"the last state, {number}, is the sources at {self.place(reached)}: {missing} never came"]
        return [*headline, *self.rows_that_differ(number, state, end)]

    def false(self, number: int, state: Views, claimed: Vector, candidates: Sequence[Vector]) -> list[str]:
        """A state that is not the views at the vector it claims, but perhaps at one of the candidates."""
        headline = f"state {number} claims {self.place(claimed)}"
        near = self.nearest(state, candidates)
        if self.difference(state, self._views_at(near)):
            return [f"{headline}, and is not that", *self.nowhere(number, state, candidates)]
        missing, early = self.parts(self._lost(claimed, near)), self.parts(self._lost(near, claimed))
        wrong = [f"{missing} not yet seen"] if missing else []
        wrong += [f"{early} seen too early"] if early else []
        found = f"{headline}, but is the sources at {self.place(near)}: {' and '.join(wrong)}"
        return [found, *self.rows_that_differ(number, state, claimed)]

    def skipped(self, number: int, ended: bool, low: Vector, high: Vector, shown: Sequence[Views]) -> list[str]:
        """No schedule leads from one state to the next, or to the end, without passing a third."""
        names = self.parts(self._timeline.between(low, high)[:5])
        passed = [v for v in self._path(low, high) if all(self.difference(state, self._views_at(v)) for state in shown)]
        never = f"; the sources at {self.place(passed[0])} were never shown" if passed else ""
        where = f"after state {number - 1}" if ended else f"between state {number - 1} and state {number}"
        return [f"{where if number else 'before state 0'} came {names}{never}"]

    def uneven(self, number: int, vector: Vector | None) -> list[str]:
        """A state that does not end a block, wherever it is placed; or the last one, after which something came."""
        if vector is None:
            return [f"the last block does not end with state {number}"]
        return [
            f"state {number} is the sources at {self.place(vector)}, after {self._timeline.height(vector)} transactions"
        ]

    def _path(self, low: Vector, high: Vector) -> Iterator[Vector]:
        """The vectors between two whole ones, along the listed order."""
        at = low
        while True:
            steps = (
                step for step in self._timeline.next(at) if all(a <= b for a, b in zip(step[1], high, strict=True))
            )
            following = min(steps, default=None)
            if following is None or following[1] == high:
                return
            at = following[1]
            yield at


def _flips(present: Sequence[_Unit], absent: Sequence[_Unit]) -> Iterator[list[_Unit]]:
    """Sets of changes, by how many of them are left out of, or added to, those that happened."""
    units = [*present, *absent]
    for changed in range(1, len(units) + 1):
        for flipped in combinations(range(len(units)), changed):
            yield [unit for i, unit in enumerate(units) if (i < len(present)) != (i in flipped)]


def value_text(value: Any) -> str:
    """A value as SQL would show it."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return repr(value) if isinstance(value, str) else str(value)


def _inside(row: Row) -> str:
    return f"[{', '.join(value_text(value) for value in row)}]"


def _signed(count: int) -> str:
    sign = "+" if count > 0 else "-"
    return sign if abs(count) == 1 else f"{sign}{abs(count)}×"


def _listed(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)
