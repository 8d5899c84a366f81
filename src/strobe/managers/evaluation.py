"""*source_evaluate* of the Strobe paper (5.1): the answers to terms `V<U>`, fragment by fragment.

Several terms go around the sources together: those of different updates to one occurrence ask for the same relations,
so one question with the keys of all of them serves all. Each term grows by every answer, and by what the caller says
is missing from (or too much in) that answer for this term: `compensate` is given the term's number, an occurrence and
what the answer's snapshot had seen, and returns what the term is to be joined with besides. Conventional maintenance
adds nothing; sweeping adds the difference between the state it wants and the state that was seen.

Where rows are found by their key, the view itself may know them already, since it shows the whole row next to some
other one (Strobe paper, 7, point 3). Then it is asked first, and the source only for the keys that it did not know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from strobe.algebra.bag import Bag, total
from strobe.algebra.index import Index
from strobe.algebra.relation import Relation
from strobe.algebra.substitution import Step, join_pairs, next_fragment, substitute
from strobe.algebra.view import View
from strobe.managers.base import QueryTerm
from strobe.managers.held import Correction
from strobe.messages import Lookup, Query, Seen

Compensate = Callable[[int, int, Seen], Correction | None]


def believe(_term: int, _occurrence: int, _seen: Seen) -> Correction | None:
    """Take every answer as it is."""
    return None


class Evaluation:
    """Terms in which the same occurrences are known, on their way around the sources."""

    def __init__(
        self, view: View, known: Sequence[int], terms: Mapping[int, Relation], span: Collection[int] | None = None
    ) -> None:
        """`span` is what they are to be joined with: all occurrences, unless it says less."""
        self.view = view
        self.terms = dict(terms)
        self.known = list(known)
        self._asking_view = False
        self._known_rows: Relation | None = None
        """What the view itself knew of the occurrence that is being asked for."""
        self._span = sorted({*known, *(range(len(view.occurrences)) if span is None else span)})

    @property
    def done(self) -> bool:
        return self._joined or all(t.known_empty for t in self.terms.values())

    @property
    def _joined(self) -> bool:
        return len(self.known) == len(self._span)

    @property
    def results(self) -> dict[int, Relation]:
        """The rows of each complete term; none if they all died out on the way."""
        if not self._joined:
            return {}
        attributes = [a for i in self._span for a in self.view.occurrences[i].attributes]
        return {number: term.project(attributes) for number, term in self.terms.items()}

    def ask(self, number: int) -> Query:
        """The next fragment, as a query."""
        lookups = self.lookups()
        first = self.view.occurrences[lookups[0].occurrence]
        if first.shown and not first.copied and set(first.relation.key) <= set(lookups[0].on):
            lookups = lookups[:1]
            if self._known_rows is None:
                self._asking_view = True
                return Query(self.view.name, number, first.source, lookups, own=True)
            lookups = (replace(lookups[0], keys=_unknown(lookups[0], self._known_rows)),)
        return Query(self.view.name, number, first.source, lookups, copy=first.copied)

    def asked(self, lookups: Sequence[Lookup], first: int = 0) -> tuple[QueryTerm, ...]:
        """What these look-ups were asked for."""
        return tuple(QueryTerm(tuple(self.known), rows, tuple(lookups), first) for rows in self.terms.values())

    def lookups(self, *, whole: bool = False, offset: int = 0) -> tuple[Lookup, ...]:
        """The next fragment (or everything at its source), as look-ups that come after `offset` others in a query."""
        steps = next_fragment(self.view, self.known, whole=whole, within=self._span)
        return tuple(self._lookup(steps[: i + 1], offset) for i in range(len(steps)))

    def _lookup(self, steps: tuple[Step, ...], offset: int) -> Lookup:
        step = steps[-1]
        occurrence = self.view.occurrences[step.occurrence]
        own = tuple(own for own, _, _ in step.on)
        others = [other for _, other, _ in step.on]
        keys: Relation | None = None
        keys_from: tuple[int, tuple[str, ...]] | None = None
        if step.on and others[0] in self.known:
            keys = self._keys([self.view.occurrences[o].attribute(c) for _, o, c in step.on])
        elif step.on:
            earlier = [s.occurrence for s in steps].index(others[0])
            keys_from = (offset + earlier, tuple(c for _, _, c in step.on))
        return Lookup(step.occurrence, occurrence.relation.name, occurrence.columns, own, keys, keys_from)

    def _keys(self, attributes: list[str]) -> Relation:
        """The keys of all terms, each once. Terms are not summed: rows that come in one and go in another would
        cancel."""
        return total(attributes, (term.keys(attributes) for term in self.terms.values())).keys(attributes)

    def absorb(
        self, lookups: Sequence[Lookup], relations: Sequence[Relation], seen: Seen, compensate: Compensate = believe
    ) -> int:
        """Join with what was found, one occurrence after another; returns how many terms had to be compensated.

        As soon as a term had to be compensated, the rest of the answer is left: its keys were looked up from rows
        that are not quite the terms' any more. It is asked for again, from the terms as they are now.
        """
        if self._asking_view:
            self._asking_view = False
            self._known_rows = relations[0].part(1)
            unknown = _unknown(lookups[0], self._known_rows)
            if unknown is not None and not unknown.known_empty:
                return 0  # the rest is for the source to answer
            relations = (Bag(lookups[0].columns),)
        if self._known_rows is not None:
            relations = (relations[0].plus(self._known_rows),)
            self._known_rows = None
        corrected = 0
        for lookup, found in zip(lookups, relations, strict=False):
            if self.done or (corrected := self._extend(lookup.occurrence, found, seen, compensate)):
                break
        return corrected

    def _extend(self, index: int, found: Relation, seen: Seen, compensate: Compensate) -> int:
        pairs = join_pairs(self.view, self.known, index)
        join = _joiner(substitute(self.view.occurrences[index], found), pairs)
        corrected = 0
        for number, term in self.terms.items():
            grown = join(term)
            correction = compensate(number, index, seen)
            missing = None if correction is None else correction.join(term)
            if missing is not None and not missing.known_empty:
                grown = grown.plus(missing)
                corrected += 1
            self.terms[number] = grown
        self.known.append(index)
        return corrected


def _joiner(rows: Relation, pairs: Sequence[tuple[str, str]]) -> Callable[[Relation], Relation]:
    """Joins terms with these rows. If they are in memory, a term costs the rows that match it."""
    if not isinstance(rows, Bag):
        return lambda term: term.join(rows, pairs)
    index = Index(rows.attributes, [b for _, b in pairs], [rows])
    own = [a for a, _ in pairs]
    return lambda term: index.join(term, own) if isinstance(term, Bag) else term.join(rows, pairs)


def _unknown(lookup: Lookup, known: Relation) -> Relation | None:
    """The keys that are left when the rows of some are known."""
    if lookup.keys is None:
        return None
    return lookup.keys.key_delete(known, list(zip(lookup.keys.attributes, lookup.on, strict=True)))


def nothing(view: View) -> Relation:
    """No change of a view."""
    return Bag(view.attributes)
