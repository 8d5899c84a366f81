"""What action lists take out of a view by key, or altogether: which row goes at which commit.

A removal meets the view as it is: the rows that are stored, and those that earlier commits of the same append brought.
Either go at the first commit from there on whose removal meets them. So the commits of an append are walked backwards,
and what is kept on the way is, for every key, the first commit that removes it. The rows that a commit brings are
looked up in it, and taken back in the commit at which they go. What it holds in the end is true of the stored rows,
which only Spark can see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from strobe.algebra.bag import Bag, Row
from strobe.algebra.bounds import Bound
from strobe.algebra.relation import Relation
from strobe.algebra.view import View
from strobe.errors import BrokenInvariant
from strobe.messages import ActionList, BoundDelete, Fragment, KeyDelete, Removal


def combined(actions: Iterable[ActionList]) -> tuple[dict[str, Removal], dict[str, Relation]]:
    """The action lists of one commit, in order, as one for each view: what goes, and what is then added."""
    removals: dict[str, Removal] = {}
    changes: dict[str, Relation] = {}
    for action in actions:
        removal = Removal(tuple(d for d in action.deletes if not d.empty), action.replaces)
        before = changes.get(action.view)
        changes[action.view] = action.delta if before is None else removal.rest(before).plus(action.delta)
        removals[action.view] = removals.get(action.view, Removal()).then(removal)
    return (
        {view: removal for view, removal in removals.items() if not removal.empty},
        {view: change for view, change in changes.items() if not change.known_empty},
    )


def fragments(actions: Iterable[ActionList]) -> dict[str, tuple[Fragment, ...]]:
    """Those of each view, one after another."""
    found: dict[str, tuple[Fragment, ...]] = {}
    for action in actions:
        if action.fragments:
            found[action.view] = (*found.get(action.view, ()), *action.fragments)
    return found


@dataclass
class First:
    """For rows that are in a view before certain commits: the first of these at which each goes."""

    view: View
    everything: int | None = None
    """The commit at which all go that have not gone before."""
    keys: dict[int, dict[Row, int]] = field(default_factory=dict)
    """By occurrence, for each key (as `key_attributes` orders it) the first commit that removes it."""
    large: list[tuple[int, KeyDelete]] = field(default_factory=list)
    """Keys that are not in memory, each with the commit that removes them."""
    bounds: list[tuple[int, Bound]] = field(default_factory=list)
    """Bounds over attributes of the view, each with the commit that removes what is in it."""

    @property
    def never(self) -> bool:
        return self.everything is None and not self.keys and not self.large and not self.bounds

    @property
    def occurrences(self) -> tuple[int, ...]:
        """Those by whose keys rows go."""
        return tuple(dict.fromkeys([*self.keys, *(delete.occurrence for _, delete in self.large)]))

    def key_attributes(self, occurrence: int) -> tuple[str, ...]:
        return tuple(self.view.key_of(self.view.occurrences[occurrence]))

    def precede(self, number: int, removal: Removal) -> None:
        """Put the removal of a commit before all that are here."""
        if removal.everything:
            self.everything, self.keys, self.large, self.bounds = number, {}, [], []
            return
        for delete in removal.deletes:
            if isinstance(delete, BoundDelete):
                if not all(map(self.view.shown_as, delete.bound.columns)):
                    raise BrokenInvariant(
                        "rows go by a bound that the view does not show", where=f"view {self.view.name}"
                    )
                self.bounds.append((number, delete.bound))
                continue
            names = self.key_attributes(delete.occurrence)
            if not names or set(names) != set(delete.keys.attributes):
                raise BrokenInvariant(
                    f"rows go by {', '.join(delete.keys.attributes)}, which is no key that the view shows",
                    where=f"view {self.view.name}",
                )
            keys = delete.keys.project(names)
            if isinstance(keys, Bag):
                found = self.keys.setdefault(delete.occurrence, {})
                found.update((key, number) for key, _ in keys.items())
            else:
                self.large.append((number, KeyDelete(delete.occurrence, keys)))

    def of(self, rows: Bag) -> Iterable[tuple[int, Row, int]]:
        """Commit, row and count of those that go. Only if all keys are in memory."""
        places = {
            occurrence: [rows.attributes.index(a) for a in self.key_attributes(occurrence)] for occurrence in self.keys
        }
        tests = [(number, bound.test(rows.attributes)) for number, bound in self.bounds]
        for row, count in rows.items():
            at: list[int | None] = [number for number, inside in tests if inside(row)]
            at += [found.get(tuple(row[i] for i in places[occurrence])) for occurrence, found in self.keys.items()]
            first = min((number for number in (*at, self.everything) if number is not None), default=None)
            if first is not None:
                yield first, row, count

    def copy(self) -> First:
        keys = {occurrence: dict(found) for occurrence, found in self.keys.items()}
        return First(self.view, self.everything, keys, list(self.large), list(self.bounds))


@dataclass(frozen=True)
class Resolved:
    """The commits of an append, for one view."""

    changes: list[tuple[int, Relation]]
    """What each brings, and takes back of what those before it brought."""
    leaving: list[tuple[Relation, First]]
    """Rows, already among `changes`, that are to be taken back where `First` says."""
    stored: First
    """Where the rows go that the view held before."""


def resolve(view: View, removals: Mapping[int, Removal], changes: Mapping[int, Relation]) -> Resolved:
    """Decide what goes when, given by the numbers of the commits of one append."""
    first = First(view)
    small: dict[int, dict[Row, int]] = defaultdict(lambda: defaultdict(int))
    large: list[tuple[int, Relation]] = []
    leaving: list[tuple[Relation, First]] = []
    for number in sorted({*removals, *changes}, reverse=True):
        change = changes.get(number)
        if isinstance(change, Bag) and not first.large:
            rows = change.project(view.attributes)
            for row, count in rows.items():
                small[number][row] += count
            for gone, row, count in first.of(rows):
                small[gone][row] -= count
        elif change is not None:
            large.append((number, change))
            if not first.never:
                leaving.append((change, first.copy()))
        if number in removals:
            first.precede(number, removals[number])
    bags = [(number, Bag(view.attributes, rows)) for number, rows in sorted(small.items())]
    return Resolved([(number, bag) for number, bag in bags if not bag.known_empty] + large, leaving, first)
