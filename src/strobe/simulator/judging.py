"""What a run of the laboratory comes to: the view as its readers see it, and the level that a judge finds.

The laboratory keeps views over all attributes; readers see them through the view's condition and projection.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from strobe.algebra.bag import Bag, Row
from strobe.algebra.view import View
from strobe.auditor.expressions import compile_expression
from strobe.auditor.levels import CannotEvaluate, Finding, HistoryTransaction, Judge
from strobe.errors import UserError
from strobe.simulator.lab import Event, Lab, Plan, Step
from strobe.simulator.world import evaluate

Order = tuple[tuple[str, ...], ...]
"""Transactions one after another, each as the sources that take part in it."""


def transactions(plan: Plan) -> list[dict[str, Step]]:
    """The transactions of a plan, as (source, part), in an order that every source agrees with; by name where any would
    do."""
    done = dict.fromkeys(plan.steps, 0)
    found: list[dict[str, Step]] = []
    while True:
        heads = {s: steps[done[s]] for s, steps in plan.steps.items() if done[s] < len(steps)}
        if not heads:
            return found
        ready = [parts for s, step in heads.items() if (parts := _parts(s, step, heads)) is not None]
        if not ready:
            names = ", ".join(sorted({step.id for step in heads.values()}))
            raise UserError(
                f"no serial order has {names} as each source has them",
                fix="Let the sources execute global transactions in one order.",
            )
        chosen = min(ready, key=lambda parts: _natural(next(iter(parts.values())).id))
        for source in chosen:
            done[source] += 1
        found.append(chosen)


def _parts(source: str, step: Step, heads: dict[str, Step]) -> dict[str, Step] | None:
    """The parts of the transaction that a source is to execute next, if it is next at all its sources."""
    if not step.part_of:
        return {source: step}
    (together,) = step.part_of
    parts = {s: head for s, head in heads.items() if together in head.part_of}
    return parts if set(parts) == together.participants else None


def _natural(name: str) -> list[tuple[int, str]]:
    """U2 before U10."""
    return [(int(part or 0), "") if i % 2 else (0, part) for i, part in enumerate(re.split(r"(\d+)", name))]


def order(plan: Plan) -> Order:
    return tuple(tuple(parts) for parts in transactions(plan))


def in_order(lab: Lab, order: Order) -> Event | None:
    """What happens next when everything happens in order: each transaction when all before it has come to rest."""
    counted = dict.fromkeys(lab.executed, 0)
    begun, todo = False, []
    for parts in order:
        todo = [s for s in parts if counted[s] >= lab.executed[s]]
        begun = 0 < len(todo) < len(parts)
        if todo:
            break
        for source in parts:
            counted[source] += 1
    others = [event for event in lab.choices() if event[0] != "execute"]
    if todo and (begun or not others):
        return "execute", todo[0]
    return next((event for event in others if event[0] == "receive"), others[0] if others else None)


def follow(lab: Lab, schedule: Sequence[Event], order: Order) -> tuple[Event, ...]:
    """Run a schedule as far as it is possible, then whatever is left, in order; all that happened."""
    done: list[Event] = []
    for event in schedule:
        if event in lab.choices():
            lab.step(event)
            done.append(event)
    while (turn := in_order(lab, order)) is not None:
        lab.step(turn)
        done.append(turn)
    return tuple(done)


class Shown:
    """A view as its readers see it: through its condition and its expressions."""

    def __init__(self, view: View, where: str = "") -> None:
        self.columns = tuple(output.name for output in view.outputs)
        self._attributes = view.attributes
        expressions = [output.expression for output in view.outputs]
        self._plain = expressions if view.condition is None and set(expressions) <= set(view.attributes) else None
        if self._plain is None:
            types = view.attribute_types()
            try:
                self._condition = compile_expression(view.condition or "TRUE", types)
                self._outputs = [compile_expression(expression, types) for expression in expressions]
            except CannotEvaluate as error:
                raise UserError(
                    f"only Spark can say what {error.message} is",
                    where=where or f"view {view.name}",
                    fix="Use columns, literals, comparisons, AND, OR, NOT, and + - * of integers.",
                ) from None

    def __call__(self, rows: Bag) -> Bag:
        if self._plain is not None:
            return Bag(self.columns, dict(rows.project(self._plain).items()))
        counts: Counter[Row] = Counter()
        for row, n in rows.project(self._attributes).items():
            if self._condition.run(row):
                counts[tuple(output.run(row) for output in self._outputs)] += n
        return Bag(self.columns, counts)


class Levels:
    """Judges runs; one judge serves all runs of a plan."""

    def __init__(self) -> None:
        self._plan: Plan | None = None

    def finding(self, lab: Lab, wanted: str = "strong") -> Finding:
        return self._judge_of(lab).verdict(self._states(lab), wanted).together

    def level(self, lab: Lab) -> str:
        judge = self._judge_of(lab)
        return judge.level(judge.key(self._states(lab)))

    def _judge_of(self, lab: Lab) -> Judge:
        plan = lab.plan
        if plan is not self._plan:
            self._shown = shown = Shown(plan.view)
            history = [HistoryTransaction(name, parts) for name, parts in _history(plan)]
            self._judge = Judge(plan.initial, history, lambda at: {plan.view.name: shown(evaluate(plan.view, at))})
            self._plan = plan
        return self._judge

    def _states(self, lab: Lab) -> list[dict[str, Bag]]:
        return [{lab.plan.view.name: self._shown(state)} for state in lab.states]


def _history(plan: Plan) -> list[tuple[str, dict[str, dict[str, Bag]]]]:
    return [
        (next(iter(parts.values())).id, {source: step.net for source, step in parts.items()})
        for parts in transactions(plan)
    ]
