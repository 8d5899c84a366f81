"""No algorithm below its documented level in any explored schedule, and each weaker one caught at its own anomaly."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from strobe.managers.registry import ALGORITHMS, SCENARIOS, copied, keys, one_source
from strobe.simulator.explorer import all_schedules, calm_schedule, random_schedule
from strobe.simulator.lab import Plan
from strobe.simulator.one_site import OneSiteLab
from strobe.simulator.plans import Shape, judge, random_plan
from strobe.simulator.spectrum import LEVELS, cell, laboratory, level_of

KIN = ("conventional", "eca", "lca", "eca-key")


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_levels_are_those_of_the_table(algorithm: str, scenario: str) -> None:
    """200 schedules: enough to break every level above the documented one, and none breaks that."""
    entry = ALGORITHMS[algorithm]
    found = cell(entry, scenario, schedules=200)
    assert found.level == entry.reaches[scenario], found.broke


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_levels_hold_in_ten_thousand_schedules(algorithm: str, scenario: str) -> None:
    entry = ALGORITHMS[algorithm]
    assert cell(entry, scenario, schedules=10_000, seed=1).level == entry.reaches[scenario]


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in ("conventional", "sc")])
def test_a_copy_of_a_relation_costs_no_level(algorithm: str) -> None:
    """Each relation of a chain in turn is answered at the warehouse, and not by its source."""
    entry = ALGORITHMS[algorithm]
    scenario = "single source" if one_source in entry.lacks else "single updates" if entry.single else "source-local"
    rng = random.Random(algorithm)
    for round_ in range(60):
        shape = Shape(rng.choice([(0, 1), (0, 1, 2), (0, 0, 1)]), keyed=keys in entry.lacks)
        plan = random_plan(rng, scenario, shape, transactions=2 + round_ % 3)
        for relation in plan.view.relations:
            half = replace(plan, view=copied(plan.view, (relation.id,)))
            for _ in range(3):
                lab = laboratory(entry, half)
                schedule = random_schedule(lab, rng)
                assert LEVELS.index(level_of(lab)) >= LEVELS.index(entry.level), (half, schedule)


def lowest(name: str, plan: Plan) -> tuple[str, int]:
    """The lowest level over all schedules of a plan, and their number."""
    verdict = judge(plan)
    levels: set[str] = set()
    count = 0
    for _, lab in all_schedules(laboratory(ALGORITHMS[name], plan)):
        count += 1
        levels.add(verdict.level(verdict.key([{"v": state} for state in lab.states])))
    return min((level if level in LEVELS else "none" for level in levels), key=LEVELS.index), count


def busy_plan(scenario: str, updates: int, sources: int) -> Plan:
    """A plan in which every update has a query and changes the view, evenly spread over the sources."""
    for seed in range(100_000):
        plan = random_plan(random.Random(seed), scenario, Shape((0, 1)), updates)
        lab = laboratory(ALGORITHMS["conventional"], plan)
        calm_schedule(lab)
        changes = sum(before != after for before, after in pairwise(lab.states))
        even = {len(steps) for steps in plan.steps.values()} == {updates // sources}
        if lab.asked == changes == updates and even and any(_deletes(plan)):
            return plan
    raise AssertionError("no such plan")


def _deletes(plan: Plan) -> Iterator[bool]:
    for steps in plan.steps.values():
        for step in steps:
            for change in step.net.values():
                yield any(count < 0 for _, count in change.items())


@pytest.mark.parametrize("name", KIN)
def test_all_schedules_of_four_updates_at_one_source(name: str) -> None:
    """ECA and its kin: every interleaving of executing, evaluating and receiving."""
    level, count = lowest(name, busy_plan("single source", 4, 1))
    assert level == ALGORITHMS[name].reaches["single source"]
    assert count == 4626 or name == "eca-key"  # which has no query for a deletion


@pytest.mark.slow
@pytest.mark.parametrize("name", KIN)
def test_all_schedules_of_five_updates_at_one_source(name: str) -> None:
    level, count = lowest(name, busy_plan("single source", 5, 1))
    assert level == ALGORITHMS[name].reaches["single source"]
    assert count == 138_707 or name == "eca-key"


@pytest.mark.slow
def test_strobe_in_all_schedules_of_two_and_two_updates_at_two_sources() -> None:
    level, count = lowest("strobe", busy_plan("single updates", 4, 2))
    assert level == "strong"
    assert count > 100_000


@pytest.mark.parametrize(("stamped", "level"), [(False, "convergent"), (True, "strong")])
def test_g_strobe_where_one_site_reports_a_global_transaction(stamped: bool, level: str) -> None:
    """Numbered updates are not enough: an answer that says what it had seen is, and makes it strong."""
    found = "complete"
    for seed in range(600):
        rng = random.Random(seed)
        plan = random_plan(rng, "global", Shape(rng.choice([(0, 1), (0, 1, 2)])), rng.randint(2, 5))
        lab = OneSiteLab(plan, ALGORITHMS["g-strobe"].manager(plan.view), stamped=stamped)
        random_schedule(lab, rng)
        found = min(found, level_of(lab), key=LEVELS.index)
    assert found == level
