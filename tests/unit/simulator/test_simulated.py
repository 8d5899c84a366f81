"""Managers, inboxes, integrator and merge on random schedules: every state is compared with a recomputation."""

from __future__ import annotations

import random

import pytest
from worlds import VIEWS, random_world, run, wrong_states

from strobe.algebra.view import View
from strobe.managers.base import ViewManager
from strobe.managers.conventional import Conventional
from strobe.managers.sweep import Sweep

ALL = sorted(VIEWS)


def complete(view: View) -> ViewManager:
    return Sweep(view, complete=True)


def strong(view: View) -> ViewManager:
    return Sweep(view, complete=False)


@pytest.mark.parametrize("make", [complete, strong])
@pytest.mark.parametrize("views", [[name] for name in ALL] + [ALL, ["chain", "single"]])
def test_every_state_of_sweep_is_a_state_of_the_sources(make: object, views: list[str]) -> None:
    """Whatever overtakes whatever: each warehouse transaction leaves all views at one vector of source states."""
    for seed in range(60):
        world = random_world(seed, views, make)  # type: ignore[arg-type]  # parametrised function
        run(world, seed)
        assert wrong_states(world) == [], f"seed {seed}"
        for place in world.history[-1].places.values():
            assert place == {s: world.sources[s].now for s in place}, f"seed {seed}"


def test_mixed_levels_share_every_state() -> None:
    """Complete and strong managers together: every commit is one vector for all views."""
    for seed in range(100):
        rng = random.Random(seed)
        world = random_world(seed, ALL, lambda view, rng=rng: Sweep(view, complete=rng.random() < 0.5))
        run(world, seed)
        assert wrong_states(world) == [], f"seed {seed}"


def test_complete_sweep_passes_through_every_transaction() -> None:
    """At complete, every transaction is a state of its own."""
    for seed in range(40):
        world = random_world(seed, ["chain"], complete)
        run(world, seed)
        assert all(len(s.numbers) == 1 for s in world.history[1:])
        for source in world.sources:
            passed = [state.vector[source] for state in world.history]
            assert sorted(set(passed)) == list(range(world.sources[source].now + 1)) and passed == sorted(passed)


def test_groups_between_two_looks() -> None:
    """A source that reports all that happened between two looks as one transaction, split where answers were read."""
    for seed in range(150):
        world = random_world(seed, ALL, complete if seed % 2 else strong, transactions=14)
        world.looks = True
        run(world, seed)
        assert wrong_states(world) == [], f"seed {seed}"


def test_groups_that_span_a_snapshot_go_wrong() -> None:
    """Without the gate an answer has seen half of a reported transaction, and no manager can make that good."""
    wrong = 0
    for seed in range(30):
        world = random_world(seed, ALL, complete, transactions=40)
        world.looks, world.gate = True, False
        run(world, seed)
        wrong += bool(wrong_states(world))
    assert wrong > 10


def test_conventional_goes_wrong() -> None:
    """Without compensation a good part of the same schedules ends wrong, and stays wrong."""
    ended_wrong = 0
    for seed in range(100):
        world = random_world(seed, ["chain"], Conventional)
        run(world, seed)
        ended_wrong += world.history[-1].views["chain"] != world.expected("chain", world.history[-1].vector)
    assert ended_wrong > 20
