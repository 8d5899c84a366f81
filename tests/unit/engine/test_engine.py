"""The engine: a message in, effects out."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from worlds import R, S, T, U, view

from strobe.algebra.bag import Bag
from strobe.engine.engine import Effect, Engine, Progress, Promise, Submit, Tied, ToViews
from strobe.engine.halves import Half
from strobe.integrator.blocks import GATHER, QUIET, Ties
from strobe.messages import ActionList, Cut, GlobalTransaction, Transaction, Update
from strobe.simulator.world import position

VIEWS = {v.name: v for v in (view("both", [R, S], ["0.b=1.b"]), view("r", [R], []), view("t", [T], []))}
"""Two of one group, over x and y, and one over z."""


def engine(
    promise: Promise | None = None, *, order: str = "source", together: Iterable[frozenset[str]] = (), x: int = 0
) -> Engine:
    positions = {name: dict.fromkeys(v.sources, position(0)) for name, v in VIEWS.items()}
    positions["r"]["x"] = position(x)
    return Engine(VIEWS, positions, dict.fromkeys(VIEWS, promise or Promise()), order=order, together=together)


def change(source: str, number: int, *participants: str) -> Transaction:
    """The transaction of this number at a source, which changes its relation; or a part of a global one."""
    relation = {"x": R, "y": S, "z": T}[source]
    rows = Bag.of([column.name for column in relation.columns], [(number, number)])
    part_of = (GlobalTransaction("g", frozenset(participants)),) if participants else ()
    return Transaction(source, position(number), changes={relation.name: rows}, part_of=part_of)


def done(view: str, *numbers: int) -> ActionList:
    return ActionList(view, numbers, Bag(VIEWS[view].attributes))


def given(effects: Iterable[Effect], kind: type) -> list[tuple[str, ...]]:
    return [e.views for e in effects if isinstance(e, ToViews) and isinstance(e.message, kind)]


def committed(effects: Iterable[Effect]) -> list[tuple[int, ...]]:
    return [e.transaction.numbers for e in effects if isinstance(e, Submit)]


def test_a_transaction_is_given_to_whom_it_concerns() -> None:
    """An update to the views whose relation changes; how far its source has been read, to all that use the source."""
    found = engine()
    first = found.receive(change("x", 1), 0.0)
    assert [e.message for e in first if isinstance(e, ToViews)] == [
        Update(1, change("x", 1)),
        Progress("x", position(1)),
    ]
    assert given(first, Update) == [("both", "r")] and given(first, Progress) == [("both", "r")]
    second = found.receive(Transaction("y", position(1)), 0.0)
    assert given(second, Update) == [] and given(second, Progress) == [("both",)]
    assert found.receive(Transaction("elsewhere", position(1)), 0.0) == [], "no view uses it"


def test_a_view_that_is_ahead_is_not_given_what_it_reflects() -> None:
    found = engine(x=1)
    assert found.vector == {"x": position(0), "y": position(0), "z": position(0)}
    assert given(found.receive(change("x", 1), 0.0), Update) == [("both",)]
    assert given(found.receive(change("x", 2), 0.0), Update) == [("both", "r")]


def test_views_of_a_group_move_together() -> None:
    found = engine()
    found.receive(change("x", 1), 0.0)
    found.receive(change("z", 1), 0.0)
    assert committed(found.receive(done("r", 1), 0.0)) == []
    assert (found.size, found.oldest(), found.waiting_for("both")) == (2, (1, ("both",)), 1)
    assert committed(found.receive(done("t", 2), 0.0)) == [(2,)], "another group"
    (submit,) = found.receive(done("both", 1), 0.0)
    assert isinstance(submit, Submit) and submit.transaction.positions == {"x": position(1), "y": position(0)}
    assert found.size == 0


@pytest.mark.parametrize(
    ("promise", "wait", "keep"),
    [
        (Promise("strong", 5.0), 0.0, False),
        (Promise("complete", 5.0), GATHER, True),
        (Promise("complete", 0.05), 0.05, True),
        (Promise("strong", 5.0, 1), 0.0, True),
    ],
)
def test_how_long_a_commit_may_wait_for_others(promise: Promise, wait: float, keep: bool) -> None:
    """Strong views have gathered in their block already; states of complete views are all kept."""
    found = engine(promise)
    found.receive(change("z", 1), 0.0)
    (submit,) = found.receive(done("t", 1), 0.0)
    assert isinstance(submit, Submit) and (submit.wait, submit.keep) == (wait, keep)


def test_blocks_end_when_they_are_due() -> None:
    found = engine(Promise(freshness=2.0))
    found.receive(change("x", 1), 10.0)
    found.receive(change("z", 1), 10.0)
    assert found.cut_due(10.0, lambda _: False) == [], "they gather"
    assert found.next_cut(10.0) == 10.0 + QUIET
    assert given(found.cut_due(10.0 + QUIET, lambda _: False), Cut) == [("both", "r"), ("t",)]
    found.receive(change("x", 2), 11.0)
    assert found.cut_due(12.0, lambda view: view == "r") == [], "the block before is still being worked on"
    assert found.cut_due(12.0, lambda _: False, waiting=1) == [], "a commit waits"
    (cut,) = found.cut_due(12.0, lambda _: False)
    assert cut == ToViews(("both", "r"), Cut(3, frozenset({"both", "r"})))


def test_a_block_of_n_ends_with_its_last_transaction() -> None:
    found = engine(Promise(pace=2))
    assert given(found.receive(change("z", 1), 0.0), Cut) == []
    assert given(found.receive(change("z", 2), 0.0), Cut) == [("t",)]
    assert committed(found.receive(done("t", 1, 2), 0.0)) == [(1, 2)], "all of it, or nothing"
    found.receive(change("z", 3), 0.0)
    found.receive(done("t", 3), 0.0)
    assert found.backlog == 0 and found.size == 1
    rest = found.cut_begun(0.0)
    assert committed(rest) == [(3,)] and given(rest, Cut) == [("t",)]
    assert found.cut_begun(0.0) == []


def test_what_could_be_cut() -> None:
    found = engine(order="views")
    assert found.uncut() == []
    found.receive(change("x", 1), 0.0)
    found.receive(change("z", 1), 0.0)
    assert found.uncut() == [frozenset({"both", "r"}), frozenset({"t"})]
    assert given(found.cut({"t"}, 0.0), Cut) == [("t",)]
    assert found.uncut() == [frozenset({"both", "r"})]


def test_a_global_transaction_over_two_groups_is_not_taken_in() -> None:
    """Neither is what follows: the next engine, with the groups tied, begins from the last commit."""
    found = engine()
    assert found.receive(change("x", 1, "x", "z"), 0.0) == [Tied(frozenset("xz"))]
    assert found.receive(change("y", 1), 0.0) == []
    assert {found.tied} == {frozenset("xz")} and found.size == 0
    tied = engine(together=[found.tied])
    tied.receive(change("x", 1, "x", "z"), 0.0)
    assert tied.missing_parts() == {"g": frozenset("z")}
    for name in ("both", "r"):
        assert tied.receive(done(name, 1), 0.0) == [], "half of it"
    tied.receive(change("z", 1, "x", "z"), 0.0)
    assert committed(tied.receive(done("t", 2), 0.0)) == [(1, 2)]


def test_parts_that_views_were_loaded_without_are_missing_until_they_come() -> None:
    """Or until they are not waited for any longer."""
    positions = {name: dict.fromkeys(v.sources, position(0)) for name, v in VIEWS.items()}
    lacking = [Half("g", "x", True), Half("h", "z", False)]
    found = Engine(VIEWS, positions, together=[frozenset("xyz")], settled=lambda _: {"g", "h"}, halves=lacking)
    assert found.missing_parts() == {"g": frozenset("x"), "h": frozenset("z")}
    found.receive(change("y", 1, "x", "y"), 0.0)
    assert found.halves == frozenset(lacking), "a part at another source"
    found.receive(change("x", 1, "x", "y"), 0.0)
    assert found.missing_parts() == {"h": frozenset("z")}
    found.let_go(found.halves)
    assert found.missing_parts() == {}


def test_a_participant_that_no_view_uses_ties_nothing() -> None:
    found = engine()
    found.receive(change("z", 1, "z", "elsewhere"), 0.0)
    assert not found.tied and found.size == 1


def test_standing_at_exactly_what_has_been_read() -> None:
    """What comes after the barrier is worked on, and applied only when it goes on."""
    found = engine()
    found.receive(change("x", 1), 0.0)
    assert given(found.stop_here(0.0), Cut) == [("both", "r"), ("t",)]
    assert not found.stands
    found.receive(change("x", 2), 0.0)
    found.receive(change("z", 1), 0.0)
    assert given(found.cut_due(0.0, lambda _: False), Cut) == [("both", "r"), ("t",)]
    found.receive(done("r", 1), 0.0)
    assert committed(found.receive(done("both", 1), 0.0)) == [(1,)]
    assert found.stands
    for actions in (done("r", 2), done("both", 2), done("t", 3)):
        assert found.receive(actions, 0.0) == []
    assert committed(found.go_on()) == [(2,), (3,)]
    assert found.size == 0


def most_rows_waiting() -> int:
    """Two views without a common relation, under load: every transaction concerns both, but for the first, so that they
    begin out of step. Each works for two seconds on a block, and sends one action list for it."""
    views = {v.name: v for v in (view("r", [R], []), view("u", [U], []))}
    start = {name: {"x": position(0)} for name in views}
    found, most = Engine(views, start, order="views"), 0
    since: dict[str, list[int]] = {name: [] for name in views}
    working: dict[str, tuple[float, tuple[int, ...]]] = {}
    for now in range(100):
        changed = (R,) if now == 0 else (R, U)
        rows = {c.name: Bag.of([column.name for column in c.columns], [(now, now)]) for c in changed}
        effects = found.receive(Transaction("x", position(now + 1), changes=rows), now)
        for name in [name for name, (until, _) in working.items() if until <= now]:
            found.receive(ActionList(name, working.pop(name)[1], Bag(views[name].attributes)), now)
        effects += found.cut_due(now, lambda view: view in working)
        for effect in effects:
            for name in effect.views if isinstance(effect, ToViews) else ():
                if isinstance(effect.message, Update):
                    since[name].append(effect.message.number)
                elif isinstance(effect.message, Cut) and since[name]:
                    working[name], since[name] = (now + 2, tuple(since[name])), []
        most = max(most, found.size)
    return most


def test_views_that_are_tied_keep_meeting_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts of their own would let nothing through, for ever: their action lists would overlap in a chain."""
    assert most_rows_waiting() < 10
    monkeypatch.setattr(Ties, "together", lambda self, _: [[component] for component in self._components])
    assert most_rows_waiting() > 90
