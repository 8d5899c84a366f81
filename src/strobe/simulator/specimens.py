"""Algorithms as they are printed, where that is not how Strobe ships them: to replay the papers, and to see them fail.

eca-printed       ECA paper, 5.2: the source evaluates every term, also one in which no relation is left (Strobe
                  evaluates these at home, so that they are in COLLECT one step earlier). Right.
eca-key-printed   ECA paper, 5.4: no pending. Wrong where the tuple of an insertion in flight is deleted, as the
                  Strobe paper says (5.2).
rv-printed        ECA paper, D.1: believes all answers, and waits for the s-th update even if it never comes.
t-strobe-printed  Strobe paper, Example 5: parts of a global transaction are held until all are there.
g-strobe-holding  G-Strobe read like that: besides, nothing is installed while a part is held. Wrong: a later
                  transaction passes the parts that are held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.substitution import join_pairs, substitute
from strobe.algebra.view import Occurrence, View
from strobe.managers.base import Inbound, Outbound, QueryTerm, ViewManager
from strobe.managers.changes import change, delete, key_delete, touches
from strobe.managers.eca import Eca
from strobe.managers.evaluation import Evaluation
from strobe.managers.open_terms import OpenTerm
from strobe.managers.strobe import Strobe
from strobe.messages import ActionList, Answer, Lookup, Query, Update
from strobe.simulator.lab import Plan
from strobe.simulator.world import evaluate


class PrintedEca(Eca):
    def _ask(self, terms: Iterable[OpenTerm]) -> list[Outbound]:
        """Terms that are complete travel with the others of their query."""
        listed = list(terms)
        complete = [term for term in listed if term.evaluation.done]
        out = super()._ask(term for term in listed if not term.evaluation.done)
        if out:
            known_here = [replace(term, lookups=()) for term in complete]
            self._open[self._asked - 1] += known_here
            for term in known_here:
                self._terms.add(term)
            return out
        for term in complete:
            self._add(term)
        return out


@dataclass
class _Open:
    """A query that goes around the sources."""

    evaluation: Evaluation
    query: Query


class PrintedEcaKey:
    """COLLECT is a working copy of the view: deletions are applied to it at once, answers added but for duplicates."""

    compensates = False

    def __init__(self, view: View, rows: Relation) -> None:
        self.view = view
        self._collect = rows
        self._covers: list[int] = []
        self._open: dict[int, _Open] = {}
        self._asked = 0

    def describe(self) -> dict[str, Any]:
        return {
            "UQS": {number: open_.evaluation.asked(open_.query.lookups) for number, open_ in self._open.items()},
            "COLLECT": (self._actions(),),
        }

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]:
        out: list[Outbound] = []
        for message in messages:
            if isinstance(message, Update):
                out += self._update(message)
            elif isinstance(message, Answer):
                open_ = self._open.pop(message.id)
                open_.evaluation.absorb(open_.query.lookups, message.relations, message.seen)
                out += self._go_on(open_.evaluation)
        if self._covers and not self._open:
            out.append(self._actions())
            self._covers = []
        return out

    def _actions(self) -> ActionList:
        return ActionList(self.view.name, tuple(self._covers), self._collect, replaces=True)

    def _update(self, update: Update) -> list[Outbound]:
        self._covers.append(update.number)
        changes = [(o, change(o, [update])) for o in self.view.occurrences if touches(update, o)]
        for occurrence, rows in changes:
            self._collect = delete(self._collect, key_delete(occurrence, rows.part(-1)))
        inserted = [(o.index, rows.part(1)) for o, rows in changes if not rows.part(1).known_empty]
        return [m for index, rows in inserted for m in self._go_on(Evaluation(self.view, [index], {0: rows}))]

    def _go_on(self, evaluation: Evaluation) -> list[Outbound]:
        if not evaluation.done:
            query = evaluation.ask(self._asked)
            self._open[self._asked] = _Open(evaluation, query)
            self._asked += 1
            return [query]
        for result in evaluation.results.values():
            new = result.key_delete(self._collect, [(a, a) for a in self.view.attributes])
            self._collect = self._collect.plus(new)
        return []


class PrintedRv:
    """Every s-th update the view is asked for; whatever comes replaces it."""

    compensates = False

    def __init__(self, view: View, *, every: int = 1) -> None:
        self.view = view
        self._every = every
        self._counted: list[int] = []
        self._open: dict[int, tuple[tuple[int, ...], QueryTerm, list[str]]] = {}
        """By query: the updates it is for, what is known and asked for, and the sources that come after."""
        self._asked = 0

    def describe(self) -> dict[str, Any]:
        return {"UQS": {number: (term,) for number, (_, term, _) in self._open.items()}}

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]:
        out: list[Outbound] = []
        for message in messages:
            if isinstance(message, Update):
                self._counted.append(message.number)
                if len(self._counted) == self._every:
                    out += self._ask(tuple(self._counted), (), Bag((), {(): 1}), list(self.view.sources))
                    self._counted = []
            elif isinstance(message, Answer):
                out += self._answer(message)
        return out

    def _ask(
        self, covers: tuple[int, ...], known: tuple[int, ...], rows: Relation, sources: list[str]
    ) -> list[Outbound]:
        if not sources:
            return [ActionList(self.view.name, covers, rows.project(self.view.attributes), replaces=True)]
        here = [o for o in self.view.occurrences if o.source == sources[0]]
        lookups = tuple(Lookup(o.index, o.relation.name, o.columns) for o in here)
        self._open[self._asked] = (covers, QueryTerm(known, rows, lookups), sources[1:])
        self._asked += 1
        return [Query(self.view.name, self._asked - 1, sources[0], lookups, whole=True)]

    def _answer(self, answer: Answer) -> list[Outbound]:
        covers, term, sources = self._open.pop(answer.id)
        rows, known = term.rows, list(term.known)
        for lookup, found in zip(term.lookups, answer.relations, strict=True):
            pairs = join_pairs(self.view, known, lookup.occurrence)
            rows = rows.join(substitute(self.view.occurrences[lookup.occurrence], found), pairs)
            known.append(lookup.occurrence)
        return self._ask(covers, tuple(known), rows, sources)


class Holding(Strobe):
    """T-Strobe that holds the parts of a global transaction until all are there; others pass them."""

    def __init__(self, view: View, *, blocked: bool) -> None:
        """With `blocked` nothing is installed while a part is held."""
        super().__init__(view)
        self._blocked = blocked

    def _next(self) -> list[Update]:
        for update in self._received:
            unit = [u for u in self._received if set(u.transaction.part_of) & set(update.transaction.part_of)]
            wanted = {s for part in update.transaction.part_of for s in part.participants & set(self.view.sources)}
            if {u.source for u in unit} >= wanted:
                return unit or [update]
        return []

    def _unprocessed(self, occurrence: Occurrence, sign: int) -> Relation:
        """What is held does not count."""
        return Bag(occurrence.attributes)

    def _parts_missing(self) -> bool:
        return self._blocked and len(self._received) > 0


@dataclass(frozen=True)
class Specimen:
    make: Callable[[Plan, int], ViewManager]
    """For a plan, and `every`."""
    keyed: bool = False


def _initial(plan: Plan) -> Bag:
    return evaluate(plan.view, plan.initial)


SPECIMENS = {
    "eca-printed": Specimen(lambda plan, _: PrintedEca(plan.view)),
    "eca-key-printed": Specimen(lambda plan, _: PrintedEcaKey(plan.view, _initial(plan)), keyed=True),
    "rv-printed": Specimen(lambda plan, every: PrintedRv(plan.view, every=every)),
    "t-strobe-printed": Specimen(lambda plan, _: Holding(plan.view, blocked=False), keyed=True),
    "g-strobe-holding": Specimen(lambda plan, _: Holding(plan.view, blocked=True), keyed=True),
}
