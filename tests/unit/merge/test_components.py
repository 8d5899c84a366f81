"""Which views have their cuts in common, and for how long."""

from __future__ import annotations

from worlds import R, S, view

from strobe.algebra.bag import Bag
from strobe.merge.groups import Merges
from strobe.messages import ActionList, GlobalTransaction, Position, Rel

VIEWS = {v.name: v for v in (view("r", [R], []), view("r_again", [R], []), view("s", [S], []))}


def merges(order: str = "views", pace: int = 0) -> Merges:
    start = {source: Position("0", (0,)) for source in (R.source, S.source)}
    together = [{R.source, S.source}]
    return Merges(VIEWS, start, order=order, together=together, pace=dict.fromkeys(VIEWS, pace))


def rel(number: int, views: str, source: str = R.source, tied: str = "") -> Rel:
    part_of = (GlobalTransaction(tied, frozenset({R.source, S.source})),) if tied else ()
    return Rel(number, source, Position(str(number), (number,)), frozenset(views.split()), part_of=part_of)


def together(found: Merges) -> list[list[str]]:
    (group,) = found.groups
    return [sorted(v for component in tied for v in component.views) for tied in group.together()]


def done(found: Merges, number: int, *views: str) -> None:
    for name in views:
        found.receive(ActionList(name, (number,), Bag(("a",))))


APART, TIED = [["r", "r_again"], ["s"]], [["r", "r_again", "s"]]


def test_views_that_share_a_relation_have_their_cuts_in_common() -> None:
    """With the order of views; with that of sources, or with blocks of N, all of a group have."""
    assert together(merges()) == APART
    assert together(merges(order="source")) == TIED
    assert together(merges(pace=2)) == TIED


def test_a_transaction_of_several_relations_ties_their_views_until_it_is_applied() -> None:
    found = merges()
    found.receive(rel(1, "r r_again"))
    assert together(found) == APART
    found.receive(rel(2, "r s"))
    done(found, 1, "r", "r_again")
    done(found, 2, "r")
    assert together(found) == TIED
    done(found, 2, "s")
    assert together(found) == APART


def test_a_global_transaction_ties_the_views_of_its_parts() -> None:
    found = merges()
    found.receive(rel(1, "r r_again", tied="g"))
    found.receive(rel(2, "s", S.source, tied="g"))
    assert together(found) == TIED
    done(found, 1, "r", "r_again")
    assert together(found) == TIED
    done(found, 2, "s")
    assert together(found) == APART


def test_a_cut_is_for_those_whose_blocks_end() -> None:
    found = merges()
    (group,) = found.groups
    found.receive(rel(1, "r"))
    found.receive(rel(2, "s"))
    (first,), (second,) = group.together()
    assert first.uncut and second.uncut
    cut, _ = group.end_block([first])
    assert (cut.number, cut.views) == (2, frozenset({"r", "r_again"}))
    assert not first.uncut and second.uncut
    assert group.block_open(first)
    done(found, 1, "r")
    assert not group.block_open(first)
    assert group.merge.size == 1, "the other's row still waits"
