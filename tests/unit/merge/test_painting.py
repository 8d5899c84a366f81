"""The merge: examples of the multiple view consistency paper, and the updates that its printed algorithm tears."""

from __future__ import annotations

import random

import pytest

from strobe.algebra.bag import Bag
from strobe.merge.painting import Painting
from strobe.messages import ActionList, Position, Rel, TransactionInfo, WarehouseTransaction

NOTHING = Bag(("a",))


def rel(number: int, views: str, source: str = "s") -> Rel:
    return Rel(number, TransactionInfo(source, Position(str(number), (number,))), frozenset(views.split()))


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
            own = [n for n in order if rels[n - 1].info.source == source]
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


# The table's colours at the printed steps.


def test_example_2_colours() -> None:
    """The table that two updates make, and what the first action list paints."""
    merge = Painting({})
    applied(merge, rel(1, "V1 V2", "S"), rel(2, "V2 V3", "Q"))
    assert merge.colours() == {1: {"V1": W, "V2": W}, 2: {"V2": W, "V3": W}}
    applied(merge, actions("V2", 1))
    assert merge.colours() == {1: {"V1": W, "V2": ("r", 1)}, 2: {"V2": W, "V3": W}}


def test_example_3_colours() -> None:
    merge = Painting({})
    applied(merge, rel(1, "V1 V2", "S"), actions("V2", 1), rel(2, "V3", "Q"), rel(3, "V2", "T"))
    assert merge.colours() == {1: {"V1": W, "V2": ("r", 1)}, 2: {"V3": W}, 3: {"V2": W}}
    assert applied(merge, actions("V3", 2)) == [[(2,)]]
    assert merge.colours() == {1: {"V1": W, "V2": ("r", 1)}, 3: {"V2": W}}
    applied(merge, actions("V2", 3))
    assert merge.colours() == {1: {"V1": W, "V2": ("r", 1)}, 3: {"V2": ("r", 3)}}
    assert applied(merge, actions("V1", 1)) == [[(1,), (3,)]]
    assert merge.colours() == {}


def test_example_5_colours() -> None:
    """The printed list of arrivals and the tables disagree; these are the tables, of which t5 and t6 misprint V3's
    state."""
    merge = Painting({})
    applied(merge, rel(1, "V1 V2"), rel(2, "V2 V3"), rel(3, "V2 V3"))
    assert merge.colours() == {1: {"V1": W, "V2": W}, 2: {"V2": W, "V3": W}, 3: {"V2": W, "V3": W}}
    applied(merge, actions("V2", 1), actions("V2", 2, 3))
    assert merge.colours() == {
        1: {"V1": W, "V2": ("r", 1)},
        2: {"V2": ("r", 3), "V3": W},
        3: {"V2": ("r", 3), "V3": W},
    }
    assert applied(merge, actions("V3", 2), actions("V1", 1)) == [[], [(1,)]]
    assert merge.colours() == {2: {"V2": ("r", 3), "V3": ("r", 2)}, 3: {"V2": ("r", 3), "V3": W}}
    assert applied(merge, actions("V3", 3)) == [[(2, 3)]]


W = ("w", 0)


class Printed:
    """The Painting Algorithm as printed (Algorithm 2), line by line."""

    def __init__(self) -> None:
        self.colour: dict[tuple[int, str], str] = {}
        self.state: dict[tuple[int, str], int] = {}
        self.lists: dict[int, list[ActionList]] = {}
        self.to_apply: list[int] = []
        self.applied: list[tuple[int, ...]] = []

    def receive(self, message: Rel | ActionList) -> None:
        if isinstance(message, Rel):
            self.lists[message.number] = []
            for view in message.views:
                self.colour[message.number, view], self.state[message.number, view] = "w", 0
            return
        for number in sorted(self.lists):
            if number <= message.number and self.colour.get((number, message.view)) == "w":
                self.colour[number, message.view], self.state[number, message.view] = "r", message.number
        self.lists[message.number].append(message)
        self.to_apply = []
        self.process_row(message.number)

    def process_row(self, row: int) -> bool:
        if row in self.to_apply:
            return True
        entries = {view: colour for (number, view), colour in self.colour.items() if number == row}
        if "w" in entries.values():
            return False
        self.to_apply.append(row)
        for view in [v for v, colour in entries.items() if colour == "r"]:
            for earlier in [n for n in sorted(self.lists) if n < row and self.colour.get((n, view)) == "r"]:
                if not self.process_row(earlier):
                    return False
        for view in entries:
            if self.state[row, view] > row and not self.process_row(self.state[row, view]):
                return False
        if not self.to_apply:
            return True
        gray = [(n, v) for (n, v), colour in self.colour.items() if n in self.to_apply and colour == "r"]
        self.colour.update(dict.fromkeys(gray, "g"))
        self.applied.append(tuple(sorted(self.to_apply)))
        self.to_apply = []
        for number, view in gray:
            later = [n for n in sorted(self.lists) if n > number and self.colour.get((n, view)) == "r"]
            if later:
                self.process_row(later[0])
        return True


TORN = (
    rel(1, "V0 V2"),
    rel(2, "V0 V1 V2"),
    rel(3, "V0 V1 V2"),
    actions("V2", 1, 2),
    actions("V1", 2, 3),
    actions("V0", 1),
    actions("V2", 3),
    actions("V0", 2),
)
SMALLER = (rel(1, "V0"), rel(2, "V0 V1 V2"), rel(3, "V0"), actions("V1", 2), actions("V0", 1, 2, 3))


@pytest.mark.parametrize("messages", [TORN, SMALLER], ids=["torn", "smaller"])
def test_the_printed_algorithm_tears_an_update_and_ours_does_not(messages: tuple[Rel | ActionList, ...]) -> None:
    """Rows go while a row that is tied to them by a list, or that their views need first, still waits."""
    printed, ours = Printed(), Painting({})
    for message in messages:
        printed.receive(message)
    assert printed.applied != []
    assert applied(ours, *messages) == [[]] * len(messages)


def test_what_passes_through_takes_no_view_back() -> None:
    """With the order of views one may be ahead; a view without a guarantee that moves must not make it forget that."""
    merge = Painting({"s": Position("0", (0,))}, order="views", unguaranteed=["free"])
    steps = applied(merge, rel(1, "slow"), rel(2, "quick"), rel(3, "free"), actions("quick", 2))
    assert steps == [[], [], [(3,)], [(2,)]]
    (passed,) = merge.receive(actions("free", 3))
    assert {view: where["s"].text for view, where in passed.ahead.items()} == {"quick": "3", "free": "3"}
