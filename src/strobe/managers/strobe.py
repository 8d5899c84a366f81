"""The Strobe family (Strobe paper, 5.2 to 5.4 and 6): views that show a key of every relation.

Deletions need no query: they are key-deletes of the view. Insertions ask for `V<U>`, source by source; deletions that
are processed meanwhile are remembered in `pending(Q)` and taken out of the answer. The action list AL gathers what is
to be done, and is installed when no query is open. One machine with two switches serves the whole family:

* `bound`, the units taken before an install. None: as many as come until a quiet moment (Strobe). 1: each on its own,
  which is complete (C-Strobe). k: in between (periodic). A cut of the integrator ends a block too, so that under
  continuous updates an install is never put off for ever.
* `whole`, whether a unit is a global transaction: with a bound it is taken up when all its parts head the queues of
  their sources (C-GStrobe); without, its parts are processed as they come, and only the install waits (G-Strobe).

An update here is what a source reports as one: with whole transactions this is T-Strobe and C-TStrobe, with single
updates Strobe and C-Strobe. ECA-Key (ECA paper, 5.4), corrected as the Strobe paper says (5.2), is Strobe over one
source.

    process       deletions go to AL, and to pending of every open query; insertions send a query for each occurrence
    Q answered    for each free occurrence with received but unprocessed deletions D, ask Q<D>, and so on
    Q closed      drop tuples with a component whose first unprocessed event is its insertion; apply pending; add to AL

Departures from the paper:

* Compensating queries are grouped: one for each free occurrence, with all its deletions (the paper's own improvement).
* "The same tuple" compares whole rows, and Δ keeps every attribute until it is installed; by keys alone C-Strobe is
  wrong. Since every free occurrence is compensated, self-joins are covered.
* A transaction is netted before it is processed: a row that it inserts and deletes again is no event.
* Where a source reports deletions by their keys only, everything that comes while a query is open is processed at once,
  beyond cuts and bounds: compensating for an unprocessed deletion needs the whole row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from strobe.algebra.bag import Bag, Row
from strobe.algebra.index import Index
from strobe.algebra.relation import Relation
from strobe.algebra.substitution import join_pairs
from strobe.algebra.view import Occurrence, View
from strobe.errors import BrokenInvariant
from strobe.managers.base import Inbound, Outbound
from strobe.managers.changes import change, delete, deletions, together, touches
from strobe.managers.evaluation import Evaluation, nothing
from strobe.managers.units import Received
from strobe.messages import ActionList, Answer, KeyDelete, Query, Update


@dataclass
class OpenQuery:
    """Q: what it started from, how far it has come, and `pending(Q)`."""

    known: tuple[int, ...]
    rows: Relation
    evaluation: Evaluation
    pending: list[KeyDelete] = field(default_factory=list)
    asked: Query | None = None


class Strobe:
    compensations = 0
    """How many compensating queries were asked."""
    compensates = False

    def __init__(self, view: View, *, bound: int | None = None, whole: bool = False) -> None:
        self.view = view
        self._bound, self._whole = bound, whole
        self._by_key = not all(relation.images for relation in view.relations)
        self._received = Received(view.sources)
        """Received and unprocessed."""
        self._taken: list[Update] = []
        """Processed since the last install."""
        self._units = 0
        self._deletes: dict[int, KeyDelete] = {}
        self._inserts: Relation = nothing(view)
        self._open: list[OpenQuery] = []
        self._numbers = 0
        self._events: dict[tuple[int, int], Relation] = {}
        """What `_unprocessed` found, until something is received or processed; and the same, to be joined with."""
        self._joinable: dict[tuple[int, tuple[str, ...]], Index] = {}

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]:
        out: list[Outbound] = []
        for message in messages:
            if isinstance(message, Answer):
                out += self._answered(message)
            else:
                self._received.add(message)
                self._changed()
            if self._bound is None or self._must_go_on:
                out += self._take()
        while True:
            out += self._take()
            if self._open or not self._taken:
                return out
            if not self._parts_missing():
                out.append(self._install())
            elif self._received.cut is not None:
                self._received.forget_cut()  # a global transaction goes on beyond it
            else:
                return out

    def describe(self) -> dict[str, Any]:
        sent = [(q.asked, q) for q in self._open if q.asked is not None]
        actions = (self._actions(),) if self._taken else ()
        return {
            "UQS": {query.id: q.evaluation.asked(query.lookups) for query, q in sent},
            "pending": {query.id: tuple(q.pending) for query, q in sent},
            "Δ" if self._bound == 1 else "AL": actions,
            "queue": tuple(self._received),
        }

    # Which updates may be processed.

    def _take(self) -> list[Outbound]:
        """Process units as long as the bound and the block allow."""
        out: list[Outbound] = []
        while self._bound is None or self._units < self._bound or self._must_go_on:
            if not self._taken:
                self._received.next_block()
            unit = self._next()
            if not unit:
                break
            self._units += 1
            out += self._process(unit)
        return out

    @property
    def _must_go_on(self) -> bool:
        """Whether what comes is to be processed beyond the cut and the bound. A deletion that is known by its key only
        cannot be taken back out of an answer that had seen it: it has to be processed before the answer."""
        return self._by_key and bool(self._open)

    def _next(self) -> list[Update]:
        cut = None if self._must_go_on else self._received.cut
        if self._whole and self._bound is not None and not self._by_key:
            return self._received.unit(cut if self._taken else None)
        first = self._received.first
        return [first] if first is not None and (cut is None or first.number <= cut) else []

    def _parts_missing(self) -> bool:
        """Whether a global transaction has been processed in part."""
        if not self._whole:
            return False
        here = {(part.id, u.source) for u in self._taken for part in u.transaction.part_of}
        wanted = {
            (part.id, source)
            for u in self._taken
            for part in u.transaction.part_of
            for source in part.participants
            if source in self.view.sources
        }
        return wanted != here

    # What is done with them.

    def _process(self, unit: list[Update]) -> list[Outbound]:
        """Each update is an event of its own, also where several make a unit: a snapshot may lie between them."""
        self._received.take(unit)
        self._changed()
        self._taken += unit
        return [message for update in unit for message in self._process_one(update)]

    def _process_one(self, update: Update) -> list[Outbound]:
        touched = [o for o in self.view.occurrences if touches(update, o)]
        for occurrence in touched:
            for action in deletions(occurrence, update):
                self._delete(action)
        out: list[Outbound] = []
        for occurrence in touched:
            inserted = change(occurrence, [update]).part(1)
            if not inserted.known_empty:
                out += self._ask((occurrence.index,), inserted, [])
        return out

    def _delete(self, action: KeyDelete) -> None:
        for query in self._open:
            query.pending.append(action)
        before = self._deletes.get(action.occurrence)
        self._deletes[action.occurrence] = action if before is None else together(before, action)
        self._inserts = delete(self._inserts, action)

    def _ask(self, known: tuple[int, ...], rows: Relation, pending: Iterable[KeyDelete]) -> list[Outbound]:
        query = OpenQuery(known, rows, Evaluation(self.view, known, {0: rows}), list(pending))
        self._open.append(query)
        return self._go_on(query)

    def _go_on(self, query: OpenQuery) -> list[Outbound]:
        """Ask for the next fragment, or close the query."""
        if query.evaluation.done:
            query.asked = None
            self._open.remove(query)
            return self._compensate(query)
        query.asked = query.evaluation.ask(self._numbers)
        self._numbers += 1
        return [query.asked]

    def _answered(self, answer: Answer) -> list[Outbound]:
        for query in self._open:
            if query.asked is not None and query.asked.id == answer.id:
                query.evaluation.absorb(query.asked.lookups, answer.relations, answer.seen)
                return self._go_on(query)
        raise BrokenInvariant(f"answer {answer.id} was not asked for", where=f"view {self.view.name}")

    def _compensate(self, query: OpenQuery) -> list[Outbound]:
        """Add an answer to AL, and ask for what received but unprocessed deletions took out of it."""
        out: list[Outbound] = []
        for occurrence in self.view.occurrences:
            if occurrence.index in query.known:
                continue
            deleted = self._unprocessed(occurrence, -1)
            if not deleted.known_empty:
                rows = self._joined(query, occurrence, deleted)
                if not rows.known_empty:
                    self.compensations += 1
                    out += self._ask((*query.known, occurrence.index), rows, query.pending)
        for result in query.evaluation.results.values():
            if not result.known_empty:
                self._insert(result, query.pending)
        return out

    def _insert(self, result: Relation, pending: Iterable[KeyDelete]) -> None:
        for occurrence in self.view.occurrences:
            early = self._unprocessed(occurrence, 1)
            if not early.known_empty:
                result = result.key_delete(early, [(a, a) for a in occurrence.attributes])
        for action in pending:
            result = delete(result, action)
        new = result.key_delete(self._inserts, [(a, a) for a in self.view.attributes])
        self._inserts = self._inserts.plus(new)

    def _joined(self, query: OpenQuery, occurrence: Occurrence, deleted: Relation) -> Relation:
        """A query with its unprocessed deletions: of many, those that match."""
        pairs = join_pairs(self.view, query.known, occurrence.index)
        if not isinstance(deleted, Bag) or not isinstance(query.rows, Bag):
            return query.rows.join(deleted, pairs)
        on = tuple(b for _, b in pairs)
        if (occurrence.index, on) not in self._joinable:
            self._joinable[occurrence.index, on] = Index(deleted.attributes, on, [deleted])
        return self._joinable[occurrence.index, on].join(query.rows, [a for a, _ in pairs])

    def _changed(self) -> None:
        """Something was received or processed."""
        self._events, self._joinable = {}, {}

    def _unprocessed(self, occurrence: Occurrence, sign: int) -> Relation:
        """Rows with a received but unprocessed deletion (-1); or whose first such event is an insertion (+1)."""
        known = self._events.get((occurrence.index, sign))
        if known is None:
            rows = [change(occurrence, [update]) for update in self._received if touches(update, occurrence)]
            small = [each for each in rows if isinstance(each, Bag)]
            whole = _first_events(occurrence, small, sign) if len(small) == len(rows) else None
            known = self._events[occurrence.index, sign] = (
                _first_of_large(occurrence, rows, sign) if whole is None else whole
            )
        return known

    def _actions(self) -> ActionList:
        covers = tuple(sorted(u.number for u in self._taken))
        return ActionList(self.view.name, covers, self._inserts, tuple(self._deletes.values()))

    def _install(self) -> ActionList:
        actions = self._actions()
        self._taken, self._units = [], 0
        self._deletes, self._inserts = {}, nothing(self.view)
        return actions


def _first_events(occurrence: Occurrence, changes: Iterable[Bag], sign: int) -> Bag:
    met: set[Row] = set()
    found: dict[Row, int] = {}
    for rows in changes:
        for row, n in rows.items():
            if n * sign > 0 and row not in met and row not in found:
                found[row] = abs(n)
            if sign > 0:
                met.add(row)
    return Bag(occurrence.attributes, found)


def _first_of_large(occurrence: Occurrence, changes: Iterable[Relation], sign: int) -> Relation:
    """The same, of changes that are not all in memory."""
    found: Relation = Bag(occurrence.attributes)
    met: Relation = Bag(occurrence.attributes)
    same = [(a, a) for a in occurrence.attributes]
    for rows in changes:
        found = found.plus(rows.part(sign).key_delete(met if sign > 0 else found, same))
        met = met.plus(rows.part(1)).plus(rows.part(-1)) if sign > 0 else met
    return found
