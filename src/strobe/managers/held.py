"""What a manager holds and its view does not reflect yet, as the difference that it makes to an answer.

A source answers at the state that its snapshot saw; a sweep wants another one. Everything before the updates that the
manager holds is in every snapshot (the inbox asks again where it is not), so the two differ by these updates alone:

    R@wanted - R@seen  =  + ΔR of what is wanted  - ΔR of what was seen
                       =  + ΔR of what is wanted  + ΔR of what was held and not seen  - ΔR of all that is held

The last sum is the large one under a backlog. It is kept up to date as updates come and go, and found by the attributes
that it is joined by: so a correction costs what matches, however many updates wait. What a snapshot has not seen came
after the question was asked: only that is looked through.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy

from strobe.algebra.bag import Bag, total
from strobe.algebra.index import Index
from strobe.algebra.relation import Relation
from strobe.algebra.view import Occurrence, View
from strobe.managers.changes import change
from strobe.messages import Seen, Update

Pairs = Sequence[tuple[str, str]]
"""By which attributes of a term, and which of an occurrence, the two are joined."""


class Correction:
    """What is joined with a term to bring it from the state that an answer saw to the one that is wanted."""

    def __init__(self, occurrence: Occurrence, pairs: Pairs, held: Index, *, null_safe: bool = False) -> None:
        self._pairs = pairs
        self._of_term = [a for a, _ in pairs]
        self._held = held
        self._wanted = Index(occurrence.attributes, [b for _, b in pairs], null_safe=null_safe)
        self._large: list[Relation] = []
        self._sign = 1

    def want(self, rows: Relation) -> None:
        """The state that is wanted has these changes, too."""
        if isinstance(rows, Bag):
            self._wanted.add(rows)
        else:
            self._large.append(rows)

    def negate(self) -> Correction:
        found = copy(self)
        found._sign = -self._sign
        return found

    def join(self, term: Relation) -> Relation:
        found = [self._small(term), *(term.join(rows, self._pairs) for rows in self._large)]
        joined = total((*term.attributes, *self._wanted.attributes), found)
        return joined if self._sign > 0 else joined.negate()

    def _small(self, term: Relation) -> Relation:
        if isinstance(term, Bag):
            return self._wanted.join(term, self._of_term).plus(self._held.join(term, self._of_term).negate())
        return term.join(self._wanted.bag().add(self._held.bag().negate()), self._pairs)


class Held:
    def __init__(self, view: View, *, null_safe: bool = False) -> None:
        """With `null_safe` NULL finds NULL in corrections; then everything is in memory."""
        self._view = view
        self._null_safe = null_safe
        self._updates: dict[int, Update] = {}
        self._unseen: dict[str, dict[int, Update]] = defaultdict(dict)
        """By source, what no answer of it has seen yet."""
        self._sums: dict[tuple[int, tuple[str, ...]], Index] = {}
        """ΔR of everything in memory that is held, by occurrence and the attributes by which it is joined."""
        self._large: dict[int, Update] = {}
        """Those whose rows are not in memory."""

    def add(self, update: Update) -> None:
        self._updates[update.number] = self._unseen[update.source][update.number] = update
        if not all(isinstance(rows, Bag) for rows in update.transaction.changes.values()):
            self._large[update.number] = update
        self._count(update, 1)

    def drop(self, updates: Iterable[Update]) -> None:
        """The view reflects these."""
        for update in updates:
            del self._updates[update.number]
            self._unseen[update.source].pop(update.number, None)
            self._large.pop(update.number, None)
            self._count(update, -1)

    def _count(self, update: Update, sign: int) -> None:
        for (index, _), known in self._sums.items():
            occurrence = self._view.occurrences[index]
            if occurrence.source == update.source and occurrence.relation.name in update.transaction.changes:
                rows = change(occurrence, [update])
                if isinstance(rows, Bag):
                    known.add(rows, sign)

    def correction(self, occurrence: Occurrence, seen: Seen, pairs: Pairs) -> Correction:
        """From the state that an answer saw to the one before everything that is held."""
        source = occurrence.source
        unseen = {n: u for n, u in self._unseen[source].items() if not seen.saw(u.transaction)}
        self._unseen[source] = unseen
        held = self._sum(occurrence, tuple(b for _, b in pairs))
        found = Correction(occurrence, pairs, held, null_safe=self._null_safe)
        found.want(change(occurrence, unseen.values()))
        for rows in (change(occurrence, [update]) for update in self._large.values()):
            if not isinstance(rows, Bag):
                found.want(rows.negate())
        return found

    def _sum(self, occurrence: Occurrence, on: tuple[str, ...]) -> Index:
        known = self._sums.get((occurrence.index, on))
        if known is None:
            small = (rows for u in self._updates.values() if isinstance(rows := change(occurrence, [u]), Bag))
            known = self._sums[occurrence.index, on] = Index(
                occurrence.attributes, on, small, null_safe=self._null_safe
            )
        return known
