"""The Eager Compensating Algorithm and its kin (ECA paper, 5.2 and 5.5): one source, no keys needed.

Every update U asks for `V<U>`. A query Q that is still unanswered will be evaluated in a state that has seen U, so the
same message also asks for `-Q<U>`, to take out of Q's answer what U put in. One machine, with two switches:

* ECA gathers all answers in COLLECT and installs it when nothing is open: strong. A cut of the integrator starts a new
  COLLECT, so that a view under continuous updates is installed block by block.
* `complete` keeps the answers apart by the update to which they belong (a *tag*): a compensating term counts for the
  update whose query it corrects. COLLECT of an update is installed, in order, when no term with its tag is open. This
  is LCA, in an eager form: as many messages as ECA, where the lazy form waits for an answer before it compensates.
* `local` is ECA-Local: a deletion of which the view shows the key gets a key-delete instead of `V<U>`. It still
  compensates open queries, and is installed in its turn.

A query is a sum of terms; each is a view with updates in the place of some occurrences, evaluated by the source in one
snapshot for all terms of the query. Terms without free occurrences are evaluated here.

Departures from the paper: an update may be a transaction over several relations, and a relation may occur twice.
`Q<U> = Q - Q[r := r - U]` for all of its relations at once: over all ways to put U in the place of one or more free
occurrences, plus for an odd number of them, minus for an even one. Substituting once for each occurrence would count a
tuple twice that joins itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from strobe.algebra.relation import Relation
from strobe.algebra.substitution import join_pairs
from strobe.algebra.view import View
from strobe.errors import BrokenInvariant
from strobe.managers.base import Inbound, Outbound
from strobe.managers.changes import change, key_delete, touches
from strobe.managers.evaluation import Evaluation, nothing
from strobe.messages import ActionList, Answer, KeyDelete, Lookup, Query, Update


@dataclass(frozen=True)
class Term:
    """The view with updates in the place of the known occurrences, joined as far as they go; `tag` is its COLLECT."""

    known: tuple[int, ...]
    rows: Relation | None
    tag: int


@dataclass
class Collect:
    """COLLECT of one update, or of a block of them."""

    tag: int
    updates: list[int]
    rows: Relation
    deletes: tuple[KeyDelete, ...] = ()
    closed: bool = False


@dataclass
class OpenQuery:
    query: Query
    terms: list[tuple[Term, Evaluation, tuple[Lookup, ...]]] = field(default_factory=list)


class Eca:
    def __init__(self, view: View, *, complete: bool = False, local: bool = False) -> None:
        self.view = view
        self._complete, self._local = complete, local
        self._collects: deque[Collect] = deque()
        self._open: dict[int, OpenQuery] = {}
        """The unanswered query set, UQS."""
        self._asked = 0
        self._tags = 0
        self._cuts: deque[int] = deque()

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]:
        out: list[Outbound] = []
        for message in messages:
            if isinstance(message, Update):
                out += self._update(message)
            elif isinstance(message, Answer):
                self._answer(message)
            else:
                self._cuts.append(message.number)
        return out + self._install()

    def _update(self, update: Update) -> list[Outbound]:
        collect = self._collect(update)
        terms = [
            Term(term.known, _negated(term.rows), term.tag)
            for query in self._open.values()
            for term, _, _ in query.terms
            for term in self._substituted(term, update)
        ]
        if self._local and self._is_local(update):
            collect.deletes = tuple(
                key_delete(o, change(o, [update]).part(-1)) for o in self.view.occurrences if touches(update, o)
            )
        else:
            terms += self._substituted(Term((), None, collect.tag), update)
        return self._ask(terms)

    def _collect(self, update: Update) -> Collect:
        """The COLLECT in which an update's answers gather."""
        while self._cuts and update.number > self._cuts[0]:
            self._cuts.popleft()
            if self._collects:
                self._collects[-1].closed = True
        if self._complete or not self._collects or self._collects[-1].closed:
            self._collects.append(Collect(self._tags, [], nothing(self.view), closed=self._complete))
            self._tags += 1
        self._collects[-1].updates.append(update.number)
        return self._collects[-1]

    def _is_local(self, update: Update) -> bool:
        touched = [o for o in self.view.occurrences if touches(update, o)]
        return all(self.view.key_of(o) and change(o, [update]).part(1).known_empty for o in touched)

    def _substituted(self, term: Term, update: Update) -> list[Term]:
        """`term<U>`: over all ways to put U in the place of free occurrences."""
        free = [o for o in self.view.occurrences if o.index not in term.known and touches(update, o)]
        found = []
        for size in range(1, len(free) + 1):
            for chosen in combinations(free, size):
                known, rows = term.known, term.rows
                for occurrence in chosen:
                    substituted = change(occurrence, [update])
                    pairs = join_pairs(self.view, known, occurrence.index)
                    rows = substituted if rows is None else rows.join(substituted, pairs)
                    known = (*known, occurrence.index)
                if rows is not None and not rows.known_empty:
                    found.append(Term(known, rows if size % 2 else rows.negate(), term.tag))
        return found

    def _ask(self, terms: list[Term]) -> list[Outbound]:
        """One message for all terms that need the source."""
        lookups: list[Lookup] = []
        asked: list[tuple[Term, Evaluation, tuple[Lookup, ...]]] = []
        for term in terms:
            if term.rows is None:
                continue
            evaluation = Evaluation(self.view, term.known, {0: term.rows})
            if evaluation.done:
                self._add(term, evaluation)
            else:
                own = evaluation.lookups(whole=True, offset=len(lookups))
                lookups += own
                asked.append((term, evaluation, own))
        if not asked:
            return []
        query = Query(self.view.name, self._asked, self.view.sources[0], tuple(lookups), whole=True)
        self._asked += 1
        self._open[query.id] = OpenQuery(query, asked)
        return [query]

    def _answer(self, answer: Answer) -> None:
        if answer.id not in self._open:
            raise BrokenInvariant(f"answer {answer.id} was not asked for", where=f"view {self.view.name}")
        start = 0
        for term, evaluation, lookups in self._open.pop(answer.id).terms:
            found = answer.relations[start : start + len(lookups)]
            start += len(lookups)
            evaluation.absorb(lookups, found, answer.seen)
            self._add(term, evaluation)

    def _add(self, term: Term, evaluation: Evaluation) -> None:
        collect = next(c for c in self._collects if c.tag == term.tag)
        for result in evaluation.results.values():
            collect.rows = collect.rows.plus(result)

    def _install(self) -> list[Outbound]:
        """What is complete, in order."""
        out: list[Outbound] = []
        while self._collects:
            first = self._collects[0]
            closed = first.closed or (self._cuts and first.updates[-1] <= self._cuts[0])
            if any(term.tag == first.tag for query in self._open.values() for term, _, _ in query.terms):
                return out
            if self._open and not closed:
                return out
            self._collects.popleft()
            out.append(ActionList(self.view.name, tuple(first.updates), first.rows, first.deletes))
        return out


def _negated(rows: Relation | None) -> Relation | None:
    return None if rows is None else rows.negate()
