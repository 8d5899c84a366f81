"""Carries out a scenario: lets its steps happen, checks what it expects of them, and judges what came of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from strobe.auditor.levels import Finding, satisfies
from strobe.simulator.algorithms import Chosen
from strobe.simulator.expectations import Check, check_rows, checks, sent_names
from strobe.simulator.explorer import all_schedules, random_schedule
from strobe.simulator.judging import Levels, follow, in_order
from strobe.simulator.lab import Event, Lab, Plan
from strobe.simulator.minimal import minimal
from strobe.simulator.scenario import Happening, Scenario, Schedule
from strobe.simulator.steps import meaning
from strobe.simulator.telling import Teller


@dataclass
class Outcome:
    """What came of a scenario."""

    scenario: Scenario
    algorithm: Chosen
    schedule: Schedule
    teller: Teller | None
    """The run, unless there were many."""
    finding: Finding
    """About the run; of many, about the worst."""
    levels: Counter[str]
    """How many runs had which level."""
    all_seen: bool = True
    """Whether there are no other schedules."""
    checked: dict[int, list[Check]] = field(default_factory=dict)
    """By moment, what was expected of it."""
    final: list[Check] = field(default_factory=list)
    """What was expected in the end, or from the beginning."""
    worst: tuple[Event, ...] = ()
    smallest: tuple[Plan, tuple[Event, ...]] | None = None
    """A smallest run that breaks the wanted level, where one was looked for."""

    @property
    def checks(self) -> list[Check]:
        return [check for found in (*self.checked.values(), self.final) for check in found]

    @property
    def ok(self) -> bool:
        return all(check.holds for check in self.checks)


def carry_out(scenario: Scenario, algorithm: Chosen | None = None, schedule: Schedule | None = None) -> Outcome:
    """Carry out a scenario, or try another algorithm or schedule on it.

    What is expected of steps and in the end belongs to the scenario's own schedule and algorithm; the level to its own
    algorithm.
    """
    chosen = algorithm or scenario.algorithm
    chosen.check(scenario.plan.view, scenario.where)
    planned = schedule or scenario.schedule
    own = chosen == scenario.algorithm
    if planned.kind == "all":
        outcome = _all(scenario, chosen, planned)
    else:
        outcome = _one(scenario, chosen, planned, strict=own)
        if own and planned == scenario.schedule:
            outcome.final = [*_at_start(outcome), *_at_end(outcome)]
    if own:
        outcome.final += _level_checks(outcome)
    if own and planned.kind in ("all", "random"):
        outcome.smallest = _smallest(outcome)
    return outcome


# One run.


def _one(scenario: Scenario, chosen: Chosen, schedule: Schedule, *, strict: bool) -> Outcome:
    checked: dict[int, list[Check]] = {}
    teller = _teller(scenario, chosen)
    if schedule.kind == "listed" and strict:
        checked = _listed(teller, schedule.happenings)
    elif schedule.kind == "listed":
        for event in _events(scenario, schedule):
            if event in teller.lab.choices():
                teller.step(event)
    elif schedule.kind == "random":
        for event in random_schedule(chosen.lab(scenario.plan), random.Random(schedule.number)):
            teller.step(event)
    while (turn := in_order(teller.lab, scenario.order)) is not None:
        teller.step(turn)
    finding = Levels().finding(teller.lab, _wanted(scenario.levels))
    events = tuple(moment.event for moment in teller.moments)
    return Outcome(scenario, chosen, schedule, teller, finding, Counter([finding.level]), checked=checked, worst=events)


def _teller(scenario: Scenario, chosen: Chosen) -> Teller:
    return Teller(chosen.lab(scenario.plan), scenario.labels, scenario.shown)


def _events(scenario: Scenario, schedule: Schedule) -> tuple[Event, ...]:
    """What the steps of a schedule mean under the scenario's own algorithm."""
    teller = _teller(scenario, scenario.algorithm)
    _listed(teller, schedule.happenings)
    return tuple(moment.event for moment in teller.moments)


def _listed(teller: Teller, happenings: Sequence[Happening]) -> dict[int, list[Check]]:
    checked: dict[int, list[Check]] = {}
    teller.taken = frozenset(name for happening in happenings for name in sent_names(happening.expected))
    for happening in happenings:
        *before, event = meaning(teller, happening)
        for earlier in before:
            teller.step(earlier)
        moment = teller.step(event, sent_names(happening.expected))
        checked[len(teller.moments) - 1] = checks(teller, moment, happening.expected)
    return checked


def _at_start(outcome: Outcome) -> list[Check]:
    line = outcome.scenario.initially
    if line is None or outcome.teller is None:
        return []
    return [check_rows(line, outcome.scenario.shown(outcome.teller.lab.states[0]), "the view at first")]


def _at_end(outcome: Outcome) -> list[Check]:
    line = outcome.scenario.finally_
    if line is None or outcome.teller is None:
        return []
    return [check_rows(line, outcome.scenario.shown(outcome.teller.lab.view), "the view in the end")]


# Many runs, and levels.


def _all(scenario: Scenario, chosen: Chosen, schedule: Schedule) -> Outcome:
    judge = Levels()
    levels: Counter[str] = Counter()
    runs = all_schedules(chosen.lab(scenario.plan))
    worst: tuple[tuple[int, int], tuple[Event, ...]] | None = None
    for events, lab in islice(runs, schedule.number):
        level = judge.level(lab)
        levels[level] += 1
        rank = (_RANKS.index(level), len(events))
        if worst is None or rank < worst[0]:
            worst = rank, events
    lab = chosen.lab(scenario.plan)
    events = follow(lab, worst[1] if worst else (), scenario.order)
    finding = judge.finding(lab, _wanted(scenario.levels))
    all_seen = next(runs, None) is None
    return Outcome(scenario, chosen, schedule, None, finding, levels, all_seen, worst=events)


_RANKS = ("inconsistent", "consistent", "convergent", "weak", "strong", "complete")
"""From bad to good."""


def _wanted(levels: Sequence[str]) -> str:
    return next((level for level in levels if level[:4] != "not " and level != "inconsistent"), "complete")


def _level_checks(outcome: Outcome) -> list[Check]:
    """The wanted levels against those that were reached: all must keep a level, some must break one that is `not`."""
    found = []
    for wanted in outcome.scenario.levels:
        bare = wanted.removeprefix("not ")
        kept = [satisfies(level, bare) for level in outcome.levels]
        if wanted == "inconsistent":
            holds = wanted in outcome.levels
        else:
            holds = all(kept) if bare == wanted else not all(kept)
        instead = f"the level is {outcome.finding.level}"
        found.append(Check(outcome.scenario.level_where, f"level: {wanted}", holds, instead))
    return found


def _smallest(outcome: Outcome) -> tuple[Plan, tuple[Event, ...]] | None:
    """Where a level is broken: the smallest run that breaks it."""
    promised = [level for level in outcome.scenario.levels if not level.startswith("not ")]
    wanted = next((level for level in promised if not satisfies(outcome.finding.level, level)), None)
    if wanted is None:
        return None
    judge = Levels()

    def fails(lab: Lab) -> bool:
        return not satisfies(judge.level(lab), wanted)

    return minimal(outcome.scenario.plan, outcome.worst, outcome.algorithm.lab, fails)
