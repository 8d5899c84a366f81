"""The merge: examples of the multiple view consistency paper, and the updates that its printed algorithm tears."""

from __future__ import annotations

import random

from strobe.algebra.bag import Bag
from strobe.merge.painting import Painting
from strobe.messages import ActionList, Position, Rel, WarehouseTransaction

NOTHING = Bag(("a",))


def rel(number: int, views: str, source: str = "s") -> Rel:
    return Rel(number, source, Position(str(number), (number,)), frozenset(views.split()))


def actions(view: str, *covers: int) -> ActionList:
    return ActionList(view, covers, NOTHING)


def applied(merge: Painting, *messages: Rel | ActionList) -> list[list[tuple[int, ...]]]:
    """After each message, the rows of the warehouse transactions it caused."""
    return [[t.numbers for t in merge.receive(message)] for message in messages]


def test_example_3_simple_painting() -> None:
    """Each source its own: Q's update passes the earlier one on S, and T's waits for S's, which shares V2."""
    merge = Painting({})
    assert applied(
        merge,
        rel(1, "V1 V2", "S"),
        actions("V2", 1),
        rel(2, "V3", "Q"),
        rel(3, "V2", "T"),
        actions("V3", 2),
        actions("V2", 3),
        actions("V1", 1),
    ) == [[], [], [], [], [(2,)], [], [(1,), (3,)]]


def test_example_4_intertwined_updates_are_applied_together() -> None:
    """V1 covers updates 1 and 3 in one list, so that rows 1 to 3 can only be applied as one."""
    merge = Painting({})
    steps = applied(
        merge,
        rel(1, "V1 V2"),
        rel(2, "V2 V3"),
        rel(3, "V1 V2"),
        actions("V1", 1, 3),
        actions("V2", 1),
        actions("V2", 2),
        actions("V3", 2),
        actions("V2", 3),
    )
    assert steps == [[]] * 7 + [[(1, 2, 3)]]


def test_example_5_painting() -> None:
    """Row 1 goes alone as soon as it can; rows 2 and 3 are tied by V2's list and wait for V3's."""
    merge = Painting({})
    steps = applied(
        merge,
        rel(1, "V1 V2"),
        rel(2, "V2 V3"),
        rel(3, "V2 V3"),
        actions("V2", 1),
        actions("V2", 2, 3),
        actions("V3", 2),
        actions("V1", 1),
        actions("V3", 3),
    )
    assert steps == [[]] * 6 + [[(1,)], [(2, 3)]]


def test_torn_update_of_the_printed_algorithm() -> None:
    """The smallest case that applying inside the recursion tears: rows 1 and 3 must not go without row 2."""
    merge = Painting({})
    steps = applied(merge, rel(1, "V0"), rel(2, "V0 V1 V2"), rel(3, "V0"), actions("V1", 2), actions("V0", 1, 2, 3))
    assert steps == [[]] * 5
    assert applied(merge, actions("V2", 2)) == [[(1, 2, 3)]]


def test_torn_update_of_the_design() -> None:
    """The larger case: nothing may be applied before V0's list for the third update has come."""
    merge = Painting({})
    steps = applied(
        merge,
        rel(1, "V0 V2"),
        rel(2, "V0 V1 V2"),
        rel(3, "V0 V1 V2"),
        actions("V2", 1, 2),
        actions("V1", 2, 3),
        actions("V0", 1),
        actions("V2", 3),
        actions("V0", 2),
    )
    assert steps == [[]] * 8
    assert applied(merge, actions("V0", 3)) == [[(1, 2, 3)]]


def test_action_list_before_its_relevant_set() -> None:
    """The integrator's and the managers' messages may overtake each other."""
    merge = Painting({})
    assert applied(merge, actions("V1", 1), rel(1, "V1")) == [[], [(1,)]]


def test_irrelevant_updates_move_positions_but_not_past_earlier_ones() -> None:
    """An update nobody needs is applied at once, unless an earlier one of its source still waits."""
    merge = Painting({})
    assert applied(merge, rel(1, ""), rel(2, "V1"), rel(3, "")) == [[(1,)], [], []]
    transactions = merge.receive(actions("V1", 2))
    assert [t.numbers for t in transactions] == [(2,), (3,)]
    assert transactions[-1].positions["s"].text == "3"


def test_random_tables_are_never_torn_and_always_prompt() -> None:
    """Random lists in random order: every row goes exactly once, whole, in its source's order, and nothing stays."""
    for seed in range(2000):
        rng = random.Random(seed)
        views = ["V0", "V1", "V2"]
        rels = [
            rel(n, " ".join(v for v in views if rng.random() < 0.6), rng.choice("st"))
            for n in range(1, rng.randint(2, 7))
        ]
        queues = {v: _lists(rng, v, [r.number for r in rels if v in r.views]) for v in views}
        merge, done = Painting({}), list[WarehouseTransaction]()
        pending = list(rels)
        while pending or any(queues.values()):
            ready = [v for v in views if queues[v]]
            if pending and (not ready or rng.random() < 0.4):
                done += merge.receive(pending.pop(0))
            else:
                done += merge.receive(queues[rng.choice(ready)].pop(0))
        order = [n for t in done for n in t.numbers]
        assert sorted(order) == [r.number for r in rels], seed
        assert merge.size == 0, seed
        for source in "st":
            own = [n for n in order if rels[n - 1].source == source]
            assert own == sorted(own), seed
        for t in done:
            covered = {(a.view, n) for a in t.actions for n in a.covers}
            assert covered == {(v, n) for n in t.numbers for v in rels[n - 1].views}, seed


def _lists(rng: random.Random, view: str, numbers: list[int]) -> list[ActionList]:
    lists = []
    while numbers:
        size = rng.randint(1, len(numbers))
        lists.append(actions(view, *numbers[:size]))
        numbers = numbers[size:]
    return lists
