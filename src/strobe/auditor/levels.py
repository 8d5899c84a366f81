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

What the papers leave open is decided so: a state may be written twice, so places may repeat; there is one place for
each state, where ECA asks for places for each pair of states only; vectors are prefixes at every source, also for weak;
and the first state is one like the others: only `complete` asks that it be the start.

A judge is made once for what happened at the sources and asked about many sequences of states: by a search over all
schedules (`Automaton`), where a verdict costs one look-up for every state, or by the positions that the states claim
(`Course`), where it takes a recomputation for every state and no search.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

from strobe.algebra.bag import Bag, Row
from strobe.auditor.automaton import Automaton
from strobe.auditor.claims import Course
from strobe.auditor.lattice import Lattice, vectors
from strobe.auditor.reasons import ByClaims, BySearch
from strobe.auditor.timeline import Contents, HistoryTransaction, Timeline, Vector
from strobe.auditor.verdict import LEVELS, CannotEvaluate, Finding, Verdict, check_level, satisfies
from strobe.auditor.witness import Witness
from strobe.errors import BrokenInvariant, UserError

__all__ = ["LEVELS", "CannotEvaluate", "Finding", "HistoryTransaction", "Judge", "Verdict", "check_level", "satisfies"]

LIMIT = 20_000
"""Vectors that a search goes through at the most."""

_KEPT = 512
"""Vectors whose views are kept."""

Views = Mapping[str, Bag]
Evaluate = Callable[[Mapping[str, Contents]], Views]
Claims = Mapping[str, Mapping[str, "int | str"]]
"""By view and source: how many of the source's transactions a state reflects, or the position it reflects, as the
transactions name them."""


