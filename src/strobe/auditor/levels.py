"""Decides which consistency level a sequence of warehouse states had, by the papers' definitions.

The levels, of the warehouse states ws_0 … ws_q against what happened at the sources (ECA 3.1, Strobe 4.2, MVC 2):

    convergent   the last state is the views at the end of all transactions
    weak         convergent, and every state is the views at some vector of source positions; a global transaction
                 may be seen at one source and not yet at another
    consistent   there is one serial schedule of the transactions, global ones whole, and a place in it for every
                 state, such that places never go back
    strong       consistent and convergent
    complete     strong, and every state of that schedule is shown in its turn, except where the views did not change
    inconsistent none of these

`consistent` without `convergent` is ECA's notion: nothing wrong was ever shown, but the last transactions never came.
It stands beside `convergent` and `weak`, not above them; both sides meet at `strong`. `complete-N` lies between strong
and complete: exactly every N-th state of a schedule is shown, and the last one.

A judge is made once for what happened at the sources and asked about many sequences of states. States become numbers,
and the levels of all sequences together are one automaton, made as it is walked: after some states, all that matters is
which vectors some schedule can be at (`Lattice`). So a verdict costs one look-up for every state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strobe.algebra.bag import Bag, Row
from strobe.auditor.lattice import Lattice, vectors
from strobe.auditor.timeline import Contents, HistoryTransaction, Timeline, Vector
from strobe.errors import BrokenInvariant

__all__ = ["LEVELS", "Finding", "HistoryTransaction", "Judge", "Verdict", "satisfies"]

LEVELS = ("inconsistent", "convergent", "weak", "consistent", "strong", "complete")

_IMPLIES = {
    "inconsistent": {"inconsistent"},
    "convergent": {"inconsistent", "convergent"},
    "weak": {"inconsistent", "convergent", "weak"},
    "consistent": {"inconsistent", "consistent"},
    "strong": {"inconsistent", "convergent", "weak", "consistent", "strong"},
    "complete": set(LEVELS),
    "unknown": {"inconsistent"},
}

LIMIT = 50_000
"""Vectors that a search goes through at the most."""

Views = Mapping[str, Bag]
Evaluate = Callable[[Mapping[str, Contents]], Views]


def satisfies(level: str, wanted: str) -> bool:
    """Whether a history of this level keeps what another level promises."""
    return wanted in _IMPLIES[level]


@dataclass(frozen=True)
class Finding:
    """What was found about one view, or about all together."""

    verdict: str
    """Against the wanted level: valid, invalid or unknown."""
    level: str
    """The level that held: one of LEVELS, or unknown."""
    because: str
    witness: tuple[str, ...] = ()
    complete_n: int | None = None
    """The smallest N > 1 with which a strong history is complete-N."""

    def document(self) -> dict[str, Any]:
        body = {"verdict": self.verdict, "level": self.level, "because": self.because}
        every = {"complete_n": self.complete_n} if self.complete_n else {}
        return {**body, "witness": list(self.witness) or None, **every}


@dataclass(frozen=True)
class Verdict:
    """The finding over all views together, and over each alone."""

    wanted: str
    together: Finding
    views: Mapping[str, Finding]

    @property
    def verdict(self) -> str:
        return self.together.verdict

    @property
    def level(self) -> str:
        return self.together.level

    def document(self) -> dict[str, Any]:
        """The public JSON document."""
        views = {view: finding.document() for view, finding in self.views.items()}
        return {**self.together.document(), "wanted": self.wanted, "views": views}


class Judge:
    """What happened at the sources, to be compared with what a warehouse showed.

    `transactions` are listed in an order that agrees with each source's own commit order. `evaluate` gives the views
    over contents of all sources.
    """

    def __init__(
        self,
        initial: Mapping[str, Contents],
        transactions: Sequence[HistoryTransaction],
        evaluate: Evaluate,
        *,
        limit: int = LIMIT,
    ) -> None:
        self.timeline = Timeline(initial, transactions)
        self._evaluate = evaluate
        self._numbers = _Numbers(self.views_at(self.timeline.start))
        self._at: dict[Vector, int] = {}
        self._limit = limit
        self._searches: dict[str | None, _Search] = {}

    @property
    def views(self) -> tuple[str, ...]:
        return self._numbers.views

    @property
    def searchable(self) -> bool:
        """Whether there are few enough vectors to search through."""
        return vectors(self.timeline) <= self._limit

    def intern(self, state: Views) -> int:
        """A small number for a warehouse state: equal numbers for equal states."""
        return self._numbers.number(state)

    def key(self, states: Sequence[Views]) -> tuple[int, ...]:
        return tuple(self.intern(state) for state in states)

    def level(self, key: Sequence[int], view: str | None = None) -> str:
        """The level of a sequence of interned states, of all views together or of one alone. This is the fast path."""
        search = self._searches.get(view) or self._search(view)
        return search.level(key)

    def complete_n(self, key: Sequence[int], view: str | None = None) -> int | None:
        """The smallest N > 1 with which a sequence of interned states is complete-N, if there is one."""
        return (self._searches.get(view) or self._search(view)).complete_n(key)

    def verdict(self, states: Sequence[Views], wanted: str = "strong") -> Verdict:
        """Whether the states, the first of them the initial one, kept the wanted level."""
        if not states:
            raise BrokenInvariant("a history has at least its initial state")
        key = self.key(states)
        findings = {view: self._finding(key, wanted, view) for view in self.views}
        together = findings[self.views[0]] if len(findings) == 1 else self._finding(key, wanted, None)
        return Verdict(wanted, together, findings)

    def views_at(self, vector: Vector) -> Views:
        """What the views are at a vector."""
        return self._evaluate(self.timeline.contents(vector))

    def number_at(self, vector: Vector) -> int:
        found = self._at.get(vector)
        if found is None:
            found = self._at[vector] = self.intern(self.views_at(vector))
        return found

    def _search(self, view: str | None) -> _Search:
        if not self.searchable:
            raise BrokenInvariant(f"there are more than {self._limit} vectors: too many to search through")
        if None not in self._searches:
            lattice = Lattice(self.timeline)
            numbers = [self.number_at(vector) for vector in lattice.vectors]
            total = len(self.timeline.transactions)
            for name in self.views:
                alone = self._numbers.alone(name)
                self._searches[name] = _Search(lattice, total, [alone[number] for number in numbers], alone)
            self._searches[None] = _Search(lattice, total, numbers, {})
        return self._searches[view]

    def _finding(self, key: tuple[int, ...], wanted: str, view: str | None) -> Finding:
        if not self.searchable:
            return Finding("unknown", "unknown", f"there are more than {self._limit} vectors to search through")
        level = self.level(key, view)
        complete_n = self.complete_n(key, view) if level == "strong" else None
        valid = satisfies(level, wanted)
        return Finding("valid" if valid else "invalid", level, level, (), complete_n)


class _Numbers:
    """Small numbers for the contents of views: one for every view's, and one for those of all together."""

    def __init__(self, sample: Views) -> None:
        self.views = tuple(sample)
        self._attributes = {view: bag.attributes for view, bag in sample.items()}
        self._contents: dict[str, dict[frozenset[tuple[Row, int]], int]] = {view: {} for view in self.views}
        self._together: dict[tuple[int, ...], int] = {}
        self._alone: dict[str, dict[int, int]] = {view: {} for view in self.views}

    def number(self, state: Views) -> int:
        parts = tuple(self._number(view, state[view]) for view in self.views)
        found = self._together.get(parts)
        if found is None:
            found = self._together[parts] = len(self._together)
            for view, part in zip(self.views, parts, strict=True):
                self._alone[view][found] = part
        return found

    def alone(self, view: str) -> Mapping[int, int]:
        """From the number of all views together to the number of one."""
        return self._alone[view]

    def _number(self, view: str, bag: Bag) -> int:
        attributes = self._attributes[view]
        if bag.attributes != attributes and not bag.known_empty:
            if set(bag.attributes) != set(attributes):
                raise BrokenInvariant(f"a state has columns {bag.attributes}, not {attributes}", where=f"view {view}")
            bag = bag.project(attributes)
        known = self._contents[view]
        return known.setdefault(frozenset(bag.items()), len(known))


