"""What a manager has received and not yet taken up, and in which portions it may: by number, by block, by transaction.

Updates are kept by their source, in its order; the inbox may have held some back while later ones of other sources
came. A *cut* of the integrator ends a block. A *unit* is what has to be taken up together: an update, or all parts of a
global transaction, with everything before it at its sources. So what is taken is the first of every queue, and costs
the same however many wait behind it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from heapq import merge
from itertools import chain

from strobe.messages import Cut, GlobalTransaction, Seen, Update


class _Queue:
    """The updates of one source, in order."""

    def __init__(self) -> None:
        self._updates: list[Update] = []
        self._start = 0
        """Where the first one is that has not been taken."""

    def __len__(self) -> int:
        return len(self._updates) - self._start

    def __iter__(self) -> Iterator[Update]:
        for place in range(self._start, len(self._updates)):
            yield self._updates[place]

    @property
    def first(self) -> Update:
        return self._updates[self._start]

    def add(self, update: Update) -> None:
        self._updates.append(update)

    def take(self, update: Update) -> None:
        """The first one costs nothing: the room of those that were taken is made free when they are half."""
        if update.number != self.first.number:
            del self._updates[bisect_left(self._updates, update.number, lo=self._start, key=_number)]
            return
        self._start += 1
        if 2 * self._start > len(self._updates):
            del self._updates[: self._start]
            self._start = 0

    def through(self, update: Update) -> Iterator[Update]:
        """From this one backwards, to the first."""
        place = bisect_left(self._updates, update.number, lo=self._start, key=_number)
        for earlier in range(place, self._start - 1, -1):
            yield self._updates[earlier]


class Received:
    def __init__(self, sources: Collection[str]) -> None:
        """`sources` are those of the view: parts of a global transaction elsewhere never come here."""
        self._sources = frozenset(sources)
        self._queues: dict[str, _Queue] = defaultdict(_Queue)
        self._parts: dict[GlobalTransaction, dict[str, Update]] = defaultdict(dict)
        self._cuts: deque[int] = deque()

    def __iter__(self) -> Iterator[Update]:
        """In the order of their numbers."""
        return merge(*self._queues.values(), key=_number)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def first(self) -> Update | None:
        """The one with the lowest number."""
        return min(self._firsts(), key=_number, default=None)

    def _firsts(self) -> list[Update]:
        return [queue.first for queue in self._queues.values() if queue]

    def add(self, message: Update | Cut) -> None:
        if isinstance(message, Cut):
            self._cuts.append(message.number)
            return
        self._queues[message.source].add(message)
        for part in message.transaction.part_of:
            self._parts[part][message.source] = message

    @property
    def cut(self) -> int | None:
        """The number at which the block at work ends."""
        return self._cuts[0] if self._cuts else None

    def next_block(self) -> None:
        """Forget cuts before which nothing is left."""
        first = self.first
        while self._cuts and (first is None or first.number > self._cuts[0]):
            self._cuts.popleft()

    def forget_cut(self) -> None:
        self._cuts.popleft()

    def take(self, unit: Collection[Update]) -> None:
        """Take these up."""
        for update in unit:
            self._queues[update.source].take(update)
            for part in update.transaction.part_of:
                here = self._parts[part]
                if here.get(update.source) is update:
                    del here[update.source]
                if not here:
                    del self._parts[part]

    def unit(self, limit: int | None = None) -> list[Update]:
        """The next unit: the smallest that is whole and holds everything before it at its sources.

        With a limit, one that begins at or before it. What a source's first update is tied to, its later ones are tied
        to as well: only the first ones need to be tried.
        """
        firsts = sorted((u for u in self._firsts() if limit is None or u.number <= limit), key=_number)
        alone = next((u for u in firsts if not u.transaction.part_of), None)
        if alone is not None:
            return [alone]
        found = [unit for u in firsts if (unit := self.closure(u))]
        return min(found, key=lambda unit: (len(unit), unit[0].number), default=[])

    def units(self, most: int) -> list[list[Update]]:
        """The next units, so many at the most, taken up."""
        found: list[list[Update]] = []
        while len(found) < most and (unit := self.unit()):
            self.take(unit)
            found.append(unit)
        return found

    def block(self) -> list[list[Update]]:
        """The updates up to the next cut that has any, taken up as one unit; none if there is no such cut."""
        self.next_block()
        found: list[Update] = []
        while self.cut is not None and (unit := self.unit(self.cut)):
            self.take(unit)
            found += unit
        return [sorted(found, key=_number)] if found else []

    def seen(self, source: str, seen: Seen) -> list[Update]:
        """What came until a snapshot of a source was taken, in whole units, and not beyond the next block's cut.

        Also of other sources: what is taken up together has no gaps, or it could not be merged with other views'.
        """
        limit = self._cuts[1] if len(self._cuts) > 1 else None
        last = 0
        queue = iter(self._queues[source])
        for update in queue:
            if limit is not None and update.number > limit:
                last = limit if any(seen.saw(u.transaction) for u in chain([update], queue)) else last
                break
            last = update.number if seen.saw(update.transaction) else last
        found: dict[int, Update] = {}
        torn: set[str] = set()
        for update in self:
            if update.number > last:
                break
            if update.number not in found and update.source not in torn:
                unit = self.closure(update) if update.transaction.part_of else [update]
                found.update((u.number, u) for u in unit)
                torn |= set() if unit else {update.source}
        return sorted(found.values(), key=_number)

    def closure(self, first: Update) -> list[Update]:
        """An update, those before it at its source, and all parts of their transactions; none if one is missing."""
        unit: dict[int, Update] = {}
        todo = [first]
        while todo:
            for update in self._queues[todo[-1].source].through(todo.pop()):
                if update.number in unit:
                    break
                unit[update.number] = update
                for part in update.transaction.part_of:
                    here = self._parts.get(part, {})
                    if not part.participants & self._sources <= set(here):
                        return []
                    todo += here.values()
        return sorted(unit.values(), key=_number)


def _number(update: Update) -> int:
    return update.number
