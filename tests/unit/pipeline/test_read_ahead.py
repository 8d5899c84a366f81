"""Answers that have seen more than has been taken in, brought back by what has been read ahead."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from backlog import Database, at, joined

from strobe.algebra.bag import NAN, Bag
from strobe.data.scratch import Lease, Scratch
from strobe.data.spilled import Spilled
from strobe.messages import Answer, BroughtBack, Departed, Lookup, Query, Seen, SeenByXid, Transaction
from strobe.pipeline import read_ahead
from strobe.pipeline.early_answers import EarlyAnswers
from strobe.pipeline.read_ahead import ReadAhead, joined_columns

VIEW = joined()
SHOP = VIEW.sources[0]
ORDERS = ("id", "customer", "state")


def ahead() -> ReadAhead:
    return ReadAhead(SHOP, joined_columns([VIEW], SHOP))


def question(relation: str, column: str, keys: list[Any]) -> Query:
    index = {"orders": 0, "customers": 1, "payments": 2}[relation]
    columns = VIEW.occurrences[index].columns
    return Query("v", 1, SHOP, (Lookup(index, relation, columns, (column,), Bag.of((column,), [(k,) for k in keys])),))


def matching(database: Database, query: Query) -> Bag:
    (found,) = database.answer(query).relations
    assert isinstance(found, Bag)
    return found


QUESTIONS = [
    ("orders", "id", range(200)),
    ("orders", "customer", range(0, 100, 3)),
    ("payments", "order_id", range(300)),
]


@pytest.mark.parametrize("chunk", [1, 7, 200])
@pytest.mark.parametrize("seed", range(3))
def test_an_answer_is_brought_back_to_what_was_taken_in(monkeypatch: pytest.MonkeyPatch, chunk: int, seed: int) -> None:
    """It is the answer that the source would have given when its log ended there; whatever of the log is still here,
    whatever has come since the snapshot, and in whatever chunks it was written."""
    monkeypatch.setattr(read_ahead, "CHUNK", chunk)
    rng = random.Random(seed)
    found, then, now = ahead(), Database(VIEW, seed), Database(VIEW, seed)
    now.transact(300)
    later = Database(VIEW, seed)
    later.transact(350)
    for transaction in later.log:
        found.add(transaction)
    taken = 0
    while taken < 200:
        some = found.take()
        assert [t.position for t in some] == [at(n) for n in range(taken + 1, taken + len(some) + 1)]
        taken += len(some)
        then.transact(len(some))
        assert then.contents() != now.contents()
        for relation, column, keys in QUESTIONS:
            query = question(relation, column, rng.sample(keys, 20))
            brought = found.brought_back(query, now.answer(query), at(taken), since=0)
            assert brought is not None and brought.relations == (matching(then, query),)
            assert brought.seen == BroughtBack(at(taken), Seen(at(300)))


def test_what_a_snapshot_had_not_seen_is_left_alone() -> None:
    """Where log order is not visibility order, it may have seen a later transaction without an earlier one."""
    found = ahead()
    rows = {n: (n, 1, 0) for n in range(1, 5)}
    for n, row in rows.items():
        found.add(Transaction(SHOP, at(n), xid=n, changes={"orders": Bag.of(ORDERS, [row])}))
    query = question("orders", "customer", [1])
    seen = SeenByXid(at(4), 5, frozenset({2}))
    answer = Answer("v", 1, SHOP, (Bag.of(ORDERS, [rows[1], rows[3], rows[4]]),), seen)
    brought = found.brought_back(query, answer, at(0), since=0)
    assert brought is not None and brought.relations == (Bag(ORDERS),)
    assert found.shown == 1, "a snapshot taken later may not show the second one either"
    assert [t.xid for t in found.take()] == [1, 2, 3, 4]
    assert len(found) == 0 and found.position is None


def test_what_looked_up_with_corrected_rows_is_left_out() -> None:
    """Their keys were taken from rows that were not there yet, and not from those that were."""
    found = ahead()
    old, new = (1, 5, 0), (1, 6, 0)
    found.add(Transaction(SHOP, at(1), changes={"orders": Bag(ORDERS, {old: -1, new: 1})}))
    orders = question("orders", "id", [1]).lookups[0]
    customers = Lookup(1, "customers", ("id", "name"), ("id",), keys_from=(0, ("customer",)))
    query = Query("v", 1, SHOP, (orders, customers))
    names = Bag.of(("id", "name"), [(6, 6)])
    brought = found.brought_back(query, Answer("v", 1, SHOP, (Bag.of(ORDERS, [new]), names), Seen(at(1))), at(0), 0)
    assert brought is not None and brought.relations == (Bag.of(ORDERS, [old]),)
    same = replace(query, lookups=(replace(orders, keys=Bag.of(("id",), [(2,)])), customers))
    rows = (Bag.of(ORDERS, [(2, 6, 0)]), names)
    brought = found.brought_back(same, Answer("v", 1, SHOP, rows, Seen(at(1))), at(0), 0)
    assert brought is not None and brought.relations == rows


@pytest.mark.parametrize("null_safe", [True, False])
def test_null_finds_null_where_it_is_asked_for(null_safe: bool) -> None:
    """In a key that is given, and in one that another look-up found."""
    found, rows = ahead(), [(1, None, 0), (2, None, 1), (3, 5, 0)]
    found.add(Transaction(SHOP, at(1), changes={"orders": Bag.of(ORDERS, rows[:1])}))
    by_null = Lookup(0, "orders", ORDERS, ("customer",), Bag.of(("k",), [(None,)]), null_safe=null_safe)
    again = replace(by_null, keys=None, keys_from=(0, ("customer",)))
    answer = Answer("v", 1, SHOP, (Bag.of(ORDERS, rows[2:]), Bag.of(ORDERS, rows)), Seen(at(1)))
    query = Query("v", 1, SHOP, (replace(by_null, on=("id",), keys=Bag.of(("k",), [(3,), (2,)])), by_null))
    brought = found.brought_back(query, answer, at(0), 0)
    assert brought is not None and brought.relations[1] == Bag.of(ORDERS, rows[null_safe:])
    first = Bag.of(ORDERS, rows[1:])
    query = Query("v", 1, SHOP, (*query.lookups[:1], again))
    brought = found.brought_back(query, replace(answer, relations=(first, Bag.of(ORDERS, rows))), at(0), 0)
    assert brought is not None and brought.relations == (first, Bag.of(ORDERS, rows[null_safe:]))


@pytest.mark.parametrize(
    "value", [NAN, (NAN, 1.5), None, Decimal("1.10"), "é\0", b"\xff", True, -0.0], ids=lambda value: repr(value)
)
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    """A NaN is one object in all bags, and what comes out of a file is another."""
    found, rows = ahead(), Bag.of(ORDERS, [(1, 5, value)])
    transaction = Transaction(SHOP, at(1), changes={"orders": rows})
    query = question("orders", "customer", [5])
    found.add(transaction)
    brought = found.brought_back(query, Answer("v", 1, SHOP, (rows,), Seen(at(1))), at(0), 0)
    assert brought is not None and brought.relations == (Bag(ORDERS),)
    (taken,) = found.take()
    assert taken == transaction


@pytest.mark.parametrize(
    "unknown",
    [
        {"gone": {"orders": Bag.of(("id",), [(1,)])}},
        {"departed": {"orders": (Departed("a partition was dropped"),)}},
        {"changes": {"orders": Spilled(Lease(Scratch, None), "0", 1, {})}},  # type: ignore[arg-type]  # not read
        {"changes": {"orders": Bag.of(("id", "customer"), [(1, 5)])}},
    ],
    ids=["keys only", "all at once", "in files", "other columns"],
)
def test_what_is_not_there_row_by_row_cannot_be_taken_out(unknown: Mapping[str, Any]) -> None:
    """Until it has been taken in; of other relations it can."""
    found = ahead()
    found.add(Transaction(SHOP, at(1), changes={"orders": Bag.of(ORDERS, [(1, 5, 0)])}))
    for _ in range(2):
        found.add(Transaction(SHOP, at(2), **unknown))
    orders, customers = question("orders", "customer", [5]), question("customers", "id", [5])
    answers = [Answer("v", 1, SHOP, (Bag(q.lookups[0].columns),), Seen(at(2))) for q in (orders, customers)]
    assert found.brought_back(orders, answers[0], at(0), 0) is None
    assert found.brought_back(customers, answers[1], at(0), 0) is not None
    assert len(found.take()) == 3
    found.add(Transaction(SHOP, at(3), changes={"orders": Bag.of(ORDERS, [(1, 5, 0)])}))
    assert found.brought_back(orders, replace(answers[0], seen=Seen(at(3))), at(2), 0) is not None


def test_an_answer_without_keys_cannot_be_brought_back() -> None:
    found = ahead()
    found.add(Transaction(SHOP, at(1), changes={"orders": Bag.of(ORDERS, [(1, 5, 0)])}))
    whole = Query("v", 1, SHOP, (Lookup(0, "orders", ORDERS),))
    by_state = question("orders", "state", [0])
    for query in (whole, by_state):
        assert found.brought_back(query, Answer("v", 1, SHOP, (Bag(ORDERS),), Seen(at(1))), at(0), 0) is None


def test_an_early_answer_waits_for_what_it_has_seen() -> None:
    """First until its source has been read so far; then it is brought back, or all it has seen is to be taken in."""
    found = ahead()
    early = EarlyAnswers({SHOP: found}, {"v": {SHOP: at(0)}, "new": {SHOP: at(2)}})
    query = question("orders", "customer", [5])
    rows = Bag.of(ORDERS, [(1, 5, 0)])
    answer = Answer("v", 1, SHOP, (rows,), Seen(at(3)))
    early.asked(query)
    early.add(answer)
    assert list(early.usable({SHOP: at(1)})) == [] and (early.wanted, early.needed) == ({SHOP: at(3)}, {})
    found.add(Transaction(SHOP, at(2), changes={"orders": rows}))
    assert list(early.usable({SHOP: at(1)})) == []
    found.add(Transaction(SHOP, at(3)))
    (brought,) = early.usable({SHOP: at(1)})
    assert brought.relations == (Bag(ORDERS),) and not early.wanted
    new = replace(query, view="new")
    early.asked(new)
    early.add(replace(answer, view="new"))
    assert list(early.usable({SHOP: at(1)})) == [], "what this view was loaded with has to be in its answers"
    assert early.needed == {SHOP: at(3)}
    assert [a.relations for a in early.usable({SHOP: at(3)})] == [(rows,)] and not early.needed
