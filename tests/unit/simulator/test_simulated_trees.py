"""Views that are trees, on random schedules: every committed state is compared with a recomputation.

Two or three sources, delayed answers, snapshots that saw a later transaction without an earlier one, batches, global
transactions, several views with one vector, crashes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from stalling import Stalling
from trees import TreePlan, compiled_tree, random_tree, smallest, tree_plan, tree_world, with_occurrences
from worlds import run, wrong_states

from strobe.algebra.bag import Bag
from strobe.algebra.tree import operators
from strobe.algebra.view import View
from strobe.managers.base import ViewManager
from strobe.managers.held import Correction, Held
from strobe.managers.tree_sweep import TreeSweep
from strobe.messages import Seen, SeenByXid
from strobe.simulator.world import MemorySource, World

SEEDS = [range(200), pytest.param(range(200, 20_000), marks=pytest.mark.slow)]


def stalling(seed: int) -> Callable[[str, Mapping[str, Bag]], MemorySource]:
    return lambda name, contents: Stalling(name, contents, random.Random(f"{seed} {name}"))


def trial(seed: int) -> tuple[TreePlan, Callable[[TreePlan], World]]:
    """A plan, and a world of one of all kinds in which it can happen."""
    rng = random.Random(seed)
    pace = rng.choice([0, 0, 0, 0, 2, 3])
    complete = not pace and rng.random() < 0.5
    xids = rng.random() < 0.5
    order = "source" if pace else rng.choice(["source", "views"])
    looks = not xids and rng.random() < 0.2
    mixed = not pace and rng.random() < 0.3
    plan = tree_plan(
        seed,
        view=rng.choice([random_tree, random_tree, compiled_tree]),
        transactions=rng.choice([4, 8, 16]),
        views=rng.choice([1, 1, 2]),
        together=not xids and not pace and rng.random() < 0.3,
    )

    def world(of: TreePlan) -> World:
        def make(view: View) -> ViewManager:
            return TreeSweep(view, complete=complete != (mixed and view.name == "v1"))

        found = of.world(make, order=order, source=stalling(seed) if xids else None, pace=pace)
        found.looks = looks
        return found

    return plan, world


def right(world: World, seed: int) -> bool:
    """Whether every state is right, and the last one has everything."""
    run(world, seed)
    ended = all(place == {s: world.sources[s].now for s in place} for place in world.history[-1].places.values())
    return ended and not wrong_states(world)


def of_seed(seed: int) -> bool:
    plan, world = trial(seed)
    return right(world(plan), seed)


def smallest_of(seed: int) -> TreePlan:
    """What is left of a seed's plan that goes wrong in some schedule."""
    plan, world = trial(seed)
    return smallest(plan, lambda less: not all(right(world(less), other) for other in (seed, *range(5))))


@pytest.mark.parametrize("seeds", SEEDS, ids=["few", "many"])
def test_every_state_is_a_state_of_the_sources(seeds: range) -> None:
    for seed in seeds:
        assert of_seed(seed), f"seed {seed}: {smallest_of(seed)}"


def test_a_failing_seed_is_made_small() -> None:
    """What is left of it says what went wrong: few operators, few transactions."""
    with planted(*MISTAKES["answers believed"]):
        wrong = next(seed for seed in range(2000) if not of_seed(seed))
        plan = smallest_of(wrong)
    assert len(plan.planned) <= 3 and len(plan.views) == 1
    assert sum(len(list(operators(view.tree))) for view in plan.views.values() if view.tree) <= 5


def test_at_complete_every_transaction_is_a_state_of_its_own() -> None:
    for seed in range(40):
        world = tree_world(seed, lambda view: TreeSweep(view, complete=True))
        run(world, seed)
        assert all(len(state.numbers) == 1 for state in world.history[1:])
        for source in world.managers["v0"].view.sources:
            passed = [state.vector[source] for state in world.history]
            assert sorted(set(passed)) == list(range(world.sources[source].now + 1)) and passed == sorted(passed)


def test_after_a_crash_everything_goes_on_from_the_last_commit() -> None:
    for seed in range(60):
        world = tree_world(seed, lambda view: TreeSweep(view, complete=bool(len(view.sql) % 2)), transactions=12)
        rng = random.Random(seed)
        for _ in range(3):
            for _ in range(rng.randrange(30)):
                if choices := world.choices():
                    world.step(*rng.choice(choices))
            world.crash(lambda view: TreeSweep(view, complete=True))
        assert right(world, seed), f"seed {seed}"


def test_what_the_warehouse_keeps_a_copy_of_is_not_asked_at_the_source() -> None:
    """The question says so, and is never mixed with one to the source."""
    for seed in range(30):
        world = tree_world(seed, lambda view: TreeSweep(with_occurrences(view, copied=True), complete=True))
        asked = []
        while choices := [choice for choice in world.choices() if choice[0] != "evaluate"]:
            world.step(*choices[seed % len(choices)])
            asked += [query for questions in world.questions.values() for query in questions]
            if asked:
                break
        assert all(query.copy for query in asked)


def test_questions_to_different_sources_are_asked_at_the_same_time() -> None:
    """Some batch has questions to two sources open at once, and no key is asked twice in a batch."""
    most = 0
    for seed in range(60):
        world = tree_world(seed, lambda view: TreeSweep(view, complete=True), transactions=4)
        rng = random.Random(seed)
        while choices := world.choices():
            world.step(*rng.choice(choices))
            most = max(most, sum(1 for questions in world.questions.values() if questions))
    assert most > 1


# ── Mistakes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _uncompensated(self: Correction, term: Any) -> Bag:
    return Bag((*term.attributes, *self._wanted.attributes))


def _seen_by_position(self: SeenByXid, transaction: Any) -> bool:
    return Seen.saw(self, transaction)


def _forgets_what_was_unseen(self: Held, occurrence: Any, seen: Seen, pairs: Any) -> Correction:
    """What is held is taken out of the answer, whether it was in it or not."""
    found = _correction(self, occurrence, seen, pairs)
    found._wanted = type(found._wanted)(occurrence.attributes, [b for _, b in pairs], null_safe=True)
    return found


def _strict(self: Held, view: View, *, null_safe: bool = False) -> None:
    _held(self, view)


_correction, _held = Held.correction, Held.__init__

MISTAKES = {
    "answers believed": (Correction, "join", _uncompensated),
    "by position": (SeenByXid, "saw", _seen_by_position),
    "everything taken for seen": (Held, "correction", _forgets_what_was_unseen),
    "rows with NULL not compensated": (Held, "__init__", _strict),
}


@contextmanager
def planted(owner: Any, name: str, wrong: Any) -> Iterator[None]:
    right = owner.__dict__[name]
    setattr(owner, name, wrong)
    try:
        yield
    finally:
        setattr(owner, name, right)


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_found(name: str) -> None:
    """Some schedule ends in a wrong state with the mistake, and not without it."""
    with planted(*MISTAKES[name]):
        wrong = next((seed for seed in range(2000) if not of_seed(seed)), None)
    assert wrong is not None and of_seed(wrong)
