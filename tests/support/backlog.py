"""A backlog of single-row transactions, worked off by the engine and its managers without threads or clocks.

One database with orders, customers and payments. Everything has been committed there already: every answer has seen the
end of the log, as a coordinator finds it that was down. Time passes by what is done, not by what it takes.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping

from strobe.algebra.bag import Bag, Row
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.view import Equality, Occurrence, Output, View
from strobe.engine.engine import Effect, Engine, Progress, Promise, Submit, ToViews
from strobe.integrator.blocks import Sizes
from strobe.managers.base import Outbound, ViewManager
from strobe.managers.inbox import Inbox
from strobe.messages import (
    Answer,
    Cut,
    Lookup,
    Position,
    Query,
    Seen,
    Transaction,
    Update,
    WarehouseTransaction,
)
from strobe.simulator.world import evaluate

TOGETHER = 200
"""Transactions that come in between two turns."""


def _relation(source: str, name: str, columns: str) -> RelationSchema:
    names = columns.split()
    indexes = tuple((name,) for name in names)
    return RelationSchema(source, name, tuple(Column(n, "bigint") for n in names), (names[0],), indexes)


def joined(name: str = "v", source: str = "shop", payments: str = "shop") -> View:
    """Orders with their customers and payments, at one source or two."""
    relations = (
        _relation(source, "orders", "id customer state"),
        _relation(source, "customers", "id name"),
        _relation(payments, "payments", "id order_id cents"),
    )
    occurrences = tuple(Occurrence(i, r.name, r, tuple(c.name for c in r.columns)) for i, r in enumerate(relations))
    outputs = tuple(Output(a, a) for o in occurrences for a in o.attributes)
    equalities = (Equality(0, "customer", 1, "id"), Equality(2, "order_id", 0, "id"))
    return View(name, "", occurrences, equalities, None, outputs)


class Table:
    """A relation's rows as they are now, found by any column."""

    def __init__(self, columns: Iterable[str]) -> None:
        self.columns = tuple(columns)
        self.rows: dict[Row, None] = {}
        self._by: list[dict[object, dict[Row, None]]] = [defaultdict(dict) for _ in self.columns]

    def change(self, gone: Row | None, come: Row | None) -> Bag:
        if gone is not None:
            del self.rows[gone]
            for by, value in zip(self._by, gone, strict=True):
                del by[value][gone]
        if come is not None:
            self.rows[come] = None
            for by, value in zip(self._by, come, strict=True):
                by[value][come] = None
        return Bag(self.columns, {row: n for row, n in ((gone, -1), (come, 1)) if row is not None})

    def find(self, on: tuple[str, ...], keys: Iterable[Row]) -> Iterable[Row]:
        places = [self.columns.index(column) for column in on]
        for key in keys:
            for row in self._by[places[0]].get(key[0], ()):
                if all(row[place] == value for place, value in zip(places, key, strict=True)):
                    yield row


