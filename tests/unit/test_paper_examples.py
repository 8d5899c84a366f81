"""Worked examples of the papers: the anomaly under conventional maintenance, and sweep on the same schedule."""

from __future__ import annotations

from collections import deque

import pytest
from worlds import relation, view

from strobe.algebra.bag import Bag
from strobe.algebra.view import View
from strobe.managers.base import ViewManager
from strobe.managers.conventional import Conventional
from strobe.managers.sweep import Sweep
from strobe.simulator.world import Contents, MemorySource, World

R1 = relation("x", "r1", "w x")
R2 = relation("x", "r2", "x y")
JOIN = view("v", [R1, R2], ["0.x=1.x"])


def rows(columns: str, *values: tuple[int, ...], count: int = 1) -> Bag:
    return Bag.of(columns.split(), values, count)


def play(
    manager: ViewManager, contents: dict[str, Contents], changes: list[tuple[str, Contents]], schedule: str
) -> World:
    """Run a schedule like `commit:x report:x evaluate:x answer:0 …`, and then everything that is left, in order."""
    world = World({s: MemorySource(s, c) for s, c in contents.items()}, {"v": manager}, deque(changes))
    for step in schedule.split():
        event, _, subject = step.partition(":")
        world.step(event, subject)
    while choices := world.choices():
        world.step(*choices[0])
    return world


def right(world: World) -> list[bool]:
    """For every state: is it what a recomputation at its vector gives?"""
    return [state.views["v"] == world.expected("v", state.vector) for state in world.history]


ECA_2 = (
    {"x": {"r1": rows("w x", (1, 2)), "r2": rows("x y")}},
    [("x", {"r2": rows("x y", (2, 3))}), ("x", {"r1": rows("w x", (4, 2))})],
    "commit:x report:x commit:x evaluate:x answer:0 report:x",
)
ECA_3 = (
    {"x": {"r1": rows("w x", (1, 2)), "r2": rows("x y", (2, 3))}},
    [("x", {"r1": rows("w x", (1, 2), count=-1)}), ("x", {"r2": rows("x y", (2, 3), count=-1)})],
    "commit:x report:x commit:x evaluate:x answer:0 report:x",
)


@pytest.mark.parametrize(("contents", "changes", "schedule"), [ECA_2, ECA_3], ids=["insertions", "deletions"])
def test_anomalies_of_the_eca_paper(
    contents: dict[str, Contents], changes: list[tuple[str, Contents]], schedule: str
) -> None:
    """Examples 2 and 3: conventional maintenance ends wrong; sweep, on the same schedule, is right in every state."""
    conventional = play(Conventional(JOIN), contents, list(changes), schedule)
    assert right(conventional)[-1] is False
    assert all(
        right(play(Sweep(JOIN, complete=True), contents, list(changes), schedule.replace("report:y", "report:y cut")))
    )


def test_eca_example_2_has_the_printed_wrong_result() -> None:
    """The view ends as ([1], [4], [4]) instead of ([1], [4])."""
    world = play(Conventional(JOIN), *ECA_2)
    assert sorted(world.history[-1].views["v"].project(["r0c0"]).expand()) == [(1,), (4,), (4,)]
    world = play(Sweep(JOIN, complete=True), *ECA_2)
    assert sorted(world.history[-1].views["v"].project(["r0c0"]).expand()) == [(1,), (4,)]


def strobe_view() -> View:
    a, b, c = relation("x", "r1", "a b"), relation("y", "r2", "b c"), relation("z", "r3", "c d")
    return view("v", [a, b, c], ["0.b=1.b", "1.c=2.c"])


def test_strobe_example_1() -> None:
    """Three sources; a deletion at x arrives between the two parts of a query. Sweep passes through both states."""
    contents = {"x": {"r1": rows("a b", (1, 2))}, "y": {"r2": rows("b c")}, "z": {"r3": rows("c d", (3, 4))}}
    changes = [("y", {"r2": rows("b c", (2, 3))}), ("x", {"r1": rows("a b", (1, 2), count=-1)})]
    schedule = "commit:y report:y evaluate:x answer:0 commit:x report:x evaluate:z answer:0"
    world = play(Sweep(strobe_view(), complete=True), contents, list(changes), schedule)
    assert [state.views["v"].expand() for state in world.history] == [[], [(1, 2, 2, 3, 3, 4)], []]
    assert all(right(world))
    assert all(
        right(
            play(
                Sweep(strobe_view(), complete=False),
                contents,
                list(changes),
                schedule.replace("report:y", "report:y cut"),
            )
        )
    )


def test_strobe_example_7_deletion_before_the_query_is_evaluated() -> None:
    """The same updates, but x has deleted before it answers: the state in between is still found, without asking x
    again."""
    contents = {"x": {"r1": rows("a b", (1, 2))}, "y": {"r2": rows("b c")}, "z": {"r3": rows("c d", (3, 4))}}
    changes = [("y", {"r2": rows("b c", (2, 3))}), ("x", {"r1": rows("a b", (1, 2), count=-1)})]
    schedule = "commit:y report:y commit:x report:x evaluate:x answer:0"
    world = play(Sweep(strobe_view(), complete=True), contents, list(changes), schedule)
    assert [state.views["v"].expand() for state in world.history] == [[], [(1, 2, 2, 3, 3, 4)], []]
