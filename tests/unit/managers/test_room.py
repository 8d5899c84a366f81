"""What managers compute of what they are given has the room that it was given with."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from worlds import VIEWS, relation, view

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.room import Room
from strobe.managers.changes import change
from strobe.managers.registry import ALGORITHMS, Setting
from strobe.messages import ActionList, Answer, Cut, Position, Seen, Transaction, Update


class Boundless(Bag):
    """Has no limit, whatever it is joined with."""

    def join(self, other: Relation, on: Sequence[tuple[str, str]]) -> Relation:
        return super().join(Bag(other.attributes, dict(other.collect().items())), on)


def test_the_change_of_an_occurrence_has_the_room_of_its_updates() -> None:
    """However many updates it is the sum of: joined with anything, it makes no more rows than fit."""
    lifted: list[Bag] = []

    def lift(bag: Bag) -> Relation:
        lifted.append(bag)
        return Bag(bag.attributes, dict(bag.items()))

    occurrence = VIEWS["chain"].occurrences[0]
    room = Room(3, lift)
    columns = [column.name for column in occurrence.relation.columns]
    for number in (1, 2):
        updates = [
            Update(n, Transaction(occurrence.source, Position(str(n), (n,)), changes={occurrence.relation.name: rows}))
            for n in range(number)
            for rows in [Bag.of(columns, [(n,) * len(columns), (n + 7,) * len(columns)]).within(room)]
        ]
        lifted.clear()
        change(occurrence, updates).join(Bag.of(["other"], [(1,), (2,)]), [])
        assert len(lifted) == 1


ALL = ("sweep", "nested-sweep", "eca", "rv", "strobe", "c-strobe")


def position(n: int) -> Position:
    return Position(str(n), (n,))


@pytest.mark.parametrize(
    ("algorithm", "early", "there"),
    [
        *(
            (name, early, 4)
            for name in ("sweep", "nested-sweep", "eca", "rv", "strobe", "c-strobe")
            for early in (0, 1)
        ),
        *((name, True, 0) for name in ("sweep", "nested-sweep")),
    ],
)
def test_no_algorithm_makes_more_rows_than_there_is_room_for(algorithm: str, early: bool, there: int) -> None:
    """Four rows that find four each, in an answer, or in an update that the answer had seen too early, for which it has
    to be corrected."""
    lifted: list[Bag] = []

    def lift(bag: Bag) -> Relation:
        lifted.append(bag)
        return Boundless(bag.attributes, dict(bag.items()))

    room = Room(10, lift)
    left = relation("x", "left", "k a", "a")
    right = relation("x", "right", "k b", "b")
    view_ = view("v", [left, right], ["0.k=1.k"])
    manager = ALGORITHMS[algorithm].make(view_, Setting("strong"))
    fours = [(1, n) for n in range(4)]
    first = Update(1, Transaction("x", position(1), changes={"left": Bag.of(["k", "a"], fours).within(room)}))
    second = Update(2, Transaction("x", position(2), changes={"right": Bag.of(["k", "b"], fours).within(room)}))
    todo = list(manager.receive([first, Cut(1)]))
    todo += manager.receive([second]) if early else []
    done = []
    while todo:
        message = todo.pop(0)
        if isinstance(message, ActionList):
            done.append(message)
            continue
        contents = {"left": Bag.of(["k", "a"], fours), "right": Bag.of(["k", "b"], fours[:there])}
        found = tuple(contents[lookup.relation].project(lookup.columns).within(room) for lookup in message.lookups)
        todo += manager.receive([Answer("v", message.id, "x", found, Seen(position(2 if early else 1)))])
    if early:
        manager.receive([Cut(2)])
    assert done and lifted
