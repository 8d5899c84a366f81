"""Example 6 carried out: what RV and ECA cost at their best and at their worst, as the paper counts it and as it is.

    RV best      the view is recomputed once, after the last update
    RV worst     it is recomputed after every update
    ECA best     every query is answered before the next update
    ECA worst    all updates are executed before the first query is evaluated
    ECA random   whatever can happen next happens with the same probability

The paper's source evaluates a whole query and sends the selected, projected tuples of each of its terms. Strobe's
sources send raw rows, found by key. One run counts both: its terms are evaluated once more, beside it, as the paper
would have it, in the very state in which the source evaluates the query.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.costs.example6 import SOURCE, Example
from benchmarks.costs.formulas import Parameters
from benchmarks.costs.meter import Counts, Disk, Evaluated, Metered, bag
from strobe.algebra.relation import Relation
from strobe.algebra.substitution import join_pairs, substitute
from strobe.algebra.view import View
from strobe.managers.base import QueryTerm, ViewManager
from strobe.managers.registry import ALGORITHMS
from strobe.simulator.explorer import calm_schedule, random_schedule, run
from strobe.simulator.lab import Plan
from strobe.simulator.world import Contents, evaluate

SEEDS = 5
"""Runs of which a point with random tuples is the mean."""


@dataclass
class Costs(Counts):
    """What a run has cost, also as the paper counts it."""

    terms: float = 0
    """Terms that were sent to the source."""
    tuples: float = 0
    """That the paper's source would send."""
    indexed: float = 0
    """IO in Scenario 1."""
    nested: float = 0
    """IO in Scenario 2."""
    nested_outer: float = 0
    """IO in Scenario 2, if the reads of the outer relations count too."""

    @property
    def paper_bytes(self) -> float:
        return self.tuples * Parameters.S


class Example6Lab(Metered):
    """The laboratory of Example 6."""

    counts: Costs

    def __init__(self, plan: Plan, manager: ViewManager) -> None:
        super().__init__(plan, manager, one_block=True)
        self.counts = Costs()
        self.disk = Disk(Parameters.K)
        self.terms: dict[int, tuple[QueryTerm, ...]] = {}
        """By query, as far as they are known."""

    def evaluated(self, evaluated: Evaluated) -> None:
        if evaluated.query.id not in self.terms:
            self.terms = dict(self.manager.describe()["UQS"])
        self.counts.indexed += self.disk.indexed(evaluated)
        for term in self.terms.pop(evaluated.query.id):
            free = [lookup.relation for lookup in term.lookups]
            self.counts.terms += 1
            self.counts.tuples += _tuples(self.plan.view, term, evaluated.state)
            self.counts.nested += self.disk.nested(free, evaluated.state, outer=False)
            self.counts.nested_outer += self.disk.nested(free, evaluated.state, outer=True)


def _tuples(view: View, term: QueryTerm, state: Contents) -> int:
    """The tuples of a term that the paper's source would send: joined, selected by W > Z, projected to W and Z."""
    rows: Relation = term.rows
    known = list(term.known)
    for lookup in term.lookups:
        occurrence = view.occurrences[lookup.occurrence]
        found = substitute(occurrence, state[lookup.relation])
        rows = rows.join(found, join_pairs(view, known, occurrence.index))
        known.append(occurrence.index)
    shown = bag(rows.project([output.expression for output in view.outputs]))
    return sum(abs(n) for (w, z), n in shown.items() if w > z)


@cache
def measured(case: str, example: Example) -> Costs:
    """The costs of a case: the mean of both ways to choose W or, with random tuples, of several runs."""
    total = Costs()
    runs = list(_variants(case, example))
    for variant in runs:
        total.plus(_case(case, variant))
    return total.per(len(runs))


def _variants(case: str, example: Example) -> Iterator[Example]:
    chance = example.layout == "random" or case == "ECA random"
    for seed in range(SEEDS if chance else 1):
        yield replace(example, seed=seed)
        if example.layout != "random":
            yield replace(example, seed=seed, mirrored=True)


def _case(case: str, example: Example) -> Costs:
    if case == "ECA best":
        return carry_out(example, "eca")
    if case == "ECA worst":
        return carry_out(example, "eca", "burst")
    if case == "ECA random":
        return carry_out(example, "eca", "random")
    return carry_out(example, "rv", every=example.k if case == "RV best" else 1)


def carry_out(example: Example, algorithm: str, schedule: str = "calm", every: int = 1) -> Costs:
    """One run, to its end. In a `burst` all updates are received before any query is evaluated."""
    plan = example.plan()
    lab = Example6Lab(plan, ALGORITHMS[algorithm].manager(plan.view, "strong", every))
    if schedule == "burst":
        run(lab, (("execute", SOURCE),) * example.k + (("receive", SOURCE),) * example.k)
    elif schedule == "random":
        random_schedule(lab, random.Random(f"{example.seed} {example.mirrored}"))
    else:
        calm_schedule(lab)
    if lab.view != evaluate(plan.view, {SOURCE: plan.states[SOURCE][-1]}):
        raise RuntimeError(f"{algorithm} ended with a wrong view; its costs mean nothing")
    return lab.counts


def crossover(case: str, layout: str, cost: str, most: int = 150, against: str = "RV best") -> int:
    """The least k for which a case costs more than recomputing, by measuring both; `cost` names a field."""
    low, high = 0, most
    while high - low > 1:
        k = (low + high) // 2
        example = Example(k=k, layout=layout)
        ours, other = measured(case, example), measured(against, example)
        low, high = (k, high) if getattr(ours, cost) <= getattr(other, cost) else (low, k)
    return high
