"""What happened at the sources: their transactions, and the states they went through.

A *vector* says for every source how many of its transactions have happened. A vector is *whole* when it holds every
global transaction at all of its sources or at none. Whole vectors are what a serial schedule can pass through, and any
two of them, one above the other, lie on one schedule: of the transactions between them, the one that is listed first
has all its predecessors at all its sources behind it, so it can be next; and so on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from strobe.algebra.bag import Bag
from strobe.errors import BrokenInvariant

Contents = Mapping[str, Bag]
"""A source's relations and their rows."""

Vector = tuple[int, ...]

_KEPT = 128
"""States of one source that are kept."""


@dataclass(frozen=True)
class HistoryTransaction:
    """A transaction of the sources: what it changed, signed, at each source that took part in it."""

    id: str
    parts: Mapping[str, Mapping[str, Bag]]
    positions: Mapping[str, str] = field(default_factory=dict)
    """How its sources name the position that they reached with it, where they do."""


class Timeline:
    """The sources of a history, in a fixed order, with all their states."""

    def __init__(self, initial: Mapping[str, Contents], transactions: Sequence[HistoryTransaction]) -> None:
        self.sources = tuple(initial)
        self.transactions = tuple(transactions)
        places = {source: place for place, source in enumerate(self.sources)}
        queues: list[list[int]] = [[] for _ in self.sources]
        self._least: list[Vector] = []
        """By transaction: the smallest whole vector that holds it."""
        self.moves: list[tuple[tuple[int, int], ...]] = []
        """By transaction: at which (place of a source, position before) it is next."""
        for number, transaction in enumerate(self.transactions):
            self._check(transaction, initial)
            own = [places[source] for source in transaction.parts]
            before = [self._least[queues[place][-1]] for place in own if queues[place]]
            self.moves.append(tuple((place, len(queues[place])) for place in own))
            for place in own:
                queues[place].append(number)
            least = [max((vector[i] for vector in before), default=0) for i in range(len(self.sources))]
            for place in own:
                least[place] = len(queues[place])
            self._least.append(tuple(least))
        self.queues = tuple(tuple(queue) for queue in queues)
        self.start: Vector = (0,) * len(self.sources)
        self.end: Vector = tuple(len(queue) for queue in self.queues)
        self._states = [OrderedDict({0: initial[source]}) for source in self.sources]
        firsts = [{number for number in queue if self.moves[number][0][0] == i} for i, queue in enumerate(self.queues)]
        self._counted = [_running(number in firsts[i] for number in queue) for i, queue in enumerate(self.queues)]

    @staticmethod
    def _check(transaction: HistoryTransaction, initial: Mapping[str, Contents]) -> None:
        if not transaction.parts:
            raise BrokenInvariant(f"transaction {transaction.id} has no part at any source")
        for source, changes in transaction.parts.items():
            for relation in changes:
                if relation not in initial.get(source, {}):
                    raise BrokenInvariant(f"transaction {transaction.id} changes the unknown {source}.{relation}")

    def whole(self, vector: Vector) -> Vector:
        """The smallest whole vector that holds this one: itself, if it is whole."""
        tops = [self._least[queue[n - 1]] for queue, n in zip(self.queues, vector, strict=True) if n]
        return tuple(max((top[i] for top in tops), default=0) for i in range(len(vector)))

    def height(self, vector: Vector) -> int:
        """How many transactions a whole vector holds."""
        return sum(counted[n] for counted, n in zip(self._counted, vector, strict=True))

    def next(self, vector: Vector) -> Iterator[tuple[int, Vector]]:
        """The transactions that can come next in a schedule that is at this whole vector, and where each leads."""
        tried = set[int]()
        for queue, n in zip(self.queues, vector, strict=True):
            number = queue[n] if n < len(queue) else None
            if number is None or number in tried:
                continue
            tried.add(number)
            if all(vector[place] == before for place, before in self.moves[number]):
                after = list(vector)
                for place, _ in self.moves[number]:
                    after[place] += 1
                yield number, tuple(after)

    def between(self, low: Vector, high: Vector) -> list[tuple[int, str]]:
        """The (transaction, source) pairs that are in `high` and not in `low`, in order."""
        pairs = [
            (number, source)
            for source, queue, a, b in zip(self.sources, self.queues, low, high, strict=True)
            for number in queue[a:b]
        ]
        return sorted(pairs, key=lambda pair: pair[0])

    def contents(self, vector: Vector) -> dict[str, Contents]:
        """All relations at a vector."""
        return {source: self._at(place, n) for place, (source, n) in enumerate(zip(self.sources, vector, strict=True))}

    def _at(self, place: int, position: int) -> Contents:
        states = self._states[place]
        if position not in states:
            near = max(known for known in states if known < position)
            contents = dict(states[near])
            for number in self.queues[place][near:position]:
                for relation, change in self.transactions[number].parts[self.sources[place]].items():
                    contents[relation] = contents[relation].add(change)
            states[position] = contents
            if len(states) > _KEPT:
                del states[next(known for known in states if known)]
        else:
            states.move_to_end(position)
        return states[position]


def _running(counts: Iterator[bool] | Sequence[bool]) -> list[int]:
    """Running totals, from zero."""
    totals = [0]
    for counted in counts:
        totals.append(totals[-1] + counted)
    return totals
