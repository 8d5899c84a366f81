"""Which views have their cuts in common, for how long, and when blocks end."""

from __future__ import annotations

import math

from worlds import R, S, view

from strobe.algebra.bag import Bag
from strobe.integrator.blocks import Blocks
from strobe.merge.painting import Painting
from strobe.messages import ActionList, GlobalTransaction, Position, Rel, TransactionInfo

VIEWS = {v.name: v for v in (view("r", [R], []), view("r_again", [R], []), view("s", [S], []))}


class Grouped:
    """The blocks of a group with its view-update table."""

    def __init__(self, order: str = "views", pace: int = 0, freshness: float = 0.0) -> None:
        start = {source: Position("0", (0,)) for source in (R.source, S.source)}
        self.merge = Painting(start, order=order, blocks=pace > 0)
        each = dict.fromkeys(VIEWS, freshness)
        self.blocks = Blocks(VIEWS, self.merge, pace=pace, apart=order == "views", freshness=each)

    def arrive(self, *rels: Rel) -> None:
        for rel in rels:
            self.blocks.arrive(rel)
            self.merge.receive(rel)

    def done(self, number: int, *views: str) -> None:
        for name in views:
            self.merge.receive(ActionList(name, (number,), Bag(("a",))))

    def together(self) -> list[list[str]]:
        return [sorted(v for component in tied for v in component.views) for tied in self.blocks.together()]

    def due(self, now: float = 0.0, busy: str = "", waiting: int = 0) -> list[list[str]]:
        found = self.blocks.due(now, lambda view: view in busy.split(), waiting)
        return [sorted(v for component in tied for v in component.views) for tied in found]

    def end(self, now: float = 0.0) -> None:
        self.blocks.end(self.blocks.components, now)


def rel(number: int, views: str, source: str = R.source, tied: str = "", empty: bool = False) -> Rel:
    part_of = (GlobalTransaction(tied, frozenset({R.source, S.source})),) if tied else ()
    at = Position(str(number), (number,))
    return Rel(number, TransactionInfo(source, at, part_of=part_of), frozenset(views.split()), empty=empty)


APART, TIED = [["r", "r_again"], ["s"]], [["r", "r_again", "s"]]


def test_views_that_share_a_relation_have_their_cuts_in_common() -> None:
    """With the order of views; with that of sources, or with blocks of N, all of a group have."""
    assert Grouped().together() == APART
    assert Grouped(order="source").together() == TIED
    assert Grouped(pace=2).together() == TIED


def test_a_transaction_of_several_relations_ties_their_views_until_it_is_applied() -> None:
    found = Grouped()
    found.arrive(rel(1, "r r_again"))
    assert found.together() == APART
    found.arrive(rel(2, "r s"))
    found.done(1, "r", "r_again")
    found.done(2, "r")
    assert found.together() == TIED
    found.done(2, "s")
    assert found.together() == APART


def test_a_global_transaction_ties_the_views_of_its_parts() -> None:
    found = Grouped()
    found.arrive(rel(1, "r r_again", tied="g"), rel(2, "s", S.source, tied="g"))
    assert found.together() == TIED
    found.done(1, "r", "r_again")
    assert found.together() == TIED
    found.done(2, "s")
    assert found.together() == APART


def test_a_cut_is_for_those_whose_blocks_end() -> None:
    found = Grouped()
    found.arrive(rel(1, "r"), rel(2, "s"))
    (first,), (second,) = found.blocks.together()
    assert first.uncut and second.uncut
    cut = found.blocks.end([first], 0.0)
    assert (cut.number, cut.views) == (2, frozenset({"r", "r_again"}))
    assert not first.uncut and second.uncut
    assert found.blocks.open(first)
    found.done(1, "r")
    assert not found.blocks.open(first)
    assert found.merge.size == 1, "the other's row still waits"


def test_a_block_ends_as_soon_as_the_one_before_is_merged() -> None:
    found = Grouped()
    assert found.due() == [], "nothing has come"
    found.arrive(rel(1, "r"))
    assert found.due() == [["r", "r_again"]]
    found.end()
    found.arrive(rel(2, "r"), rel(3, "s"))
    assert found.due(busy="r") == [["s"]], "nobody waits for another component"
    found.done(1, "r")
    assert found.due(busy="r") == [["r", "r_again"], ["s"]], "what came after the block is no part of it"


def test_a_block_that_needs_another_cut_does_not_keep_it_waiting() -> None:
    """It is open, and nobody is at work on it: its rows are tied to later ones."""
    found = Grouped(order="source")
    found.arrive(rel(1, "r"))
    found.end()
    found.arrive(rel(2, "r"))
    assert found.due(busy="r_again") == []
    assert found.due() == TIED


def test_tied_components_end_their_blocks_together() -> None:
    found = Grouped()
    found.arrive(rel(1, "r s"))
    assert found.due() == TIED
    found.end()
    found.arrive(rel(2, "s"))
    assert found.due(busy="r") == [], "the first row waits for r, and ties both"
    found.done(1, "r", "s")
    assert found.due(busy="r") == [["s"]]


def test_blocks_do_not_end_more_often_than_freshness_demands() -> None:
    found = Grouped(order="source", freshness=5.0)
    found.arrive(rel(1, "r"))
    assert found.due(now=100.0) == TIED, "the first at once"
    found.end(now=100.0)
    found.done(1, "r")
    found.arrive(rel(2, "s"))
    assert found.due(now=104.9) == []
    assert found.due(now=105.0) == TIED


def test_blocks_grow_while_commits_wait() -> None:
    found = Grouped()
    found.arrive(rel(1, "r"))
    assert found.due(waiting=1) == []
    assert found.due(waiting=0) == [["r", "r_again"]]


def test_blocks_of_n_end_after_n_transactions_only() -> None:
    """A row that only moves a position is no transaction."""
    found = Grouped(order="source", pace=2)
    found.arrive(rel(1, "r"), rel(2, "", empty=True))
    assert found.blocks.uncut and not found.blocks.full
    assert found.due(now=1e9) == []
    found.arrive(rel(3, "s"))
    assert found.blocks.full
    found.end()
    assert not found.blocks.full and not found.blocks.uncut


def test_whoever_drives_blocks_may_sleep_until_the_next_one_is_due() -> None:
    """Only a block that is open and waits for its views' freshness ends by time alone; everything else is an event."""
    found = Grouped(freshness=5.0)
    found.end(100.0)
    assert found.blocks.next_due(101.0) == math.inf
    found.arrive(rel(1, "s"))
    assert found.blocks.next_due(101.0) == 105.0
    assert found.due(104.9) == [] and found.due(105.0) == [["s"]]
    assert found.blocks.next_due(105.0) == math.inf, "it waits for its managers, or for the append"
    paced = Grouped(pace=2, freshness=5.0)
    paced.arrive(rel(1, "s"))
    assert paced.blocks.next_due(0.0) == math.inf
