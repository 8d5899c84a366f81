"""The engine: integrator, blocks and merge of all views, wired together.

    transactions, action lists ──▶ engine ──▶ updates, progress and cuts for views; transactions for the warehouse

A message in, effects out, and the time is an argument: no clock, no thread. Whoever drives it, the live pipeline or the
simulator, carries out the effects in the order in which they come.

There is one for all groups of views: the integrator gives all transactions one order, and only who sees all groups can
tell that a global transaction ties two of them. Groups share nothing else (see `merge.groups`): each has blocks and a
view-update table of its own, and nobody waits for another group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from strobe.algebra.view import View
from strobe.engine.halves import Half
from strobe.integrator.blocks import GATHER, Blocks, Component, Sizes
from strobe.integrator.integrator import Integrator
from strobe.merge.groups import partition
from strobe.merge.painting import Painting
from strobe.messages import ActionList, Cut, Immutable, Position, Rel, Transaction, Update, WarehouseTransaction


@dataclass(frozen=True)
class Promise:
    """What is promised of a view: its level, how many seconds its changes may wait to share a commit, N where it is
    complete-N, and whether its manager takes up updates before their block has ended."""

    level: str = "strong"
    freshness: float = 0.0
    pace: int = 0
    eager: bool = False


@dataclass(frozen=True)
class Progress(Immutable):
    """The source's stream has been read up to here, relevant or not."""

    source: str
    position: Position


@dataclass(frozen=True)
class ToViews(Immutable):
    """Give this to these views."""

    views: tuple[str, ...]
    message: Update | Progress | Cut


@dataclass(frozen=True)
class Submit(Immutable):
    """Commit this, at the latest `wait` seconds from now; with `keep` even if it changes nothing."""

    transaction: WarehouseTransaction
    wait: float = 0.0
    keep: bool = False


@dataclass(frozen=True)
class Tied(Immutable):
    """A global transaction ties these sources, and their views are in different groups: nothing more is taken in.
    Begin anew, from the last commit, with them together."""

    sources: frozenset[str]


Effect = ToViews | Submit | Tied


class Group:
    """Views that share sources, with their blocks and their view-update table."""

    def __init__(self, views: Mapping[str, View], merge: Painting, blocks: Blocks) -> None:
        self.views = frozenset(views)
        self.sources = frozenset(source for view in views.values() for source in view.sources)
        self.merge = merge
        self.blocks = blocks


