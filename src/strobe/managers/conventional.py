"""Conventional incremental maintenance (ECA paper, Algorithm 5.1): no compensation at all.

For every update it asks for `V<U>` and adds the answers to the view as they come, as if the sources had stood still
meanwhile. They had not, and so this is not even convergent. It exists to show what goes wrong without compensation.

Departures: several sources (answers are collected by *source_evaluate*, as in the Strobe paper), and one update after
another, since action lists leave a manager in order.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence

from strobe.algebra.relation import Relation
from strobe.algebra.substitution import substitute
from strobe.algebra.view import View
from strobe.managers.base import Inbound, Outbound
from strobe.managers.evaluation import Evaluation, nothing
from strobe.messages import ActionList, Answer, Query, Update


class Conventional:
    """One view, one update at a time, believing every answer."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._waiting: list[Update] = []
        """Updates not yet taken up, by number: the inbox may have held some back while later ones came."""
        self._update: Update | None = None
        self._terms: deque[Evaluation] = deque()
        self._query: Query | None = None
        self._asked = 0
        self._delta: Relation = nothing(view)

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]:
        for message in messages:
            if isinstance(message, Update):
                insort(self._waiting, message, key=lambda update: update.number)
            elif isinstance(message, Answer) and self._query is not None:
                self._terms[0].absorb(self._query.lookups, message.relations, message.seen)
                self._query = None
        return self._advance()

    def _advance(self) -> list[Outbound]:
        out: list[Outbound] = []
        while self._query is None:
            if self._terms and self._terms[0].done:
                for result in self._terms.popleft().results.values():
                    self._delta = self._delta.plus(result)
            elif self._terms:
                self._query = self._terms[0].ask(self._asked)
                self._asked += 1
                out.append(self._query)
            elif self._update is not None:
                out.append(ActionList(self.view.name, (self._update.number,), self._delta))
                self._update = None
            elif self._waiting:
                self._start(self._waiting.pop(0))
            else:
                return out
        return out

    def _start(self, update: Update) -> None:
        self._update, self._delta = update, nothing(self.view)
        for relation, change in update.transaction.changes.items():
            for occurrence in self.view.occurrences_of(update.source, relation):
                terms = {0: substitute(occurrence, change)}
                self._terms.append(Evaluation(self.view, [occurrence.index], terms))
