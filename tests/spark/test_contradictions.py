"""Changes that contradict what a view holds, on real Spark and Delta: they stop that view, and no other."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strobe.algebra.bag import Bag, Row
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.view import Occurrence, Output, View
from strobe.data.arrow import from_arrow, to_arrow
from strobe.errors import ViewWrong
from strobe.messages import Commit, CommitHeader
from strobe.spark.relation import local_data
from strobe.warehouse import inspect, ledger
from strobe.warehouse.layout import Layout
from strobe.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


TABLE = RelationSchema("shop", "t", (Column("id", "bigint"), Column("word", "string")), ("id",))
ROWS: list[Row] = [(1, "one"), (2, "two"), (3, None)]


def gone(*rows: Row) -> Bag:
    return Bag.of(("r0c0", "r0c1"), rows, -1)


def come(*rows: Row) -> Bag:
    return Bag.of(("r0c0", "r0c1"), rows)


WRONG: dict[str, tuple[tuple[str, ...], Bag, str]] = {
    "absent": (("id",), gone((7, "seven")), r"row that the view does not hold: \(id=7\)"),
    "other_row": (("id",), gone((1, "ONE")), r"does not hold: \(id=1\)"),
    "twice": (("id",), come((2, "zwei")), r"second row with the key \(id=2\)"),
    "unkeyed": ((), gone((3, "three")), r"does not hold: one of \d+ characters"),
    "too_often": ((), gone((3, None)).add(gone((3, None))), r"does not hold: (one of \d+ characters|\(id=3\))"),
}
"""Views with the change that contradicts what they hold, and what is said of it."""


def view(name: str, *key: str) -> View:
    occurrence = Occurrence(0, "t", TABLE, ("id", "word"))
    outputs = tuple(Output(column, f"r0c{i}") for i, column in enumerate(("id", "word")))
    return View(name, f"SELECT id, word FROM shop.t -- {name}", (occurrence,), (), None, outputs, key)


VIEWS = (view("other", "id"), *(view(name, *key) for name, (key, _, _) in WRONG.items()))


class Bench:
    """A warehouse of views with the same rows."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark, self.path = spark, path
        self.open()
        loaded = []
        for each in VIEWS:
            frame = local_data(spark, to_arrow(["id", "word"], ["bigint", "string"], ROWS))
            loaded.append(self.warehouse.load(each, frame))
        self.warehouse.cut_over(loaded, self.commit())
        self.warehouse.fold()

    def reopen(self) -> None:
        """As a new process would."""
        self.warehouse.close()
        self.open()

    def open(self) -> None:
        self.warehouse = Warehouse.create_or_open(self.spark, Layout(self.path), timedelta(days=7), "tests")
        self.warehouse.fence()
        self.warehouse.use([each for each in VIEWS if each.name in self.warehouse.definitions])

    def commit(self, **changes: Bag) -> Commit:
        number = self.next
        positions = {each.name: {"shop": f"p{number}"} for each in VIEWS}
        return Commit(CommitHeader(number, START + timedelta(minutes=number), positions), changes)

    def append(self, **changes: Bag) -> int:
        return self.warehouse.append([self.commit(**changes)]).number

    def rows(self, name: str) -> Counter[Row]:
        return Counter(from_arrow(self.warehouse.table(name).toArrow()))

    def wrong(self) -> dict[str, tuple[str, int]]:
        return {d.view: (d.wrong, d.right_to) for d in inspect.definitions(Layout(self.path)) if d.wrong}

    @property
    def next(self) -> int:
        return self.warehouse.last.number + 1 if self.warehouse.last else 1


def test_a_contradiction_is_found_by_the_append(spark: SparkSession, tmp_path: Path) -> None:
    """Its row and its view are named, the view is read as it was before, and the others are as they should be: at once,
    after the next fold, and for the next process."""
    bench = Bench(spark, tmp_path / "w")
    bench.append(**{name: come((4, "four"), (5, "five")) for name in (*WRONG, "other")})
    bench.append(**{name: gone((4, "four"), (5, "five")).add(come((5, "fünf"))) for name in (*WRONG, "other")})
    right, state = bench.warehouse.last, Counter([*ROWS, (5, "fünf")])
    assert right is not None
    for name, (_, change, message) in WRONG.items():
        with pytest.raises(ViewWrong, match=message) as caught:
            bench.append(**{name: change, "other": come((100 + bench.next, "more"))})
        assert caught.value.view == name and f"strobe rebuild {name}" in caught.value.fix
        assert bench.rows(name) == state, "it is read as it was before"
    more = [(100 + n, "more") for n in range(right.number + 1, bench.next)]
    assert bench.rows("other") == state + Counter(more)
    published = bench.warehouse.fold()
    assert published is not None and published.commit == bench.next - 1
    bench.reopen()
    bench.append(other=come((0, "zero")))
    bench.warehouse.fold()
    assert bench.rows("other") == state + Counter([*more, (0, "zero")])
    for name in WRONG:
        assert bench.rows(name) == state
        before = Counter(from_arrow(bench.warehouse.table(name, right.number - 1).toArrow()))
        assert before == Counter([*ROWS, (4, "four"), (5, "five")]), "an older commit is what it was"
    bench.warehouse.close()


def test_a_contradiction_in_a_large_change_is_found_by_the_fold(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too large to be looked up is found when it is folded: the tables of these views stay as they were
    published last, and the others are folded, after a restart too."""
    monkeypatch.setattr(ledger, "MOST", 2)
    bench = Bench(spark, tmp_path / "w")
    tables = {name: inspect.version(bench.warehouse.layout.view(name)) for name in WRONG}
    more = come((20, "a"), (21, "b"), (22, "c"))
    bench.append(other=gone((2, "two"), (3, None)).add(come((3, "three"))))
    bench.append(other=more, **{name: change.add(more) for name, (_, change, _) in WRONG.items()})
    assert not bench.wrong()
    published = bench.warehouse.fold()
    assert published is not None and published.commit == 3
    assert {name: published.views[name] for name in WRONG} == tables
    for name, (how, right_to) in bench.wrong().items():
        assert re.search(WRONG[name][2], how) and right_to == 1
    assert bench.wrong().keys() == WRONG.keys()
    bench.reopen()
    bench.append(other=come((10, "ten")))
    published = bench.warehouse.fold()
    assert published is not None and published.commit == 4
    assert bench.rows("other") == Counter([(1, "one"), (3, "three"), (20, "a"), (21, "b"), (22, "c"), (10, "ten")])
    assert all(bench.rows(name) == Counter(ROWS) for name in WRONG)
    bench.warehouse.close()
