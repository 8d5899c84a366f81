"""The partitions through which rows came: one may come, fill and go again between two looks at the catalog."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection
from math import inf


class Partitions:
    """Those of each relation, by their ids; filled by the thread that reads the log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[tuple[float, str, int]] = []
        """With the place in the log where the transaction ends."""
        self._reported: dict[str, set[int]] = defaultdict(set)
        self._left: dict[int, int] = {}
        """Partitions that left, as the log says, each with the place in the log where that transaction ends."""

    def described(self, relation: str, partition: int) -> None:
        with self._lock:
            self._found.append((inf, relation, partition))

    def left(self, partition: int, end: int) -> bool:
        """A partition has left in the transaction that ends there; false if it had left in another one before."""
        with self._lock:
            return self._left.setdefault(partition, end) == end

    @property
    def left_by_log(self) -> frozenset[int]:
        """Those that left, as the log says as far as it has been read."""
        with self._lock:
            return frozenset(self._left)

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
