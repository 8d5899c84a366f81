"""Conventional incremental maintenance (ECA paper, Algorithm 5.1): no compensation at all.

For every update it asks for `V<U>` and adds the answers to the view as they come, as if the sources had stood still
meanwhile. They had not, and so this is not even convergent. It exists to show what goes wrong without compensation.

Departures: several sources (answers are collected by *source_evaluate*, as in the Strobe paper), transactions, and
relations that occur twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strobe.algebra.relation import Relation
from strobe.algebra.view import View
from strobe.managers.base import Inbound, Outbound
from strobe.managers.evaluation import Evaluation, nothing
from strobe.managers.terms import substituted
from strobe.messages import ActionList, Answer, Query, Update


@dataclass
class OpenUpdate:
    """`V<U>` on its way: the terms still to come, and what has been found."""

    number: int
    terms: list[Evaluation]
    delta: Relation


class Conventional:
    """One view, believing every answer."""

    compensates = False

    def __init__(self, view: View) -> None:
        self.view = view
        self._open: list[OpenUpdate] = []
        self._asked: dict[int, tuple[OpenUpdate, Evaluation, Query]] = {}
        self._numbers = 0

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]:
        out: list[Outbound] = []
        for message in messages:
            if isinstance(message, Update):
                terms = [Evaluation(self.view, t.known, {0: t.rows}) for t in substituted(self.view, None, message)]
                update = OpenUpdate(message.number, list(terms), nothing(self.view))
                self._open.append(update)
                out += [query for term in terms for query in self._go_on(update, term)]
                out += self._install(update)
            elif isinstance(message, Answer):
                update, term, asked = self._asked.pop(message.id)
                term.absorb(asked.lookups, message.relations, message.seen)
                out += self._go_on(update, term)
                out += self._install(update)
        return out

    def describe(self) -> dict[str, Any]:
        return {"UQS": {number: term.asked(query.lookups) for number, (_, term, query) in self._asked.items()}}

    def _go_on(self, update: OpenUpdate, term: Evaluation) -> list[Outbound]:
        if not term.done:
            query = term.ask(self._numbers)
            self._numbers += 1
            self._asked[query.id] = (update, term, query)
            return [query]
        update.terms.remove(term)
        for result in term.results.values():
            update.delta = update.delta.plus(result)
        return []

    def _install(self, update: OpenUpdate) -> list[Outbound]:
        if update.terms:
            return []
        self._open.remove(update)
        return [ActionList(self.view.name, (update.number,), update.delta)]
