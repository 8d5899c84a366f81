"""PostgreSQL: partitions that are dropped or detached are followed, at their exact place among the changes of rows.

Views over a partitioned table are kept by the live pipeline, the warehouse in memory, while several writers change all
tables and partitions come and go in random orders. Each commit is compared with what the server itself had: every
transaction of the writers leaves a copy of the tables as they were when it committed.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import psycopg
import pytest
from committing import no_spark
from memory_live import MemoryWarehouse, contents, keep
from patience import PATIENCE, Writing
from postgres_database import Database, read
from postgres_server import PostgresServer

from strobe.algebra.bag import Bag
from strobe.algebra.bounds import Bound, End, Range
from strobe.config.load import load_project
from strobe.errors import RelationLost, SourceUnavailable
from strobe.messages import CommitHeader
from strobe.pipeline.pipeline import Pipeline
from strobe.planning.topology import Topology, assemble
from strobe.simulator.world import Contents, evaluate
from strobe.sources.postgres.source import PostgresSource

LINES = """
CREATE TABLE lines (id bigint, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
ALTER TABLE lines REPLICA IDENTITY FULL;
CREATE TABLE lines_1 PARTITION OF lines FOR VALUES FROM (0) TO (10);
CREATE TABLE lines_2 PARTITION OF lines FOR VALUES FROM (10) TO (20);
ALTER TABLE lines_1 REPLICA IDENTITY FULL;
ALTER TABLE lines_2 REPLICA IDENTITY FULL;
INSERT INTO lines VALUES (1, 1, 'a'), (2, 11, 'b');
"""
FIRST = Bound((Range(("day",), End((0,)), End((10,), False)),))


def followed(db: Database, script: str = LINES) -> PostgresSource:
    source = db.make(script, "lines")
    for statement in source.ddl_script():
        db.run(statement)
    source.schemas()
    source.focus({"lines": ["id", "day", "note"]})
    return source


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE lines_1"],
        ["ALTER TABLE lines DETACH PARTITION lines_1"],
        ["ALTER TABLE lines DETACH PARTITION lines_1; DROP TABLE lines_1"],
        ["DO $$ BEGIN BEGIN PERFORM 1; DROP TABLE lines_1; EXCEPTION WHEN OTHERS THEN NULL; END; END $$"],
        ["SAVEPOINT a", "DROP TABLE lines_2", "ROLLBACK TO a", "DROP TABLE lines_1"],
        ["SET DateStyle = german", "SET TimeZone = 'Asia/Tokyo'", "DROP TABLE lines_1"],
        ["CREATE TABLE lines_3 PARTITION OF lines FOR VALUES FROM (20) TO (30)", "DROP TABLE lines_1"],
    ],
)
def test_the_log_says_which_partition_left_and_where(db: Database, statements: Sequence[str]) -> None:
    """Once, in the transaction that took it; the fingerprints then differ in nothing that harms."""
    source = followed(db)
    start, before = source.now(), source.fingerprints(["lines"])["lines"]
    db.run("INSERT INTO lines VALUES (3, 3, 'c')")
    db.run(*statements)
    db.run("INSERT INTO lines VALUES (4, 14, 'd')")
    _, left, _ = read(source, start)
    ((departed,),) = left.departed.values()
    assert departed.bound == FIRST and not departed.late and "lines_1" in departed.what
    after = source.fingerprints(["lines"])["lines"]
    assert source.changed("lines", ["id"], before, after) == ""
    assert departed.partition and source.was_known(departed.partition, source.proven(before, after))
    again = db.open()  # another process, which has not read the log yet
    assert again.changed("lines", ["id"], before, after) == ""
    again.close()

