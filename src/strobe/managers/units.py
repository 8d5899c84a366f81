"""What a manager has received and not yet taken up, and in which portions it may: by number, by block, by transaction.

Updates are kept by their number; the inbox may have held some back while later ones came. A *cut* of the integrator
ends a block. A *unit* is what has to be taken up together: an update, or all parts of a global transaction.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection, Iterator

from strobe.messages import Cut, Seen, Update


class Received:
    def __init__(self, sources: Collection[str]) -> None:
        """`sources` are those of the view: parts of a global transaction elsewhere never come here."""
        self._sources = frozenset(sources)
        self._updates: list[Update] = []
        self._cuts: deque[int] = deque()

    def __iter__(self) -> Iterator[Update]:
        return iter(self._updates)

    def __len__(self) -> int:
        return len(self._updates)

    def add(self, message: Update | Cut) -> None:
        if isinstance(message, Cut):
            self._cuts.append(message.number)
        else:
            insort(self._updates, message, key=lambda update: update.number)

    @property
    def cut(self) -> int | None:
        """The number at which the block at work ends."""
        return self._cuts[0] if self._cuts else None

    def next_block(self) -> None:
        """Forget cuts before which nothing is left."""
        while self._cuts and not any(u.number <= self._cuts[0] for u in self._updates):
            self._cuts.popleft()

    def forget_cut(self) -> None:
        self._cuts.popleft()

    def take(self, unit: Collection[Update]) -> None:
        self._updates = [u for u in self._updates if u not in unit]

    def unit(self, limit: int | None = None) -> list[Update]:
        """The next unit: the smallest that is whole and holds everything before it at its sources.

        With a limit, one that begins at or before it.
        """
        if not any(u.transaction.part_of for u in self._updates):
            return self._updates[:1] if self._updates and (limit is None or self._updates[0].number <= limit) else []
        found = [unit for u in self._updates if limit is None or u.number <= limit if (unit := self.closure(u))]
        return min(found, key=lambda unit: (len(unit), unit[0].number), default=[])

    def seen(self, source: str, seen: Seen) -> list[Update]:
        """What came until a snapshot of a source was taken, in whole units, and not beyond the next block's cut.

        Also of other sources: what is taken up together has no gaps, or it could not be merged with other views'.
        """
        limit = self._cuts[1] if len(self._cuts) > 1 else None
        last = max((u.number for u in self._updates if u.source == source and seen.saw(u.transaction)), default=0)
        found: list[Update] = []
        for update in self._updates:
            if update.number <= (last if limit is None else min(last, limit)):
                found += [u for u in self.closure(update) if u not in found]
        return sorted(found, key=lambda u: u.number)

    def closure(self, first: Update) -> list[Update]:
        """An update, those before it at its source, and all parts of their transactions; none if one is missing."""
        unit: list[Update] = []
        todo = [first]
        while todo:
            update = todo.pop()
            if update in unit:
                continue
            unit.append(update)
            todo += [u for u in self._updates if u.source == update.source and u.number < update.number]
            for part in update.transaction.part_of:
                here = {u.source: u for u in self._updates if part in u.transaction.part_of}
                if not part.participants & self._sources <= set(here):
                    return []
                todo += here.values()
        return sorted(unit, key=lambda u: u.number)
