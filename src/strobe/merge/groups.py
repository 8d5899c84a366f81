"""Several merges (multiple view consistency, 6.1): views that share no source need not wait for each other.

Views are partitioned by the sources that they share, directly or through others, and each group has a view-update
table of its own. The paper partitions by relations; but with `order: source` every commit is one prefix of a source
for all its views, and a transaction may change several relations of one source, so a source is what must stay whole.
Sources that take part in global transactions together belong together too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from strobe.algebra.view import View
from strobe.merge.components import Component, Ties, components, connected
from strobe.merge.painting import Painting
from strobe.messages import ActionList, Cut, Position, Rel, WarehouseTransaction


def partition(views: Mapping[str, View], together: Iterable[Collection[str]] = ()) -> list[frozenset[str]]:
    """The names of the views, in groups that share no source; `together` are sources that must be in one group."""
    return connected({name: view.sources for name, view in views.items()}, together)


class Group:
    """Views that share sources, their merge, and where their last blocks ended."""

    def __init__(self, views: Mapping[str, View], merge: Painting, pace: int = 0, *, apart: bool = False) -> None:
        """With `apart`, blocks end together only where they must: see `components`."""
        self.views = frozenset(views)
        self.sources = frozenset(source for view in views.values() for source in view.sources)
        self.merge = merge
        self.components = components(views) if apart else (Component(views),)
        self._ties = Ties(self.components)
        self.pace = pace
        """After how many rows a block ends (complete-N); 0 where it ends whenever it suits."""
        self._rows = 0
        self.arrived = 0
        """The number of the last row."""

    def together(self) -> list[list[Component]]:
        """The components, with those in one list that must have their next cut in common."""
        return self._ties.together(self.merge.holds)

    @property
    def uncut(self) -> bool:
        """Whether anything has arrived since the last cut."""
        return any(component.uncut for component in self.components)

    @property
    def full(self) -> bool:
        """Whether a block of complete-N has its N rows."""
        return self.pace > 0 and self._rows >= self.pace

    def arrive(self, rel: Rel) -> list[WarehouseTransaction]:
        self.arrived = rel.number
        self._rows += not rel.empty
        self._ties.arrive(rel)
        return self.merge.receive(rel)

    def end_block(self, ended: Sequence[Component]) -> tuple[Cut, list[WarehouseTransaction]]:
        """Cut here; with blocks of N, there is but one component."""
        self._rows = 0
        for component in ended:
            component.cut = self.arrived
        views = frozenset(view for component in ended for view in component.views)
        return Cut(self.arrived, views), self.merge.end_block()

    def block_open(self, component: Component) -> bool:
        """Whether anything of its last block has not been applied."""
        whom = None if len(self.components) == 1 else component.views
        return self.merge.open_through(component.cut, whom)


class Merges:
    """All groups, behind the interface of one merge."""

    def __init__(
        self,
        views: Mapping[str, View],
        positions: Mapping[str, Position],
        *,
        order: str = "source",
        unguaranteed: Collection[str] = (),
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
            merge = Painting(vector, order=order, unguaranteed=names & frozenset(unguaranteed), blocks=every > 0)
            self.groups.append(Group(members, merge, every, apart=order == "views" and not every))

    def receive(self, message: Rel | ActionList) -> list[WarehouseTransaction]:
        found: list[WarehouseTransaction] = []
        for group in self.groups:
            if isinstance(message, Rel) and message.source in group.sources:
                found += group.arrive(message)
            elif isinstance(message, ActionList) and message.view in group.views:
                found += group.merge.receive(message)
        return found

    def go_on(self) -> list[WarehouseTransaction]:
        return [transaction for group in self.groups for transaction in group.merge.go_on()]

    @property
    def size(self) -> int:
        return sum(group.merge.size for group in self.groups)

    @property
    def backlog(self) -> int:
        """The rows that wait for anything but the end of their block."""
        return sum(group.merge.size - group.merge.unended for group in self.groups)

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