class Engine:
    def __init__(
        self,
        views: Mapping[str, View],
        positions: Mapping[str, Mapping[str, Position]],
        promises: Mapping[str, Promise] | None = None,
        *,
        order: str = "source",
        together: Iterable[Collection[str]] = (),
        settled: Callable[[str], Collection[str]] = lambda _source: (),
        halves: Iterable[Half] = (),
        sizes: Sizes = Sizes(),  # noqa: B008  # frozen
    ) -> None:
        """`positions` says for every view which position of every source it reflects already, as the last header does;
        `together` are sources that are tied by global transactions, `settled` is the integrator's; `halves` are parts
        that the views were loaded without."""
        self._views = dict(views)
        self._sizes = sizes
        self._promises = {name: (promises or {}).get(name, Promise()) for name in views}
        self.vector = _first({s: positions[name][s] for s in view.sources} for name, view in views.items())
        """From where each source is to be read: what all of its views reflect."""
        self.tied: frozenset[str] = frozenset()
        """The sources of a global transaction that was not taken in: see `Tied`."""
        self.halves = frozenset(halves)
        """Those that have not come yet."""
        self._integrator = Integrator(views, positions, settled)
        self.groups = [self._group(names, order) for names in partition(views, together)]
        self._by_source = {source: group for group in self.groups for source in group.sources}
        self._by_view = {view: group for group in self.groups for view in group.views}
        self._barriers: dict[Group, int] = {}

    def _group(self, names: Collection[str], order: str) -> Group:
        """Where complete-N views of one group differ in N, blocks end at every common divisor."""
        views = {name: self._views[name] for name in names}
        sources = {source for view in views.values() for source in view.sources}
        promises = {name: self._promises[name] for name in names}
        pace = math.gcd(*(promise.pace for promise in promises.values()))
        merge = Painting(
            {source: position for source, position in self.vector.items() if source in sources},
            order=order,
            unguaranteed=[name for name, promise in promises.items() if promise.level == "none"],
            blocks=pace > 0,
        )
        freshness = {name: promise.freshness for name, promise in promises.items()}
        sizes = None if any(promise.eager for promise in promises.values()) else self._sizes
        blocks = Blocks(views, merge, pace=pace, apart=order == "views", freshness=freshness, sizes=sizes)
        return Group(views, merge, blocks)

    # A message in, effects out.

    def receive(self, message: Transaction | ActionList, now: float) -> list[Effect]:
        if isinstance(message, ActionList):
            return self._submitted(self._by_view[message.view].merge.receive(message))
        if self.tied:
            return []
        self.tied = self._torn(message)
        return [Tied(self.tied)] if self.tied else self._route(message, now)

    def _torn(self, transaction: Transaction) -> frozenset[str]:
        """The sources of a global transaction whose views are in different groups, if they are."""
        for part in transaction.part_of:
            tied = part.participants & set(self.vector)
            if not any(tied <= group.sources for group in self.groups):
                return tied
        return frozenset()

    def _route(self, transaction: Transaction, now: float) -> list[Effect]:
        """To the merge first, so that a row is there before its action lists; then to the views."""
        come = {(part.id, transaction.source) for part in transaction.part_of}
        self.halves = frozenset(half for half in self.halves if (half.id, half.source) not in come)
        routed = self._integrator.receive(transaction)
        group = self._by_source.get(transaction.source)
        if group is None:
            return []
        effects = self._arrive(group, routed.rel, now)
        if routed.rel.views:
            effects.append(ToViews(tuple(sorted(routed.rel.views)), routed.update))
        users = tuple(name for name, view in self._views.items() if transaction.source in view.sources)
        effects.append(ToViews(users, Progress(transaction.source, transaction.position)))
        if group.blocks.full:
            effects += self._cut(group, group.blocks.components, now)
        return effects

    def _arrive(self, group: Group, rel: Rel, now: float) -> list[Effect]:
        group.blocks.arrive(rel, now)
        return self._submitted(group.merge.receive(rel))

    def _submitted(self, transactions: Iterable[WarehouseTransaction]) -> list[Effect]:
        return [self._submit(transaction) for transaction in transactions]

    def _submit(self, transaction: WarehouseTransaction) -> Submit:
        """Commits of complete views gather for a moment, so that those of a burst share an append; a block
        has done so already."""
        promises = [self._promises[action.view] for action in transaction.actions]
        complete = [promise for promise in promises if promise.level == "complete"]
        wait = min([GATHER, *(p.freshness for p in complete)]) if len(complete) == len(promises) else 0.0
        return Submit(transaction, wait, any(p.level == "complete" or p.pace for p in promises))

    # Blocks.

    def uncut(self) -> list[frozenset[str]]:
        """The views whose blocks can end, in sets that have their cuts in common."""
        return [
            frozenset(view for component in tied for view in component.views)
            for group in self.groups
            for tied in group.blocks.together()
            if any(component.uncut for component in tied)
        ]

    def cut(self, views: Collection[str], now: float) -> list[Effect]:
        """End the blocks of these views, of one group, here."""
        group = self._by_view[next(iter(views))]
        ended = [component for component in group.blocks.components if component.views <= set(views)]
        return self._cut(group, ended, now)

    def cut_due(self, now: float, at_work: Callable[[str], bool], waiting: int = 0) -> list[Effect]:
        """End the blocks of all views that are ready for the next one; `at_work` tells of a view whether what it has
        been given up to its last cut may still bring something by itself, `waiting` is how many commits are not on
        their way yet."""
        return [
            effect
            for group in self.groups
            for tied in group.blocks.due(now, at_work, waiting)
            for effect in self._cut(group, tied, now, whole=False)
        ]

    def next_cut(self, now: float) -> float:
        """When a block ends by time alone, if nothing happens before; infinity if none does."""
        return min((group.blocks.next_due(now) for group in self.groups), default=math.inf)

    @property
    def begun(self) -> list[Group]:
        """The groups of complete-N views in whose block there are less than N transactions."""
        return [group for group in self.groups if group.blocks.pace and group.blocks.uncut]

    def cut_begun(self, now: float) -> list[Effect]:
        """End these blocks too: nothing more is coming for the moment."""
        return [effect for group in self.begun for effect in self._cut(group, group.blocks.components, now)]

    def _cut(self, group: Group, ended: Sequence[Component], now: float, *, whole: bool = True) -> list[Effect]:
        cut = group.blocks.end(ended, now, whole=whole)
        return [*self._submitted(group.merge.end_block()), ToViews(tuple(sorted(cut.views)), cut)]

    # Standing at an exact vector.

    def stop_here(self, now: float) -> list[Effect]:
        """End all blocks, and let nothing through that comes from now on, until `go_on`: so the last commit of every
        group is made to stand at exactly what has been read. Cuts go on behind this barrier, as answers may have to
        wait for what comes after it."""
        effects: list[Effect] = []
        for group in self.groups:
            effects += self._cut(group, group.blocks.components, now)
            group.merge.stop_at(group.blocks.arrived)
            self._barriers[group] = group.blocks.arrived
        return effects

    @property
    def stands(self) -> bool:
        """Whether everything before the barrier has been applied."""
        return not any(group.merge.open_through(end) for group, end in self._barriers.items())

    def go_on(self) -> list[Effect]:
        self._barriers = {}
        return [effect for group in self.groups for effect in self._submitted(group.merge.go_on())]

    # What waits, and for what.

    @property
    def size(self) -> int:
        """The rows that have not been applied."""
        return sum(group.merge.size for group in self.groups)

    @property
    def backlog(self) -> int:
        """The rows that wait for anything but the end of their block."""
        return sum(group.merge.size - group.merge.unended for group in self.groups)

    def backlog_of(self, source: str) -> int:
        """The same, of the group of a source."""
        merge = self._by_source[source].merge
        return merge.size - merge.unended

    def waiting_for(self, view: str) -> int:
        """How many rows wait for this view's action lists."""
        return self._by_view[view].merge.waiting_for(view)

    def oldest(self) -> tuple[int, tuple[str, ...]] | None:
        """The first row of all tables and the views it waits for."""
        found = [oldest for group in self.groups if (oldest := group.merge.oldest()) is not None]
        return min(found, default=None)

    def missing_parts(self) -> dict[str, frozenset[str]]:
        """By global transaction, the sources whose parts rows wait for, or the views themselves since they were
        loaded."""
        found: dict[str, frozenset[str]] = {}
        waiting = [(name, missing) for group in self.groups for name, missing in group.merge.missing_parts().items()]
        for name, missing in [*waiting, *((half.id, frozenset({half.source})) for half in self.halves)]:
            found[name] = found.get(name, frozenset()) | missing
        return found

    def let_go(self, halves: Iterable[Half]) -> None:
        """These are not waited for any longer."""
        self.halves -= frozenset(halves)

    @property
    def dropped(self) -> Mapping[str, int]:
        """By view, the transactions that change a relation of it and were irrelevant all the same."""
        return self._integrator.dropped


def _first(positions: Iterable[Mapping[str, Position]]) -> dict[str, Position]:
    found: dict[str, Position] = {}
    for vector in positions:
        for source, position in vector.items():
            found[source] = min(found.get(source, position), position, key=lambda p: p.order)
    return dict(sorted(found.items()))
