"""Snapshots and large answers, read by a Spark task through a source's reader."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from strobe.algebra.bag import Bag, Row
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.view import Occurrence, View
from strobe.data.scratch import Scratch
from strobe.errors import SourceUnavailable
from strobe.messages import Lookup, Position, Query, Seen
from strobe.sources.base import Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", autouse=True)
def reader_travels() -> None:
    """The workers cannot import a test module: what is defined here travels to them by value."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


ITEMS = RelationSchema(
    "depot", "items", (Column("id", "bigint"), Column("Odd name", "string")), key=("id",), indexes=(("id",),)
)
VALUES = RelationSchema(
    "depot",
    "values",
    tuple(
        Column(t, t)
        for t in ("bigint", "decimal(10,2)", "string", "date", "timestamp", "boolean", "binary", "double", "smallint")
    ),
)
MANY = 50_000


@dataclass
class SqliteReader(Reader):
    """Over a SQLite file; a look-up returns a row more than asked for, as sources may."""

    path: Path
    broken: bool = False
    connection: sqlite3.Connection | None = field(default=None, init=False)

    def open(self) -> Seen:
        if self.broken:
            raise SourceUnavailable("out for lunch", where="depot")
        self.connection = sqlite3.connect(self.path, isolation_level=None)
        self.connection.execute("BEGIN")
        (rows,) = self.connection.execute("SELECT count(*) FROM items").fetchone()
        return Seen(Position(str(rows), (rows,)))

    def lookup(self, lookup: Lookup, keys: Iterable[Row] | None) -> Iterator[Row]:
        wanted = None if keys is None else {key[0] for key in keys} | {1}
        yield from (row for row in self.scan(lookup.relation, lookup.columns) if wanted is None or row[0] in wanted)

    def scan(self, relation: str, columns: Sequence[str]) -> Iterator[Row]:
        if relation == "values":
            yield from VALUE_ROWS
        elif self.connection is not None:
            names = ", ".join(f'"{c}"' for c in columns)
            yield from self.connection.execute(f"SELECT {names} FROM items")

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


VALUE_ROWS: list[Row] = [
    (
        2**63 - 1,
        Decimal("-1.50"),
        "e\u0301日本",
        date(1, 1, 1),
        datetime(1, 1, 1, tzinfo=timezone.utc),
        True,
        b"\x00\xff",
        float("inf"),
        -1,
    ),
    (None,) * 9,
]


@pytest.fixture
def depot(tmp_path: Path) -> Path:
    path = tmp_path / "depot.db"
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE items (id INTEGER PRIMARY KEY, "Odd name" TEXT)')
        connection.executemany("INSERT INTO items VALUES (?, ?)", ((i, f"n{i}") for i in range(MANY)))
    return path


def view(*relations: RelationSchema) -> View:
    occurrences = tuple(Occurrence(i, f"t{i}", r, tuple(c.name for c in r.columns)) for i, r in enumerate(relations))
    return View("v", "", occurrences, (), None, ())


def query(on: tuple[str, ...], keys: Any) -> Query:
    return Query("v", 1, "depot", (Lookup(0, "items", ("id", "Odd name"), on, keys),))


def test_a_snapshot_is_read_whole_with_what_it_had_seen(spark: SparkSession, depot: Path, tmp_path: Path) -> None:
    """Names, types and values of every relation arrive as they are, progress is told; released, it leaves nothing."""
    from strobe.data.arrow import from_arrow
    from strobe.spark.staging import snapshot

    told: list[int] = []
    both = [(r, [c.name for c in r.columns]) for r in (ITEMS, VALUES)]
    staged = snapshot(spark, SqliteReader(depot), both, Scratch(tmp_path / "staging"), told.append)
    assert staged.seen.through.text == str(MANY)
    items = staged.dataframe(ITEMS)
    assert items.columns == ["id", "Odd name"]
    assert items.count() == MANY
    assert items.where("id = 7").collect() == [(7, "n7")]
    values = staged.dataframe(VALUES)
    assert [f.dataType.simpleString() for f in values.schema.fields] == values.columns
    assert sorted(from_arrow(values.toArrow()), key=repr) == sorted(VALUE_ROWS, key=repr)
    assert told[-1] == MANY + 2 and told == sorted(told)
    staged.lease.release()
    assert not any((tmp_path / "staging").rglob("*.parquet"))


