"""Several views together: mixed algorithms and levels, groups, orders, global transactions, crashes.

At every state of every run: each view is what the sources were at the place that it claims, one vector fits all views
of a group, no transaction is torn, and nothing waits that could be applied.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest
from worlds import VIEWS, R, S, T, U, random_world, run, view, wrong_states

from strobe.algebra.bag import Bag
from strobe.algebra.view import View
from strobe.auditor.levels import HistoryTransaction, Judge
from strobe.managers.base import ViewManager
from strobe.managers.choice import EVERY
from strobe.managers.conventional import Conventional
from strobe.managers.nested_sweep import NestedSweep
from strobe.managers.registry import ALGORITHMS, Setting, one_source
from strobe.managers.rv import Rv
from strobe.managers.sweep import Sweep
from strobe.merge.groups import partition
from strobe.merge.painting import Painting
from strobe.messages import ActionList, GlobalTransaction, Position, Rel, TransactionInfo
from strobe.simulator.plans import Shape, random_plan
from strobe.simulator.world import MemorySource, Planned, World, evaluate

ALL = sorted(VIEWS)
MIXED: list[Callable[[View], ViewManager]] = [
    lambda v: Sweep(v, complete=True),
    lambda v: Sweep(v, complete=False),
    lambda v: Rv(v),
    lambda v: NestedSweep(v, depth=0),
]


def mixed(seed: int) -> Callable[[View], ViewManager]:
    rng = random.Random(seed)
    return lambda v: rng.choice(MIXED)(v)


@pytest.mark.parametrize("order", ["source", "views"])
def test_mixed_kinds_of_views_are_right_at_every_state(order: str) -> None:
    for seed in range(100):
        rng = random.Random(seed)
        names = rng.sample(ALL, rng.randint(3, 6))
        world = random_world(seed, names, mixed(seed), order=order)
        run(world, seed)
        assert wrong_states(world) == [], f"seed {seed}"


def test_with_the_order_of_sources_one_vector_fits_all_views_of_a_group() -> None:
    """The auditor searches for it: it is not told where the views say they are."""
    for seed in range(40):
        world = random_world(seed, ["chain", "pairs", "single"], mixed(seed), transactions=6)
        run(world, seed)
        assert together(world) in ("strong", "complete"), f"seed {seed}"


@pytest.mark.parametrize("every", [2, 3])
def test_complete_n_views_show_exactly_every_nth_state(every: int) -> None:
    """In blocks of exactly N transactions, as the auditor says too where each of them changed something."""
    found = set()
    for seed in range(60):
        world = random_world(seed, ["chain", "pairs", "single"], MIXED[1], transactions=8)
        world.pace = every
        world.crash(MIXED[1])
        run(world, seed)
        assert wrong_states(world) == [], f"seed {seed}"
        judge, key = judged(world)
        numbers = [len(state.numbers) for state in world.history[1:]]
        assert numbers[:-1] == [every] * (len(numbers) - 1), f"seed {seed}"
        found.add(judge.complete_n(key))
    assert every in found


def test_with_the_order_of_views_a_later_transaction_may_be_seen_without_an_earlier_one() -> None:
    """What `order: views` gives up: the views of one source are not always at one of its states."""
    levels = set()
    for seed in range(60):
        world = random_world(seed, ["pairs", "single"], mixed(seed), transactions=6, order="views")
        run(world, seed)
        assert wrong_states(world) == []
        levels.add(together(world))
    assert not levels <= {"strong", "complete"}


def together(world: World) -> str:
    judge, key = judged(world)
    return judge.level(key)


def judged(world: World) -> tuple[Judge, tuple[int, ...]]:
    initial = {name: source.states[0] for name, source in world.sources.items()}
    history = [
        HistoryTransaction(f"{name}{number}", {name: dict(t.changes)})  # type: ignore[arg-type]  # bags
        for name, source in world.sources.items()
        for number, t in enumerate(source.log)
    ]
    views = {name: manager.view for name, manager in world.managers.items()}
    judge = Judge(initial, history, lambda at: {name: evaluate(v, at) for name, v in views.items()})
    return judge, judge.key([state.views for state in world.history])


@pytest.mark.parametrize("order", ["source", "views"])
def test_crashes_lose_and_double_nothing(order: str) -> None:
    """Everything in flight is forgotten at random moments; views may stand at different places when it starts again."""
    for seed in range(60):
        rng = random.Random(seed)
        make = mixed(seed)
        world = random_world(seed, rng.sample(ALL, 4), make, order=order)
        for _ in range(3):
            for _ in range(rng.randrange(40)):
                choices = world.choices()
                if choices:
                    world.step(*rng.choice(choices))
            world.crash(make)
        run(world, seed)
        assert wrong_states(world) == [], f"seed {seed}"
        for place in world.history[-1].places.values():
            assert place == {s: world.sources[s].now for s in place}, f"seed {seed}"


def test_a_view_that_promises_nothing_holds_nobody_up() -> None:
    """Its action lists pass through; the others are right at every state, and do not wait for it."""
    for seed in range(40):
        world = random_world(seed, ["chain", "pairs"], lambda v: Sweep(v, complete=True))
        world.managers["chain"] = Conventional(VIEWS["chain"])
        world = replace(world, unguaranteed=frozenset({"chain"}), history=[])
        run(world, seed)
        assert wrong_states(world) == [], f"seed {seed}"


def test_groups_share_no_source() -> None:
    assert partition({name: VIEWS[name] for name in ALL}) == [frozenset(ALL)]
    lonely = view("lonely", [T], [])
    assert partition({"pairs": VIEWS["pairs"], "lonely": lonely}) == [frozenset({"lonely"}), frozenset({"pairs"})]
    tied = partition({"pairs": VIEWS["pairs"], "lonely": lonely}, together=[{"x", "z"}])
    assert tied == [frozenset({"lonely", "pairs"})]


def test_a_slow_group_does_not_hold_up_another() -> None:
    """The managers of one group never get an answer; the other group goes on to the end."""
    lonely, pairs = view("lonely", [S, S], ["0.b=1.b"]), VIEWS["chain"]
    sources = {
        "x": MemorySource("x", {"r": Bag.of("ab", [(1, 2)]), "u": Bag("de")}),
        "y": MemorySource("y", {"s": Bag.of("bc", [(2, 3)])}),
        "z": MemorySource("z", {"t": Bag.of("cd", [(3, 4)])}),
    }
    single = view("single", [U, R], ["0.d=1.a"])
    managers = {v.name: Sweep(v, complete=True) for v in (lonely, single)}
    planned = deque(
        [("x", {"r": Bag.of("ab", [(n, n)])}, ()) for n in range(5)]
        + [("y", {"s": Bag.of("bc", [(n, n)])}, ()) for n in range(5)]
    )
    world = World(sources, dict(managers), planned)
    assert pairs.sources == ("x", "y", "z")
    while choices := [c for c in world.choices() if c != ("evaluate", "x")]:
        world.step(*choices[0])
    assert world.history[-1].places["lonely"] == {"y": 5}
    assert world.history[-1].places["single"] == {"x": 0}


@pytest.mark.parametrize("order", ["source", "views"])
def test_a_global_transaction_is_in_all_views_or_in_none(order: str) -> None:
    """Also where no view uses relations of both of its parts."""
    first, second = view("first", [R], []), view("second", [S], [])
    tie = view("tie", [R, S], ["0.b=1.b"])
    for seed in range(60):
        rng = random.Random(seed)
        sources = {"x": MemorySource("x", {"r": Bag("ab"), "u": Bag("de")}), "y": MemorySource("y", {"s": Bag("bc")})}
        planned: deque = deque()
        for number in range(5):
            part_of = (GlobalTransaction(f"T{number}", frozenset("xy")),) if rng.random() < 0.6 else ()
            row = [(number, number)]
            planned.append(("x", {"r": Bag.of("ab", row)}, part_of))
            planned.append(("y", {"s": Bag.of("bc", row)}, part_of))
        views = (first, second, tie) if seed % 2 else (first, second)
        world = World(sources, {v.name: rng.choice(MIXED)(v) for v in views}, planned, order=order)
        run(world, seed)
        whole = {t.position.order[0] for t in sources["x"].log if t.part_of}
        for state in world.history:
            for number in whole:
                in_first = ((number - 1, number - 1) in dict(state.views["first"].items())) is True
                in_second = ((number - 1, number - 1) in dict(state.views["second"].items())) is True
                assert in_first == in_second, f"seed {seed}: T{number - 1} is torn"
        assert wrong_states(world) == []


@pytest.mark.parametrize("n", [2, 3])
def test_blocks_of_n_transactions_are_complete_n(n: int) -> None:
    """Cuts that the integrator announces at every N-th transaction: exactly every N-th state is shown, in all views."""
    found = set()
    for seed in range(25):
        world = random_world(seed, ["chain", "pairs", "single"], lambda v: Sweep(v, complete=False), transactions=6)
        (group,) = world.engine.groups
        rng = random.Random(seed)
        while True:
            due = group.blocks.arrived - group.blocks.components[0].cut == n
            choices = [c for c in world.choices() if (c[0] == "cut") == due and not (due and c[0] == "report")]
            if not choices:
                break
            world.step(*rng.choice(choices))
        judge, key = judged(world)
        level = judge.level(key)
        assert level == "complete" or judge.complete_n(key) in range(2, n + 1), f"seed {seed}: {level}"
        found.add(judge.complete_n(key) if level != "complete" else 1)
    assert n in found


def test_nothing_waits_that_could_be_applied() -> None:
    """Promptness: after every message no set of rows is left whose closure is all red."""
    for seed in range(300):
        rng = random.Random(seed)
        order = rng.choice(["source", "views"])
        merge = Painting({s: Position("0", (0,)) for s in "xy"}, order=order)
        views = ["A", "B", "C"]
        rels = [
            Rel(
                n,
                TransactionInfo(rng.choice("xy"), Position(str(n), (n,))),
                frozenset(rng.sample(views, rng.randint(0, 3))),
            )
            for n in range(1, 8)
        ]
        lists = {v: deque(_batches(rng, v, [r.number for r in rels if v in r.views])) for v in views}
        waiting = deque(rels)
        while waiting or any(lists.values()):
            ready = [v for v in views if lists[v] and not any(r.number <= lists[v][0].number for r in waiting)]
            if waiting and (not ready or rng.random() < 0.5):
                merge.receive(waiting.popleft())
            else:
                merge.receive(lists[rng.choice(ready)].popleft())
            assert all(merge.closure(number) is None for number in merge.colours()), f"seed {seed}"
        assert merge.size == 0


def _batches(rng: random.Random, name: str, numbers: list[int]) -> list[ActionList]:
    found = []
    while numbers:
        size = rng.randint(1, 3)
        found.append(ActionList(name, tuple(numbers[:size]), Bag(("a",))))
        numbers = numbers[size:]
    return found


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ("conventional", "sc")])
def test_every_algorithm_next_to_a_sweep(name: str) -> None:
    """Through inbox, cuts at any moment and merge: two views of the same relations, one kept by sweeping."""
    algorithm = ALGORITHMS[name]
    for seed in range(80):
        rng = random.Random(seed)
        scenarios = ["transactions", "single source"] if one_source in algorithm.lacks else ["source-local"]
        plan = random_plan(rng, rng.choice(scenarios), Shape(rng.choice([(0, 1), (0, 1, 2), (0, 1, 0)])), 6)
        steps = {source: list(of) for source, of in plan.steps.items()}
        planned: deque[Planned] = deque()
        while any(steps.values()):
            source = rng.choice([s for s in steps if steps[s]])
            planned.append((source, steps[source].pop(0).net, ()))
        every = rng.choice([None, 2]) if name in EVERY else None
        managers = {
            "v": algorithm.make(plan.view, Setting("strong", every, alone=False)),
            "w": Sweep(replace(plan.view, name="w"), complete=False),
        }
        world = World({s: MemorySource(s, dict(c)) for s, c in plan.initial.items()}, managers, planned)
        world.looks = rng.random() < 0.5
        run(world, seed)
        assert wrong_states(world) == [], f"seed {seed}"
        for place in world.history[-1].places.values():
            assert place == {s: world.sources[s].now for s in place}, f"seed {seed}"
