"""One budget for all that a run holds in memory, and whether more of a source may come in.

Two bounds. On *updates*: the rows of the view-update tables. On *rows*: those of transactions, of answers and of action
lists, until everything that they are needed for has been committed; so what managers hold and what waits for the append
is counted too. Rows in files are not (see `in_flight`). While a bound is reached nothing more is taken in, and the
sources are left alone: their logs keep. How many messages may wait for the loop is bounded besides.

A bound must not keep out what the rows in memory wait for, or neither would ever move: the other part of a global
transaction, and the rest of a block. An answer that has seen more than has been taken in waits for the log of its
source, which is read ahead then, into a file (see `read_ahead`); it is taken in beyond the bounds only for an answer
that cannot be brought back.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.messages import Answer, Position, Transaction, WarehouseTransaction

TOGETHER = 100
"""Fewer rows than this are counted with those after them, and until these are needed no longer."""


SAMPLE = 50
"""Rows whose length is looked at; the others are taken to be as long."""

USUAL = 500
"""Characters that take about as much memory as a short row."""


@dataclass(frozen=True)
class Limits:
    """How much a run holds in memory before it leaves its sources alone."""

    updates: int = 5_000
    burdened: int = 500
    """The same of the group of a source whose views ask for every update by itself: each costs as much as there are."""
    queued: int = 1_000
    rows: int = 500_000
    """Of usual length: long texts count as many (see `weight`)."""
    relation: int = 100_000
    """Rows of one answer, and of what a manager joins in one step. What is larger is read or joined by Spark."""


def weight(rows: Bag) -> int:
    """How many rows of usual length these are, by a sample: a long text counts as many."""
    sample = [row for row, _ in islice(rows.items(), SAMPLE)]
    long = sum(len(value) for row in sample for value in row if isinstance(value, (str, bytes)))
    return len(rows) + (long * len(rows) // (len(sample) * USUAL) if sample else 0)


class Backpressure:
    def __init__(
        self,
        limits: Limits,
        *,
        backlog: Callable[[], int],
        queued: Callable[[], int],
        appends: Callable[[], int],
        ahead: Callable[[str], int] = lambda _source: 0,
        burden: Callable[[str], int] = lambda _source: 0,
    ) -> None:
        """`backlog` are rows of the view-update tables that wait for anything but the end of their block, `queued`
        messages that wait for the loop, `appends` transactions that wait for the append, `ahead` those of a source
        that have been read ahead, `burden` the rows of a source's group if its views are kept by algorithms to which
        every one is a burden."""
        self._limits, self._burden = limits, burden
        self._backlog, self._queued, self._appends, self._ahead = backlog, queued, appends, ahead
        self._come: dict[str, Position] = {}
        """How far each source has come in."""
        self._held: dict[frozenset[str], deque[tuple[Mapping[str, Position], int]]] = defaultdict(deque)
        """Rows, each with the vector at which they are needed no longer, by its sources: in the order of the vectors.
        """
        self._wanted: Mapping[str, Position] = {}
        self._needed: Mapping[str, Position] = {}
        self._missing: Collection[str] = ()
        self._crowded = False
        self.rows = 0
        """Those in memory."""

    def arrived(self, transaction: Transaction) -> None:
        self._come[transaction.source] = transaction.position
        relations = (*transaction.changes.values(), *transaction.gone.values())
        self._hold({transaction.source: transaction.position}, relations)

    def answered(self, answer: Answer, sources: Collection[str]) -> None:
        """What an answer is needed for is among what has come in by now, from the `sources` of its view."""
        self._hold({s: position for s, position in self._come.items() if s in sources}, answer.relations)

    def submitted(self, transaction: WarehouseTransaction) -> None:
        self._hold(transaction.positions, (rows for action in transaction.actions for rows in action.relations))

    def _hold(self, until: Mapping[str, Position], relations: Iterable[Relation]) -> None:
        rows = sum(weight(relation) for relation in relations if isinstance(relation, Bag))
        if rows:
            held = self._held[frozenset(until)]
            few = held.pop()[1] if held and held[-1][1] < TOGETHER else 0
            held.append((until, few + rows))
            self.rows += rows

    def committed(self, visible: Callable[[str], Position]) -> None:
        """Everything up to `visible` of each source has been committed."""
        for held in self._held.values():
            while held and all(position <= visible(source) for source, position in held[0][0].items()):
                self.rows -= held.popleft()[1]

    def look(self, wanted: Mapping[str, Position], needed: Mapping[str, Position], missing: Collection[str]) -> None:
        """For answers that are here already, `wanted` is how far sources must be read and `needed` how far they must
        be taken in; `missing` are the sources whose parts of global transactions rows wait for. Too many rows hold
        sources back only where some will go by themselves."""
        self._wanted, self._needed, self._missing = wanted, needed, missing
        full = self.rows >= self._limits.rows and not missing
        self._crowded = full and bool(self._backlog() or self._appends())

    def room(self, source: str, position: Position) -> bool:
        """Whether more of a source, which has been taken in up to this position, may be taken in."""
        needed = self._needed.get(source)
        if source in self._missing or (needed is not None and position < needed):
            return True
        if self._crowded or self._burden(source) >= self._limits.burdened:
            return False
        return self._backlog() < self._limits.updates

    def may_read(self, source: str, position: Position) -> bool:
        """Whether more of a source may be read, which has been read up to this position. From any thread."""
        if self._queued() >= self._limits.queued:
            return False
        wanted = self._wanted.get(source)
        if source in self._missing or (wanted is not None and position < wanted):
            return True
        return not self._ahead(source) and self.room(source, position)
