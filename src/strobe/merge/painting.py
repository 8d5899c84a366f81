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
Algorithm (4.2). It is prompt: whenever a message arrives, everything that can be applied is. Only a row that it
changed, or one that follows such a row, can have become applicable, so only these are tried. With `order: source` an
applicable set of rows always holds the first row of some source, and these suffice.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heappop, heappush

from strobe.errors import BrokenInvariant
from strobe.messages import ActionList, Position, Rel, WarehouseTransaction


@dataclass(slots=True)
class Row:
    """A row of the view-update table: white entries, red entries with their states, and the action lists that end
    here."""

    rel: Rel
    white: set[str]
    red: dict[str, int] = field(default_factory=dict)
    actions: list[tuple[int, ActionList]] = field(default_factory=list)
    """Each with its place in the order of arrival."""
    earlier: list[int] = field(default_factory=list)
    """The previous row of the source and of each view, and the row of a view's previous action list: closures follow
    these."""
    before: Position | None = None
    """The source's position before it."""
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
        self._first = 1
        """No row before this one is here."""
        self._of_view: dict[str, dict[str, deque[int]]] = defaultdict(lambda: defaultdict(deque))
        """By view and source, the rows that concern it, from the first that has not been applied."""
        self._later: dict[int, list[int]] = defaultdict(list)
        """By row, those of which it is an earlier one, with the order of views."""
        self._last: dict[str, Position] = {}
        """By source, the position of its last row."""
        self._reached: dict[str, Position] = {}
        """The same, of those that may be applied."""
        self._white: dict[str, int] = defaultdict(int)
        """How many rows wait for each view's action lists."""
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
        self._participants: dict[str, frozenset[str]] = {}
        """By global transaction of which a part is here, the sources that take part."""

    def receive(self, message: Rel | ActionList) -> list[WarehouseTransaction]:
        changed: Sequence[int]
        if isinstance(message, Rel):
            changed = self._allocate(message)
        elif message.view in self._unguaranteed:
            return [self._pass(message)]
        elif message.number in self._rows:
            self._paint(message)
            changed = message.covers
        else:
            self._early[message.number].append(message)
            return []
        return self._apply(changed) if changed else []

    def stop_at(self, number: int) -> None:
        """Apply no row after this one until `go_on`: so a commit is made to stand at an exact vector."""
        self._barrier = number
        for source, queue in self._by_source.items():
            within = [rel.info.position for rel in queue if rel.number <= number]
            self._reached[source] = within[-1] if within else self._positions[source]

    def _stopped_before(self, number: int) -> bool:
        return self._barrier is not None and number > self._barrier

    def end_block(self) -> list[WarehouseTransaction]:
        """What has arrived since the last block is one."""
        if self._block is None:
            return []
        ended, self._block = self._block, Block()
        ended.ended = True
        return self._apply(ended.rows)

    def go_on(self) -> list[WarehouseTransaction]:
        self._barrier = None
        self._reached.update(self._last)
        return self._apply(list(self._rows))

    @property
    def size(self) -> int:
        return len(self._rows)

    @property
    def unended(self) -> int:
        """How many rows are in a block that has not ended."""
        return 0 if self._block is None else len(self._block.rows)

    def waiting_for(self, view: str) -> int:
        """How many rows wait for this view's action lists."""
        return self._white[view]

    def holds(self, number: int) -> bool:
        """Whether this row has not been applied."""
        return number in self._rows

    def open_through(self, number: int, views: Collection[str] | None = None) -> bool:
        """Whether a row up to this one, which concerns one of these views, has not been applied."""
        if views is None:
            first = self._first_row()
            return first is not None and first <= number
        firsts = (self._first_of(view, source) for view in views for source in self._of_view[view])
        return any(first is not None and first <= number for first in firsts)

    def _first_row(self) -> int | None:
        if not self._rows:
            return None
        while self._first not in self._rows:
            self._first += 1
        return self._first

    def _first_of(self, view: str, source: str) -> int | None:
        """The first row of a source that concerns a view and has not been applied."""
        rows = self._of_view[view][source]
        while rows and rows[0] not in self._rows:
            rows.popleft()
        return rows[0] if rows else None

    def oldest(self) -> tuple[int, tuple[str, ...]] | None:
        """The first row of the table and the views it waits for."""
        number = self._first_row()
        return None if number is None else (number, tuple(sorted(self._rows[number].white)))

    def missing_parts(self) -> dict[str, frozenset[str]]:
        """By global transaction, the sources whose parts rows wait for."""
        wanted = {name: self._participants[name] & set(self._positions) for name in self._parts}
        return {name: missing for name in wanted if (missing := wanted[name] - set(self._parts[name]))}

    def colours(self) -> dict[int, dict[str, tuple[str, int]]]:
        """The table: by row and view the colour, `w` or `r`, and the state; what is black is left out."""
        return {
            number: {**dict.fromkeys(row.white, ("w", 0)), **{v: ("r", state) for v, state in row.red.items()}}
            for number, row in sorted(self._rows.items())
        }

    def _allocate(self, rel: Rel) -> list[int]:
        """A row for it; returns those that this has changed, as far as anything can be applied by that."""
        views = rel.views - self._unguaranteed
        if rel.views & self._unguaranteed:
            self._passed[rel.number] = rel
        source = rel.info.source
        row = Row(rel, set(views), before=self._last.get(source), block=self._block)
        if self._block is not None:
            self._block.rows.append(rel.number)
        queue = self._by_source[source]
        before = {queue[-1].number} if queue and not self._by_view else set()
        before |= {rows[-1] for view in views for rows in self._of_view[view].values() if rows}
        self._rows[rel.number] = row
        for number in before:
            self._follow(rel.number, number)
        for view in rel.views:
            self._of_view[view][source].append(rel.number)
        for view in views:
            self._white[view] += 1
        queue.append(rel)
        self._last[source] = rel.info.position
        if not self._stopped_before(rel.number):
            self._reached[source] = rel.info.position
        for part in rel.info.part_of:
            self._parts[part.id][source] = rel.number
            self._participants[part.id] = part.participants
        early = self._early.pop(rel.number, [])
        for actions in early:
            self._paint(actions)
        changed = [number for actions in early for number in actions.covers]
        return [*changed, rel.number] if changed or rel.info.part_of or not row.earlier else []

    def _follow(self, number: int, before: int) -> None:
        """A row is applied after another one, or together with it."""
        if before in self._rows and before != number:
            self._rows[number].earlier.append(before)
            if self._by_view:
                self._later[before].append(number)

    def _paint(self, actions: ActionList) -> None:
        for number in actions.covers:
            row = self._rows.get(number)
            if row is None or actions.view not in row.white:
                raise BrokenInvariant(
                    f"an action list covers update {number}, which does not wait for it", where=f"view {actions.view}"
                )
            row.white.remove(actions.view)
            self._white[actions.view] -= 1
            row.red[actions.view] = actions.number
        row = self._rows[actions.number]
        before = self._last_painted.get(actions.view)
        if before is not None:
            self._follow(actions.number, before)  # a view's action lists are applied in the order in which they came
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

    def _apply(self, changed: Iterable[int]) -> list[WarehouseTransaction]:
        """Everything that can be applied since these rows have changed."""
        applied: list[WarehouseTransaction] = []
        candidates = self._candidates(changed)
        while candidates:
            candidate = heappop(candidates)
            closure = self.closure(candidate) if candidate in self._rows else None
            if closure is not None:
                sources = {self._rows[number].rel.info.source for number in closure}
                follow = [later for number in closure for later in self._later.pop(number, ())]
                applied.append(self._take(closure))
                for number in self._candidates(follow, sources):
                    heappush(candidates, number)
        return applied

    def _candidates(self, changed: Iterable[int], sources: Collection[str] | None = None) -> list[int]:
        """What can be applied if these rows have changed, or since the ones before them, of these sources, are gone."""
        if self._by_view:
            return sorted({number for number in changed if number in self._rows})
        queues = self._by_source.values() if sources is None else [self._by_source[source] for source in sources]
        return sorted(queue[0].number for queue in queues if queue)

    def closure(self, number: int) -> list[int] | None:
        """The rows that must be applied together with this one, or None if one of them waits for an action list."""
        closure: set[int] = set()
        blocks: list[Block] = []
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
                if not any(row.block is block for block in blocks):
                    blocks.append(row.block)
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
                self._participants.pop(part.id, None)
        for source in {row.rel.info.source for row in taken}:
            self._move(source)
        for view, source in {(view, row.rel.info.source) for row in taken for view in row.rel.views}:
            self._first_of(view, source)
        for view in {view for row in taken for view in row.red} if self._by_view else ():
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
        for source, reached in self._reached.items():
            first = self._first_of(view, source)
            at = reached if first is None or self._stopped_before(first) else self._rows[first].before
            if at is not None:
                where[source] = at
