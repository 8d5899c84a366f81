"""`V<U>`: a view with a change in the place of one occurrence, and the fragments in which sources can answer the rest.

A term `V<U>` starts as the change itself, under the attributes of the occurrence it stands for, and grows by one
occurrence after another, until it has them all. `next_fragment` is the Strobe paper's *next_source* (5.1): it chooses
the next occurrence to join with, and as many others of the same source as can be found from there, so that one query
in one snapshot answers for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from strobe.algebra.relation import Relation
from strobe.algebra.view import Equality, Occurrence, View


def substitute(occurrence: Occurrence, change: Relation) -> Relation:
    """A change of a relation, cut down to what an occurrence uses of it, under that occurrence's attributes."""
    used = change.project(occurrence.columns)
    return used.rename(dict(zip(occurrence.columns, occurrence.attributes, strict=True)))


def join_pairs(view: View, term: Collection[int], occurrence: int) -> list[tuple[str, str]]:
    """The pairs (attribute of the term, attribute of the occurrence) by which the two are joined."""
    pairs = []
    for equality in view.equalities:
        if equality.touches(occurrence):
            own, other, other_column = equality.seen_from(occurrence)
            if other in term:
                pairs.append(
                    (view.occurrences[other].attribute(other_column), view.occurrences[occurrence].attribute(own))
                )
    return pairs


@dataclass(frozen=True)
class Step:
    """One look-up of a fragment: an occurrence, found by own columns that equal columns of occurrences known before."""

    occurrence: int
    on: tuple[tuple[str, int, str], ...]
    """(own column, other occurrence, other column); empty when nothing known leads there, and all rows are fetched."""
    cost: int
    """0 found by its key, 1 by an index, 2 by a scan for the keys, 3 all rows."""


def next_fragment(
    view: View, term: Sequence[int], *, whole: bool = False, within: Collection[int] | None = None
) -> tuple[Step, ...]:
    """The occurrences to ask for next, all at one source; the first found from the term, the rest from it or from the
    first.

    Fewest rows first: a look-up by key moves one row for each key, one by an index few, one without an index makes
    the source scan, one without any equality moves everything. With `whole` everything that the source has is asked
    for at once, whatever it costs: for algorithms that need it in one snapshot. A copy at the warehouse is asked alone.
    `within` names the occurrences that are to be joined at all.
    """
    missing = [o.index for o in view.occurrences if o.index not in term and (within is None or o.index in within)]
    if not missing:
        return ()
    first = min((_step(view, j, term) for j in missing), key=lambda s: (s.cost, s.occurrence))
    steps = [first]
    if view.occurrences[first.occurrence].copied:
        return (first,)
    source = view.occurrences[first.occurrence].source
    while True:
        known = [s.occurrence for s in steps]
        rest = [j for j in missing if j not in known and _offers(source, view.occurrences[j])]
        candidates = [_chained(view, j, term, known) or _step(view, j, ()) for j in rest]
        reachable = [c for c in candidates if whole or c.cost <= 1]
        if not reachable:
            return tuple(steps)
        steps.append(min(reachable, key=lambda s: (s.cost, s.occurrence)))


def _offers(source: str, occurrence: Occurrence) -> bool:
    return occurrence.source == source and not occurrence.copied


def _chained(view: View, occurrence: int, term: Sequence[int], fragment: Sequence[int]) -> Step | None:
    """A step whose keys all come from the term, or else all from one earlier step of the fragment."""
    for known in [term, *([f] for f in fragment)]:
        step = _step(view, occurrence, known)
        if step.on:
            return step
    return None


def _step(view: View, occurrence: int, known: Collection[int]) -> Step:
    relation = view.occurrences[occurrence].relation
    on: dict[str, tuple[str, int, str]] = {}
    for equality in _equalities(view, occurrence):
        own, other, other_column = equality.seen_from(occurrence)
        if other in known and relation.column(own).searchable:
            on.setdefault(own, (own, other, other_column))
    return Step(occurrence, tuple(on.values()), cost_of(view.occurrences[occurrence], on))


def _equalities(view: View, occurrence: int) -> list[Equality]:
    return [e for e in view.equalities if e.touches(occurrence)]


def cost_of(occurrence: Occurrence, on: Collection[str]) -> int:
    """What a look-up by these columns costs, as `Step.cost` has it."""
    relation = occurrence.relation
    if not on:
        return 3
    if relation.key and set(relation.key) <= set(on):
        return 0
    return 1 if any(relation.indexed(column) for column in on) else 2
