"""Loads and large answers of PostgreSQL, read by several Spark tasks in one snapshot."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from postgres_database import Database, read
from postgres_server import PostgresServer

from strobe.algebra.bag import Bag, Row
from strobe.algebra.schema import RelationSchema
from strobe.algebra.view import Occurrence, View
from strobe.data.scratch import Scratch
from strobe.messages import Lookup, Query
from strobe.sources.postgres.limits import Limits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strobe.spark.staging import Staged

pytestmark = pytest.mark.spark

ROWS = 120_000
COLUMNS = ("id", "amount")
TABLES = f"""
    CREATE TABLE nokey (id bigint, amount bigint);
    CREATE TABLE parted (id bigint PRIMARY KEY, amount bigint) PARTITION BY HASH (id);
    CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
    CREATE TABLE parted_1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
    ALTER TABLE nokey REPLICA IDENTITY FULL;
    ALTER TABLE parted REPLICA IDENTITY FULL;
    ALTER TABLE parted_0 REPLICA IDENTITY FULL;
    ALTER TABLE parted_1 REPLICA IDENTITY FULL;
    INSERT INTO nokey SELECT n, n % 100 FROM generate_series(1, {ROWS}) n;
    INSERT INTO parted SELECT n, n % 100 FROM generate_series(1, {ROWS}) n;
"""
NAMES = ("nokey", "parted")
BACKENDS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'FETCH%'"
END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE %s LIMIT 1"


@pytest.fixture(scope="module")
def db(postgres: PostgresServer) -> Iterator[Database]:
    database = Database(postgres)
    database.make(TABLES, *NAMES, timeout=30, limits=Limits(pages=50)).focus(dict.fromkeys(NAMES, COLUMNS))
    yield database
    database.source.close()
    postgres.drop(database.name)


def relations(db: Database) -> list[tuple[RelationSchema, tuple[str, ...]]]:
    return [(schema, COLUMNS) for schema in db.source.schemas() if schema.name in NAMES]


def contents(db: Database, staged: Staged) -> dict[str, Bag]:
    from strobe.data.arrow import from_arrow

    found = {schema.name: staged.dataframe(schema).toArrow() for schema, _ in relations(db)}
    return {name: Bag.of(COLUMNS, from_arrow(table)) for name, table in found.items()}


@pytest.mark.slow
def test_loads_equal_the_state_at_their_positions(spark: SparkSession, db: Database, tmp_path: Path) -> None:
    """Under writers; and when a backend is killed in the middle, a task's or the one that shares the snapshot, all is
    read again in another snapshot, and nothing of the first counts."""
    from strobe.apply.load import snapshot

    occurrences = tuple(Occurrence(i, f"r{i}", schema, COLUMNS) for i, (schema, _) in enumerate(relations(db)))
    source, view = db.source, View("v", "", occurrences, (), None, ())
    stop, killed = threading.Event(), []

    def write() -> None:
        n = 0
        with psycopg.connect(db.server.admin_dsn(db.name), autocommit=True) as connection:
            while not stop.is_set():
                n += 1
                with connection.transaction():
                    connection.execute("UPDATE nokey SET amount = amount + 1 WHERE id = %s", (n * 37 % ROWS,))
                    connection.execute("DELETE FROM parted WHERE id = %s", (n * 41 % ROWS,))
                    connection.execute("INSERT INTO parted VALUES (%s, %s)", (-n, n))
                time.sleep(0.005)

    def kill(query: str) -> None:
        while not stop.is_set():
            if db.server.execute(db.name, BACKENDS)[0][0] > 1:
                killed.extend(db.server.execute(db.name, END, query))
                return
            time.sleep(0.002)

    loads = []
    threads = [threading.Thread(target=write)]
    threads[0].start()
    try:
        for victim in ("", "FETCH%", "%pg_export_snapshot%"):
            if victim:
                threads.append(threading.Thread(target=kill, args=(victim,)))
                threads[-1].start()
            with snapshot(spark, {source.name: source}, [view], Scratch(tmp_path / "staging")) as taken:
                staged = taken.staged[source.name]
                assert all(len(files) == 2 for files in staged.files.values())
                loads.append((staged.seen.through, contents(db, staged)))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(killed) == 2
    for (start, before), (end, after) in pairwise(loads):
        between: dict[str, list[tuple[Row, int]]] = {name: [] for name in NAMES}
        for transaction in read(db.source, start, end, seconds=60):
            if transaction.position <= end:
                for name, change in transaction.changes.items():
                    between[name] += change.collect().items()
        for name, changes in between.items():
            counts: Counter[Row] = Counter()
            for row, count in changes:
                counts[row] += count
            assert changes and before[name].add(Bag(COLUMNS, counts)) == after[name]
    assert list((tmp_path / "staging" / "reads").iterdir()) == []


def test_a_large_answer_finds_every_row_once(spark: SparkSession, db: Database, tmp_path: Path) -> None:
    """Keys in Spark, looked up by two tasks in one snapshot."""
    from strobe.spark import staging
    from strobe.spark.relation import SparkRelation

    schema = next(schema for schema, _ in relations(db) if schema.name == "parted")
    view = View("v", "", (Occurrence(0, "p", schema, COLUMNS),), (), None, ())
    wanted = spark.range(-50, ROWS // 2).toDF("id")
    keys = SparkRelation.of_rows(wanted, {"id": "bigint"})
    query = Query("v", 1, "shop", (Lookup(0, "parted", COLUMNS, ("id",), keys),))
    (found,), staged = staging.answer(spark, db.source.reader(), query, view, Scratch(tmp_path))
    assert len(staged.files[schema.id]) == 2
    with psycopg.connect(db.server.admin_dsn(db.name)) as connection:
        rows = connection.execute("SELECT id, amount FROM parted WHERE id BETWEEN -50 AND %s", (ROWS // 2 - 1,))
        assert found.collect() == Bag.of(COLUMNS, rows.fetchall())
    staged.lease.release()
