"""Several merges (multiple view consistency, 6.1): views that share no source need not wait for each other.

Views are partitioned by the sources that they share, directly or through others, and each group has a view-update
table of its own. The paper partitions by relations; but with `order: source` every commit is one prefix of a source
for all its views, and a transaction may change several relations of one source, so a source is what must stay whole.
Sources that take part in global transactions together belong together too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from strobe.algebra.view import View
from strobe.merge.painting import Painting
from strobe.messages import ActionList, Position, Rel, WarehouseTransaction


def partition(views: Mapping[str, View], together: Iterable[Collection[str]] = ()) -> list[frozenset[str]]:
    """The names of the views, in groups that share no source; `together` are sources that must be in one group."""
    return groups({name: view.sources for name, view in views.items()}, together)


def groups(sources: Mapping[str, Collection[str]], together: Iterable[Collection[str]] = ()) -> list[frozenset[str]]:
    """The same, from the sources of each view."""
    found: list[tuple[set[str], set[str]]] = [(set(), set(tied)) for tied in together]
    for name, of in sources.items():
        names, shared = {name}, set(of)
        for group in [g for g in found if g[1] & shared]:
            found.remove(group)
            names |= group[0]
            shared |= group[1]
        found.append((names, shared))
    return sorted((frozenset(names) for names, _ in found if names), key=sorted)


class Group:
    """Views that share sources, their merge, and where their last block ended."""

    def __init__(self, views: Mapping[str, View], merge: Painting, pace: int = 0) -> None:
        self.views = frozenset(views)
        self.sources = frozenset(source for view in views.values() for source in view.sources)
        self.merge = merge
        self.pace = pace
        """After how many rows a block ends (complete-N); 0 where it ends whenever it suits."""
        self._rows = 0
        self.arrived = 0
        """The number of the last row."""
        self.cut = 0
        """The number at which the last block ended."""

    @property
    def uncut(self) -> bool:
        """Whether anything has arrived since the last cut."""
        return self.arrived > self.cut

    @property
    def full(self) -> bool:
        """Whether a block of complete-N has its N rows."""
        return self.pace > 0 and self._rows >= self.pace

    def arrive(self, rel: Rel) -> list[WarehouseTransaction]:
        self.arrived = rel.number
        self._rows += 1
        return self.merge.receive(rel)

    def end_block(self) -> list[WarehouseTransaction]:
        self.cut, self._rows = self.arrived, 0
        return self.merge.end_block()

    @property
    def block_open(self) -> bool:
        oldest = self.merge.oldest()
        return oldest is not None and oldest[0] <= self.cut


class Merges:
    """All groups, behind the interface of one merge."""

    def __init__(
        self,
        views: Mapping[str, View],
        positions: Mapping[str, Position],
        *,
        order: str = "source",
        passing: Collection[str] = (),
        together: Iterable[Collection[str]] = (),
        pace: Mapping[str, int] | None = None,
    ) -> None:
        """`pace` is N of complete-N views. Where views of one group differ, blocks end at every common divisor."""
        self.groups = []
        for names in partition(views, together):
            members = {name: views[name] for name in names}
            sources = {source for view in members.values() for source in view.sources}
            vector = {source: position for source, position in positions.items() if source in sources}
            every = math.gcd(*((pace or {}).get(name, 0) for name in names))
            merge = Painting(vector, order=order, passing=names & frozenset(passing), blocks=every > 0)
            self.groups.append(Group(members, merge, every))

    def receive(self, message: Rel | ActionList) -> list[WarehouseTransaction]:
        found: list[WarehouseTransaction] = []
        for group in self.groups:
            if isinstance(message, Rel) and message.source in group.sources:
                found += group.arrive(message)
            elif isinstance(message, ActionList) and message.view in group.views:
                found += group.merge.receive(message)
        return found

    def stop_at(self, number: int) -> None:
        for group in self.groups:
            group.merge.stop_at(number)

    def go_on(self) -> list[WarehouseTransaction]:
        return [transaction for group in self.groups for transaction in group.merge.go_on()]

    @property
    def size(self) -> int:
        return sum(group.merge.size for group in self.groups)

    def waiting_for(self, view: str) -> int:
        """How many rows wait for this view's action lists."""
        return sum(group.merge.waiting_for(view) for group in self.groups)

    def oldest(self) -> tuple[int, tuple[str, ...]] | None:
        """The first row of all tables and the views it waits for."""
        found = [oldest for group in self.groups if (oldest := group.merge.oldest()) is not None]
        return min(found, default=None)

    def missing_parts(self) -> dict[str, frozenset[str]]:
        """By global transaction, the sources whose parts rows wait for."""
        found: dict[str, frozenset[str]] = {}
        for group in self.groups:
            for name, missing in group.merge.missing_parts().items():
                found[name] = found.get(name, frozenset()) | missing
        return found
