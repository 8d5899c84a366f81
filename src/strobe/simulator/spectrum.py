"""The consistency spectrum (Strobe paper, Figure 7.2), found by exploring schedules instead of by argument.

For every algorithm and every scenario many small plans are carried out under many schedules, and a judge says which
level each run had. The lowest of them is the cell: the highest level that no schedule broke. The run that broke the
next higher one is kept, the shortest of them.

Plans grow from one transaction upwards, so that what breaks an algorithm is found small. Views are chains of two to
four relations, with self-joins, with keys and (where the algorithm needs none) without, over rows of a tiny domain.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from strobe.managers.registry import ALGORITHMS, SCENARIOS, Algorithm, keys
from strobe.simulator.explorer import calm_schedule, random_schedule, run
from strobe.simulator.lab import Event, Lab, Plan
from strobe.simulator.minimal import minimal
from strobe.simulator.plans import Shape, judge, random_plan
from strobe.simulator.scenario_text import write

LEVELS = ("none", "convergent", "weak", "strong", "complete")
"""From none upwards: what is not convergent is nothing, however orderly it went."""

CHAINS = ((0, 1), (0, 1, 2), (0, 0, 1), (0, 1, 0), (0, 1, 2, 3))
EACH = 5
"""Schedules that are tried of one plan."""


@dataclass(frozen=True)
class Run:
    """One schedule of one plan, and the level it had."""

    plan: Plan
    schedule: tuple[Event, ...]
    level: str


@dataclass(frozen=True)
class Cell:
    """What was found for an algorithm in a scenario."""

    algorithm: str
    scenario: str
    level: str
    schedules: int
    broke: Run | None
    """The shortest run that had no more than this level."""

    @property
    def expected(self) -> str:
        """The level that is documented."""
        return ALGORITHMS[self.algorithm].reaches[self.scenario]

    @property
    def next_level(self) -> str | None:
        """The level above, which was broken."""
        return None if self.broke is None else LEVELS[LEVELS.index(self.level) + 1]

    def counterexample(self) -> str | None:
        """A scenario, as short as can be, that breaks the next higher level and can be replayed."""
        if self.broke is None or self.next_level is None:
            return None
        algorithm = ALGORITHMS[self.algorithm]

        def fails(lab: Lab) -> bool:
            return LEVELS.index(level_of(lab)) <= LEVELS.index(self.level)

        plan, schedule = minimal(self.broke.plan, self.broke.schedule, lambda p: laboratory(algorithm, p), fails)
        title = f"{self.algorithm}, {self.scenario}: not {self.next_level}"
        return write(
            plan, schedule, self.algorithm, level=judged(run(laboratory(algorithm, plan), schedule)), title=title
        )


def laboratory(algorithm: Algorithm, plan: Plan, level: str = "complete") -> Lab:
    """A laboratory in which an algorithm keeps the view of a plan."""
    return Lab(plan, algorithm.manager(plan.view, level), single=algorithm.single)


def judged(lab: Lab) -> str:
    """What a judge says of a laboratory at its end."""
    verdict = judge(lab.plan)
    return verdict.level(verdict.key([{lab.plan.view.name: state} for state in lab.states]))


def level_of(lab: Lab) -> str:
    """The level that a laboratory at its end has shown; none, if it is not even convergent."""
    found = judged(lab)
    return found if found in LEVELS else "none"


def cell(algorithm: Algorithm, scenario: str, schedules: int, seed: int = 0) -> Cell:
    """Explore until this many schedules have been run."""
    lowest: Run | None = None
    total = 0
    for found in _runs(algorithm, scenario, seed):
        total += 1
        if found.level != "complete" and (lowest is None or _rank(found) < _rank(lowest)):
            lowest = found
        if total >= schedules:
            break
    return Cell(algorithm.name, scenario, lowest.level if lowest else "complete", total, lowest)


def _rank(run: Run) -> tuple[int, int]:
    return LEVELS.index(run.level), len(run.schedule)


def _runs(algorithm: Algorithm, scenario: str, seed: int) -> Iterator[Run]:
    rng = random.Random(f"{seed} {algorithm.name} {scenario}")
    keyed = keys in algorithm.lacks
    for round_ in range(10**9):
        shape = Shape(rng.choice(CHAINS), keyed=keyed or rng.random() < 0.5)
        plan = random_plan(rng, scenario, shape, transactions=1 + round_ % 5)
        verdict = judge(plan)
        for schedule, lab in _schedules(lambda plan=plan: laboratory(algorithm, plan), scenario, rng):  # type: ignore[misc]
            level = verdict.level(verdict.key([{plan.view.name: state} for state in lab.states]))
            yield Run(plan, schedule, level if level in LEVELS else "none")


def _schedules(make: Callable[[], Lab], scenario: str, rng: random.Random) -> Iterator[tuple[tuple[Event, ...], Lab]]:
    if scenario == "centralized":
        lab = make()
        yield calm_schedule(lab), lab
        return
    for _ in range(EACH):
        lab = make()
        yield random_schedule(lab, rng), lab


def spectrum(
    schedules: int,
    seed: int = 0,
    told: Callable[[Cell], None] = lambda _: None,
    only: Collection[str] | None = None,
) -> list[Cell]:
    """All cells, algorithm by algorithm."""
    found = []
    for algorithm in (a for name, a in ALGORITHMS.items() if not only or name in only):
        for scenario in SCENARIOS:
            found.append(cell(algorithm, scenario, schedules, seed))
            told(found[-1])
    return found