def test_a_large_answer_has_each_row_once(spark: SparkSession, depot: Path, tmp_path: Path) -> None:
    """Keys of any number stream through the task in batches; what a batch returns too much is not returned twice."""
    from strobe.spark.relation import SparkRelation
    from strobe.spark.staging import answer

    frame = spark.range(0, 2 * MANY, 2).selectExpr("id", "1 AS other").union(spark.sql("SELECT null, 1"))
    keys = SparkRelation.of_rows(frame, {}).keys(["id"])
    (found,), staged = answer(spark, SqliteReader(depot), query(("id",), keys), view(ITEMS), Scratch(tmp_path))
    assert found.attributes == ("id", "Odd name")
    assert found.collect() == Bag.of(["id", "Odd name"], ((i, f"n{i}") for i in range(0, MANY, 2)))
    assert staged.seen.through.text == str(MANY)


def test_answers_for_a_bag_for_nothing_and_for_everything(spark: SparkSession, depot: Path, tmp_path: Path) -> None:
    """The keys may be in memory, there may be none at all, or all rows may be asked for."""
    from strobe.spark.staging import answer

    reader = SqliteReader(depot)
    (found,), _ = answer(spark, reader, query(("id",), Bag.of(["r0c0"], [(5,), (-1,)])), view(ITEMS), Scratch(tmp_path))
    assert found.collect() == Bag.of(["id", "Odd name"], [(5, "n5")])
    (found,), staged = answer(spark, reader, query(("id",), Bag(["r0c0"])), view(ITEMS), Scratch(tmp_path))
    assert found.collect() == Bag(["id", "Odd name"])
    assert staged.seen.through.text == str(MANY)
    (found,), _ = answer(spark, reader, query((), None), view(ITEMS), Scratch(tmp_path))
    assert found.dataframe().count() == MANY


@pytest.mark.parametrize("null_safe", [True, False])
def test_null_finds_null_where_it_is_asked_for(
    spark: SparkSession, depot: Path, tmp_path: Path, null_safe: bool
) -> None:
    """Keys in memory or in Spark; a reader is given those with NULL, and what it finds comes once."""
    from strobe.spark.relation import SparkRelation
    from strobe.spark.staging import answer

    values = replace(VALUES, indexes=(("string",),))
    keys = Bag.of(["r0c3", "r0c2"], [(None, None), (None, "e\u0301日本"), (date(1, 1, 1), None)])
    columns = tuple(column.name for column in VALUES.columns)
    types = {"r0c3": "date", "r0c2": "string"}
    for given in (keys, SparkRelation.of_bag(spark, keys, types)):
        lookup = Lookup(0, "values", columns, ("date", "string"), given, null_safe=null_safe)
        asked = Query("v", 1, "depot", (lookup,))
        (found,), _ = answer(spark, SqliteReader(depot), asked, view(values), Scratch(tmp_path))
        assert found.collect() == Bag.of(columns, VALUE_ROWS[1:] * null_safe)


def test_a_whole_query_is_answered_whole(spark: SparkSession, depot: Path, tmp_path: Path) -> None:
    """Where an algorithm needs all look-ups in one snapshot, the relations are read once, whole; odd names too."""
    from strobe.spark.staging import answer

    lookups = (Lookup(0, "items", ("id",), ("id",), Bag.of(["r1c0"], [(5,)])), Lookup(0, "items", ("Odd name", "id")))
    whole = Query("v", 1, "depot", lookups, whole=True)
    (ids, both), staged = answer(spark, SqliteReader(depot), whole, view(ITEMS), Scratch(tmp_path))
    assert (ids.attributes, both.attributes) == (("id",), ("Odd name", "id"))
    assert ids.dataframe().count() == both.dataframe().count() == MANY
    assert staged.seen.through.text == str(MANY)


def test_what_went_wrong_in_the_task_is_raised_as_it_was(spark: SparkSession, depot: Path, tmp_path: Path) -> None:
    """The driver sees the source's own error, not Spark's, and no files remain."""
    from strobe.spark.staging import snapshot

    with pytest.raises(SourceUnavailable) as raised:
        snapshot(spark, SqliteReader(depot, broken=True), [(ITEMS, ["id"])], Scratch(tmp_path / "staging"))
    assert (raised.value.message, raised.value.where) == ("out for lunch", "depot")
    assert not list((tmp_path / "staging" / "reads").iterdir())


def test_leftovers_are_swept(spark: SparkSession, depot: Path, tmp_path: Path) -> None:
    """What a killed run left is gone at the next start; what is staged for good stays."""
    from strobe.spark.staging import snapshot

    (tmp_path / "files").mkdir()
    snapshot(spark, SqliteReader(depot), [(ITEMS, ["id"])], Scratch(tmp_path))
    Scratch(tmp_path).sweep()
    assert not list(tmp_path.rglob("*.parquet"))
    assert (tmp_path / "files").exists()