@dataclass(eq=False)
class _Node:
    """All that matters about the states so far."""

    value: int
    possible: int
    """Whole vectors at which the last state can be placed, with the earlier ones before it in order."""
    tracked: int
    """Whole vectors that a schedule reaches from the start while showing exactly the states so far, in their turn."""
    weak: bool
    """Whether every state so far is the views at some vector."""
    level: str
    """If this was the last state."""
    after: dict[int, _Node] = field(default_factory=dict)


class _Search:
    """The automaton of all sequences of states, over the values that the views have at each vector."""

    def __init__(self, lattice: Lattice, transactions: int, values: Sequence[int], alone: Mapping[int, int]) -> None:
        self.lattice = lattice
        self._transactions = transactions
        self._alone = alone
        """From the numbers in a key to the values here; empty where they are the same."""
        self.where: dict[int, int] = {}
        """By value: the vectors that have it."""
        for bit, value in enumerate(values):
            self.where[value] = self.where.get(value, 0) | 1 << bit
        self._last = values[-1]
        self._nodes: dict[tuple[int, int, int, bool], _Node] = {}
        self._starts: dict[int, _Node] = {}
        self._found_n: dict[tuple[int, ...], int | None] = {}

    def level(self, key: Sequence[int]) -> str:
        alone = self._alone
        after = self._starts
        node = None
        for number in key:
            value = alone[number] if alone else number
            found = after.get(value)
            if found is None:
                found = after[value] = self.next(node, value)
            node, after = found, found.after
        return node.level if node else "inconsistent"

    def next(self, node: _Node | None, value: int) -> _Node:
        """What is known after one more state."""
        if node and node.value == value:
            return node
        lattice, here = self.lattice, self.where.get(value, 0)
        whole = here & lattice.whole
        if node:
            possible = lattice.up(node.possible) & whole
            entered = lattice.step(node.tracked) & whole
        else:
            possible = whole
            entered = lattice.start & whole
        weak = bool(here) and (node is None or node.weak)
        return self._node(value, possible, lattice.walk(entered, whole), weak)

    def _node(self, value: int, possible: int, tracked: int, weak: bool) -> _Node:
        known = self._nodes.get((value, possible, tracked, weak))
        if known is None:
            level = self._level(value, possible, tracked, weak)
            known = self._nodes[value, possible, tracked, weak] = _Node(value, possible, tracked, weak, level)
        return known

    def _level(self, value: int, possible: int, tracked: int, weak: bool) -> str:
        if value != self._last:
            return "consistent" if possible else "inconsistent"
        if tracked & self.lattice.end:
            return "complete"
        if possible:
            return "strong"
        return "weak" if weak else "convergent"

    def complete_n(self, key: Sequence[int]) -> int | None:
        values = self._distinct(key)
        if values not in self._found_n:
            found = (n for n in range(2, self._transactions + 1) if self._is_complete_n(values, n))
            self._found_n[values] = next(found, None)
        return self._found_n[values]

    def _distinct(self, key: Sequence[int]) -> tuple[int, ...]:
        """The values of a key, each once where it stays the same."""
        values = [self._alone[number] if self._alone else number for number in key]
        return tuple(value for i, value in enumerate(values) if i == 0 or value != values[i - 1])

    def _is_complete_n(self, values: Sequence[int], n: int) -> bool:
        reached = self.lattice.start
        for i, value in enumerate(values):
            here = self.where.get(value, 0)
            new = reached = (self._block(reached, n) if i else reached) & here
            while new:
                new = self._block(new, n) & here & ~reached
                reached |= new
        return bool(reached & self.lattice.end)

    def _block(self, some: int, n: int) -> int:
        """The whole vectors n transactions further, and the end where fewer are left."""
        passed = 0
        for _ in range(n):
            some = self.lattice.step(some)
            passed |= some & self.lattice.end
        return some | passed