class Judge:
    """What happened at the sources, to be compared with what a warehouse showed.

    `transactions` are listed in an order that agrees with each source's own commit order. `evaluate` gives the views
    over the contents of all sources, or raises `CannotEvaluate`. `start` says how the sources name the position before
    their first transaction.
    """

    def __init__(
        self,
        initial: Mapping[str, Contents],
        transactions: Sequence[HistoryTransaction],
        evaluate: Evaluate,
        *,
        start: Mapping[str, str] | None = None,
        limit: int = LIMIT,
    ) -> None:
        self.timeline = Timeline(initial, transactions)
        self._evaluate = evaluate
        self._limit = limit
        self._views: OrderedDict[Vector, Views] = OrderedDict()
        self._numbers = _Numbers(self.views_at(self.timeline.start))
        self._automata: dict[str | None, Automaton] = {}
        self._positions = _known_positions(self.timeline, start or {})

    @property
    def views(self) -> tuple[str, ...]:
        return self._numbers.views

    @property
    def searchable(self) -> bool:
        """Whether there are few enough vectors to search through."""
        return vectors(self.timeline) <= self._limit

    def views_at(self, vector: Vector) -> Views:
        """What the views are at a vector."""
        found = self._views.get(vector)
        if found is None:
            found = self._views[vector] = self._evaluate(self.timeline.contents(vector))
            if len(self._views) > _KEPT:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(vector)
        return found

    # ── the fast path ────────────────────────────────────────────────────────────────────────────────────────────────

    def intern(self, state: Views) -> int:
        """A small number for a warehouse state: equal numbers for equal states."""
        return self._numbers.number(state)

    def key(self, states: Iterable[Views]) -> tuple[int, ...]:
        return tuple(self.intern(state) for state in states)

    def level(self, key: Sequence[int], view: str | None = None) -> str:
        """The level of a sequence of interned states, of all views together or of one alone."""
        return (self._automata.get(view) or self._automaton(view)).level(key)

    def complete_n(self, key: Sequence[int], view: str | None = None) -> int | None:
        """The smallest N > 1 with which a sequence of interned states is complete-N, if there is one."""
        return (self._automata.get(view) or self._automaton(view)).complete_n(key)

    def _automaton(self, view: str | None) -> Automaton:
        if not self.searchable:
            raise BrokenInvariant(f"there are more than {self._limit} vectors: too many to search through")
        if not self._automata:
            lattice, total = Lattice(self.timeline), len(self.timeline.transactions)
            numbers = [self.intern(self.views_at(vector)) for vector in lattice.vectors]
            for name in self.views:
                alone = self._numbers.alone(name)
                self._automata[name] = Automaton(lattice, total, [alone[number] for number in numbers], alone)
            self._automata[None] = Automaton(lattice, total, numbers, {})
        return self._automata[view]

    # ── verdicts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def verdict(
        self, states: Iterable[Views], wanted: str = "strong", claims: Iterable[Claims | None] | None = None
    ) -> Verdict:
        """Whether the states, the first of them the initial one, kept the wanted level.

        Where there are claims, one (or None) for each state, they are checked; only what they leave open is searched
        for.
        """
        check_level(wanted)
        scopes = [*self.views, None] if len(self.views) > 1 else list(self.views)
        try:
            if claims is None and self.searchable:
                shown = list(states)
                findings = {scope: self._by_search(shown, wanted, scope) for scope in scopes}
            else:
                pairs = ((state, None) for state in states) if claims is None else zip(states, claims, strict=True)
                findings = self._by_claims(pairs, wanted, scopes)
        except CannotEvaluate as reason:
            findings = dict.fromkeys(scopes, Finding("unknown", "unknown", str(reason)))
        return Verdict(wanted, findings[scopes[-1]], {view: findings[view] for view in self.views})

    def _by_search(self, states: Sequence[Views], wanted: str, scope: str | None) -> Finding:
        if not states:
            raise BrokenInvariant("a history has at least its initial state")
        key = self.key(states)
        return BySearch(self._automaton(scope), self.timeline, self._witness(scope), key).finding(states, wanted)

    def _by_claims(
        self, pairs: Iterable[tuple[Views, Claims | None]], wanted: str, scopes: Sequence[str | None]
    ) -> dict[str | None, Finding]:
        courses = {scope: Course(self.timeline, self._scope(scope), self.views_at) for scope in scopes}
        shown: list[Views] = []
        count = 0
        for state, claim in pairs:
            counted = self._counted(count, claim or {})
            count += 1
            for course in courses.values():
                course.add(state, counted)
            if self.searchable:
                shown.append(state)
        if not count:
            raise BrokenInvariant("a history has at least its initial state")
        findings: dict[str | None, Finding] = {}
        for scope, course in courses.items():
            course.finish()
            reasons = ByClaims(course, self.timeline, self._witness(scope))
            if reasons.open and self.searchable:
                findings[scope] = self._by_search(shown, wanted, scope)
            else:
                findings[scope] = reasons.finding(count, wanted)
        return findings

    def _scope(self, scope: str | None) -> Sequence[str]:
        return self.views if scope is None else (scope,)

    def _witness(self, scope: str | None) -> Witness:
        return Witness(self.timeline, self._evaluate, self.views_at, self._scope(scope))

    def _counted(self, number: int, claims: Claims) -> dict[str, dict[str, int]]:
        """A state's claims, as counts of transactions."""
        return {
            view: {source: self._count(number, view, source, claim) for source, claim in own.items()}
            for view, own in claims.items()
        }

    def _count(self, number: int, view: str, source: str, claim: int | str) -> int:
        known = self._positions.get(source, {})
        ends = dict(zip(self.timeline.sources, self.timeline.end, strict=True))
        count = known.get(claim) if isinstance(claim, str) else claim
        if count is None or not 0 <= count <= ends.get(source, -1):
            message = f"the state claims to reflect {claim!r} of {source}, which is no position of that source"
            fix = "A claim is a count of the source's transactions, or a position that one of them carries."
            raise UserError(message, where=f"state {number}, view {view}", fix=fix)
        return count


def _known_positions(timeline: Timeline, start: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """By source: how many transactions a position stands for."""
    known = {source: ({start[source]: 0} if source in start else {}) for source in timeline.sources}
    for source, queue in zip(timeline.sources, timeline.queues, strict=True):
        for count, number in enumerate(queue, 1):
            position = timeline.transactions[number].positions.get(source)
            if position is not None:
                known[source][position] = count
    return known


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
