"""The Painting Algorithm (multiple view consistency, 5.1), with rows applied by closure and in every source's order.

The view-update table has a row for every transaction and an entry for every view that is relevant to it:

    white   its action list has not arrived
    red     it has arrived and waits for others; `state` is the number up to which that action list brings the view
    black   the transaction is not relevant to the view: there is no entry

A row may be applied only together with its *closure*: earlier rows that are red in one of its views, the row that each
entry's state points to, the other parts of its global transaction, and so on; and only if nothing in the closure is
white. One closure is one warehouse transaction, applied rows (gray) leave the table.

Departures from the paper:

* As printed, the algorithm applies rows inside the recursion, before the outer row has passed its own checks, and tears
  updates across views. Here the closure is built first and applied once, at the top.
* A row waits for the earlier rows of its source (`order: source`), so that every commit is one prefix of every
  source. With `order: views`, the paper's own, it waits only for earlier rows that share a view with it: prompter, but
  a reader may see a later transaction of a source without an earlier one that concerns other views. Each view is still
  at a prefix of every source as far as it can tell; `ahead` says which.
* A view that promises nothing passes through (6.3): its action lists are applied as they come, and nobody waits for it.
* For complete-N views (6.3) rows come in blocks: all rows up to `end_block` are applied together, or none.

With complete managers every action list covers one row, a closure is one row, and this is the Simple Painting
Algorithm (4.2). It is prompt: whenever a message arrives, everything that can be applied is. With `order: source` an
applicable set of rows always holds the first row of some source, so only these need to be tried.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping
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
    block: Block | None = None


@dataclass
class Block:
    """Rows that are applied together, as soon as it has ended."""

    rows: list[int] = field(default_factory=list)
    ended: bool = False


class Painting:
    def __init__(
        self,
        positions: Mapping[str, Position],
        *,
        order: str = "source",
        unguaranteed: Collection[str] = (),
        blocks: bool = False,
    ) -> None:
        """`positions` is the vector that the warehouse reflects at the start; views in `unguaranteed` promise nothing;
        with `blocks` rows are applied block by block."""
        self._rows: dict[int, Row] = {}
        self._by_source: dict[str, deque[Rel]] = defaultdict(deque)
        """By source, its rows in order, from the first that has not been applied."""
        self._last_of_view: dict[str, int] = {}
        self._last_painted: dict[str, int] = {}
        self._arrived = 0
        self._early: dict[int, list[ActionList]] = defaultdict(list)
        self._positions = dict(positions)
        self._as_of: dict[str, datetime] = {}
        self._barrier: int | None = None
        self._by_view = order == "views"
        self._block = Block() if blocks else None
        self._unguaranteed = frozenset(unguaranteed)
        self._passed: dict[int, Rel] = {}
        """What views that pass through have been told of and have not covered yet."""
        self._ahead: dict[str, dict[str, Position]] = {}
        self._parts: dict[str, dict[str, int]] = defaultdict(dict)
        """By global transaction and source, the row of its part."""

    def receive(self, message: Rel | ActionList) -> list[WarehouseTransaction]:
        if isinstance(message, Rel):
            self._allocate(message)
            for actions in self._early.pop(message.number, ()):
                self._paint(actions)
        elif message.view in self._unguaranteed:
            return [self._pass(message)]
        elif message.number in self._rows:
            self._paint(message)
        else:
            self._early[message.number].append(message)
            return []
        return self._apply()

    def stop_at(self, number: int) -> None:
        """Apply no row after this one until `go_on`: so a commit is made to stand at an exact vector."""
        self._barrier = number

    def _stopped_before(self, number: int) -> bool:
        return self._barrier is not None and number > self._barrier

    def end_block(self) -> list[WarehouseTransaction]:
        """What has arrived since the last block is one."""
        if self._block is None:
            return []
        self._block.ended = True
        self._block = Block()
        return self._apply()

    def go_on(self) -> list[WarehouseTransaction]:
        self._barrier = None
        return self._apply()

    @property
    def size(self) -> int:
        return len(self._rows)

    @property
    def unended(self) -> int:
        """How many rows are in a block that has not ended."""
        return 0 if self._block is None else len(self._block.rows)

    def waiting_for(self, view: str) -> int:
        """How many rows wait for this view's action lists."""
        return sum(view in row.white for row in list(self._rows.values()))

    def holds(self, number: int) -> bool:
        """Whether this row has not been applied."""
        return number in self._rows

    def open_through(self, number: int, views: Collection[str] | None = None) -> bool:
        """Whether a row up to this one, which concerns one of these views, has not been applied."""
        for each, row in self._rows.items():  # in the order of their numbers
            if each > number:
                return False
            if views is None or not row.rel.views.isdisjoint(views):
                return True
        return False

    def oldest(self) -> tuple[int, tuple[str, ...]] | None:
        """The first row of the table and the views it waits for."""
        if not self._rows:
            return None
        number = min(self._rows)
        return number, tuple(sorted(self._rows[number].white))

    def missing_parts(self) -> dict[str, frozenset[str]]:
        """By global transaction, the sources whose parts rows wait for."""
        if not self._parts:
            return {}
        parts = {part.id: part for row in self._rows.values() for part in row.rel.info.part_of}
        wanted = {name: part.participants & set(self._positions) for name, part in parts.items()}
        return {name: missing for name in wanted if (missing := wanted[name] - set(self._parts[name]))}

    def colours(self) -> dict[int, dict[str, tuple[str, int]]]:
        """The table: by row and view the colour, `w` or `r`, and the state; what is black is left out."""
        return {
            number: {**dict.fromkeys(row.white, ("w", 0)), **{v: ("r", state) for v, state in row.red.items()}}
            for number, row in sorted(self._rows.items())
        }

    def _allocate(self, rel: Rel) -> None:
        views = rel.views - self._unguaranteed
        if rel.views & self._unguaranteed:
            self._passed[rel.number] = rel
        row = Row(rel, set(views), block=self._block)
        if self._block is not None:
            self._block.rows.append(rel.number)
        queue = self._by_source[rel.info.source]
        if queue and not self._by_view:
            row.earlier.add(queue[-1].number)
        row.earlier |= {self._last_of_view[v] for v in views if self._last_of_view.get(v) in self._rows}
        queue.append(rel)
        self._last_of_view.update(dict.fromkeys(views, rel.number))
        self._rows[rel.number] = row
        for part in rel.info.part_of:
            self._parts[part.id][rel.info.source] = rel.number

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

    def _pass(self, actions: ActionList) -> WarehouseTransaction:
        """Straight to the warehouse. The view is where the last update is that it has covered."""
        where = self._ahead.setdefault(actions.view, {})
        for number in actions.covers:
            rel = self._passed[number]
            source, position = rel.info.source, rel.info.position
            where[source] = max(where.get(source, position), position, key=lambda p: p.order)
            if not any(view in self._unguaranteed - {actions.view} for view in rel.views):
                del self._passed[number]
        return WarehouseTransaction((), (actions,), dict(self._positions), {}, self._all_ahead())

    def _all_ahead(self) -> dict[str, dict[str, Position]]:
        """Of every view that reflects more than all do: a commit says it of those too that it does not change."""
        return {view: dict(where) for view, where in self._ahead.items()}

    def _apply(self) -> list[WarehouseTransaction]:
        applied: list[WarehouseTransaction] = []
        progress = True
        while progress:
            progress = False
            for candidate in self._candidates():
                closure = self.closure(candidate)
                if closure is not None:
                    applied.append(self._take(closure))
                    progress = True
                    break
        return applied

    def _candidates(self) -> list[int]:
        if self._by_view:
            return sorted(number for number, row in self._rows.items() if not row.white)
        return sorted(queue[0].number for queue in self._by_source.values() if queue)

    def closure(self, number: int) -> list[int] | None:
        """The rows that must be applied together with this one, or None if one of them waits for an action list."""
        closure: set[int] = set()
        todo = [number]
        while todo:
            current = todo.pop()
            if current in closure or current not in self._rows:
                continue
            row = self._rows[current]
            if row.white or self._stopped_before(current):
                return None
            if row.block is not None:
                if not row.block.ended:
                    return None
                todo += row.block.rows
            closure.add(current)
            todo += row.earlier
            todo += row.red.values()
            for part in row.rel.info.part_of:
                here = self._parts[part.id]
                if not part.participants & set(self._positions) <= set(here):
                    return None
                todo += here.values()
        return sorted(closure)

    def _take(self, closure: list[int]) -> WarehouseTransaction:
        taken = [self._rows.pop(number) for number in closure]
        for row in taken:
            for part in row.rel.info.part_of:
                self._parts.pop(part.id, None)
        for source in {row.rel.info.source for row in taken}:
            self._move(source)
        views = {view for row in taken for view in row.red}
        for view in views if self._by_view else ():
            self._look_ahead(view)
        actions = sorted((entry for row in taken for entry in row.actions), key=lambda entry: entry[0])
        in_order = tuple(action for _, action in actions)
        return WarehouseTransaction(
            tuple(closure), in_order, dict(self._positions), dict(self._as_of), self._all_ahead()
        )

    def _move(self, source: str) -> None:
        """The warehouse reflects a source up to the first row that has not been applied."""
        queue = self._by_source[source]
        while queue and queue[0].number not in self._rows:
            rel = queue.popleft()
            self._positions[source] = rel.info.position
            if rel.info.committed_at is not None:
                self._as_of[source] = rel.info.committed_at

    def _look_ahead(self, view: str) -> None:
        """A view reflects a source up to the first row that concerns it and has not been applied."""
        where = self._ahead.setdefault(view, {})
        for source, queue in self._by_source.items():
            for rel in queue:
                if rel.number in self._rows and (view in rel.views or self._stopped_before(rel.number)):
                    break
                where[source] = rel.info.position
