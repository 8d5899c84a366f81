"""The Painting Algorithm (multiple view consistency, 5.1), with rows applied by closure and in every source's order.

The view-update table has a row for every transaction and an entry for every view that is relevant to it:

    white   its action list has not arrived
    red     it has arrived and waits for others; `state` is the number up to which that action list brings the view

A row may be applied only together with its *closure*: earlier rows that are red in one of its views, the row that each
entry's state points to, and so on; and only if nothing in the closure is white. One closure is one warehouse
transaction, applied rows leave the table.

Departures from the paper:

* As printed, the algorithm applies rows inside the recursion, before the outer row has passed its own checks, and tears
  updates across views. Here the closure is built first and applied once, at the top.
* A row waits for the earlier rows of its source (`order: source`), so that every commit is one prefix of every
  source; without it a reader may see a later transaction of a source without an earlier one.

With complete managers every action list covers one row, a closure is one row, and this is the Simple Painting
Algorithm. It is prompt: an applicable set of rows always holds the first row of some source, so whenever none of
these can be applied nothing can.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from datetime import datetime

from strobe.errors import BrokenInvariant
from strobe.messages import ActionList, Position, Rel, WarehouseTransaction


@dataclass
class Row:
    """A row of the view-update table: white entries, red entries with their states, and the action lists that end
    here."""

    rel: Rel
    white: set[str]
    red: dict[str, int] = field(default_factory=dict)
    actions: list[tuple[int, ActionList]] = field(default_factory=list)
    """Each with its place in the order of arrival."""
    earlier: set[int] = field(default_factory=set)
    """The previous row of the source and of each view, and the row of a view's previous action list: closures follow
    these."""


class Painting:
    def __init__(self, positions: dict[str, Position]) -> None:
        """`positions` is the vector that the warehouse reflects at the start."""
        self._rows: dict[int, Row] = {}
        self._by_source: dict[str, deque[int]] = defaultdict(deque)
        self._last_of_view: dict[str, int] = {}
        self._last_painted: dict[str, int] = {}
        self._arrived = 0
        self._early: dict[int, list[ActionList]] = defaultdict(list)
        self._positions = dict(positions)
        self._as_of: dict[str, datetime] = {}
        self._barrier: int | None = None

    def receive(self, message: Rel | ActionList) -> list[WarehouseTransaction]:
        if isinstance(message, Rel):
            self._allocate(message)
            for actions in self._early.pop(message.number, ()):
                self._paint(actions)
        elif message.number in self._rows:
            self._paint(message)
        else:
            self._early[message.number].append(message)
            return []
        return self._apply()

    def stop_at(self, number: int) -> None:
        """Apply no row after this one until `go_on`: so a commit is made to stand at an exact vector."""
        self._barrier = number

    def go_on(self) -> list[WarehouseTransaction]:
        self._barrier = None
        return self._apply()

    @property
    def size(self) -> int:
        return len(self._rows)

    def waiting_for(self, view: str) -> int:
        """How many rows wait for this view's action lists."""
        return sum(view in row.white for row in list(self._rows.values()))

    def oldest(self) -> tuple[int, tuple[str, ...]] | None:
        """The first row of the table and the views it waits for."""
        if not self._rows:
            return None
        number = min(self._rows)
        return number, tuple(sorted(self._rows[number].white))

    def _allocate(self, rel: Rel) -> None:
        row = Row(rel, set(rel.views))
        queue = self._by_source[rel.source]
        if queue:
            row.earlier.add(queue[-1])
        row.earlier |= {self._last_of_view[v] for v in rel.views if self._last_of_view.get(v) in self._rows}
        queue.append(rel.number)
        self._last_of_view.update(dict.fromkeys(rel.views, rel.number))
        self._rows[rel.number] = row

    def _paint(self, actions: ActionList) -> None:
        for number in actions.covers:
            row = self._rows.get(number)
            if row is None or actions.view not in row.white:
                raise BrokenInvariant(
                    f"an action list covers update {number}, which does not wait for it", where=f"view {actions.view}"
                )
            row.white.remove(actions.view)
            row.red[actions.view] = actions.number
        row = self._rows[actions.number]
        before = self._last_painted.get(actions.view)
        if before is not None:
            row.earlier.add(before)  # a view's action lists are applied in the order in which they came
        self._last_painted[actions.view] = actions.number
        self._arrived += 1
        row.actions.append((self._arrived, actions))

    def _apply(self) -> list[WarehouseTransaction]:
        applied: list[WarehouseTransaction] = []
        progress = True
        while progress:
            progress = False
            for head in sorted(queue[0] for queue in self._by_source.values() if queue):
                closure = self._closure(head)
                if closure is not None:
                    applied.append(self._take(closure))
                    progress = True
                    break
        return applied

    def _closure(self, number: int) -> list[int] | None:
        """The rows that must be applied together with this one, or None if one of them waits for an action list."""
        closure: set[int] = set()
        todo = [number]
        while todo:
            current = todo.pop()
            if current in closure or current not in self._rows:
                continue
            row = self._rows[current]
            if row.white or (self._barrier is not None and current > self._barrier):
                return None
            closure.add(current)
            todo += row.earlier
            todo += row.red.values()
        return sorted(closure)

    def _take(self, closure: list[int]) -> WarehouseTransaction:
        actions: list[tuple[int, ActionList]] = []
        for number in closure:
            row = self._rows.pop(number)
            source = row.rel.source
            if self._by_source[source].popleft() != number:
                raise BrokenInvariant(f"update {number} would pass an earlier one", where=f"source {source}")
            self._positions[source] = row.rel.position
            if row.rel.committed_at is not None:
                self._as_of[source] = row.rel.committed_at
            actions += row.actions
        in_order = tuple(action for _, action in sorted(actions, key=lambda entry: entry[0]))
        return WarehouseTransaction(tuple(closure), in_order, dict(self._positions), dict(self._as_of))
