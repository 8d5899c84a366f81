"""States that say which positions they reflect: the claims are checked, and nothing is searched for."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

import pytest
from histories import Literal, bag, copies, counters, distinct, evaluate, random_world, state

from strobe.algebra.bag import Bag
from strobe.auditor.levels import Evaluate, HistoryTransaction, Judge, Verdict
from strobe.errors import UserError


def claim(x: int, y: int = 0) -> dict[str, dict[str, int]]:
    return {"x": {"x": x}, "y": {"y": y}}


def judged(judge: Judge, *states: tuple[tuple[int, int], tuple[int, int] | None], wanted: str = "strong") -> Verdict:
    """States as counts shown, with the counts claimed."""
    claims = [None if claimed is None else claim(*claimed) for _, claimed in states]
    return judge.verdict([state(*shown) for shown, _ in states], wanted, claims)


def at(x: int, y: int = 0) -> tuple[tuple[int, int], tuple[int, int]]:
    return (x, y), (x, y)


def test_true_claims_in_order_are_strong_or_complete() -> None:
    """Complete, when they go on by one visible transaction at a time."""
    judge = counters("x1", "y1", "x2y2")
    assert judged(judge, at(0, 0), at(0, 1), at(1, 1), at(2, 2)).level == "complete"
    assert judged(judge, at(0, 0), at(1, 1), at(2, 2)).level == "strong"
    assert judged(judge, at(0, 0), at(1, 1)).level == "consistent"
    skipped = judged(judge, at(0, 0), at(1, 1), at(2, 2), wanted="complete").together
    assert (skipped.verdict, skipped.because) == ("invalid", "a state of the sources was not shown")
    assert skipped.witness[0].startswith("between state 0 and state 1 came x's T1 (+x[1]) and y's T2 (+y[1])")
    assert skipped.complete_n == 2


def test_a_false_claim_names_what_is_missing_or_too_early() -> None:
    """Even where the state itself would be right, at other positions than it says."""
    judge = counters("x1", "x2", "y1")
    late = judged(judge, at(0, 0), ((1, 0), (2, 0)), at(2, 1)).together
    assert (late.level, late.because) == ("convergent", "state 1 is not what it claims to be")
    assert late.witness[0] == (
        "state 1 claims x after T2, y at the start, but is the sources at x after T1, y at the start: x's T2 (+x[2]) "
        "not yet seen"
    )
    assert "x (2) is missing from state 1" in late.witness
    early = judged(judge, at(0, 0), ((1, 1), (1, 0)), at(2, 1)).together
    assert early.witness[0].endswith("y's T3 (+y[1]) seen too early")
    nonsense = judge.verdict(
        [state(0), {"x": bag("n", (2,)), "y": bag("n")}, state(2, 1)], "strong", [claim(0), claim(2), claim(2, 1)]
    )
    assert nonsense.together.witness[:2] == (
        "state 1 claims x after T2, y at the start, and is not that",
        "state 1 lacks x (1), which needs x's T2 (+x[2]) without x's T1 (+x[1]); the sources never were there",
    )


def test_claims_that_go_back_are_weak() -> None:
    """Each is true; together they are no order."""
    verdict = judged(counters("x1", "x2"), at(0), at(2), at(1), at(2))
    assert (verdict.level, verdict.together.because) == ("weak", "state 2 goes back in time")
    assert verdict.together.witness == (
        "state 2 is the sources at x after T1, without x's T2 (+x[2]), which state 1 showed already",
    )


def test_claims_that_tear_a_global_transaction_are_weak() -> None:
    """But only where both of its sources are claimed: a view that knows one of them shows all that it can."""
    verdict = judged(counters("x1y1", "x2"), at(0, 0), at(2, 0), at(2, 1))
    assert verdict.level == "weak"
    assert verdict.together.witness[0] == (
        "state 1 shows x's T1 (+x[1]) without y's T1 (+y[1]), which are one transaction"
    )
    assert verdict.views["x"].level == "strong"
    assert verdict.views["y"].level == "complete"


def test_views_that_claim_different_positions_must_fit_at_the_later_one() -> None:
    """A view may lag behind in name, when nothing it shows happened meanwhile."""
    both: Evaluate = lambda contents: {"a": contents["x"]["x"], "b": contents["y"]["y"]}  # noqa: E731
    judge = counters("x1", "y1", evaluate=both)
    empty, one = bag("n"), bag("n", (1,))

    def verdict(b: Bag, claimed: int) -> Verdict:
        states = [{"a": empty, "b": empty}, {"a": one, "b": b}, {"a": one, "b": one}]
        claims: list[Mapping[str, Mapping[str, int | str]]] = [
            {"a": {"x": 0, "y": 0}, "b": {"x": 0, "y": 0}},
            {"a": {"x": 1, "y": 1}, "b": {"x": 0, "y": claimed}},
            {"a": {"x": 1, "y": 1}, "b": {"x": 1, "y": 1}},
        ]
        return judge.verdict(states, "strong", claims)

    assert verdict(one, 1).verdict == "valid"
    behind = verdict(empty, 0)
    assert (behind.views["b"].verdict, behind.verdict, behind.level) == ("valid", "invalid", "convergent")


def test_positions_may_be_the_sources_own_words() -> None:
    """A transaction carries the position that its source reached with it; the start has one too, where it is named."""
    parts = {"x": {"x": bag("n", (1,))}}
    transactions = [HistoryTransaction("T1", parts, {"x": "0/16B"})]
    judge = Judge({"x": {"x": bag("n")}}, transactions, copies, start={"x": "0/0"})
    states = [{"x": bag("n")}, {"x": bag("n", (1,))}]
    assert judge.verdict(states, "strong", [{"x": {"x": "0/0"}}, {"x": {"x": "0/16B"}}]).level == "complete"
    assert judge.verdict(states, "strong", [{"x": {"x": 0}}, {"x": {"x": "0/16B"}}]).level == "complete"
    for wrong in ("0/17", 2, -1):
        with pytest.raises(UserError, match=r"state 1, view x: .* no position of that source"):
            judge.verdict(states, "strong", [{"x": {"x": 0}}, {"x": {"x": wrong}}])
    with pytest.raises(UserError, match="no position"):
        judge.verdict(states, "strong", [{"x": {"z": 0}}, None])


def test_states_without_a_claim_fit_between_their_neighbours() -> None:
    """They are searched for, among all vectors if those are few, else between the claims before and after."""
    few = counters("x1", "x2", "y1")
    many = counters("x1", "x2", "y1", limit=1)
    for judge in (few, many):
        assert judged(judge, at(0, 0), ((1, 0), None), at(2, 1)).level == "strong"
        assert judged(judge, ((0, 0), None), at(2, 0), ((2, 1), None)).level == "strong"
        assert judged(judge, ((0, 0), None), at(1, 0), ((1, 0), None), at(2, 1)).verdict == "valid"
        wrong = judged(judge, at(0, 0), at(1, 1), ((2, 0), None), at(2, 1))
        assert wrong.verdict == "invalid"
        assert wrong.together.witness
    assert judged(few, at(0, 0), ((1, 0), None), ((2, 0), None), at(2, 1), wanted="complete").verdict == "valid"
    assert judged(many, at(0, 0), ((1, 0), None), ((2, 0), None), at(2, 1), wanted="complete").verdict == "unknown"
    assert judged(many, at(0, 0), at(1, 1), ((2, 0), None), at(2, 1), wanted="weak").verdict == "unknown"


def test_what_was_claimed_stays_claimed() -> None:
    """A claim need not name again what it said before."""
    judge = counters("y1", "x1")
    states = [state(0, 0), state(0, 1), state(1, 1)]
    both = {"x": 0, "y": 1}
    claims = [claim(0, 0), {"x": both, "y": both}, {"x": {"x": 1}, "y": {"x": 1}}]
    assert judge.verdict(states, "complete", claims).verdict == "valid"


def test_states_without_a_claim_must_not_go_back_either() -> None:
    """Between the same two claims."""
    judge = counters("x1", "x2", limit=1)
    assert judged(judge, at(0), ((1, 0), None), ((2, 0), None), at(2)).verdict == "valid"
    assert judged(judge, at(0), ((2, 0), None), ((1, 0), None), at(2)).verdict == "invalid"


def flipping() -> tuple[Judge, dict[str, Bag], dict[str, Bag]]:
    """A row that comes, goes and comes again; and the two states there are."""
    changes = [bag("n", (1,), count=count) for count in (1, -1, 1)]
    transactions = [HistoryTransaction(f"T{i}", {"x": {"x": change}}) for i, change in enumerate(changes)]
    return Judge({"x": {"x": bag("n")}}, transactions, copies), {"x": bag("n")}, {"x": bag("n", (1,))}


def test_a_state_shown_twice_by_the_sources_is_shown_twice() -> None:
    """From the first place of a state to the last place of another, both were passed again."""
    judge, without, with_it = flipping()
    claims = [{"x": {"x": 0}}, {"x": {"x": 3}}]
    assert judge.verdict([without, with_it], "complete", claims).level == "strong"


def test_a_claim_that_goes_back_is_wrong_even_if_others_would_have_done() -> None:
    """The search that states without a claim need does not forgive the claims that are there."""
    judge, without, with_it = flipping()
    states = [without, with_it, without, with_it]
    assert judge.verdict(states).level == "complete"
    claims = [None, {"x": {"x": 3}}, {"x": {"x": 2}}, None]
    verdict = judge.verdict(states, "strong", claims)
    assert (verdict.verdict, verdict.together.because) == ("invalid", "state 2 goes back in time")


def test_an_order_that_comes_from_a_source_that_is_not_named() -> None:
    """y says that T1 was before T2: so x alone, which sees only T1, moves before z, which sees only T2."""
    ends: Evaluate = lambda contents: {"x": contents["x"]["x"], "z": contents["z"]["z"]}  # noqa: E731
    initial = {source: {source: bag("n")} for source in "xyz"}
    one = bag("n", (1,))
    transactions = [
        HistoryTransaction("T1", {"x": {"x": one}, "y": {"y": one}}),
        HistoryTransaction("T2", {"y": {"y": one}, "z": {"z": one}}),
    ]
    judge = Judge(initial, transactions, ends)

    def verdict(*places: tuple[int, int]) -> str:
        states = [{"x": [bag("n"), one][x], "z": [bag("n"), one][z]} for x, z in places]
        return judge.verdict(states, "strong", [{"x": {"x": x}, "z": {"z": z}} for x, z in places]).level

    assert verdict((0, 0), (1, 0), (1, 1)) == "complete"
    assert verdict((0, 0), (1, 1)) == "strong"
    assert verdict((0, 0), (0, 1), (1, 1)) == "weak"


def test_states_that_never_move_are_not_complete_for_that() -> None:
    """Without a single claim, what the sources passed through meanwhile still has to be shown."""
    changes = [bag("n", (1,), count=count) for count in (1, -1)]
    transactions = [HistoryTransaction(f"T{i}", {"x": {"x": change}}) for i, change in enumerate(changes)]
    judge = Judge({"x": {"x": bag("n")}}, transactions, copies, limit=1)
    verdict = judge.verdict([{"x": bag("n")}, {"x": bag("n")}], "complete")
    assert (verdict.verdict, verdict.level) == ("invalid", "strong")


@pytest.mark.parametrize(
    ("claims", "n"), [([0, 2, 4, 5], 2), ([0, 3, 5], 3), ([0, 5], 5), ([0, 2, 5], None), ([0, 2, 3, 4, 5], None)]
)
def test_complete_n_by_claims(claims: list[int], n: int | None) -> None:
    """As by search."""
    judge = counters("x1", "x2", "x3", "x4", "x5")
    verdict = judged(judge, *(at(x) for x in claims), wanted=f"complete-{n or 2}")
    assert (verdict.level, verdict.together.complete_n) == ("strong", n)
    assert verdict.verdict == ("valid" if n else "invalid")


def test_thousands_of_claims_take_seconds() -> None:
    """There is no search, so a long history of several sources is as simple as a short one."""
    rng = random.Random(7)
    rows = {"x": [0], "y": [0], "z": [0]}
    transactions, claims, states = [], [], []
    for number in range(3000):
        source = rng.choice("xyz")
        change = bag("n", (number,)).add(bag("n", (number - 9,), count=-1))
        transactions.append(HistoryTransaction(f"T{number}", {source: {source: change}}))
        rows[source].append(number)
    initial = {source: {source: bag("n")} for source in rows}
    judge = Judge(initial, transactions, copies)
    counts, current = dict.fromkeys(rows, 0), {source: bag("n") for source in rows}
    for transaction in [None, *transactions]:
        for source, changes in transaction.parts.items() if transaction else ():
            counts[source] += 1
            current[source] = current[source].add(changes[source])
        states.append(dict(current))
        claims.append({view: {view: counts[view]} for view in rows})
    assert not judge.searchable
    began = time.perf_counter()
    complete = judge.verdict(states, "complete", claims)
    assert {finding.level for finding in (complete.together, *complete.views.values())} == {"complete"}
    sparse = judge.verdict([*states[::7], states[-1]], "strong", [*claims[::7], claims[-1]])
    assert (sparse.verdict, sparse.together.complete_n) == ("valid", 7)
    states[2000] = states[1999]
    wrong = judge.verdict(states, "strong", claims)
    assert (wrong.verdict, wrong.together.because) == ("invalid", "state 2000 is not what it claims to be")
    assert time.perf_counter() - began < 120


@pytest.mark.parametrize("seed", range(60))
def test_claims_are_judged_as_the_definitions_say(seed: int) -> None:
    """Against a listing of every schedule through the claimed vectors; and never above what a search would find."""
    rng = random.Random(seed)
    literal = Literal(random_world(rng))
    judge = Judge(literal.initial, literal.transactions, evaluate)
    for _ in range(6):
        schedule = rng.choice(literal.schedules)
        kept = [vector for vector in schedule if rng.random() < 0.8] or schedule[:1]
        if rng.random() < 0.2:
            rng.shuffle(kept)
        if rng.random() < 0.2:
            kept.append({source: rng.choice(literal.positions_of(source)) for source in literal.queues})
        states = [literal.views(vector) for vector in kept]
        claims = [dict.fromkeys(judge.views, vector) for vector in kept]
        verdict = judge.verdict(states, "strong", claims)
        key = judge.key(states)
        for scope in (*judge.views, None):
            views = [scope] if scope else list(judge.views)
            finding = verdict.views[scope] if scope else verdict.together
            assert finding.level == literal_claims(literal, kept, views)
            if finding.level != judge.level(key, scope):
                assert (finding.level, judge.level(key, scope)) in [
                    *(("weak", better) for better in ("strong", "complete")),
                    ("strong", "complete"),
                    ("inconsistent", "consistent"),
                ]


def literal_claims(literal: Literal, kept: list[dict[str, int]], views: list[str]) -> str:
    """The level of true claims: is there a schedule that passes through all of them in order, and shows all?"""

    def seen(vector: dict[str, int]) -> list[Bag]:
        return [literal.views(vector)[view] for view in views]

    distinct_vectors = [v for i, v in enumerate(kept) if i == 0 or v != kept[i - 1]]
    through = [s for s in literal.schedules if [v for v in s if v in kept] == distinct_vectors]
    shown = [seen(vector) for vector in kept]
    if shown[-1] != seen(literal.schedules[0][-1]):
        return "consistent" if through else "inconsistent"
    if any(distinct([seen(v) for v in schedule]) == distinct(shown) for schedule in through):
        return "complete"
    return "strong" if through else "weak"
