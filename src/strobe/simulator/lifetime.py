"""The life of a project on virtual time, from a seed: what the coordinator lives through, in a fraction of a second.

    python -m strobe.simulator.lifetime SEED

While sources execute transactions, global ones among them, the coordinator crashes and begins again from the last
header; sources go away, so that their views are detached, and come back; views are loaded, caught up beside the others
and cut over, or dropped; audits bring all views to an exact vector; a global transaction ties groups that were apart.
Every commit is checked (see `lifetime_checks`), and in the end all must have come to rest, right.

What it shares with the live system is all that is pure: engine, commits, inboxes and managers. What surrounds these is
written here once more, as small as it can be: when a run ends and what the next one begins with.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta

from strobe.algebra.bag import Bag
from strobe.algebra.schema import RelationSchema
from strobe.algebra.tree import Exists, Filter, Group, Join, JoinKind, Operator, Pair, Scan, Union, Window
from strobe.algebra.view import Equality, Occurrence, Output, View
from strobe.engine.engine import Promise
from strobe.engine.halves import Half, halves
from strobe.errors import NotNow
from strobe.managers.base import ViewManager
from strobe.managers.registry import ALGORITHMS, Setting
from strobe.messages import Commit, CommitHeader, GlobalTransaction
from strobe.simulator.lifetime_checks import Checks, Kept, Logged, Wrong
from strobe.simulator.plans import RandomRows, relation, view
from strobe.simulator.simulated_run import Durable, SimulatedRun, Steps
from strobe.simulator.virtual_time import Clock
from strobe.simulator.world import THEN, MemorySource, changed, evaluate

LENGTH = 40.0
"""Seconds in which things happen. Afterwards everything may come to rest."""

REST = 400.0
"""Seconds in which it must."""

DOWN = 10.0
"""Seconds after which the others go on without the views of a source that is down."""

PATIENCE = 25.0
"""Seconds in which views must come to a vector."""

COLUMNS = ("k", "l", "r")
R, U, S, T, Q = (
    relation(source, name, COLUMNS, ["k"])
    for source, name in (("x", "r"), ("x", "u"), ("y", "s"), ("z", "t"), ("w", "q"))
)


def _chain(name: str, *relations: RelationSchema) -> View:
    edges = [Equality(i, "r", i + 1, "l") for i in range(len(relations) - 1)]
    return view(relations, edges, name)


def _trees() -> Iterator[View]:
    """Views with more than inner joins."""
    r, s = (Scan(Occurrence(i, f"o{i}", each, COLUMNS)) for i, each in enumerate((R, S)))
    left = Join(r, s, (Pair("r0c2", "r1c1"),), None, JoinKind.LEFT)
    newest = Window(left, 1, ("r0c1",), (Output("n", "rank() OVER (PARTITION BY r0c1 ORDER BY r0c0)"),))
    yield _tree("newest", Filter(newest, "n = 1"), r, s)
    counted = Group(Union((r, s), (("l", ("r0c1", "r1c1")),)), 1, ("l",), (Output("n", "count(*)"),))
    yield _tree("counted", counted, r, s)
    r, t = (Scan(Occurrence(i, f"o{i}", each, COLUMNS)) for i, each in enumerate((R, T)))
    yield _tree("alone", Exists(r, t, (Pair("r0c2", "r1c1"),), None, negated=True), r, t)


def _tree(name: str, tree: Operator, *scans: Scan) -> View:
    outputs = tuple(Output(column, column) for column in tree.columns)
    return View(name, "", tuple(scan.occurrence for scan in scans), (), None, outputs, tree=tree)


VIEWS = {
    each.name: each
    for each in (
        *_trees(),
        _chain("r", R),
        _chain("u", U),
        _chain("ru", R, U),
        _chain("s", S),
        _chain("t", T),
        _chain("q", Q),
        _chain("rs", R, S),
        _chain("st", S, T),
        _chain("tq", T, Q),
        _chain("rst", R, S, T),
        _chain("rsr", R, S, R),
    )
}

STRONG = ("sweep", "sweep", "nested-sweep", "rv", "g-strobe")


class Lifetime:
    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        self.clock = Clock()
        self.diary: list[str] = []
        """What happened, for people."""
        self.ended = False
        self._rows = RandomRows(rng, [R, U, S, T, Q], True)
        self.sources = {name: MemorySource(name, contents) for name, contents in self._rows.contents().items()}
        self._order = rng.choice(["source", "source", "views"])
        self._level = rng.choice(["strong", "strong", "complete", "complete-N"])
        self._pace = rng.randint(2, 3) if self._level == "complete-N" else 0
        self._freshness = {name: rng.choice([0.0, 0.2, 1.0]) for name in VIEWS}
        flat = sorted(name for name, view in VIEWS.items() if view.tree is None)
        self._unguaranteed = rng.choice(flat) if self._level == "strong" and rng.random() < 0.2 else ""
        self._algorithms = dict.fromkeys(VIEWS, "sweep")
        if self._level == "strong":
            self._algorithms |= {name: rng.choice(STRONG) for name in flat}
        self._down: set[str] = set()
        self._detached: set[str] = set()
        self._together: set[frozenset[str]] = set()
        self._operation: Steps | None = None
        self._writing = True
        self._spans = self._level != "complete"
        """Whether there are global transactions. Rows that arrive between the parts of one share its commit, so that
        the auditor would miss states of complete views."""
        self._globals = 0
        self._parts_to_come = 0
        self._checks = Checks(self.sources, VIEWS, self._unguaranteed)
        chosen = rng.sample(sorted(VIEWS), rng.randint(2, 6))
        self._note(
            f"{self._level} with order: {self._order}, {self._algorithms}, {self._unguaranteed or 'no view'} free"
        )
        self.log = [self._loaded(chosen, dict.fromkeys(self.sources, 0))]
        self._begin()
        for source in self.sources:
            self.clock.after(rng.uniform(0, 2), lambda source=source: self._write(source))  # type: ignore[misc]
        for _ in range(rng.randint(3, 10)):
            self.clock.after(rng.uniform(0, LENGTH), self._incident)

    def live(self) -> None:
        """From the beginning to the end; raises `Wrong`."""
        self.clock.run(LENGTH)
        self._writing = False
        for source in sorted(self._down):
            self._come_back(source)
        self.clock.run(LENGTH + REST, self._at_rest)
        if not self._at_rest():
            raise Wrong(f"not at rest: {self.run.engine.oldest()}, missing {self.run.engine.missing_parts()}")
        self.run.end()
        self._checks.end(self.log, "complete" if self._level == "complete" else "strong")
        self.ended = True

    def _at_rest(self) -> bool:
        busy = self._parts_to_come or self._operation is not None or self._down or self._detached
        return not busy and self.run.settle()

    def _note(self, what: str) -> None:
        self.diary.append(f"{self.clock.now:7.2f}  {what}")

    # The log.

    def _loaded(self, names: Collection[str], at: Mapping[str, int]) -> Logged:
        """Views as they are at a vector."""
        states = {source: self.sources[source].states[n] for source, n in at.items()}
        positions = {name: {s: str(at[s]) for s in VIEWS[name].sources} for name in names}
        return Logged(CommitHeader(1, THEN, positions), {name: evaluate(VIEWS[name], states) for name in names})

    def _append(self, commits: list[Commit]) -> None:
        floors = {name: {s: p.order[0] for s, p in vector.items()} for name, vector in self.run.floors.items()}
        for commit in commits:
            after = _after(self.log[-1], commit)
            self._checks.commit(self.log[-1], after, Kept(floors, self._order))
            self.log.append(after)

    # Runs.

    def _begin(self) -> None:
        """A run, from the last header, with the views whose sources are there."""
        self._operation = None
        header = self.log[-1].header
        names = [name for name in header.positions if self._detached.isdisjoint(VIEWS[name].sources)]
        self.run = self._run(names, header, self._append)
        self._note(f"run from commit {header.number} with {', '.join(names)}")

    def _run(
        self, names: Collection[str], header: CommitHeader, durable: Durable, halves: Iterable[Half] = ()
    ) -> SimulatedRun:
        return SimulatedRun(
            self.clock,
            self._rng,
            self.sources,
            {name: self._manager(name) for name in names},
            {name: self._promise(name) for name in names},
            header,
            order=self._order,
            together=tuple(self._together),
            reachable=lambda source: source not in self._down,
            durable=durable,
            tied=lambda sources: self.clock.after(0.0, lambda: self._tie(sources)),
            halves=halves,
        )

    def _manager(self, name: str) -> ViewManager:
        if name == self._unguaranteed:
            return ALGORITHMS["conventional"].make(VIEWS[name], Setting("none", alone=False))
        level = "complete" if self._level == "complete" else "strong"
        return ALGORITHMS[self._algorithms[name]].make(VIEWS[name], Setting(level, alone=False))

    def _promise(self, name: str) -> Promise:
        if name == self._unguaranteed:
            return Promise("none", self._freshness[name])
        level = "complete" if self._level == "complete" else "strong"
        return Promise(level, self._freshness[name], self._pace)

    def _begin_anew(self, why: str) -> None:
        """The members change: the run ends in order."""
        self._note(why)
        self.run.end()
        self._begin()

    def _tie(self, sources: frozenset[str]) -> None:
        if sources not in self._together and self.run.engine.tied == sources:
            self._together.add(sources)
            self._begin_anew(f"a global transaction ties {', '.join(sorted(sources))}")

    # What sources do.

    def _write(self, source: str) -> None:
        if self._writing:
            others = sorted(set(self.sources) - {source})
            if self._spans and not self._parts_to_come and self._rng.random() < 0.4:
                self._write_globally([source, *self._rng.sample(others, self._rng.randint(1, 2))])
            else:
                self.sources[source].commit(self._changes(source))
            self.clock.after(self._rng.choice([0.05, 1, 4]), lambda: self._write(source))

    def _write_globally(self, sources: list[str]) -> None:
        """One at a time: the parts of two might be in different orders at different sources."""
        self._globals += 1
        part = GlobalTransaction(f"G{self._globals}", frozenset(sources))
        self._parts_to_come = len(sources)
        seconds = self._rng.choice([2, 10])
        for source in sources:
            self.clock.after(self._rng.uniform(0, seconds), lambda source=source: self._write_part(source, part))  # type: ignore[misc]

    def _write_part(self, source: str, part: GlobalTransaction) -> None:
        self._parts_to_come -= 1
        self.sources[source].commit(self._changes(source), (part,))

    def _changes(self, source: str) -> dict[str, Bag]:
        total: dict[str, Bag] = {}
        for update in self._rows.updates(source, self._rng.randint(1, 3)):
            for name, change in update.items():
                total[name] = total[name].add(change) if name in total else change
        return total

    # What befalls the coordinator.

    def _incident(self) -> None:
        incidents = [self._crash, self._go_away, self._add]
        self._rng.choice([*incidents, *incidents, self._drop, self._audit])()

    def _crash(self) -> None:
        """Everything in flight is forgotten, also which sources are tied."""
        self._note("crash")
        self.run.crash()
        self._together.clear()
        self._detached = set(self._down)
        self._begin()

    def _go_away(self) -> None:
        source = self._rng.choice(sorted(self.sources))
        if source in self._down:
            return
        self._note(f"{source} goes away")
        self._down.add(source)
        self.clock.after(DOWN, lambda: self._detach(source))
        self.clock.after(self._rng.choice([1.0, 15.0]), lambda: self._come_back(source))

    def _detach(self, source: str) -> None:
        if source in self._down and source not in self._detached:
            self._detached.add(source)
            self._begin_anew(f"the views of {source} are detached")

    def _come_back(self, source: str) -> None:
        if source in self._down:
            self._down.remove(source)
            self._note(f"{source} comes back")
            if source in self._detached:
                self._detached.remove(source)
                self._begin_anew(f"the views of {source} are taken in again")

    def _drop(self) -> None:
        names = sorted(self.log[-1].header.positions)
        if len(names) > 1:
            name = self._rng.choice(names)
            self._note(f"{name} is dropped")
            self.run.end()
            self._cut_over({}, CommitHeader(), [name])

    def _cut_over(self, rows: Mapping[str, Bag], arrived: CommitHeader, left: Collection[str] = ()) -> None:
        """The commit with which views come and go; the next run begins with it."""
        last = self.log[-1]
        header = last.header.cut_over(THEN + timedelta(seconds=self.clock.now), arrived, left)
        views = {name: bag for name, bag in {**last.views, **rows}.items() if name in header.positions}
        after = Logged(header, views)
        self._checks.commit(last, after, None)
        self.log.append(after)
        self._begin()

    def _add(self) -> None:
        names = sorted(set(VIEWS) - set(self.log[-1].header.positions))
        if names and self._operation is None:
            self._start(self._adding(self._rng.choice(names)))

    def _audit(self) -> None:
        if self._operation is None and self.run.read:
            self._start(self._auditing())

    def _start(self, operation: Steps) -> None:
        self._operation = operation
        self._go_on(operation)

    def _go_on(self, operation: Steps) -> None:
        if operation is not self._operation:  # the run that it belonged to has ended
            operation.close()  # type: ignore[attr-defined]  # a generator
            return
        try:
            next(operation)
        except StopIteration:
            self._operation = None if self._operation is operation else self._operation
        except NotNow as error:
            self._note(f"not now: {error}")
            self._operation = None
            self.run.resume()
        else:
            self.clock.after(0.1, lambda: self._go_on(operation))

    def _auditing(self) -> Steps:
        run, deadline = self.run, self.clock.now + PATIENCE
        yield from run.pause(deadline)
        vector = {source: self.sources[source].now for source in run.read}
        yield from run.bring_to(vector, deadline)
        for name in run.guaranteed:
            floors = {source: p.order[0] for source, p in run.floors[name].items()}
            place = self.log[-1].place(name)
            if place != {source: max(vector[source], floors[source]) for source in place}:
                raise Wrong(f"{name} was brought to {vector}, and stands at {place}")
        self._note(f"audited at {vector}")
        run.resume()

    def _adding(self, name: str) -> Steps:
        """Load a view, one source after the other; catch up beside the others; meet them at one vector; come in."""
        self._note(f"{name} is loaded")
        at: dict[str, int] = {}
        for source in VIEWS[name].sources:
            while source in self._down:
                yield
            at[source] = self.sources[source].now
            yield from self._wait(self._rng.uniform(0, 2))
        shown = [self._loaded([name], at)]

        def durable(commits: list[Commit]) -> None:
            for commit in commits:
                shown.append(_after(shown[-1], commit))

        parts = {source: self.sources[source].parts(number) for source, number in at.items()}
        missing = list(halves(parts, THEN, PATIENCE))
        for half in missing:
            self._note(f"{name} lacks the part of {half.id} at {half.source}")
        main, own = self.run, self._run([name], shown[0].header, durable, missing)
        try:
            yield from self._wait(self._rng.uniform(0, 5))
            while own.engine.halves:
                yield
            deadline = self.clock.now + PATIENCE
            yield from main.pause(deadline)
            yield from own.pause(deadline, main.read)
            vector = dict(own.read)
            shared = {source: number for source, number in vector.items() if source in main.read}
            yield from _both(main.bring_to(shared, deadline, hold=True), own.bring_to(vector, deadline, hold=True))
            self._append(main.hand_over())
            durable(own.hand_over())
            if name != self._unguaranteed and shown[-1].place(name) != vector:
                raise Wrong(f"{name} was brought to {vector}, and stands at {shown[-1].place(name)}")
            self._note(f"{name} comes in at {vector}")
            main.alive = False
            self._cut_over({name: shown[-1].views[name]}, shown[-1].header)
        finally:
            own.alive = False

    def _wait(self, seconds: float) -> Steps:
        until = self.clock.now + seconds
        while self.clock.now < until:
            yield


def _both(one: Steps, other: Steps) -> Steps:
    """Both at a time."""
    going: list[Iterator[None]] = [one, other]
    while going:
        going = [each for each in going if next(each, each) is not each]
        if going:
            yield


def _after(before: Logged, commit: Commit) -> Logged:
    views = dict(before.views)
    for name, removal in commit.removals.items():
        views[name] = removal.rest(views[name]).collect()
    for name, change in commit.changes.items():
        views[name] = views[name].add(change.collect())
    for name, fragments in commit.fragments.items():
        views[name] = changed(VIEWS[name], views[name], fragments)
    return Logged(commit.header, views)


def lived(seed: int) -> Lifetime:
    """A whole life; what goes wrong names its seed and how to see it again."""
    lifetime = Lifetime(seed)
    try:
        lifetime.live()
    except Exception as error:
        again = f"python -m strobe.simulator.lifetime {seed}"
        raise Wrong(f"seed {seed} at {lifetime.clock.now:.2f} s: {error!r}; again with: {again}") from error
    return lifetime


def main(arguments: list[str]) -> int:
    lifetime = Lifetime(int(arguments[0]))
    try:
        lifetime.live()
        end = f"{len(lifetime.log)} commits, all of them right"
    except Exception as error:
        end = f"{lifetime.clock.now:7.2f}  {type(error).__name__}: {error}"
    print("\n".join([*lifetime.diary, end]))
    return 0 if lifetime.ended else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
