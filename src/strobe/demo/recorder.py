"""Records what one database goes through, in a thread of its own, and knows every state that it was in."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from strobe.algebra.bag import Bag, Row

Tables = Mapping[str, Bag]
"""The contents of a source, by table."""


@dataclass(frozen=True)
class Change:
    """A row that came or went; `table` is None where only the recording's beginning is marked."""

    seq: int
    """Grows with positions."""
    at: float
    table: str | None = None
    sign: int = 0
    values: Row = ()
    mark: int = 0
    """Tells one log from another, where there can be several."""


class Recorder(ABC):
    """How a database is looked at is its kind's own business; what was seen is kept here."""

    kind: ClassVar[str]
    look_every: ClassVar[float] = 0.03

    def __init__(self, source: str) -> None:
        self.source = source
        self.changes: list[Change] = []
        """From the beginning's mark on; only ever appended to."""
        self._initial: dict[str, Bag] = {}
        self._index, self._state = 0, self._initial
        """A place in `changes` and the contents after it: states are mostly asked for in order."""
        self._problem: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._record, name=f"archive-{source}", daemon=True)

    @abstractmethod
    def _begin(self) -> None:
        """Connect, and take down the contents and where that is: the first of `changes`."""

    @abstractmethod
    def _look(self, *, last: bool) -> None:
        """Take down what is new; the last time, all that has been committed."""

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def order(self, position: str) -> int:
        """A number that grows with positions."""

    @abstractmethod
    def _place(self, position: str) -> int:
        """Where in `changes` the last one up to a position is; beyond the end if it is not recorded yet."""

    @abstractmethod
    def _verify(self, position: str) -> None:
        """Raises unless the recording has passed through the position."""

    # Recording.

    def start(self) -> None:
        self._begin()
        self._thread.start()

    def stop(self) -> None:
        """Take a last look and end; raises what went wrong on the way."""
        self._stopping.set()
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    def _record(self) -> None:
        try:
            last = False
            while not last:
                last = self._stopping.wait(self.look_every)
                self._look(last=last)
        except BaseException as error:  # told to whoever stops the archive
            self._problem = error
        finally:
            self._close()

    # Looking back.

    @property
    def changed(self) -> int:
        """How many rows have come or gone."""
        return len(self.changes) - 1

    def passed(self, position: str) -> int:
        """How many of them up to a position."""
        return max(0, min(self._place(position), self.changed))

    def age(self, position: str) -> float:
        """How old the oldest change after a position is; 0 if there is none."""
        following = self._place(position) + 1
        return max(0.0, time.time() - self.changes[following].at) if 0 <= following < len(self.changes) else 0.0

    def state_at(self, position: str) -> Tables:
        self._verify(position)
        index = self._place(position)
        if index < self._index:
            self._index, self._state = 0, self._initial
        counts: dict[str, dict[Row, int]] = {}
        for change in self.changes[self._index + 1 : index + 1]:
            of_table = counts.setdefault(str(change.table), {})
            of_table[change.values] = of_table.get(change.values, 0) + change.sign
        moved = {t: self._state[t].add(Bag(self._state[t].attributes, of)) for t, of in counts.items()}
        self._index, self._state = index, {**self._state, **moved}
        return self._state
