"""What managers compute of what they are given has the room that it was given with."""

from __future__ import annotations

from worlds import VIEWS

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.room import Room
from strobe.managers.changes import change
from strobe.messages import Position, Transaction, Update


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
