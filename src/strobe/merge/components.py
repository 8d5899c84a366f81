"""Which views of a group have their cuts in common.

Strong managers' action lists end at cuts, and lists of two views that cover one row must end at the same one: otherwise
they overlap in a chain that never closes. With `order: source` all rows of a source are tied, and so a group has one
component. With `order: views` only the rows that share a view are: views that share a relation are one component, and
have cuts of their own. A transaction that concerns several components, and a global one whose parts do, ties these
until it has been applied; then each goes its own way again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from strobe.algebra.view import View
from strobe.messages import Rel

T = TypeVar("T", str, int)


def connected(uses: Mapping[T, Collection[str]], together: Iterable[Collection[str]] = ()) -> list[frozenset[T]]:
    """Those that use something in common, directly or through others; `together` are things that count as one."""
    found: list[tuple[set[T], set[str]]] = [(set(), set(tied)) for tied in together]
    for name, used in uses.items():
        names, shared = {name}, set(used)
        for other in [each for each in found if each[1] & shared]:
            found.remove(other)
            names |= other[0]
            shared |= other[1]
        found.append((names, shared))
    return sorted((frozenset(names) for names, _ in found if names), key=sorted)


class Component:
    """Views whose blocks end together, the last row for them, and where their last block ended."""

    def __init__(self, views: Collection[str]) -> None:
        self.views = frozenset(views)
        self.arrived = 0
        self.cut = 0

    @property
    def uncut(self) -> bool:
        """Whether anything has arrived since the last cut."""
        return self.arrived > self.cut


def components(views: Mapping[str, View]) -> tuple[Component, ...]:
    """The views of a group, in components that share no relation."""
    used = {name: [relation.id for relation in view.relations] for name, view in views.items()}
    return tuple(Component(found) for found in connected(used))


@dataclass
class _Tie:
    rows: set[int]
    global_ids: set[str]
    views: set[str]


class Ties:
    """Components that are tied by rows which wait."""

    def __init__(self, of: Collection[Component]) -> None:
        self._components = tuple(of)
        self._ties: list[_Tie] = []

    def arrive(self, rel: Rel) -> None:
        if len(self._components) == 1:
            self._components[0].arrived = rel.number
            return
        concerned = {component for component in self._components if not component.views.isdisjoint(rel.views)}
        for component in concerned:
            component.arrived = rel.number
        ids = {part.id for part in rel.part_of}
        tie = next((tie for tie in self._ties if tie.global_ids & ids), None)
        if tie is not None:
            tie.rows.add(rel.number)
            tie.global_ids |= ids
            tie.views |= rel.views
        elif len(concerned) > 1 or ids:
            self._ties.append(_Tie({rel.number}, ids, set(rel.views)))

    def together(self, waits: Callable[[int], bool]) -> list[list[Component]]:
        """All components, those that are tied in one list; `waits` tells of a row whether it has not been applied."""
        self._ties = [tie for tie in self._ties if any(map(waits, tie.rows))]
        places = connected({i: c.views for i, c in enumerate(self._components)}, [tie.views for tie in self._ties])
        return [[self._components[i] for i in sorted(place)] for place in places]
