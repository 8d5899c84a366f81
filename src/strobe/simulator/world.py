"""A world in memory: sources that change while they are watched and asked, and the very engine that runs live.

Streams and answers travel on different channels, so that they overtake each other as they do on real connections. What
happens next is decided outside: `choices` lists what could happen, `step` does one of them. After every warehouse
transaction the state of each view is written down together with the vector of source positions that it claims to
reflect, so that it can be compared with a recomputation.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache

from strobe.algebra.bag import Bag, picker
from strobe.algebra.relation import Relation
from strobe.algebra.substitution import join_pairs, substitute
from strobe.algebra.view import View
from strobe.auditor.operators import Tree
from strobe.engine.commits import Commits
from strobe.engine.engine import Effect, Engine, Progress, Promise, Submit, ToViews
from strobe.errors import BrokenInvariant
from strobe.managers.base import Outbound, ViewManager
from strobe.managers.inbox import Inbox
from strobe.messages import (
    ActionList,
    Answer,
    CommitHeader,
    Cut,
    Fragment,
    GlobalTransaction,
    Lookup,
    Message,
    Parts,
    Position,
    Query,
    Seen,
    Transaction,
    Update,
    WarehouseTransaction,
)

Contents = dict[str, Bag]

THEN = datetime(1970, 1, 1, tzinfo=timezone.utc)
"""When everything happens: commits differ in their numbers only."""


def position(number: int) -> Position:
    return Position(str(number), (number,))


class MemorySource:
    """A source in memory, with its whole history."""

    def __init__(self, name: str, relations: Contents) -> None:
        self.name = name
        self.states: list[Contents] = [dict(relations)]
        self.log: list[Transaction] = []
        self.snapshots: set[int] = set()
        """Positions at which questions were evaluated."""

    def reported(self, after: int, look: bool, gate: bool) -> Transaction:
        """The next transaction after a position; or, for a source that only looks now and then, all up to now as one.

        Such a group must not span a snapshot that an answer was read in (`gate`).
        """
        if not look:
            return self.log[after]
        ends = [p for p in self.snapshots if p > after] if gate else []
        group = self.log[after : min([*ends, self.now])]
        changes: dict[str, Relation] = {}
        for transaction in group:
            for name, change in transaction.changes.items():
                changes[name] = changes[name].plus(change) if name in changes else change
        part_of = tuple(part for transaction in group for part in transaction.part_of)
        return Transaction(self.name, group[-1].position, changes=changes, part_of=part_of)

    @property
    def now(self) -> int:
        return len(self.log)

    def parts(self, through: int) -> Parts:
        """Those up to a position; the log goes back for ever."""
        found = {part: THEN for transaction in self.log[:through] for part in transaction.part_of}
        return Parts(found, datetime.min.replace(tzinfo=timezone.utc))

    def commit(self, changes: Mapping[str, Bag], part_of: tuple[GlobalTransaction, ...] = ()) -> None:
        state = dict(self.states[-1])
        for relation, change in changes.items():
            state[relation] = state[relation].add(change)
        self.states.append(state)
        self.log.append(Transaction(self.name, position(len(self.log) + 1), changes=dict(changes), part_of=part_of))

    def answer(self, query: Query) -> Answer:
        """Evaluate a query at the current state."""
        self.snapshots.add(self.now)
        found: list[Bag] = []
        for lookup in query.lookups:
            rows = self.states[-1][lookup.relation].project(lookup.columns)
            keys: Relation | None = lookup.keys
            if lookup.keys_from is not None:
                keys = found[lookup.keys_from[0]].keys(lookup.keys_from[1], nulls=lookup.null_safe)
            found.append(rows if keys is None else matching(lookup, rows, keys.collect()))
        return Answer(query.view, query.id, self.name, tuple(found), Seen(position(self.now)))


_compiled = lru_cache(maxsize=100)(Tree)


def matching(lookup: Lookup, rows: Bag, keys: Bag) -> Bag:
    """The rows that a look-up finds by these keys."""
    key_of = picker([rows.attributes.index(column) for column in lookup.on])
    wanted = {key for key, _ in keys.items() if lookup.null_safe or None not in key}
    return Bag(rows.attributes, {row: n for row, n in rows.items() if key_of(row) in wanted})


def evaluate(view: View, states: Mapping[str, Mapping[str, Bag]]) -> Bag:
    """The view over these states, from scratch: all attributes, before selection and projection; of a tree, its
    columns."""
    if view.tree is not None:
        contents = {o.index: substitute(o, states[o.source][o.relation.name]).collect() for o in view.occurrences}
        return _compiled(view.tree).over(contents)
    first, *others = view.occurrences
    result: Relation = substitute(first, states[first.source][first.relation.name])
    known = [first.index]
    for occurrence in others:
        rows = substitute(occurrence, states[occurrence.source][occurrence.relation.name])
        result = result.join(rows, join_pairs(view, known, occurrence.index))
        known.append(occurrence.index)
    return added(Bag(result.attributes), result)


def added(rows: Bag, change: Relation) -> Bag:
    if not isinstance(change, Bag):
        raise BrokenInvariant("the simulator works on bags in memory only")
    return rows.add(change)


def installed(view: View, rows: Bag, actions: ActionList) -> Bag:
    """A view (as `evaluate` has it) after an action list."""
    if view.tree is not None:
        return changed(view, rows, actions.fragments)
    after: Relation = Bag(rows.attributes) if actions.replaces else rows
    for delete in actions.deletes:
        after = delete.rest(after)
    return added(Bag(rows.attributes), after.plus(actions.delta))


def changed(view: View, rows: Bag, fragments: Iterable[Fragment]) -> Bag:
    """The rows of a view that is a tree, after some fragments."""
    if view.tree is None:
        raise BrokenInvariant("fragments of a view that is a flat join", where=f"view {view.name}")
    tree = _compiled(view.tree)
    for fragment in fragments:
        covered = {number: [c.keys.collect() for c in keys] for number, keys in fragment.covered.items()}
        for side, sign in ((fragment.after, 1), (fragment.before, -1)):
            found = tree.over({index: relation.collect() for index, relation in side.items()}, covered)
            rows = rows.add(found if sign > 0 else found.negate())
    return rows


@dataclass
class State:
    """What a reader sees after a warehouse transaction."""

    numbers: tuple[int, ...]
    vector: dict[str, int]
    """What all views reflect of every source."""
    views: dict[str, Bag]
    places: dict[str, dict[str, int]]
    """What each view says that it reflects: with `order: views` one may be ahead."""


Planned = tuple[str, Mapping[str, Bag], tuple[GlobalTransaction, ...]]
"""A transaction that will happen: where, what it changes, and of which global transactions it is a part."""


@dataclass
class World:
    sources: dict[str, MemorySource]
    managers: dict[str, ViewManager]
    planned: deque[Planned]
    history: list[State] = field(default_factory=list)
    record: Callable[[Message], None] = lambda _: None
    """Is given every message that the boxes get, in order."""
    looks: bool = False
    """Whether sources report everything between two looks as one transaction, as SQLite's monitor does."""
    gate: bool = True
    order: str = "source"
    unguaranteed: frozenset[str] = frozenset()
    """Views that promise nothing."""
    pace: int = 0
    """N, where all views are kept at complete-N, in one group."""

    def __post_init__(self) -> None:
        views = {name: manager.view for name, manager in self.managers.items()}
        states = {name: source.states[0] for name, source in self.sources.items()}
        initial = {name: evaluate(view, states) for name, view in views.items()}
        places = {name: dict.fromkeys(view.sources, 0) for name, view in views.items()}
        self.history.append(State((), dict.fromkeys(self.sources, 0), initial, places))
        self._build()

    def _build(self) -> None:
        """Everything that follows from the last state: as after a crash."""
        views = {name: manager.view for name, manager in self.managers.items()}
        last = self.history[-1]
        places = {name: {s: position(n) for s, n in place.items()} for name, place in last.places.items()}
        promises = {name: Promise("none" if name in self.unguaranteed else "strong", pace=self.pace) for name in views}
        self.engine = Engine(views, places, promises, order=self.order, together=self._together())
        texts = {name: {s: str(n) for s, n in place.items()} for name, place in last.places.items()}
        self._commits = Commits(CommitHeader(positions=texts), views, places, self.unguaranteed)
        self.reported = {
            s: self.engine.vector[s].order[0] if s in self.engine.vector else last.vector[s] for s in self.sources
        }
        self.inboxes = {name: Inbox(manager, self.engine.vector) for name, manager in self.managers.items()}
        self.now = 0.0
        """Time stands still: when a block ends is one of the choices."""
        self.questions: dict[str, deque[Query]] = defaultdict(deque)
        self.answers: list[Answer] = []

    def _together(self) -> list[frozenset[str]]:
        """Sources that take part in one global transaction."""
        reported = [transaction.part_of for source in self.sources.values() for transaction in source.log]
        return [part.participants for parts in (*reported, *(p for _, _, p in self.planned)) for part in parts]

    def crash(self, make: Callable[[View], ViewManager]) -> None:
        """Lose everything that is on its way; start again from the last state, with managers as `make` makes them."""
        self.managers = {name: make(manager.view) for name, manager in self.managers.items()}
        self._build()

    def choices(self) -> list[tuple[str, str]]:
        """What could happen: a source commits, is read, or evaluates a question; an answer arrives; a block ends, of
        views whose cuts are in common."""
        found = [("commit", self.planned[0][0])] if self.planned else []
        found += [("report", s) for s, source in self.sources.items() if self.reported[s] < source.now]
        found += [("evaluate", s) for s, queue in self.questions.items() if queue]
        found += [("answer", str(i)) for i in range(len(self.answers))]
        if not (self.pace and found):  # less than N at the end only
            found += [("cut", ",".join(sorted(views))) for views in self.engine.uncut()]
        return found

    def step(self, event: str, subject: str) -> None:
        if event == "commit":
            source, changes, part_of = self.planned.popleft()
            self.sources[source].commit(changes, part_of)
        elif event == "report":
            self._report(subject)
        elif event == "evaluate":
            self.answers.append(self.sources[subject].answer(self.questions[subject].popleft()))
        elif event == "answer":
            self._answer(self.answers.pop(int(subject)))
        else:
            self._carry_out(self.engine.cut(subject.split(","), self.now))

    def replay(self, message: Message) -> None:
        """Give the boxes a recorded message, without asking the sources anything."""
        if isinstance(message, Transaction):
            self._receive(message)
        elif isinstance(message, Answer):
            self._answer(message)
        elif isinstance(message, Cut):
            self._carry_out(self.engine.cut(message.views, self.now))

    def _report(self, source: str) -> None:
        transaction = self.sources[source].reported(self.reported[source], self.looks, self.gate)
        self.reported[source] = transaction.position.order[0]
        self._receive(transaction)

    def _receive(self, transaction: Transaction) -> None:
        self.record(transaction)
        self._carry_out(self.engine.receive(transaction, self.now))

    def _answer(self, answer: Answer) -> None:
        self.record(answer)
        self._carry_out(self._sent(self.inboxes[answer.view].answer(answer)))

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Effects, and those of what managers send at once, in the order in which the engine has them."""
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            if isinstance(effect, Submit):
                self._install(effect.transaction)
            elif isinstance(effect, ToViews):
                if isinstance(effect.message, Cut):
                    self.record(effect.message)
                for view in effect.views:
                    waiting += self._sent(self._tell(self.inboxes[view], effect.message))

    @staticmethod
    def _tell(inbox: Inbox, message: Update | Progress | Cut) -> list[Outbound]:
        if isinstance(message, Update):
            return inbox.update(message)
        if isinstance(message, Cut):
            return inbox.cut(message)
        return inbox.progress(message.source, message.position)

    def _sent(self, messages: Sequence[Outbound]) -> list[Effect]:
        """What follows from what a manager sends."""
        effects: list[Effect] = []
        for message in messages:
            if isinstance(message, Query):
                self.questions[message.source].append(message)
            else:
                effects += self.engine.receive(message, self.now)
        return effects

    def _install(self, transaction: WarehouseTransaction) -> None:
        views = dict(self.history[-1].views)
        for actions in transaction.actions:
            views[actions.view] = installed(self.managers[actions.view].view, views[actions.view], actions)
        last = self.history[-1]
        moved = {source: reached.order[0] for source, reached in transaction.positions.items()}
        vector = {s: max(n, moved.get(s, 0)) for s, n in last.vector.items()}
        header = self._commits.next(transaction, THEN).header
        places = {name: {s: int(text) for s, text in place.items()} for name, place in header.positions.items()}
        self.history.append(State(transaction.numbers, vector, views, places))

    def expected(self, view: str, vector: Mapping[str, int]) -> Bag:
        """The view recomputed at a vector of source positions."""
        states = {s: self.sources[s].states[at] for s, at in vector.items()}
        return evaluate(self.managers[view].view, states)
