"""What headers say of where views stand."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from worlds import R, S, T, view

from strobe.algebra.bag import Bag
from strobe.engine.commits import Commits, absorbed
from strobe.engine.gathering import Gathering
from strobe.messages import ActionList, CommitHeader, Position, WarehouseTransaction
from strobe.simulator.world import position

VIEWS = {v.name: v for v in (view("both", [R, S], ["0.b=1.b"]), view("r", [R], []), view("t", [T], []))}
NOW = datetime(2024, 1, 1, tzinfo=timezone.utc)


def commits(*unguaranteed: str, **floors: dict[str, int]) -> Commits:
    """From a header that has all views at 0, but for what `floors` say."""
    places = {name: {s: floors.get(name, {}).get(s, 0) for s in v.sources} for name, v in VIEWS.items()}
    header = CommitHeader(7, NOW, {name: {s: str(n) for s, n in place.items()} for name, place in places.items()})
    at = {name: {s: position(n) for s, n in place.items()} for name, place in places.items()}
    return Commits(header, VIEWS, at, unguaranteed)


def moved(ahead: dict[str, dict[str, Position]] | None = None, **positions: int) -> WarehouseTransaction:
    return WarehouseTransaction((1,), (), {s: position(n) for s, n in positions.items()}, {}, ahead or {})


def test_views_whose_sources_took_part_move() -> None:
    found = commits().next(moved(x=3, y=1), NOW)
    assert found.header.number == 8
    assert found.header.positions == {"both": {"x": "3", "y": "1"}, "r": {"x": "3"}, "t": {"z": "0"}}


def test_a_view_that_is_ahead_stays_where_it_is_until_the_others_have_caught_up() -> None:
    found = commits(r={"x": 5})
    assert found.next(moved(x=3, y=1), NOW).header.positions["r"] == {"x": "5"}
    assert found.next(moved(x=6, y=1), NOW).header.positions["r"] == {"x": "6"}
    before = commits().next(moved({"r": {"x": position(4)}}, x=3, y=1), NOW)
    assert before.header.positions["r"] == {"x": "4"}, "with the order of views"


def test_a_view_without_a_guarantee_is_where_its_own_action_lists_say() -> None:
    found = commits("r")
    assert found.next(moved(x=3, y=1), NOW).header.positions["r"] == {"x": "0"}
    assert found.next(moved({"r": {"x": position(2)}}, x=3, y=1), NOW).header.positions["r"] == {"x": "2"}


def test_what_moved_without_rows_moves_with_the_next() -> None:
    both = absorbed(moved(x=3, y=1), moved(z=2))
    assert {s: p.text for s, p in both.positions.items()} == {"x": "3", "y": "1", "z": "2"}
    assert absorbed(None, both) is both


def with_rows(**positions: int) -> WarehouseTransaction:
    return replace(moved(**positions), actions=(ActionList("r", (1,), Bag(["r0c0"], {(1,): 1})),))


def test_what_gathers_shares_an_append() -> None:
    """As many transactions as an append takes; positions that moved go with the next, or wait until none comes."""
    gathering = Gathering(quiet=30)
    assert not gathering.add(moved(x=1), 1.0, False, now=0.0)
    assert gathering.add(with_rows(x=2), 1.0, False, now=0.0) and gathering.add(with_rows(y=1), 5.0, False, now=0.0)
    assert not gathering.add(moved(x=3), 1.0, False, now=0.0)
    assert gathering.next_due(99) == 1.0 and not gathering.due(0.5, enough=4)
    assert gathering.due(0.5, enough=3) and gathering.due(1.0, enough=4)
    assert [t.positions for t in gathering.take(1, now=2.0)] == [{"x": position(2)}]
    assert [t.positions for t in gathering.take(9, now=2.0)] == [{"y": position(1)}]
    assert not gathering.due(31.9, enough=1) and gathering.due(32.0, enough=1)
    assert [t.positions for t in gathering.take_all(32.0)] == [{"x": position(3)}] and gathering.empty


def test_what_is_to_be_kept_is_a_commit_even_if_it_changes_nothing() -> None:
    gathering = Gathering(quiet=30)
    assert gathering.add(moved(x=1), 0.0, True, now=0.0) and gathering.add(moved(x=2), 0.0, True, now=0.0)
    assert len(gathering.take_all(0.0)) == 2
