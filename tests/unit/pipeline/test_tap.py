"""What is kept of what comes in, for work beside the managers."""

from __future__ import annotations

import pytest

from strobe.algebra.bag import Bag
from strobe.errors import NotNow
from strobe.messages import Position, Transaction
from strobe.pipeline import tap
from strobe.pipeline.tap import Tap


def at(number: int) -> Position:
    return Position(str(number), (number,))


def transaction(number: int, source: str = "s", relation: str = "r", rows: int = 1) -> Transaction:
    changes = {relation: Bag.of(("a",), [(n,) for n in range(rows)])} if rows else {}
    return Transaction(source, at(number), changes=changes)


def opened() -> Tap:
    made = Tap({"s": {"r"}}, {"s": at(5), "other": at(7)})
    made.open()
    return made


def test_it_keeps_what_touches_its_relations_and_knows_how_far_it_has_come() -> None:
    """Transactions of other relations and sources, and those without rows, only move it on."""
    made = opened()
    assert made.since == {"s": at(5)} and made.has("s", at(5)) and not made.has("s", at(6))
    for each in (transaction(6), transaction(7, relation="x"), transaction(8, rows=0), transaction(9, "other")):
        made.arrive(each)
    assert [t.position for t in made.kept("s")] == [at(6)]
    assert made.has("s", at(8)) and not made.has("s", at(9))


def test_it_keeps_no_more_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond that it says so: nothing can be taken back then."""
    monkeypatch.setattr(tap, "MOST", 10)
    made = opened()
    made.arrive(transaction(6, rows=10))
    assert len(made.kept("s")) == 1
    made.arrive(transaction(7, rows=1))
    with pytest.raises(NotNow, match="too much changes"):
        made.kept("s")
