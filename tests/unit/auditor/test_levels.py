"""Each level, with the smallest history that has it and one that just misses it; and what a verdict says about it."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from histories import bag, copies, counters, state

from strobe.algebra.bag import Bag
from strobe.auditor.levels import CannotEvaluate, Evaluate, HistoryTransaction, Judge, satisfies
from strobe.errors import BrokenInvariant, UserError

Rows = Sequence[tuple[Any, ...]]


def change(columns: str, plus: Rows = (), minus: Rows = ()) -> Bag:
    return bag(columns, *plus).add(bag(columns, *minus, count=-1))


NONSENSE = {"x": bag("n", (99,)), "y": bag("n")}


# ── the papers' examples ─────────────────────────────────────────────────────────────────────────────────────────────


def eca(r1: Rows, r2: Rows, *changes: tuple[str, Rows, Rows], columns: str = "W") -> Judge:
    """V = Π(r1 ⋈ r2) over one source, as in the ECA paper."""

    def view(contents: Mapping[str, Mapping[str, Bag]]) -> dict[str, Bag]:
        r2 = contents["s"]["r2"].rename({"X": "X2"})
        joined = contents["s"]["r1"].join(r2, [("X", "X2")])
        return {"V": joined.project(columns.split())}  # type: ignore[dict-item]

    schema = {"r1": "W X", "r2": "X Y"}
    transactions = [
        HistoryTransaction(f"U{i}", {"s": {r: change(schema[r], plus, minus)}})
        for i, (r, plus, minus) in enumerate(changes, 1)
    ]
    return Judge({"s": {"r1": bag("W X", *r1), "r2": bag("X Y", *r2)}}, transactions, view)


def shown(columns: str, *states: Rows) -> list[dict[str, Bag]]:
    return [{"V": bag(columns, *rows)} for rows in states]


def test_eca_example_2_the_insertion_anomaly_is_not_even_convergent() -> None:
    """The tuple [4] is counted twice in the end, since both answers saw both insertions."""
    judge = eca([(1, 2)], [], ("r2", [(2, 3)], []), ("r1", [(4, 2)], []))
    verdict = judge.verdict(shown("W", [], [(1,), (4,)], [(1,), (4,), (4,)]))
    assert (verdict.verdict, verdict.level) == ("invalid", "inconsistent")
    assert verdict.together.because == "state 2 is not a state of the sources"
    assert verdict.together.witness[0].startswith("state 2 shows (4), which no choice of transactions explains")
    assert "(4) is in state 2 and should not be there" in verdict.together.witness


def test_eca_example_2_with_eca_is_strong_but_not_complete() -> None:
    """ECA installs the answers of both insertions at once."""
    judge = eca([(1, 2)], [], ("r2", [(2, 3)], []), ("r1", [(4, 2)], []))
    states = shown("W", [], [(1,), (4,)])
    assert judge.verdict(states).level == "strong"
    assert judge.verdict(states).together.complete_n == 2
    assert judge.verdict(states, "complete").together.witness == (
        "between state 0 and state 1 came s's U1 (+r2[2, 3]) and s's U2 (+r1[4, 2]); the sources at s after U1 were "
        "never shown",
    )
    assert judge.verdict(shown("W", [], [(1,)], [(1,), (4,)])).level == "complete"


def test_eca_example_3_the_deletion_anomaly_is_consistent_but_not_convergent() -> None:
    """The view stays as it was in the beginning, for ever."""
    judge = eca([(1, 2)], [(2, 3)], ("r1", [], [(1, 2)]), ("r2", [], [(2, 3)]), columns="W Y")
    verdict = judge.verdict(shown("W Y", [(1, 3)], [(1, 3)], [(1, 3)]))
    assert (verdict.verdict, verdict.level) == ("invalid", "consistent")
    assert verdict.together.because == "the last state is not what the sources came to"
    assert verdict.together.witness[0] == (
        "the last state, 2, is the sources at s at the start: s's U1 (-r1[1, 2]) and s's U2 (-r2[2, 3]) never came"
    )
    assert judge.verdict(shown("W Y", [(1, 3)], [(1, 3)], [(1, 3)]), "consistent").verdict == "valid"


def test_strobe_example_1_the_anomaly_over_several_sources() -> None:
    """A tuple joined with one that was deleted meanwhile stays for ever."""

    def view(contents: Mapping[str, Mapping[str, Bag]]) -> dict[str, Bag]:
        r2, r3 = contents["y"]["r2"].rename({"B": "B2"}), contents["z"]["r3"].rename({"C": "C3"})
        joined = contents["x"]["r1"].join(r2, [("B", "B2")]).join(r3, [("C", "C3")])
        return {"V": joined.project(["A", "B", "C", "D"])}  # type: ignore[dict-item]

    initial = {"x": {"r1": bag("A B", (1, 2))}, "y": {"r2": bag("B C")}, "z": {"r3": bag("C D", (3, 4))}}
    insert = HistoryTransaction("U1", {"y": {"r2": bag("B C", (2, 3))}})
    delete = HistoryTransaction("U2", {"x": {"r1": bag("A B", (1, 2), count=-1)}})
    verdict = Judge(initial, [insert, delete], view).verdict(shown("A B C D", [], [(1, 2, 3, 4)]))
    assert verdict.level == "consistent"
    assert verdict.together.witness[0] == (
        "the last state, 1, is the sources at x at the start, y after U1: x's U2 (-r1[1, 2]) never came"
    )


def test_strobe_example_4_the_middle_of_a_transaction_is_only_convergent() -> None:
    """Strobe shows the view after the deletion and before the insertion of one transaction."""
    initial = {"s": {"r1": bag("A B", (1, 2))}}
    transaction = HistoryTransaction("T1", {"s": {"r1": change("A B", [(3, 4)], [(1, 2)])}})
    judge = Judge(initial, [transaction], copies)
    states = [{"r1": bag("A B", *rows)} for rows in ([(1, 2)], [], [(3, 4)])]
    verdict = judge.verdict(states)
    assert verdict.level == "convergent"
    assert verdict.together.witness[0] == (
        "state 1 lacks (1, 2), which needs s's T1 (-r1[1, 2]) without s's T1 (+r1[3, 4]); the sources never were there"
    )
    assert judge.verdict([states[0], states[2]]).level == "complete"


def test_strobe_example_5_half_a_global_transaction_is_only_weak() -> None:
    """T-Strobe shows y after T2 and x before it; Global-Strobe does not."""

    def view(contents: Mapping[str, Mapping[str, Bag]]) -> dict[str, Bag]:
        r2 = contents["y"]["r2"].rename({"B": "B2"})
        return {"V": contents["x"]["r1"].join(r2, [("B", "B2")]).project(["A", "B", "C"])}  # type: ignore[dict-item]

    initial = {"x": {"r1": bag("A B")}, "y": {"r2": bag("B C", (3, 4), (3, 5))}}
    first = HistoryTransaction("T1", {"x": {"r1": bag("A B", (1, 3))}})
    parts = {"y": {"r2": bag("B C", (3, 4), count=-1)}, "x": {"r1": bag("A B", (2, 3))}}
    last: Rows = [(1, 3, 5), (2, 3, 5)]
    judge = Judge(initial, [first, HistoryTransaction("T2", parts)], view)
    verdict = judge.verdict(shown("A B C", [], [(1, 3, 5)], last))
    assert verdict.level == "weak"
    assert verdict.together.because == "state 1 shows a part of a global transaction"
    assert verdict.together.witness == (
        "state 1 shows y's T2 (-r2[3, 4]) without x's T2 (+r1[2, 3]), which are one transaction",
        "it is the sources at x after T1, y after T2",
    )
    assert judge.verdict(shown("A B C", [], [(1, 3, 5)], last), "weak").verdict == "valid"
    assert judge.verdict(shown("A B C", [], last)).level == "strong"
    assert judge.verdict(shown("A B C", [], [(1, 3, 4), (1, 3, 5)], last)).level == "complete"
    split = [
        first,
        HistoryTransaction("U2", {"y": parts["y"]}),
        HistoryTransaction("U3", {"x": parts["x"]}),
    ]
    assert Judge(initial, split, view).verdict(shown("A B C", [], [(1, 3, 5)], last)).level == "complete"


# ── every level, and what just misses it ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "states", "level"),
    [
        ("", [(0, 0)], "complete"),
        ("x1", [(0, 0), (1, 0)], "complete"),
        ("x1", [(0, 0), (0, 0), (1, 0), (1, 0)], "complete"),  # repeated states are fine
        ("x1", [(0, 0)], "consistent"),  # the last one never came
        ("x1", [(1, 0)], "strong"),  # the start was never shown
        ("x1", [(0, 0), None, (1, 0)], "convergent"),
        ("x1", [(0, 0), None], "inconsistent"),
        ("x1 x2", [(0, 0), (2, 0)], "strong"),
        ("x1 x2", [(0, 0), (2, 0), (1, 0), (2, 0)], "weak"),  # goes back
        ("x1 x2", [(0, 0), (1, 0), (0, 0)], "inconsistent"),  # goes back, and ends wrong
        ("x1 y1", [(0, 0), (1, 0), (1, 1)], "complete"),
        ("x1 y1", [(0, 0), (0, 1), (1, 1)], "complete"),  # the sources' clocks are their own
        ("x1 y1", [(0, 0), (0, 1), (1, 0), (1, 1)], "weak"),  # two orders at once
        ("x1 y1", [(0, 0), (1, 0), (0, 1)], "inconsistent"),
        ("x1y1", [(0, 0), (1, 1)], "complete"),
        ("x1y1", [(0, 0), (1, 0), (1, 1)], "weak"),  # half a global transaction
        ("x1y1", [(0, 0), (1, 0)], "inconsistent"),
        ("x1y1 x2", [(0, 0), (1, 1), (2, 1)], "complete"),
        ("x1y1 x2", [(0, 0), (2, 1)], "strong"),
        ("x1 x2y1", [(0, 0), (0, 1), (2, 1)], "weak"),
        ("x1 x2y1 y2", [(0, 0), (1, 0), (2, 1), (2, 2)], "complete"),
        ("x1 x2y1 y2", [(0, 0), (1, 2), (2, 2)], "weak"),  # y2 comes after the global one
    ],
)
def test_every_level_has_a_smallest_history(changes: str, states: list[tuple[int, int] | None], level: str) -> None:
    """Two sources whose transactions count, and a view that copies each: states are the counts shown."""
    judge = counters(*changes.split())
    verdict = judge.verdict([state(*s) if s else NONSENSE for s in states])
    assert verdict.level == level
    assert verdict.verdict == ("valid" if level in ("strong", "complete") else "invalid")
    assert bool(verdict.together.witness) == (verdict.verdict == "invalid")


def test_states_in_which_nothing_changed_may_be_left_out_of_a_complete_history() -> None:
    """A transaction that the view does not show needs no state of its own; nor do two that undo each other need two."""
    only_x: Evaluate = lambda contents: {"x": contents["x"]["x"]}  # noqa: E731
    judge = counters("x1", "y1", "x2", evaluate=only_x)
    assert judge.verdict([state(0), state(1), state(2)]).level == "complete"
    assert judge.verdict([state(0), state(2)]).level == "strong"
    undone = Judge(
        {"x": {"x": bag("n")}},
        [HistoryTransaction(f"T{i}", {"x": {"x": bag("n", (1,), count=c)}}) for i, c in enumerate([1, -1])],
        copies,
    )
    empty, full = {"x": bag("n")}, {"x": bag("n", (1,))}
    assert undone.verdict([empty, full, empty]).level == "complete"
    assert undone.verdict([empty]).level == "strong"
    assert undone.verdict([empty], "complete").together.witness == (
        "after state 0 came x's T0 (+x[1]) and x's T1 (-x[1]); the sources at x after T0 were never shown",
    )


@pytest.mark.parametrize(
    ("states", "n"),
    [
        ([0, 2, 4, 5], 2),  # the rest at the end may be fewer
        ([0, 2, 2, 4, 5], 2),
        ([0, 3, 5], 3),
        ([0, 4, 5], 4),
        ([0, 5], 5),
        ([0, 2, 5], None),
        ([0, 1, 3, 5], None),  # every second, but not counted from the start
        ([0, 2, 3, 4, 5], None),  # more than every second
    ],
)
def test_complete_n_shows_exactly_every_nth_state(states: list[int], n: int | None) -> None:
    """Of five transactions, every N-th state and the last; the smallest N is reported."""
    judge = counters("x1", "x2", "x3", "x4", "x5")
    verdict = judge.verdict([state(x) for x in states], f"complete-{n or 2}")
    assert (verdict.level, verdict.together.complete_n) == ("strong", n)
    assert verdict.verdict == ("valid" if n else "invalid")


def test_a_wanted_n_is_asked_for_itself() -> None:
    """A history may be complete-N with several N, also where none divides the other; where not, a witness says so."""
    only_x: Evaluate = lambda contents: {"x": contents["x"]["x"]}  # noqa: E731
    judge = counters("y1", "x1", "x2", "y2", "y3", "x3", evaluate=only_x)
    states = [state(0), state(2), state(3)]
    assert judge.verdict(states, "complete-2").verdict == "valid"
    assert judge.verdict(states, "complete-3").verdict == "valid"
    named = [{"x": {"x": x}} for x in (0, 2, 3)]
    assert judge.verdict(states, "complete-2", named).verdict == "valid"
    assert judge.verdict(states, "complete-3", named).verdict == "invalid"  # y is not named, so y does not count
    judge = counters("x1", "x2", "x3", "x4", "x5")
    uneven = judge.verdict([state(0), state(2), state(3), state(5)], "complete-2").together
    assert uneven.because == "the states do not end blocks of 2 transactions"
    assert uneven.witness == ("state 2 is the sources at x after T3, after 3 transactions",)
    claims = [{"x": {"x": x}, "y": {"y": 0}} for x in (0, 2, 3, 5)]
    claimed = judge.verdict([state(0), state(2), state(3), state(5)], "complete-2", claims).together
    assert (claimed.because, claimed.witness) == (uneven.because, uneven.witness)


def test_complete_n_counts_global_transactions_once_and_looks_for_an_order() -> None:
    """Blocks of two out of x1, y1, and a global one: some order has them."""
    judge = counters("x1", "y1", "x2y2", "x3")
    assert judge.verdict([state(0), state(1, 1), state(3, 2)]).together.complete_n == 2
    assert judge.verdict([state(0), state(1, 0), state(2, 2), state(3, 2)]).together.complete_n is None


def test_levels_imply_each_other_along_two_chains() -> None:
    """Consistent stands beside convergent and weak; strong is above both."""
    assert satisfies("strong", "consistent") and satisfies("strong", "weak") and satisfies("complete", "strong")
    assert not satisfies("consistent", "convergent") and not satisfies("weak", "consistent")
    assert satisfies("complete", "complete-3") and satisfies("strong", "complete-6", [3])
    assert not satisfies("strong", "complete-6", [4]) and not satisfies("unknown", "convergent")
    with pytest.raises(UserError, match="no level 'stronger'"):
        counters().verdict([state(0)], "stronger")


# ── several views ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_views_that_are_right_alone_need_not_be_right_together() -> None:
    """One view has seen the transaction and the other has not: each is complete, and together they are no state."""
    both: Evaluate = lambda contents: {"a": contents["x"]["x"], "b": contents["x"]["x"]}  # noqa: E731
    judge = counters("x1", evaluate=both)
    old, new = bag("n"), bag("n", (1,))
    verdict = judge.verdict([{"a": old, "b": old}, {"a": new, "b": old}, {"a": new, "b": new}])
    assert {view: finding.level for view, finding in verdict.views.items()} == {"a": "complete", "b": "complete"}
    assert (verdict.verdict, verdict.level) == ("invalid", "convergent")
    assert verdict.together.witness[0] == (
        "state 1 shows a at (x after T1) and b at (x at the start); the sources never were there at once"
    )


def test_a_view_that_is_wrong_alone_is_named() -> None:
    """The other view keeps its level."""
    judge = counters("x1", "y1")
    verdict = judge.verdict([state(0, 0), {"x": bag("n", (7,)), "y": bag("n")}, state(1, 1)])
    assert (verdict.views["x"].level, verdict.views["y"].level) == ("convergent", "complete")
    assert verdict.level == "convergent"
    assert verdict.together.witness[0].startswith("state 1 shows x (7)")


# ── witnesses ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_witness_names_the_update_seen_without_an_earlier_one() -> None:
    """The sources never had T2 without T1."""
    verdict = counters("x1", "x2", "y1").verdict([state(0), {"x": bag("n", (2,)), "y": bag("n")}, state(2, 1)])
    assert verdict.together.witness[0] == (
        "state 1 shows x (2), which needs x's T2 (+x[2]) without x's T1 (+x[1]); the sources never were there"
    )


def test_a_witness_names_the_state_behind_which_another_goes_back() -> None:
    """And what it takes back."""
    verdict = counters("x1", "x2", "y1").verdict([state(0), state(2), state(2, 1), state(1, 1), state(2, 1)])
    assert verdict.together.because == "state 3 goes back in time"
    assert verdict.together.witness == (
        "state 3 is the sources at x after T1, y after T3, without x's T2 (+x[2]), which state 2 showed already",
    )


def test_rows_are_shown_as_sql_shows_them_and_not_too_many() -> None:
    """NULL, text and binary are readable; beyond twenty rows they are counted."""
    judge = Judge({"s": {"r": bag("a b c")}}, [], copies)
    few = judge.verdict([{"r": bag("a b c", (None, "it's", b"\x00\xff"))}]).together.witness
    assert few[0].startswith("state 0 shows (NULL, \"it's\", X'00ff')")
    many = judge.verdict([{"r": bag("a b c", *((i, "", b"") for i in range(31)))}]).together.witness
    assert "and 26 other rows" in many[0] and many[-1] == "and 11 more rows"


# ── unknown, and misuse ──────────────────────────────────────────────────────────────────────────────────────────────


def test_too_many_vectors_without_claims_are_unknown() -> None:
    """What needs no search is decided all the same: convergence."""
    transactions = [HistoryTransaction(f"{s}{n}", {s: {s: bag("n", (n,))}}) for n in range(1, 61) for s in "xy"]
    judge = Judge({"x": {"x": bag("n")}, "y": {"y": bag("n")}}, transactions, copies, limit=3000)
    assert not judge.searchable
    with pytest.raises(BrokenInvariant, match="more than 3000 vectors"):
        judge.level(judge.key([state(0)]))
    verdict = judge.verdict([state(0), state(60, 0), state(60, 60)])
    assert (verdict.verdict, verdict.level) == ("unknown", "convergent")
    assert "at 3721 vectors of source positions" in verdict.together.because
    assert judge.verdict([state(0), state(60, 60)], "convergent").verdict == "valid"
    assert judge.verdict([state(0), state(60, 0)]).verdict == "invalid"


def test_what_cannot_be_evaluated_is_unknown() -> None:
    """The reason is in the verdict."""

    def sometimes(contents: Mapping[str, Mapping[str, Bag]]) -> dict[str, Bag]:
        if len(contents["x"]["x"]):
            raise CannotEvaluate("7 / 2 is Spark's to say")
        return copies(contents)

    verdict = counters("x1", evaluate=sometimes).verdict([state(0), state(1)])
    assert (verdict.verdict, verdict.together.because) == ("unknown", "7 / 2 is Spark's to say")


def test_misuse_is_told() -> None:
    """States with other columns, no state at all, and transactions at unknown relations."""
    judge = counters("x1")
    with pytest.raises(BrokenInvariant, match="columns"):
        judge.verdict([{"x": bag("m", (1,)), "y": bag("n")}])
    with pytest.raises(BrokenInvariant, match="initial state"):
        judge.verdict([])
    with pytest.raises(BrokenInvariant, match=r"unknown x\.z"):
        Judge({"x": {}}, [HistoryTransaction("T1", {"x": {"z": bag("n")}})], copies)
    with pytest.raises(BrokenInvariant, match="no part"):
        Judge({"x": {}}, [HistoryTransaction("T1", {})], copies)


def test_columns_may_come_in_another_order() -> None:
    """A state is a bag under names."""
    judge = Judge({"s": {"r": bag("a b", (1, 2))}}, [], copies)
    assert judge.verdict([{"r": bag("b a", (2, 1))}]).level == "complete"


def test_verdicts_come_by_the_ten_thousand() -> None:
    """Once a world is known, a level costs a few look-ups: an explorer asks a million times."""
    judge = counters("x1", "y1", "x2y2", "x3", "y3", "x4")
    rng = random.Random(1)
    numbers = [judge.intern(state(x, y)) for x in range(5) for y in range(4)]
    keys = [[numbers[0], *sorted(rng.choices(numbers, k=6))] for _ in range(20_000)]
    judge.level(keys[0])
    began = time.perf_counter()
    found = {judge.level(key) for key in keys}
    assert time.perf_counter() - began < 60
    assert found >= {"inconsistent", "weak", "consistent"}
