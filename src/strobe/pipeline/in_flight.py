"""Rows of transactions that are in files (see `data.spilled`), while they are on their way. They are read for each
view, as a rule into Spark, before a manager gets them.

Files are removed in time, but not too early: the plan of one transaction's commit may read another's rows, which an
answer had seen or missed. Managers let go of a transaction's rows no later than with its action list. So when a
transaction has been committed, nothing that arrives from then on needs its files, and when everything has been
committed that had arrived by then, nothing does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.view import View
from strobe.data.spilled import Spilled, release
from strobe.messages import Position, Transaction, Update

Read = Callable[[Relation, Mapping[str, str]], Relation]
"""Makes of a relation that is not in memory one that can be computed with, in the types of a view's attributes."""


def into_memory(relation: Relation, _types: Mapping[str, str]) -> Relation:
    return relation.collect()


class InFlight:
    def __init__(self, read: Read = into_memory, *, keep_files: bool = False) -> None:
        """Files are kept to the end where a view may be behind what has been committed."""
        self._read_rows, self._keep_files = read, keep_files
        self._come: dict[str, Position] = {}
        """How far each source has come in."""
        self._spilled: list[Transaction] = []
        self._committed: list[tuple[Transaction, Mapping[str, Position]]] = []
        """Transactions with files, each with how far the sources had been read when it was committed."""

    def arrive(self, transaction: Transaction) -> None:
        self._come[transaction.source] = transaction.position
        relations = (*transaction.changes.values(), *transaction.gone.values())
        if any(isinstance(relation, Spilled) for relation in relations):
            self._spilled.append(transaction)

    def committed(self, visible: Callable[[str], Position]) -> None:
        """Everything up to `visible` of each source has been committed."""
        if self._keep_files:
            return
        done = [t for t in self._spilled if t.position <= visible(t.source)]
        self._spilled = [t for t in self._spilled if not t.position <= visible(t.source)]
        waiting = [*self._committed, *((transaction, dict(self._come)) for transaction in done)]
        self._committed = []
        for transaction, barrier in waiting:
            if all(position <= visible(source) for source, position in barrier.items()):
                release(transaction)
            else:
                self._committed.append((transaction, barrier))

    def end(self) -> None:
        """Nothing is on its way any more."""
        for transaction in (*self._spilled, *(transaction for transaction, _ in self._committed)):
            release(transaction)
        self._spilled, self._committed = [], []

    def readable(self, update: Update, view: View) -> Update:
        """An update as the manager of a view can compute with it."""
        transaction = update.transaction
        relations = (*transaction.changes.values(), *transaction.gone.values())
        if all(isinstance(relation, Bag) for relation in relations):
            return update
        changes = {name: self._read(relation, view) for name, relation in transaction.changes.items()}
        gone = {name: self._read(relation, view) for name, relation in transaction.gone.items()}
        return replace(update, transaction=replace(transaction, changes=changes, gone=gone))

    def _read(self, relation: Relation, view: View) -> Relation:
        return relation if isinstance(relation, Bag) else self._read_rows(relation, view.attribute_types())
