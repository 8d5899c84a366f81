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
snapshot for all terms of the query. Terms without free occurrences are evaluated here. Where an answer has a part of
what was asked for, the rest is asked for again, as what is open of the terms then.

Departures from the paper: an update may be a transaction over several relations, and a relation may occur twice (see
`terms`). A relation may be answered from a copy at the warehouse, so that a term grows in several steps, each in the
state of its own moment; then what is still open of it is the query that later updates compensate. Over several sources
a term is asked for source by source and compensated as printed; that is not right, and only the laboratory does it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from strobe.algebra.bag import total
from strobe.algebra.relation import Relation
from strobe.algebra.view import View
from strobe.errors import BrokenInvariant
from strobe.managers.base import Inbound, Outbound, QueryTerm
from strobe.managers.changes import change, key_delete, touches
from strobe.managers.evaluation import Evaluation
from strobe.managers.open_terms import OpenTerm, OpenTerms
from strobe.managers.terms import Term, substituted
from strobe.messages import ActionList, Answer, KeyDelete, Lookup, Query, Update


@dataclass
class Collect:
    """COLLECT of one update, or of a block of them."""

    tag: int
    updates: list[int]
    parts: list[Relation]
    """Its rows are the sum of these, which is made once."""
    deletes: tuple[KeyDelete, ...] = ()
    closed: bool = False

    def actions(self, view: View) -> ActionList:
        rows = total(view.attributes, self.parts)
        return ActionList(view.name, tuple(self.updates), rows, self.deletes)


class Eca:
    compensations = 0
    """How many compensating terms were asked for."""
    compensates = False

    def __init__(self, view: View, *, complete: bool = False, local: bool = False) -> None:
        self.view = view
        self._complete, self._local = complete, local
        self._collects: deque[Collect] = deque()
        self._open: dict[int, list[OpenTerm]] = {}
        """The unanswered query set, UQS: by query, its terms."""
        self._terms = OpenTerms(view)
        """The same terms, found by what meets them."""
        self._tagged: dict[int, Collect] = {}
        self._asked = 0
        self._tags = 0
        self._cuts: deque[int] = deque()

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]:
        out: list[Outbound] = []
        for message in messages:
            if isinstance(message, Update):
                out += self._update(message)
            elif isinstance(message, Answer):
                out += self._answer(message)
            else:
                self._cuts.append(message.number)
        return out + self._install()

    def describe(self) -> dict[str, Any]:
        collects = tuple(collect.actions(self.view) for collect in self._collects)
        return {"UQS": {number: _asked(terms) for number, terms in self._open.items()}, "COLLECT": collects}

    def _update(self, update: Update) -> list[Outbound]:
        collect = self._collect(update)
        terms = [
            (open_.tag, compensating.negate())
            for open_ in self._terms.met_by(update)
            for compensating in substituted(self.view, open_.term, update)
        ]
        self.compensations += len(terms)
        if self._local and self._is_local(update):
            touched = [o for o in self.view.occurrences if touches(update, o)]
            collect.deletes = tuple(key_delete(o, change(o, [update]).part(-1)) for o in touched)
        else:
            terms += [(collect.tag, term) for term in substituted(self.view, None, update)]
        return self._ask(OpenTerm(term, tag, Evaluation(self.view, term.known, {0: term.rows})) for tag, term in terms)

    def _collect(self, update: Update) -> Collect:
        """The COLLECT in which an update's answers gather."""
        while self._cuts and update.number > self._cuts[0]:
            self._cuts.popleft()
            if self._collects:
                self._collects[-1].closed = True
        if self._complete or not self._collects or self._collects[-1].closed:
            self._collects.append(Collect(self._tags, [], [], closed=self._complete))
            self._tagged[self._tags] = self._collects[-1]
            self._tags += 1
        self._collects[-1].updates.append(update.number)
        return self._collects[-1]

    def _is_local(self, update: Update) -> bool:
        touched = [o for o in self.view.occurrences if touches(update, o)]
        return all(self.view.key_of(o) and change(o, [update]).part(1).known_empty for o in touched)

    def _ask(self, terms: Iterable[OpenTerm]) -> list[Outbound]:
        """One message to a source for all terms that need it; a copy at the warehouse is asked alone."""
        queries: dict[tuple[str, int], tuple[list[OpenTerm], list[Lookup]]] = {}
        for term in terms:
            if term.evaluation.done:
                self._add(term)
                continue
            first = self.view.occurrences[term.evaluation.lookups(whole=True)[0].occurrence]
            place = (first.source, 1 + len(queries) if first.copied else 0)
            asked, lookups = queries.setdefault(place, ([], []))
            term.lookups = term.evaluation.lookups(whole=True, offset=len(lookups))
            lookups += term.lookups
            asked.append(term)
        out: list[Outbound] = []
        several = len(self.view.sources) > 1
        for (source, alone), (asked, lookups) in queries.items():
            self._open[self._asked] = asked
            for term in asked:
                self._terms.add(term)
            out.append(Query(self.view.name, self._asked, source, tuple(lookups), whole=several, copy=alone > 0))
            self._asked += 1
        return out

    def _answer(self, answer: Answer) -> list[Outbound]:
        if answer.id not in self._open:
            raise BrokenInvariant(f"answer {answer.id} was not asked for", where=f"view {self.view.name}")
        terms = self._open.pop(answer.id)
        start = 0
        for term in terms:
            self._terms.remove(term)
            found = answer.relations[start : start + len(term.lookups)]
            start += len(term.lookups)
            term.evaluation.absorb(term.lookups, found, answer.seen)
            if len(self.view.sources) == 1:
                term.term = Term(tuple(term.evaluation.known), term.evaluation.terms[0])
        return self._ask(terms)

    def _add(self, term: OpenTerm) -> None:
        self._tagged[term.tag].parts += term.evaluation.results.values()

    def _install(self) -> list[Outbound]:
        """What is complete, in order."""
        out: list[Outbound] = []
        while self._collects:
            first = self._collects[0]
            closed = first.closed or (self._cuts and first.updates[-1] <= self._cuts[0])
            if self._terms.tagged(first.tag) or (self._open and not closed):
                return out
            self._collects.popleft()
            del self._tagged[first.tag]
            out.append(first.actions(self.view))
        return out


def _asked(terms: Iterable[OpenTerm]) -> tuple[QueryTerm, ...]:
    found: list[QueryTerm] = []
    start = 0
    for term in terms:
        found += term.evaluation.asked(term.lookups, start)
        start += len(term.lookups)
    return tuple(found)
