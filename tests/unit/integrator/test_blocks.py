"""Which views have their cuts in common, for how long, and when blocks end."""

from __future__ import annotations

import itertools
import math

from worlds import R, S, view

from strobe.algebra.bag import Bag
from strobe.integrator.blocks import GATHER, QUIET, Blocks, Sizes
from strobe.merge.painting import Painting
from strobe.messages import ActionList, GlobalTransaction, Position, Rel, TransactionInfo

VIEWS = {v.name: v for v in (view("r", [R], []), view("r_again", [R], []), view("s", [S], []))}


class Grouped:
    """The blocks of a group with its view-update table."""

    def __init__(self, order: str = "views", pace: int = 0, freshness: float = 0.0, sizes: Sizes | None = None) -> None:
        start = {source: Position("0", (0,)) for source in (R.source, S.source)}
        self.merge = Painting(start, order=order, blocks=pace > 0)
        each = dict.fromkeys(VIEWS, freshness)
        self.blocks = Blocks(VIEWS, self.merge, pace=pace, apart=order == "views", freshness=each, sizes=sizes)

    def arrive(self, *rels: Rel, now: float = 0.0) -> None:
        for rel in rels:
            self.blocks.arrive(rel, now)
            self.merge.receive(rel)

    def done(self, number: int, *views: str) -> None:
        for name in views:
            self.merge.receive(ActionList(name, (number,), Bag(("a",))))

    def together(self) -> list[list[str]]:
        return [sorted(v for component in tied for v in component.views) for tied in self.blocks.together()]

    def due(self, now: float = 0.0, busy: str = "", waiting: int = 0) -> list[list[str]]:
        found = self.blocks.due(now, lambda view: view in busy.split(), waiting)
        return [sorted(v for component in tied for v in component.views) for tied in found]

    def end(self, now: float = 0.0, *, whole: bool = True) -> int:
        return self.blocks.end(self.blocks.components, now, whole=whole).number


def rel(number: int, views: str, source: str = R.source, tied: str = "", empty: bool = False, rows: int = 1) -> Rel:
    part_of = (GlobalTransaction(tied, frozenset({R.source, S.source})),) if tied else ()
    at = Position(str(number), (number,))
    return Rel(number, TransactionInfo(source, at, part_of=part_of), frozenset(views.split()), empty=empty, rows=rows)


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


def test_a_burst_is_one_block() -> None:
    """A hundred transactions within 100 ms: what has come waits for more, until nothing has come for a moment."""
    found = Grouped(order="source", freshness=1.0)
    for n in range(100):
        now = 10.0 + n / 1000
        assert found.due(now=now) == []
        found.arrive(rel(n + 1, "r"), now=now)
    assert found.due(now=10.099 + QUIET / 2) == []
    assert found.due(now=10.099 + QUIET) == TIED
    assert found.end(now=10.13) == 100
    found.done(1, "r")


def test_a_block_that_could_end_does_not_gather_for_long() -> None:
    """However fast transactions come, and no longer than the freshness of the views allows."""
    for freshness, most in ((1.0, GATHER), (0.05, 0.05), (0.0, 0.0)):
        found = Grouped(order="source", freshness=freshness)
        for n in range(1000):
            now = 10.0 + n / 1000
            found.arrive(rel(n + 1, "r"), now=now)
            if found.due(now=now):
                break
        assert abs(now - (10.0 + most)) < 0.002


def test_under_load_blocks_are_paced_by_appends_alone() -> None:
    """What has come while an append kept the block waiting has gathered long enough."""
    found = Grouped(order="source", freshness=60.0)
    found.arrive(rel(1, "r"), now=10.0)
    found.arrive(rel(2, "r"), now=11.0)
    assert found.due(now=11.0, waiting=1) == []
    assert found.due(now=11.0) == TIED


LARGE = Sizes(step=2, first=4, least=2, most=8, seconds=10.0)


def test_a_backlog_is_cut_into_blocks_that_each_end() -> None:
    """By changed rows; what is left is cut at once when the block before has been merged."""
    found = Grouped(order="source", freshness=60.0, sizes=LARGE)
    found.arrive(*(rel(n, "r") for n in range(1, 12)), now=5.0)
    found.arrive(rel(12, "r", rows=100), now=5.0)
    assert found.due(now=5.0) == TIED, "a full block gathers no longer"
    assert [found.end(now=now, whole=False) for now in (5.0, 13.0)] == [4, 8]
    assert found.due(now=13.0) == TIED
    found.arrive(rel(13, "r"), now=14.0)
    assert found.end(now=14.0) == 13, "what must be whole is"
    assert not found.blocks.uncut


def test_the_size_of_blocks_follows_from_what_they_took() -> None:
    sizes = []
    for seconds in (1.0, 7.0, 20.0):
        found = Grouped(order="source", sizes=LARGE)
        found.arrive(*(rel(n, "r") for n in range(1, 41)))
        ends = [0, *(found.end(now=n * seconds, whole=False) for n in range(4))]
        sizes.append([after - before for before, after in itertools.pairwise(ends)])
    assert sizes == [[4, 8, 8, 8], [4, 4, 4, 4], [4, 2, 2, 2]]


def test_tied_components_end_their_blocks_at_one_number() -> None:
    found = Grouped(sizes=LARGE)
    found.arrive(*(rel(n, "r") for n in range(1, 6)), *(rel(n, "r s") for n in range(6, 20)))
    assert found.due() == TIED
    assert found.end(whole=False) == 4
    assert [component.cut for component in found.blocks.components] == [4, 4]


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
    """Only a block that gathers ends by time alone; everything else is an event."""
    found = Grouped(freshness=5.0)
    found.end(100.0)
    assert found.blocks.next_due(101.0) == math.inf
    found.arrive(rel(1, "s"), now=101.0)
    ends = 101.0 + QUIET
    assert found.blocks.next_due(101.0) == ends
    assert found.due(101.01) == [] and found.due(ends) == [["s"]]
    assert found.blocks.next_due(ends) == math.inf, "it waits for its managers, or for the append"
    paced = Grouped(pace=2, freshness=5.0)
    paced.arrive(rel(1, "s"))
    assert paced.blocks.next_due(0.0) == math.inf
