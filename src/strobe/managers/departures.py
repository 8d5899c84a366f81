"""Rows that leave a relation all at once, as a partition's do when it is dropped, for the manager of any algorithm.

Nobody can be asked for such rows any more, so a change that came before they left cannot be joined with them. It need
not be: what they contributed leaves the view in the same commit. So everything that is not in an action list yet is
worked out as if they had never been there. A new manager begins where the last action list ended, and is given the
updates since once more, without the rows in question. That is a history like any other, in which every answer is
right: what comes after the departure is not touched, and answers that had not seen it belong to the manager before,
whose questions are forgotten.

The states in between are none of the source's, so the action lists up to the departure become one, which first takes
out of the view what it shows in the bound. Where each update is to have a state of its own (*complete*), those that
were under way when the rows left share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from strobe.algebra.bounds import Bound
from strobe.algebra.relation import Relation
from strobe.algebra.view import Occurrence, View
from strobe.errors import BrokenInvariant
from strobe.managers.base import Inbound, Outbound, ViewManager
from strobe.managers.evaluation import nothing
from strobe.messages import ActionList, Answer, BoundDelete, Cut, Departed, Query, Removal, Transaction, Update


class Departures:
    """Stands before a manager, and before the one that takes its place."""

    def __init__(self, make: Callable[[], ViewManager]) -> None:
        self._make = make
        self._manager = make()
        self.view = self._manager.view
        self.compensates = self._manager.compensates
        self._open: dict[int, Update] = {}
        """Given to the manager, and in no action list yet."""
        self._cuts: list[Cut] = []
        self._held: list[ActionList] = []
        """What has become of the view since the last action list, while a departure is to be reached."""
        self._until: int | None = None
        """The number of that departure."""
        self._first = 0
        """The number that the manager's own question 0 has outside."""
        self._asked = -1

    @property
    def compensations(self) -> int:
        return getattr(self._manager, "compensations", 0)

    def describe(self) -> dict[str, Any]:
        return self._manager.describe()

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]:
        given: list[Inbound] = []
        late = False
        for message in messages:
            if isinstance(message, Update) and message.transaction.departed:
                self._depart(message)
                given = [*self._open.values(), *self._cuts]
            elif isinstance(message, Answer) and message.id < self._first:
                late = True  # of the manager before; what was held back for its sake may have come with it
            elif isinstance(message, Answer):
                given.append(replace(message, id=message.id - self._first) if self._first else message)
            else:
                given.append(message)
                self._note(message)
        if late:
            given += self._cuts
        return [found for sent in self._manager.receive(given) for found in self._sent(sent)]

    def _note(self, message: Update | Cut) -> None:
        if isinstance(message, Update):
            self._open[message.number] = message
        else:
            self._cuts.append(message)

    def _depart(self, update: Update) -> None:
        """Begin anew where the last action list ended, without the rows that leave."""
        transaction = update.transaction
        left = [(o, d, _known(d)) for o in self.view.occurrences for d in departed(transaction, o)]
        for occurrence, departure, bound in left:
            for number, before in self._open.items():
                self._open[number] = replace(before, transaction=_without(before.transaction, occurrence, bound))
            if departure.late:
                transaction = _without(transaction, occurrence, bound)
        self._open[update.number] = replace(update, transaction=replace(transaction, departed={}))
        deletes = tuple(BoundDelete(o.index, in_view(o, bound)) for o, _, bound in left)
        self._held.append(ActionList(self.view.name, (), nothing(self.view), deletes))
        self._until = update.number
        self._manager = self._make()
        self._first = self._asked + 1

    def _sent(self, sent: Outbound) -> Iterator[Outbound]:
        if isinstance(sent, Query):
            query = replace(sent, id=sent.id + self._first) if self._first else sent
            self._asked = max(self._asked, query.id)
            yield query
            return
        for number in sent.covers:
            self._open.pop(number, None)
        if not self._open:
            self._cuts = self._cuts[-1:]  # an update before it may still be held back
        if self._until is None:
            yield sent
            return
        self._held.append(sent)
        if self._until in sent.covers:
            yield one(self._held)
            self._held, self._until = [], None


def one(lists: Sequence[ActionList]) -> ActionList:
    """Action lists one after another, as one."""
    removal, delta = Removal(), lists[0].delta
    for each in lists:
        then = Removal(each.deletes, each.replaces)
        delta = then.rest(delta).plus(each.delta)
        removal = removal.then(then)
    covers = tuple(sorted(number for each in lists for number in each.covers))
    return ActionList(lists[0].view, covers, delta, removal.deletes, removal.everything)


def departed(transaction: Transaction, occurrence: Occurrence) -> tuple[Departed, ...]:
    """What left an occurrence's relation all at once."""
    return transaction.departed.get(occurrence.relation.name, ()) if transaction.source == occurrence.source else ()


def in_view(occurrence: Occurrence, bound: Bound) -> Bound:
    """A bound of a relation, over the attributes of the view."""
    return bound.renamed({column: occurrence.attribute(column) for column in bound.columns})


def _known(departure: Departed) -> Bound:
    if departure.bound is None:
        raise BrokenInvariant(f"rows left of which it is not known which they are: {departure.what}")
    return departure.bound


def _without(transaction: Transaction, occurrence: Occurrence, bound: Bound) -> Transaction:
    """A transaction without its changes of rows of a relation that are in a bound."""
    if transaction.source != occurrence.source:
        return transaction
    relation = occurrence.relation.name
    changes = {name: _rest(rows, bound) if name == relation else rows for name, rows in transaction.changes.items()}
    gone = {name: _rest(rows, bound) if name == relation else rows for name, rows in transaction.gone.items()}
    return replace(transaction, changes=changes, gone=gone)


def _rest(rows: Relation, bound: Bound) -> Relation:
    """Keys that do not have the bound's columns stay: no row that is left has one of them."""
    return rows.outside(bound) if bound.columns <= set(rows.attributes) else rows


def obstacle(view: View, transaction: Transaction, pace: int = 0) -> tuple[str, str]:
    """The relation, and why a view cannot follow what left it; empty if it can."""
    for occurrence in view.occurrences:
        for left in departed(transaction, occurrence):
            why = left.unknown or cannot(occurrence, view, left.bound.columns if left.bound else ())
            if why or pace:
                found = why or "the view's commits have a fixed number of transactions"
                return occurrence.relation.name, f"{left.what}: {found}"
    return "", ""


def cannot(occurrence: Occurrence, view: View, columns: Sequence[str] | frozenset[str]) -> str:
    """Why a view could not follow that rows leave which these columns tell apart; empty if it could."""
    if view.tree is not None:
        return "the view has more than inner joins, and is computed from rows of its tables that have left with them"
    if occurrence.copied or occurrence.shown:
        return "the view is computed from rows at the warehouse"
    for column in sorted(columns):
        if column not in occurrence.columns or not view.shown_as(occurrence.attribute(column)):
            return f"the view does not show column {column}, which tells the rows of a partition apart"
    return ""
