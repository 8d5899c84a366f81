"""*source_evaluate* of the Strobe paper (5.1): the answer to one term, fragment by fragment.

The term grows by every answer, and by what the caller says is missing from (or too much in) that answer: `compensate`
is given an occurrence and what the answer's snapshot had seen, and returns the rows to add. Conventional maintenance
adds nothing; sweeping adds the difference between the state it wants and the state that was seen.
"""

from __future__ import annotations

from collections.abc import Callable

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.substitution import Step, join_pairs, next_fragment, substitute
from strobe.algebra.view import View
from strobe.messages import Answer, Lookup, Query, Seen

Compensate = Callable[[int, Seen], Relation | None]


class Evaluation:
    """One term `V<U>` on its way around the sources."""

    def __init__(self, view: View, occurrence: int, change: Relation, compensate: Compensate) -> None:
        self.view = view
        self.term = change
        self.known = [occurrence]
        self._compensate = compensate

    @property
    def done(self) -> bool:
        return self.term.known_empty or len(self.known) == len(self.view.occurrences)

    @property
    def result(self) -> Relation:
        """The rows of the complete term; empty if it died out on the way."""
        if len(self.known) < len(self.view.occurrences):
            return Bag(self.view.attributes)
        return self.term.project(self.view.attributes)

    def ask(self, number: int) -> Query:
        """The next fragment, as a query."""
        steps = next_fragment(self.view, self.known)
        source = self.view.occurrences[steps[0].occurrence].source
        lookups = [self._lookup(steps[: i + 1]) for i in range(len(steps))]
        return Query(self.view.name, number, source, tuple(lookups))

    def _lookup(self, steps: tuple[Step, ...]) -> Lookup:
        step = steps[-1]
        occurrence = self.view.occurrences[step.occurrence]
        own = tuple(own for own, _, _ in step.on)
        others = [other for _, other, _ in step.on]
        keys: Relation | None = None
        keys_from: tuple[int, tuple[str, ...]] | None = None
        if step.on and others[0] in self.known:
            keys = self.term.keys([self.view.occurrences[o].attribute(c) for _, o, c in step.on])
        elif step.on:
            earlier = [s.occurrence for s in steps].index(others[0])
            keys_from = (earlier, tuple(c for _, _, c in step.on))
        return Lookup(step.occurrence, occurrence.relation.name, occurrence.columns, own, keys, keys_from)

    def absorb(self, query: Query, answer: Answer) -> None:
        """Join with what was found, one occurrence after another.

        As soon as one of them had to be compensated, the rest of the answer is left: its keys were looked up from
        rows that are not quite the term's any more. It is asked for again, from the term as it is now.
        """
        for lookup, found in zip(query.lookups, answer.relations, strict=False):
            if self.term.known_empty:
                return
            correction = self._extend(lookup.occurrence, found, answer.seen)
            if correction:
                return

    def _extend(self, index: int, found: Relation, seen: Seen) -> bool:
        pairs = join_pairs(self.view, self.known, index)
        grown = self.term.join(substitute(self.view.occurrences[index], found), pairs)
        correction = self._compensate(index, seen)
        if correction is not None:
            grown = grown.plus(self.term.join(correction, pairs))
        self.term = grown
        self.known.append(index)
        return correction is not None
