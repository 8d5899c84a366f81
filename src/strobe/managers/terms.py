"""`Q<U>`: a term with an update in the place of its free occurrences (ECA paper, 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from strobe.algebra.relation import Relation
from strobe.algebra.substitution import join_pairs
from strobe.algebra.view import View
from strobe.managers.changes import change, touches
from strobe.messages import Immutable, Update


@dataclass(frozen=True)
class Term(Immutable):
    """The view with updates in the place of the known occurrences, joined as far as they go."""

    known: tuple[int, ...]
    rows: Relation

    def negate(self) -> Term:
        return Term(self.known, self.rows.negate())


def substituted(view: View, term: Term | None, update: Update) -> Iterator[Term]:
    """`term<U>`, or `V<U>` without a term: a sum of terms.

    A relation may occur twice and an update may be a transaction over several relations, so `Q<U> = Q - Q[r := r - U]`
    for all of them at once: over all ways to put U in the place of one or more free occurrences, plus for an odd number
    of them and minus for an even one. Once for each occurrence would count a tuple twice that joins itself.
    """
    known = term.known if term else ()
    free = [o for o in view.occurrences if o.index not in known and touches(update, o)]
    for size in range(1, len(free) + 1):
        for chosen in combinations(free, size):
            grown = term
            for occurrence in chosen:
                rows = change(occurrence, [update])
                if grown is not None:
                    rows = grown.rows.join(rows, join_pairs(view, grown.known, occurrence.index))
                grown = Term((*(grown.known if grown else ()), occurrence.index), rows)
            if grown is not None and not grown.rows.known_empty:
                yield grown if size % 2 else grown.negate()
