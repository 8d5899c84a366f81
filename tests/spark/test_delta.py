"""Delta tables written by Spark: the stream is what Spark's own `table_changes` says, and sums to Spark's versions."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strobe.algebra.bag import Bag
from strobe.config import model as config_model
from strobe.data.arrow import from_arrow
from strobe.messages import Lookup, Query, Transaction
from strobe.sources.delta.limits import Limits
from strobe.sources.delta.source import DeltaSource
from strobe.sources.lookups import answer_on_driver
from strobe.spark.relation import SparkRelation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
COLUMNS = ("id", "day", "at", "amount", "x", "note")
CREATE = """CREATE TABLE {T}
    (id BIGINT, day TIMESTAMP, at TIMESTAMP, amount DECIMAL(20,5), x DOUBLE, note VARCHAR(3), c CHAR(3))
    USING delta PARTITIONED BY (day) TBLPROPERTIES (delta.enableChangeDataFeed = true)"""
STATEMENTS = [
    """INSERT INTO {T} VALUES
    (1, timestamp'2024-01-01 10:00:00.5', timestamp'0001-01-01 00:00:00', 12345678901234.00001, float('nan'), 'a', 'x'),
    (2, NULL, timestamp'2024-02-29 23:59:59.999999', -0.1, -0.0, NULL, ''), (2, NULL, NULL, NULL, NULL, 'b b', NULL)""",
    "UPDATE {T} SET amount = amount + 1, x = 0.0 WHERE id = 1",
    """MERGE INTO {T} t USING (SELECT 1 AS k, 'm' AS s UNION ALL SELECT 9, 'n') u ON t.id = u.k
    WHEN MATCHED THEN UPDATE SET t.id = 5, note = s WHEN NOT MATCHED THEN INSERT (id, note) VALUES (k, s)""",
    "DELETE FROM {T} WHERE note = 'b b'",
    "OPTIMIZE {T}",
    "ALTER TABLE {T} ADD COLUMN more ARRAY<INT>",
    "INSERT INTO {T} (id, more) VALUES (7, array(1)), (7, NULL)",
    "DELETE FROM {T} WHERE day IS NULL AND id = 7",
    "RESTORE TABLE {T} TO VERSION AS OF 1",
    "TRUNCATE TABLE {T}",
    "INSERT INTO {T} (id) VALUES (3)",
    "INSERT OVERWRITE {T} SELECT 4, NULL, NULL, 1, 1, 'o', 'y'",
]


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> str:
    path = tmp_path / "it is stock"
    spark.sql(CREATE.format(T=f"delta.`{path}`"))
    return str(path)


def open_source(spark: SparkSession, path: str, limits: Limits | None = None) -> DeltaSource:
    config = config_model.DeltaSource(type="delta", path=path, relation="stock")
    return DeltaSource("depot", config, lambda: spark, limits=limits)


def read(source: DeltaSource) -> list[Transaction]:
    end, found = source.now(), list[Transaction]()
    start = source.log.position(0)
    for transaction in source.transactions(start, [], lambda: bool(found) and end <= found[-1].position):
        found.append(transaction)
    return found


def version(spark: SparkSession, path: str, number: int) -> Bag:
    frame = spark.read.format("delta").option("versionAsOf", number).load(path).select(*COLUMNS)
    return Bag.of(COLUMNS, from_arrow(frame.toArrow()))


def feed(spark: SparkSession, path: str, number: int) -> Bag:
    options = {"readChangeFeed": "true", "startingVersion": str(number), "endingVersion": str(number)}
    frame = spark.read.format("delta").options(**options).load(path).select("_change_type", *COLUMNS)
    total = Bag(COLUMNS)
    for kind, *row in from_arrow(frame.toArrow()):
        total = total.add(Bag.of(COLUMNS, [tuple(row)], 1 if kind in ("insert", "update_postimage") else -1))
    return total


@pytest.mark.slow
def test_the_stream_is_sparks_own_change_data(spark: SparkSession, table: str) -> None:
    """Version by version, for every operation of Spark's; and a look-up finds what only the microsecond tells apart."""
    feeds = []
    for number, statement in enumerate(STATEMENTS, 1):
        spark.sql(statement.format(T=f"delta.`{table}`"))
        feeds.append(feed(spark, table, number))  # at once: Spark does not read change data across a changed schema
    source = open_source(spark, table)
    assert tuple(column.name for column in source.schemas()[0].columns) == COLUMNS, "char(n) is left out"
    state, read_of_change_data = Bag(COLUMNS), 0
    for number, transaction in enumerate(read(source), 1):
        change = transaction.changes.get("stock", Bag(COLUMNS))
        assert isinstance(change, Bag)
        state = state.add(change)
        assert change == feeds[number - 1], f"version {number}"
        assert state == version(spark, table, number), f"version {number}"
    assert number == len(STATEMENTS)
    log = source.log
    position = log.position(0)
    while commit := log.after(position):
        read_of_change_data += any(file.sign == 0 for file in commit.files)
        position = commit.position
    assert read_of_change_data >= 3


