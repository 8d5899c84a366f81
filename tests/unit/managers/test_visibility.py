"""Snapshots that saw a later transaction without an earlier one, as PostgreSQL's do, under every algorithm.

A transaction is in the log before it is visible. So an answer may equal no state of the source: managers that
compensate update by update set it right; for the others it is asked again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest
from stalling import Stalling
from worlds import R, U, random_world, run, view

from strobe.algebra.bag import Bag
from strobe.algebra.schema import RelationSchema
from strobe.algebra.view import View
from strobe.managers.base import Inbound, Outbound, ViewManager
from strobe.managers.eca import Eca
from strobe.managers.inbox import Inbox
from strobe.managers.nested_sweep import NestedSweep
from strobe.managers.rv import Rv
from strobe.managers.strobe import Strobe
from strobe.managers.sweep import Sweep
from strobe.messages import Answer, Position, Query, SeenByXid, Transaction, Update
from strobe.simulator.world import MemorySource, World, position


def stalling(world: World, seed: int, gate: bool) -> World:
    sources = {}
    for name, source in world.sources.items():
        sources[name] = Stalling(name, source.states[0], random.Random(f"{seed} {name}"))
        sources[name].gate = gate
    return World(dict(sources), world.managers, world.planned)


def wrong_states(world: World) -> list[str]:
    return [
        f"{state.numbers} {name} at {state.vector}"
        for state in world.history
        for name, rows in state.views.items()
        if rows != world.expected(name, state.vector)
    ]


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda v: Sweep(v, complete=True),
        lambda v: Sweep(v, complete=False),
        lambda v: NestedSweep(v),
        lambda v: Rv(v),
    ],
    ids=["sweep complete", "sweep strong", "nested-sweep", "rv"],
)
def test_managers_that_compensate_are_right(make: Callable[[View], ViewManager], gate: bool) -> None:
    """Every state is a state of the sources, whether the log waits until a commit is visible or not."""
    for seed in range(60):
        for views in (["chain"], ["self_join"], ["two_at_one_source"]):
            world = stalling(random_world(seed, views, make), seed, gate)
            run(world, seed)
            assert wrong_states(world) == [], f"seed {seed}"
            used = world.managers[views[0]].view.sources
            assert {s: world.history[-1].vector[s] for s in used} == {s: world.sources[s].now for s in used}


ONE_SOURCE = view("one", [R, U], ["0.b=1.d"])


@pytest.mark.parametrize("complete", [False, True])
def test_eca_is_asked_again(complete: bool) -> None:
    for seed in range(100):
        world = one_source(seed, lambda: Eca(ONE_SOURCE, complete=complete))
        run(world, seed)
        assert wrong_states(world) == [], f"seed {seed}"


def test_eca_would_go_wrong_with_such_answers() -> None:
    """The rule is needed: the same worlds with every answer believed."""
    wrong = 0
    for seed in range(100):
        world = one_source(seed, lambda: Believing(ONE_SOURCE))
        run(world, seed)
        wrong += bool(wrong_states(world))
    assert wrong > 10


class Believing(Eca):
    compensates = True


def one_source(seed: int, make: Callable[[], ViewManager]) -> World:
    world = random_world(seed, ["single"], lambda _: make(), transactions=10)
    (manager,) = world.managers.values()
    return stalling(World(world.sources, {"one": manager}, world.planned), seed, True)


class Keyed:
    """Random transactions over relations with keys, one at each of two sources."""

    def __init__(self, images: bool) -> None:
        columns = R.columns
        self.left = RelationSchema("x", "r", columns, ("a",), (("a",), ("b",)), images)
        self.right = RelationSchema("y", "s", columns, ("a",), (("a",), ("b",)), images)
        self.view = view("keyed", [self.left, self.right], ["0.b=1.b"])

    def world(self, seed: int, manager: ViewManager, source: type[MemorySource], transactions: int = 10) -> World:
        rng = random.Random(seed)
        rows: dict[str, dict[int, tuple[int, int | None]]] = {"x": {}, "y": {}}
        planned = []
        for _ in range(transactions):
            where = rng.choice("xy")
            changes: dict[tuple[int, int | None], int] = {}
            for _ in range(rng.randint(1, 3)):
                key, there = rng.randint(1, 4), rows[where]
                old = there.pop(key, None)
                new = (key, rng.choice([1, 2, None])) if old is None or rng.random() < 0.6 else None
                if new is not None:
                    there[key] = new
                for row, sign in ((old, -1), (new, 1)):
                    if row is not None:
                        changes[row] = changes.get(row, 0) + sign
            planned.append((where, {"r" if where == "x" else "s": Bag(("a", "b"), changes)}, ()))
        sources = {name: source(name, {relation: Bag(("a", "b"))}) for name, relation in (("x", "r"), ("y", "s"))}
        return World(sources, {"keyed": manager}, deque(planned))


class KeysOnly(MemorySource):
    """Reports of what goes only the key, as PostgreSQL does under the default replica identity."""

    def reported(self, after: int, look: bool, gate: bool) -> Transaction:
        whole = super().reported(after, look, gate)
        changes, gone = {}, {}
        for name, rows in whole.changes.items():
            changes[name] = rows.part(1)
            gone[name] = rows.part(-1).keys(["a"])
        return Transaction(whole.source, whole.position, changes=changes, gone=gone)


@pytest.mark.parametrize("whole", [False, True], ids=["t-strobe", "g-strobe"])
@pytest.mark.parametrize("bound", [None, 3])
def test_deletions_known_by_key_are_enough_for_strobe(whole: bool, bound: int | None) -> None:
    """Every state is right, with cuts at any moment, modifications to NULL, and installs after a few updates."""
    keyed = Keyed(images=False)
    for seed in range(150):
        world = keyed.world(seed, Strobe(keyed.view, bound=bound, whole=whole), KeysOnly)
        run(world, seed)
        assert wrong_states(world) == [], f"seed {seed}"
        assert world.history[-1].vector == {s: source.now for s, source in world.sources.items()}


def test_strobe_goes_wrong_if_it_takes_keys_for_rows() -> None:
    """Leaving such deletions unprocessed at a cut loses rows: the view must not claim that there are old rows."""
    wrong = 0
    claimed = Keyed(images=True)
    for seed in range(150):
        world = claimed.world(seed, Strobe(claimed.view), KeysOnly)
        run(world, seed)
        wrong += bool(wrong_states(world))
    assert wrong > 5


class Asker:
    """Asks one question about an update."""

    compensates = False

    def __init__(self) -> None:
        self.view = ONE_SOURCE
        self.got: list[str] = []

    def receive(self, messages: list[Inbound]) -> list[Outbound]:
        self.got += [m.transaction.position.text if isinstance(m, Update) else type(m).__name__ for m in messages]
        return [Query("one", 0, "x", ())] if self.got == ["1"] else []

    def describe(self) -> dict[str, object]:
        return {}


def test_the_inbox_asks_again_what_equals_no_state() -> None:
    """An answer that saw update 3 and not 2 is not given to a manager that needs prefixes."""
    asker = Asker()
    inbox = Inbox(asker, {"x": position(0)})  # type: ignore[arg-type]  # as much of a manager as the inbox needs

    def at(n: int) -> Position:
        return position(n)

    def update(n: int) -> None:
        inbox.update(Update(n, Transaction("x", at(n), xid=n)))
        inbox.progress("x", at(n))

    update(1)
    update(2)
    update(3)
    assert asker.got == ["1"]
    torn = Answer("one", 0, "x", (), SeenByXid(at(3), 4, frozenset({2})))
    assert inbox.answer(torn) == [Query("one", 0, "x", ())] and asker.got == ["1"]
    inbox.answer(Answer("one", 0, "x", (), SeenByXid(at(3), 4)))
    assert asker.got == ["1", "2", "3", "Answer"]
