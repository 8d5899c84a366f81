"""What has come in since a moment, for work that reads the sources beside the managers.

A snapshot of a source is never at the position of a commit. With the transactions in between at hand, what it holds can
be brought to exactly that position.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from strobe.algebra.bag import Bag
from strobe.errors import NotNow
from strobe.messages import Position, Transaction

MOST = 100_000
"""Changed rows that are kept."""


class Tap:
    """Transactions of some relations, by source. One thread fills it, another may read it at the same time."""

    def __init__(self, relations: Mapping[str, Collection[str]], come: Mapping[str, Position]) -> None:
        """`come` says how far each source has been taken in, and grows: it is read when the tap is open."""
        self._relations, self._come = relations, come
        self._kept: dict[str, list[Transaction]] = defaultdict(list)
        self._rows = 0
        self._read: dict[str, Position] = {}
        self.since: dict[str, Position] = {}
        """Everything after these positions is kept."""

    def open(self) -> None:
        """When `arrive` is being called: what it was not called for has been taken in, at these positions."""
        self.since = {source: self._come[source] for source in self._relations}

    def arrive(self, transaction: Transaction) -> None:
        if transaction.source in self._relations:
            if any(transaction.touched(relation) for relation in self._relations[transaction.source]):
                changes = (*transaction.changes.values(), *transaction.gone.values())
                self._rows += sum(len(change) for change in changes if isinstance(change, Bag))
                self._kept[transaction.source].append(transaction)
                if self._rows > MOST:
                    self._kept.clear()
            self._read[transaction.source] = transaction.position

    def has(self, source: str, position: Position) -> bool:
        """Whether everything up to this position is here, or was taken in before."""
        return position <= self.since[source] or (source in self._read and position <= self._read[source])

    def kept(self, source: str) -> Sequence[Transaction]:
        """Those of a source; `NotNow` if there were too many rows to keep them."""
        if self._rows > MOST:
            raise NotNow("too much changes at the moment to say what rows were a moment ago", where=f"source {source}")
        return tuple(self._kept[source])
