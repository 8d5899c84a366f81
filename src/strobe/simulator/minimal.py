"""The smallest run that still fails: delta-debugging of a plan and its schedule.

First the plan shrinks: transactions go (or have happened before the start), then parts and updates, then rows that were
there at the start; each time the old schedule is tried without what has gone, and then other schedules. Then the
schedule is put in order, as far as the failure allows. Every candidate is run again. Nothing is left to chance: the
same failure shrinks to the same run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from strobe.algebra.bag import Bag
from strobe.messages import Transaction
from strobe.simulator.explorer import all_schedules, random_schedule
from strobe.simulator.judging import Order, follow, in_order, order
from strobe.simulator.lab import Event, Lab, Plan, Step
from strobe.simulator.world import Contents

Schedule = tuple[Event, ...]
MakeLab = Callable[[Plan], Lab]
Fails = Callable[[Lab], bool]
"""Whether a laboratory at its end shows the failure."""

EFFORT = 200
"""Schedules of a smaller plan that are tried, at the most."""


def minimal(
    plan: Plan, schedule: Schedule, make_lab: MakeLab, fails: Fails, *, effort: int = EFFORT
) -> tuple[Plan, Schedule]:
    """A failing run from which nothing can be taken away, found from a failing one."""
    search = _Search(make_lab, fails, effort)
    while (smaller := search.smaller(plan, schedule)) is not None:
        plan, schedule = smaller
    return plan, search.shortest(plan, schedule)


class _Search:
    def __init__(self, make_lab: MakeLab, fails: Fails, effort: int) -> None:
        self._make_lab, self._fails, self._effort = make_lab, fails, effort

    def smaller(self, plan: Plan, schedule: Schedule) -> tuple[Plan, Schedule] | None:
        """The first failing run of a plan that lacks something of this one."""
        tags = self._tags(plan, schedule)
        for candidate, gone in _candidates(plan):
            kept = tuple(event for event, tag in zip(schedule, tags, strict=True) if tag not in gone)
            found = self._failing(candidate, kept) or self._any_failing(candidate)
            if found:
                return candidate, found
        return None

    def _failing(self, plan: Plan, schedule: Schedule) -> Schedule | None:
        lab = self._make_lab(plan)
        done = follow(lab, schedule, order(plan))
        return done if self._fails(lab) else None

    def _any_failing(self, plan: Plan) -> Schedule | None:
        for schedule, lab in self._schedules(plan):
            if self._fails(lab):
                return schedule
        return None

    def _schedules(self, plan: Plan) -> Iterator[tuple[Schedule, Lab]]:
        """All schedules of a plan, if they are few; otherwise some that differ much, always the same ones."""
        few = list(islice(all_schedules(self._make_lab(plan)), self._effort))
        if len(few) < self._effort:
            yield from few
            return
        rng = random.Random(0)
        for _ in range(self._effort):
            lab = self._make_lab(plan)
            yield random_schedule(lab, rng), lab

    def _tags(self, plan: Plan, schedule: Schedule) -> list[tuple[str, int] | None]:
        """By event: the (source, number) of the transaction that is executed or received in it."""
        lab = self._make_lab(plan)
        found: list[tuple[str, int] | None] = []
        for kind, source in schedule:
            message = lab.channels[source][0] if kind == "receive" else None
            if kind == "execute":
                found.append((source, lab.executed[source]))
            elif isinstance(message, Transaction):
                found.append((source, message.position.order[0] - 1))
            else:
                found.append(None)
            lab.step((kind, source))
        return found

    def shortest(self, plan: Plan, schedule: Schedule) -> Schedule:
        """The failing schedule with the fewest events, and of these the one that is most in order."""
        agreed = order(plan)
        best = min(self._known(plan, schedule), key=lambda s: self._disorder(plan, s, agreed))
        while (better := self._more_ordered(plan, best, agreed)) is not None:
            best = better
        return best

    def _known(self, plan: Plan, schedule: Schedule) -> list[Schedule]:
        """Failing schedules, as far as they were looked for, of the least length."""
        found = [schedule]
        for other, lab in self._schedules(plan):
            if len(other) <= len(found[0]) and self._fails(lab):
                found = [other] if len(other) < len(found[0]) else [*found, other]
        return found

    def _more_ordered(self, plan: Plan, schedule: Schedule, agreed: Order) -> Schedule | None:
        """A better schedule in which one event happened earlier, because it was its turn."""
        now = self._disorder(plan, schedule, agreed)
        for place in range(len(schedule)):
            lab = self._make_lab(plan)
            for event in schedule[:place]:
                lab.step(event)
            turn = in_order(lab, agreed)
            if turn is None or turn == schedule[place]:
                continue
            later = list(schedule[place:])
            if turn in later:
                later.remove(turn)
            found = self._failing(plan, (*schedule[:place], turn, *later))
            if found and self._disorder(plan, found, agreed) < now:
                return found
        return None

    def _disorder(self, plan: Plan, schedule: Schedule, agreed: Order) -> tuple[int, int, Schedule]:
        """How long a schedule is, and how often something happens out of turn."""
        lab = self._make_lab(plan)
        out_of_turn = 0
        for event in schedule:
            out_of_turn += event != in_order(lab, agreed)
            lab.step(event)
        return len(schedule), out_of_turn, schedule


Gone = frozenset[tuple[str, int]]


def _candidates(plan: Plan) -> Iterator[tuple[Plan, Gone]]:
    """Possible plans that lack one thing of this one, the largest things first; and the transactions that went."""
    for candidate, gone in _without_something(plan):
        if _possible(candidate):
            yield candidate, gone


def _without_something(plan: Plan) -> Iterator[tuple[Plan, Gone]]:
    places = [(source, number) for source, steps in plan.steps.items() for number in range(len(steps))]
    for source, number in places:
        step = plan.steps[source][number]
        together = {
            (s, n) for s, n in places if step.part_of and set(step.part_of) & set(plan.steps[s][n].part_of)
        } or {(source, number)}
        without = _replaced(plan, dict.fromkeys(together))
        yield without, frozenset(together)
        yield replace(without, initial=_before(plan, together)), frozenset(together)
    for source, number in places:
        step = plan.steps[source][number]
        if step.part_of:
            yield _replaced(plan, {(source, number): None}), frozenset({(source, number)})
        for smaller in _smaller_steps(step):
            yield _replaced(plan, {(source, number): smaller}), frozenset()
    for source, contents in plan.initial.items():
        for relation, rows in contents.items():
            for row, _ in sorted(rows.items(), key=repr):
                less = {**contents, relation: rows.add(Bag(rows.attributes, {row: -1}))}
                yield replace(plan, initial={**plan.initial, source: less}), frozenset()


def _before(plan: Plan, places: Collection[tuple[str, int]]) -> dict[str, Contents]:
    """What would be there at the start if some transactions had happened before it."""
    initial = {source: dict(contents) for source, contents in plan.initial.items()}
    for source, number in places:
        for relation, change in plan.steps[source][number].net.items():
            initial[source][relation] = initial[source][relation].add(change)
    return initial


def _smaller_steps(step: Step) -> Iterator[Step]:
    for place in range(len(step.updates)):
        if len(step.updates) > 1:
            yield replace(step, updates=step.updates[:place] + step.updates[place + 1 :])
    for place, update in enumerate(step.updates):
        for relation, rows in update.items():
            for row, n in sorted(rows.items(), key=repr):
                if len(rows) > 1:
                    less = {**update, relation: rows.add(Bag(rows.attributes, {row: -n}))}
                    yield replace(step, updates=(*step.updates[:place], less, *step.updates[place + 1 :]))


def _replaced(plan: Plan, changed: Mapping[tuple[str, int], Step | None]) -> Plan:
    """The plan with these transactions in the place of others, or without them."""
    steps = {
        source: tuple(
            step
            for number, old in enumerate(olds)
            if (step := changed.get((source, number), old)) is not None and (step.updates or step is old)
        )
        for source, olds in plan.steps.items()
    }
    return replace(plan, steps=_participants(steps))


def _participants(steps: Mapping[str, tuple[Step, ...]]) -> dict[str, tuple[Step, ...]]:
    """Global transactions name the sources that still take part; one that is left at one source is global no more."""
    where: dict[str, set[str]] = {}
    for source, own in steps.items():
        for step in own:
            for part in step.part_of:
                where.setdefault(part.id, set()).add(source)

    def mended(step: Step) -> Step:
        parts = tuple(replace(p, participants=frozenset(where[p.id])) for p in step.part_of if len(where[p.id]) > 1)
        return replace(step, part_of=parts) if parts != step.part_of else step

    return {source: tuple(mended(step) for step in own) for source, own in steps.items()}


def _possible(plan: Plan) -> bool:
    """Whether only rows are deleted that are there, and keys stay unique."""
    keys = {(r.source, r.name): r.key for r in plan.view.relations}
    for source, contents in plan.initial.items():
        now = dict(contents)
        updates = [update for step in plan.steps.get(source, ()) for update in step.updates]
        for update in [{}, *updates]:
            for relation, change in update.items():
                now[relation] = now[relation].add(change)
            for relation, rows in now.items():
                key = keys.get((source, relation), ())
                copies = rows.project(key) if key else rows
                if any(n < 0 for _, n in rows.items()) or (key and any(n > 1 for _, n in copies.items())):
                    return False
    return True
