"""The partitions through which rows came: one may come, fill and go again between two looks at the catalog. And what
the log says of partitions that left, or came with their rows."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True)
class Moved:
    """Partitions that left or came in statements of which the log says so."""

    left: Mapping[int, int] = field(default_factory=dict)
    """By their ids, with those below them: the file that each had."""
    came: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """By their ids: the generation of what makes each a partition, and the file that it had."""

    def and_then(self, other: Moved) -> Moved:
        return Moved({**self.left, **other.left}, {**self.came, **other.came})


class Partitions:
    """Those of each relation, by their ids; filled by the thread that reads the log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[tuple[float, str, int]] = []
        """With the place in the log where the transaction ends."""
        self._reported: dict[str, set[int]] = defaultdict(set)
        self._left: dict[int, int] = {}
        """Partitions that left, as the log says, each with the place in the log where that transaction ends."""
        self._moved = Moved()

    def described(self, relation: str, partition: int) -> None:
        with self._lock:
            self._found.append((inf, relation, partition))

    def left(self, partition: int, end: int) -> bool:
        """A partition has left in the transaction that ends there; false if it had left in another one before."""
        with self._lock:
            return self._left.setdefault(partition, end) == end

    def left_before(self, partition: int, place: int) -> bool:
        """Whether a partition has left in a transaction that ends before a place in the log."""
        with self._lock:
            return self._left.get(partition, inf) <= place

    def have_moved(self, partitions: Moved) -> None:
        """A transaction has been read of which the log says this."""
        with self._lock:
            self._moved = self._moved.and_then(partitions)

    @property
    def moved(self) -> Moved:
        """What the log says, as far as it has been read."""
        with self._lock:
            return self._moved

    def committed(self, end: int) -> None:
        """The transaction that has been read ends there."""
        with self._lock:
            self._found = [(min(at, end), relation, partition) for at, relation, partition in self._found]

    def reported(self, through: int) -> None:
        """Everything up to a place is visible to new snapshots."""
        with self._lock:
            for at, relation, partition in self._found:
                if at <= through:
                    self._reported[relation].add(partition)
            self._found = [found for found in self._found if found[0] > through]

    def begin(self) -> None:
        """The log is read anew, and describes all partitions again."""
        with self._lock:
            self._found.clear()
            self._reported.clear()

    def of(self, relations: Collection[str]) -> dict[str, frozenset[int]]:
        """Those through which rows came that were reported."""
        with self._lock:
            return {relation: frozenset(self._reported.get(relation, ())) for relation in relations}
