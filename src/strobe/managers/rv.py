"""RV: recompute the view (ECA paper, 1.2 and D.1), every *s* updates.

All relations of the view are fetched, joined, and replace the view. As printed this is right for one source only: the
answers of several sources belong to different moments. Here every answer is brought to one target, the state after the
updates that are to be reflected, by adding what it had not seen of them and taking out what it had seen beyond (as
SWEEP does); and no recomputation begins before the last one has ended. So it is strong for any number of sources.

A recomputation also begins at every cut, so that the last `k mod s` updates do not wait for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.substitution import join_pairs, substitute
from strobe.algebra.view import Occurrence, View
from strobe.errors import BrokenInvariant
from strobe.managers.base import Inbound, Outbound, QueryTerm
from strobe.managers.changes import change
from strobe.managers.units import Received
from strobe.messages import ActionList, Answer, Lookup, Query, Update


class Rv:
    compensates = True

    def __init__(self, view: View, *, every: int = 1) -> None:
        self.view = view
        self._every = every
        self._waiting = Received(view.sources)
        self._batch: list[Update] = []
        self._parts: dict[int, Relation] = {}
        """By occurrence, its rows at the target."""
        self._to_ask: deque[tuple[Occurrence, ...]] = deque()
        self._query: Query | None = None
        self._asked = 0

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]:
        for message in messages:
            if isinstance(message, Answer):
                self._absorb(message)
            else:
                self._waiting.add(message)
        return self._advance()

    def describe(self) -> dict[str, Any]:
        everything = Bag((), {(): 1})
        query = self._query
        return {
            "UQS": {query.id: (QueryTerm((), everything, query.lookups),)} if query else {},
            "batch": tuple(self._batch),
            "queue": tuple(self._waiting),
        }

    def _absorb(self, answer: Answer) -> None:
        if self._query is None or answer.id != self._query.id:
            raise BrokenInvariant(f"answer {answer.id} was not asked for", where=f"view {self.view.name}")
        for lookup, found in zip(self._query.lookups, answer.relations, strict=True):
            occurrence = self.view.occurrences[lookup.occurrence]
            missing = change(occurrence, [u for u in self._batch if not answer.seen.saw(u.transaction)])
            early = change(occurrence, [u for u in self._waiting if answer.seen.saw(u.transaction)])
            self._parts[occurrence.index] = substitute(occurrence, found).plus(missing).plus(early.negate())
        self._query = None

    def _advance(self) -> list[Outbound]:
        out: list[Outbound] = []
        while self._query is None:
            if self._to_ask:
                self._query = self._ask(self._to_ask.popleft())
                out.append(self._query)
            elif self._batch:
                covers = tuple(u.number for u in self._batch)
                out.append(ActionList(self.view.name, covers, self._recomputed(), replaces=True))
                self._batch = []
            elif not self._start():
                return out
        return out

    def _start(self) -> bool:
        self._waiting.next_block()
        batch: list[Update] = []
        limit = self._waiting.cut if self._waiting.cut is not None else self._nth()
        while limit is not None and (unit := self._waiting.unit(limit)):
            self._waiting.take(unit)
            batch += unit
        self._batch = sorted(batch, key=lambda update: update.number)
        self._parts = {}
        self._to_ask = deque(self._sites() if batch else ())
        return bool(batch)

    def _nth(self) -> int | None:
        """The number of the s-th update that waits."""
        if len(self._waiting) < self._every:
            return None
        return next(islice(self._waiting, self._every - 1, None)).number

    def _sites(self) -> list[tuple[Occurrence, ...]]:
        """What is asked for together: everything at a source, in one snapshot; each copy at the warehouse alone."""
        occurrences = self.view.occurrences
        there = [tuple(o for o in occurrences if o.source == s and not o.copied) for s in self.view.sources]
        return [*filter(None, there), *((o,) for o in occurrences if o.copied)]

    def _ask(self, occurrences: tuple[Occurrence, ...]) -> Query:
        """All rows that the view uses."""
        lookups = tuple(Lookup(o.index, o.relation.name, o.columns) for o in occurrences)
        self._asked += 1
        first = occurrences[0]
        return Query(self.view.name, self._asked, first.source, lookups, whole=True, copy=first.copied)

    def _recomputed(self) -> Relation:
        first, *others = self.view.occurrences
        rows, known = self._parts[first.index], [first.index]
        for occurrence in others:
            rows = rows.join(self._parts[occurrence.index], join_pairs(self.view, known, occurrence.index))
            known.append(occurrence.index)
        return rows