class Database:
    """The sources of a view, with everything that happens there."""

    def __init__(self, view: View, seed: int = 0) -> None:
        self.view = view
        self._rng = random.Random(seed)
        self.tables = {r.name: Table(c.name for c in r.columns) for r in view.relations}
        self.places = {r.name: r.source for r in view.relations}
        self.log: list[Transaction] = []
        self._ends: dict[str, int] = dict.fromkeys(view.sources, 0)
        self._ids = 0
        self.last_orders: deque[Row] = deque(maxlen=1000)
        for n in range(100):
            self.tables["customers"].change(None, (n, n))
        for _ in range(100):
            self.tables["orders"].change(None, self._order())

    def _order(self) -> Row:
        self._ids += 1
        row = (self._ids, self._rng.randrange(100), 0)
        self.last_orders.append(row)
        return row

    def commit(self, relation: str, gone: Row | None, come: Row | None) -> None:
        source = self.places[relation]
        change = self.tables[relation].change(gone, come)
        self._ends[source] += 1
        self.log.append(Transaction(source, at(self._ends[source]), changes={relation: change}))

    def transact(self, transactions: int) -> None:
        """Single-row transactions: new orders, orders that change, payments that come and go."""
        rng = self._rng
        for _ in range(transactions):
            what = rng.random()
            if what < 0.4:
                self.commit("orders", None, self._order())
            elif what < 0.6:
                place = rng.randrange(len(self.last_orders))
                row = self.last_orders[place]
                self.last_orders[place] = changed = (row[0], row[1], row[2] + 1)
                self.commit("orders", row, changed)
            else:
                self._ids += 1
                self.commit("payments", None, (self._ids, rng.choice(self.last_orders)[0], rng.randrange(1000)))

    def contents(self) -> Bag:
        """The view over everything that is there now."""
        states: dict[str, dict[str, Bag]] = defaultdict(dict)
        for name, table in self.tables.items():
            states[self.places[name]][name] = Bag(table.columns, dict.fromkeys(table.rows, 1))
        return evaluate(self.view, states)

    def answer(self, query: Query) -> Answer:
        found: list[Bag] = []
        for lookup in query.lookups:
            table = self.tables[lookup.relation]
            rows = table.rows if (keys := self._keys(lookup, found)) is None else table.find(lookup.on, keys)
            found.append(Bag(table.columns, dict.fromkeys(rows, 1)).project(lookup.columns))
        return Answer(query.view, query.id, query.source, tuple(found), Seen(at(self._ends[query.source])))

    @staticmethod
    def _keys(lookup: Lookup, found: list[Bag]) -> Iterable[Row] | None:
        if lookup.keys_from is not None:
            return [row for row, _ in found[lookup.keys_from[0]].keys(lookup.keys_from[1]).items()]
        return None if lookup.keys is None else [row for row, _ in lookup.keys.collect().items()]


def at(n: int) -> Position:
    return Position(str(n), (n,))


class Run:
    """Engine and inboxes of some views, over one database."""

    def __init__(
        self,
        database: Database,
        managers: Mapping[str, ViewManager],
        promise: Promise,
        order: str = "source",
        sizes: Sizes = Sizes(),  # noqa: B008  # frozen
    ) -> None:
        views = {name: manager.view for name, manager in managers.items()}
        starts = {name: dict.fromkeys(view.sources, at(0)) for name, view in views.items()}
        self.database, self.now = database, 0.0
        self.engine = Engine(views, starts, dict.fromkeys(views, promise), order=order, sizes=sizes)
        self.inboxes = {name: Inbox(manager, starts[name]) for name, manager in managers.items()}
        self.answers: deque[Answer] = deque()
        self.asked = 0
        self.submitted: list[WarehouseTransaction] = []
        self.cuts: list[Cut] = []

    def drain(self, answer: Callable[[Query], Answer] | None = None) -> None:
        """Read the whole log, and go on until nothing is left to do."""
        self._answer = answer or self.database.answer
        for number, transaction in enumerate(self.database.log, 1):
            self._do(self.engine.receive(transaction, self.now))
            if number % TOGETHER == 0:
                self._turn()
        while self.engine.size or self.answers:
            self._turn()

    def _turn(self) -> None:
        self.now += 0.01
        for _ in range(len(self.answers)):
            answer = self.answers.popleft()
            self._send(self.inboxes[answer.view].answer(answer))
        asking = {name for name, inbox in self.inboxes.items() if inbox.asking}
        self._do(self.engine.cut_due(self.now, lambda name: name in asking))

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Submit):
                self.submitted.append(effect.transaction)
            elif isinstance(effect, ToViews):
                self._give(effect)

    def _give(self, given: ToViews) -> None:
        message = given.message
        if isinstance(message, Cut):
            self.cuts.append(message)
        for name in given.views:
            inbox = self.inboxes[name]
            if isinstance(message, Update):
                self._send(inbox.update(message))
            elif isinstance(message, Progress):
                self._send(inbox.progress(message.source, message.position))
            else:
                self._send(inbox.cut(message))

    def _send(self, sent: Iterable[Outbound]) -> None:
        for message in sent:
            if isinstance(message, Query):
                self.asked += 1
                self.answers.append(self._answer(message))
            else:
                self._do(self.engine.receive(message, self.now))
