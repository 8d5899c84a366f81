"""What a manager has received and not yet taken up, and in which portions it may: by number, by block, by transaction.

Updates are kept by their number; the inbox may have held some back while later ones came. A *cut* of the integrator
ends a block. A *unit* is what has to be taken up together: an update, or all parts of a global transaction.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Collection, Iterator

from strobe.messages import Cut, GlobalTransaction, Seen, Update


class Received:
    def __init__(self, sources: Collection[str]) -> None:
        """`sources` are those of the view: parts of a global transaction elsewhere never come here."""
        self._sources = frozenset(sources)
        self._updates: list[Update] = []
        self._by_source: dict[str, list[Update]] = defaultdict(list)
        self._parts: dict[GlobalTransaction, dict[str, Update]] = defaultdict(dict)
        self._cuts: deque[int] = deque()

    def __iter__(self) -> Iterator[Update]:
        return iter(self._updates)

    def __len__(self) -> int:
        return len(self._updates)

    def add(self, message: Update | Cut) -> None:
        if isinstance(message, Cut):
            self._cuts.append(message.number)
            return
        insort(self._updates, message, key=_number)
        insort(self._by_source[message.source], message, key=_number)
        for part in message.transaction.part_of:
            self._parts[part][message.source] = message

    @property
    def cut(self) -> int | None:
        """The number at which the block at work ends."""
        return self._cuts[0] if self._cuts else None

    def next_block(self) -> None:
        """Forget cuts before which nothing is left."""
        while self._cuts and not any(u.number <= self._cuts[0] for u in self._updates[:1]):
            self._cuts.popleft()

    def forget_cut(self) -> None:
        self._cuts.popleft()

    def take(self, unit: Collection[Update]) -> None:
        taken = {update.number for update in unit}
        self._updates = [u for u in self._updates if u.number not in taken]
        for source in {update.source for update in unit}:
            self._by_source[source] = [u for u in self._by_source[source] if u.number not in taken]
        for part in {part for update in unit for part in update.transaction.part_of}:
            self._parts[part] = {s: u for s, u in self._parts[part].items() if u.number not in taken}
            if not self._parts[part]:
                del self._parts[part]

    def unit(self, limit: int | None = None) -> list[Update]:
        """The next unit: the smallest that is whole and holds everything before it at its sources.

        With a limit, one that begins at or before it. What a source's first update is tied to, its later ones are tied
        to as well: only the first ones need to be tried.
        """
        if not self._parts:
            return [u for u in self._updates[:1] if limit is None or u.number <= limit]
        firsts = [queue[0] for queue in self._by_source.values() if queue]
        found = [unit for u in firsts if limit is None or u.number <= limit if (unit := self.closure(u))]
        return min(found, key=lambda unit: (len(unit), unit[0].number), default=[])

    def seen(self, source: str, seen: Seen) -> list[Update]:
        """What came until a snapshot of a source was taken, in whole units, and not beyond the next block's cut.

        Also of other sources: what is taken up together has no gaps, or it could not be merged with other views'.
        """
        limit = self._cuts[1] if len(self._cuts) > 1 else None
        last = max((u.number for u in self._by_source[source] if seen.saw(u.transaction)), default=0)
        found: dict[int, Update] = {}
        torn: set[str] = set()
        for update in self._updates:
            if update.number > (last if limit is None else min(last, limit)):
                break
            if update.number not in found and update.source not in torn:
                unit = self.closure(update)
                found.update((u.number, u) for u in unit)
                torn |= set() if unit else {update.source}
        return sorted(found.values(), key=_number)

    def closure(self, first: Update) -> list[Update]:
        """An update, those before it at its source, and all parts of their transactions; none if one is missing."""
        unit: dict[int, Update] = {}
        todo = [first]
        while todo:
            update = todo.pop()
            if update.number in unit:
                continue
            unit[update.number] = update
            queue = self._by_source[update.source]
            place = bisect_left(queue, update.number, key=_number)
            todo += queue[place - 1 : place] if place else []
            for part in update.transaction.part_of:
                here = self._parts.get(part, {})
                if not part.participants & self._sources <= set(here):
                    return []
                todo += here.values()
        return sorted(unit.values(), key=_number)


def _number(update: Update) -> int:
    return update.number