def test_a_row_is_found_by_its_microsecond(spark: SparkSession, table: str) -> None:
    """Spark's statistics in the log know milliseconds only."""
    spark.sql(STATEMENTS[0].format(T=f"delta.`{table}`"))
    source = open_source(spark, table)
    at = datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone.utc)
    lookup = Lookup(0, "stock", ("id", "at"), ("at",), Bag.of(("at",), [(at,)]))
    (found,), _ = answer_on_driver(source.reader(), Query("v", 1, "depot", (lookup,)), 100)
    assert found == Bag(("id", "at"), {(2, at): 1})


ARRAYS = {
    "id": "BIGINT",
    "n": "ARRAY<INT>",
    "t": "ARRAY<TIMESTAMP>",
    "s": "ARRAY<VARCHAR(3)>",
    "d": "ARRAY<DECIMAL(5,2)>",
}
OLD_FORMATS = {"spark.sql.parquet.writeLegacyFormat": "true", "spark.sql.parquet.outputTimestampType": "INT96"}


def test_arrays_as_spark_writes_them(spark: SparkSession, tmp_path: Path) -> None:
    """In today's Parquet and in that of old, by the stream and by an answer; what is nested deeper is left out."""
    path, session = str(tmp_path / "arrays"), spark.newSession()
    columns = ", ".join(f"{name} {type_}" for name, type_ in ARRAYS.items())
    feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    session.sql(f"CREATE TABLE delta.`{path}` ({columns}, c ARRAY<CHAR(3)>, deep ARRAY<ARRAY<INT>>) USING delta {feed}")
    values = "array(1, NULL), array(timestamp'0001-01-01 00:00:00.000001'), array('a,b'), array(1.5), array('c'), NULL"
    session.sql(f"INSERT INTO delta.`{path}` VALUES (1, {values}), (2, array(), array(), array(), array(), NULL, NULL)")
    for name, value in OLD_FORMATS.items():
        session.conf.set(name, value)
    session.sql(f"INSERT INTO delta.`{path}` VALUES (3, {values}), (4, NULL, NULL, array(NULL), NULL, NULL, NULL)")
    session.sql(f"UPDATE delta.`{path}` SET n = array(7) WHERE id IN (2, 3)")
    names, source = tuple(ARRAYS), open_source(spark, path)
    assert tuple(column.name for column in source.schemas()[0].columns) == names
    state = Bag(names)
    for number, transaction in enumerate(read(source), 1):
        change = transaction.changes["stock"]
        assert isinstance(change, Bag)
        state = state.add(change)
        frame = spark.read.format("delta").option("versionAsOf", number).load(path).select(*names)
        assert state == Bag.of(names, from_arrow(frame.toArrow())), f"version {number}"
    lookup = Lookup(0, "stock", names, ("n",), Bag.of(("n",), [((7,),)]))
    (found,), _ = answer_on_driver(source.reader(), Query("v", 1, "depot", (lookup,)), 100)
    assert len(state) == 4 and {row for row, _ in state.items() if row[1] == (7,)} <= dict(found.items()).keys()


@pytest.mark.slow
def test_a_change_of_many_rows_is_read_by_spark(spark: SparkSession, table: str) -> None:
    """It stays there, equal to what the driver reads; but of an overwrite with nearly the same rows little is left."""
    name = f"delta.`{table}`"
    spark.sql(f"INSERT INTO {name} (id, amount, x) SELECT id, id / 7, id / 3 FROM range(3000)")
    spark.sql(f"INSERT OVERWRITE {name} SELECT id, NULL, NULL, id / 7, id / 3, NULL, NULL FROM range(1, 3001)")
    expected = read(open_source(spark, table))
    many, few = read(open_source(spark, table, Limits(driver_rows=1000)))
    change = many.changes["stock"]
    assert isinstance(change, SparkRelation)
    assert change.collect() == expected[0].changes["stock"]
    assert isinstance(few.changes["stock"], Bag) and len(few.changes["stock"]) == 2
    assert few == expected[1]
