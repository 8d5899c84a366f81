"""Under continuous updates nobody starves: after a cut, or after `every` updates, what came before it is installed."""

from __future__ import annotations

import pytest
from worlds import relation, view

from strobe.algebra.bag import Bag
from strobe.managers.registry import ALGORITHMS, Setting, one_source
from strobe.messages import ActionList, Answer, Cut, Position, Query, Seen, Transaction, Update
from strobe.simulator.world import MemorySource

WAITING = ("strobe", "t-strobe", "g-strobe", "eca-key", "eca")


class Stream:
    """A manager that is given an update before every answer, so that a question is always open."""

    def __init__(self, name: str, every: int | None = None) -> None:
        far = "x" if one_source in ALGORITHMS[name].lacks else "y"
        self.near, self.far = relation("x", "r", "k b", "k"), relation(far, "s", "k b", "k")
        joined = view("v", [self.near, self.far], ["0.b=1.b"])
        self.manager = ALGORITHMS[name].make(joined, Setting("strong", every))
        self.number = 0
        self.open: list[Query] = []
        self.lists: list[ActionList] = []

    def take(self, out: list[Query | ActionList]) -> None:
        self.open += [m for m in out if isinstance(m, Query)]
        self.lists += [m for m in out if isinstance(m, ActionList)]

    def update(self) -> None:
        self.number += 1
        change = {"r": Bag.of(("k", "b"), [(self.number, 1)])}
        position = Position(str(self.number), (self.number,))
        self.take(self.manager.receive([Update(self.number, Transaction("x", position, changes=change))]))

    def answer(self) -> None:
        query = self.open.pop(0)
        contents = {"r": Bag.of(("k", "b"), [(n, 1) for n in range(1, self.number + 1)]), "s": Bag.of("kb", [(7, 1)])}
        found = MemorySource(query.source, contents).answer(query)
        seen = Seen(Position(str(self.number), (self.number,)))
        self.take(self.manager.receive([Answer("v", query.id, query.source, found.relations, seen)]))

    def go_on(self, turns: int) -> None:
        for _ in range(turns):
            self.update()
            if self.open:
                self.answer()


@pytest.mark.parametrize("name", WAITING)
def test_without_a_cut_an_install_waits_for_a_quiet_moment(name: str) -> None:
    stream = Stream(name)
    stream.update()
    stream.go_on(50)
    assert stream.lists == [], "there was always a question open"


@pytest.mark.parametrize("name", WAITING)
def test_a_cut_ends_the_wait(name: str) -> None:
    """Everything up to the cut is installed, exactly, while updates keep coming."""
    stream = Stream(name)
    stream.update()
    stream.go_on(5)
    stream.take(stream.manager.receive([Cut(stream.number)]))
    cut = stream.number
    stream.go_on(50)
    first = stream.lists[0]
    assert first.covers == tuple(range(1, cut + 1))
    assert first.delta == Bag.of(first.delta.attributes, [(n, 1, 7, 1) for n in range(1, cut + 1)])


@pytest.mark.parametrize("name", ["strobe", "t-strobe", "g-strobe"])
def test_so_do_every_k_updates(name: str) -> None:
    stream = Stream(name, every=4)
    stream.update()
    stream.go_on(40)
    assert len(stream.lists) > 3
    for actions in stream.lists:
        assert len(actions.covers) <= 4
        assert actions.delta == Bag.of(actions.delta.attributes, [(n, 1, 7, 1) for n in actions.covers])
