"""All algorithms on a view over three keyed relations R0 ⋈ R1 ⋈ R2, at one source or several, and with options."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from benchmarks.costs.meter import Counts, Metered
from strobe.algebra.bag import Bag, Row
from strobe.algebra.substitution import Step as Found
from strobe.algebra.substitution import next_fragment
from strobe.algebra.view import Equality, View
from strobe.managers import evaluation
from strobe.managers.registry import ALGORITHMS, asking_itself, copied
from strobe.simulator.explorer import calm_schedule, random_schedule, run
from strobe.simulator.lab import Changes, Plan, Step
from strobe.simulator.plans import relation, view
from strobe.simulator.world import Contents, evaluate

SCHEDULES = ("one at a time", "random", "in a burst")
TRANSACTIONS = 12
COLUMNS = ("k", "l", "r")


@dataclass(frozen=True)
class Workload:
    """Twelve transactions, and where the relations are that they change."""

    sources: str = "xyz"
    """The source of each relation."""
    rows: int = 4
    """Of each relation, before."""
    values: int = 3
    """That a join column can have."""
    updates: int = 1
    """Of a transaction, at the most."""
    insertions: float = 0.61
    copies: tuple[str, ...] = ()
    """Relations that the warehouse keeps copies of."""
    by_key: bool = False
    """Whether each relation is joined with the key of the next."""
    asks_view: bool = False
    """Whether the view itself is asked first."""

    def plan(self, seed: int) -> Plan:
        rng = random.Random(f"{seed} {self.sources}")
        schemas = [relation(source, f"r{i}", COLUMNS, ("k",)) for i, source in enumerate(self.sources)]
        joined = view(schemas, [Equality(i, "r", i + 1, "k" if self.by_key else "l") for i in (0, 1)])
        joined = asking_itself(joined) if self.asks_view else joined
        tables = {s.name: [self._row(rng, key) for key in range(self.rows)] for s in schemas}
        initial: dict[str, Contents] = {}
        for schema in schemas:
            initial.setdefault(schema.source, {})[schema.name] = Bag.of(COLUMNS, tables[schema.name])
        steps: dict[str, list[Step]] = {source: [] for source in initial}
        for number in range(1, TRANSACTIONS + 1):
            source = rng.choice(self.sources)
            names = [s.name for s in schemas if s.source == source]
            updates = [
                self._update(rng, rng.choice(names), tables, 1000 * number + i)
                for i in range(rng.randint(1, self.updates))
            ]
            steps[source].append(Step(f"T{number}", tuple(updates)))
        return Plan(copied(joined, self.copies), initial, {s: tuple(done) for s, done in steps.items()})

    def _row(self, rng: random.Random, key: int) -> Row:
        return (key, rng.randrange(self.values), rng.randrange(self.values))

    def _update(self, rng: random.Random, name: str, tables: dict[str, list[Row]], key: int) -> Changes:
        rows = tables[name]
        if not rows or rng.random() < self.insertions:
            rows.append(self._row(rng, key))
            return {name: Bag.of(COLUMNS, [rows[-1]])}
        gone = rows.pop(rng.randrange(len(rows)))
        return {name: Bag.of(COLUMNS, [gone], -1)}


def measured(
    name: str, level: str, workload: Workload, schedule: str, runs: int, *, one_by_one: bool = False
) -> Counts | None:
    """The costs of a transaction, the mean of so many runs; None if the algorithm cannot serve the view."""
    algorithm = ALGORITHMS[name]
    total = Counts()
    for seed in range(runs):
        plan = workload.plan(seed)
        if algorithm.refusal(plan.view):
            return None
        manager = algorithm.manager(plan.view, level)
        lab = Metered(plan, manager, single=algorithm.single, one_by_one=one_by_one)
        _run(lab, schedule, seed)
        right = evaluate(plan.view, {source: states[-1] for source, states in plan.states.items()})
        if name != "conventional" and lab.view != right:
            raise RuntimeError(f"{name} ended with a wrong view; its costs mean nothing")
        total.plus(lab.counts)
    return total.per(runs * TRANSACTIONS)


def _run(lab: Metered, schedule: str, seed: int) -> None:
    if schedule == "random":
        random_schedule(lab, random.Random(seed))
    elif schedule == "one at a time":
        calm_schedule(lab)
    else:
        steps = lab.plan.steps
        executed = tuple(("execute", source) for source, done in steps.items() for _ in done)
        messages = {source: sum(len(s.updates) if lab.single else 1 for s in done) for source, done in steps.items()}
        run(lab, executed + tuple(("receive", source) for source, n in messages.items() for _ in range(n)))


@contextmanager
def plain_order() -> Iterator[None]:
    """As if the relations were asked in the order in which the view names them, one after another."""

    def first_missing(
        view: View, term: Sequence[int], *, whole: bool = False, within: Collection[int] | None = None
    ) -> tuple[Found, ...]:
        wanted = range(len(view.occurrences)) if within is None else within
        missing = [i for i in wanted if i not in term]
        return next_fragment(view, term, whole=whole, within=[min(missing)]) if missing else ()

    with patch.object(evaluation, "next_fragment", first_missing):
        yield
