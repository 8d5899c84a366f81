"""Rows that leave a relation all at once, in random schedules, for all algorithms that promise states."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from worlds import R, U, random_world, run, wrong_states

from strobe.algebra.bag import Bag
from strobe.algebra.bounds import Bound, End, Listed, Range
from strobe.algebra.view import View
from strobe.managers import departures
from strobe.managers.base import ViewManager
from strobe.managers.departures import Departures
from strobe.managers.nested_sweep import NestedSweep
from strobe.managers.rv import Rv
from strobe.managers.sweep import Sweep
from strobe.messages import Departed, GlobalTransaction, Transaction
from strobe.simulator.world import MemorySource, World, position

MAKERS: dict[str, Callable[[View], ViewManager]] = {
    "sweep": lambda v: Sweep(v, complete=False),
    "complete": lambda v: Sweep(v, complete=True),
    "nested-sweep": NestedSweep,
    "rv": lambda v: Rv(v, every=2),
}
VIEWS = ["chain", "self_join", "two_at_one_source", "pairs", "single"]


class Statement(dict[str, Bag]):
    """Rows of a relation leave, and others come and go in the same transaction, before that or after."""

    def __init__(self, relation: str, bound: Bound, changes: Mapping[str, Bag], late: bool) -> None:
        super().__init__(changes)
        self.relation, self.bound, self.late = relation, bound, late


class Partitioned(MemorySource):
    def commit(self, changes: Mapping[str, Bag], part_of: tuple[GlobalTransaction, ...] = ()) -> None:
        if not isinstance(changes, Statement):
            super().commit(changes, part_of)
            return
        state = dict(self.states[-1])
        if not changes.late:
            state[changes.relation] = state[changes.relation].outside(changes.bound)
        for relation, change in changes.items():
            state[relation] = state[relation].add(change)
        if changes.late:
            state[changes.relation] = state[changes.relation].outside(changes.bound)
        self.states.append(state)
        left = {changes.relation: (Departed("rows left", changes.bound, late=changes.late),)}
        self.log.append(Transaction(self.name, position(len(self.log) + 1), changes=dict(changes), departed=left))


def bound(rng: random.Random, columns: tuple[str, ...]) -> Bound:
    kind = rng.choice(["all", "list", "low", "range"])
    if kind == "all":
        return Bound()
    if kind == "list":
        return Bound((Listed(columns[0], (rng.choice([1, 2]),), null=rng.random() < 0.3),))
    upper = End((2,), False) if kind == "low" else End((2, 2), rng.random() < 0.5)
    return Bound((Range(columns, End((1,) if kind == "range" else ()), upper),))


def world(seed: int, make: Callable[[View], ViewManager], views: list[str] = VIEWS) -> World:
    """A random one, in which rows of relations of one source leave now and then: before its own changes or after."""
    made = random_world(seed, views, lambda v: Departures(lambda: make(v)), transactions=10)
    rng = random.Random(seed)
    shadow = Partitioned("x", made.sources["x"].states[0])
    planned = list(made.planned)
    for place in [i for i, (source, _, _) in enumerate(planned) if source == "x" and rng.random() < 0.5]:
        relation = rng.choice([R, U])
        columns = tuple(c.name for c in relation.columns)
        planned[place] = ("x", Statement(relation.name, bound(rng, columns), planned[place][1], rng.random() < 0.3), ())
    for place, (source, changes, parts) in enumerate(planned):  # no row goes that has left
        if source == "x":
            fitting = _fitting(changes, shadow.states[-1])
            planned[place] = (source, fitting, parts)
            shadow.commit(fitting)
    made.planned.clear()
    made.planned.extend(planned)
    made.sources["x"] = Partitioned("x", made.sources["x"].states[0])
    return made


def _fitting(changes: Mapping[str, Bag], state: Mapping[str, Bag]) -> Mapping[str, Bag]:
    def left(name: str) -> Bag:
        early = isinstance(changes, Statement) and changes.relation == name and not changes.late
        return state[name].outside(changes.bound) if early and isinstance(changes, Statement) else state[name]

    found = {}
    for name, change in changes.items():
        there = dict(left(name).items())
        rows = {row: max(n, -there.get(row, 0)) for row, n in change.items()}
        found[name] = Bag(change.attributes, rows)
    return Statement(changes.relation, changes.bound, found, changes.late) if isinstance(changes, Statement) else found


@pytest.mark.parametrize("algorithm", MAKERS)
@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(25, 3000), marks=pytest.mark.slow)])
def test_every_state_is_right_when_rows_leave_all_at_once(algorithm: str, seeds: range) -> None:
    """Whatever the algorithm: each committed state of each view is a recomputation at the vector that it claims."""
    departures_seen = 0
    for seed in seeds:
        made = world(seed, MAKERS[algorithm])
        run(made, seed)
        departures_seen += sum(bool(t.departed) for t in made.sources["x"].log)
        assert not wrong_states(made), f"seed {seed}"
        for name in made.managers:
            last = {s: made.sources[s].now for s in made.managers[name].view.sources}
            assert made.history[-1].views[name] == made.expected(name, last), f"seed {seed}"
    assert departures_seen > len(seeds)


@pytest.mark.parametrize(
    ("broken", "by"),
    [
        ("_without", lambda transaction, _occurrence, _bound: transaction),
        ("one", lambda lists: replace(departures_one(lists), deletes=())),
    ],
)
def test_it_can_fail(monkeypatch: pytest.MonkeyPatch, broken: str, by: object) -> None:
    """Without taking rows out of what came before, or out of the view, states are wrong."""
    monkeypatch.setattr(departures, broken, by)
    assert any(_goes_wrong(seed) for seed in range(60))


departures_one = departures.one


def _goes_wrong(seed: int) -> bool:
    made = world(seed, MAKERS["sweep"])
    run(made, seed)
    return bool(wrong_states(made))
