"""Retention: what is older than the horizon goes, and nothing inside it does."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strobe.algebra.bag import Bag
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.view import Occurrence, Output, View
from strobe.errors import UserError
from strobe.messages import Commit, CommitHeader
from strobe.warehouse import claim, folding, inspect
from strobe.warehouse.layout import Layout, Sizes
from strobe.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.spark

HOUR = timedelta(hours=1)
NUMBERS = RelationSchema("shop", "numbers", (Column("n", "bigint"),))
OCCURRENCE = Occurrence(0, "t", NUMBERS, ("n",))
BUSY = View("busy", "SELECT n FROM shop.numbers", (OCCURRENCE,), (), None, (Output("n", "r0c0"),))
QUIET = View("quiet", "SELECT n FROM shop.numbers", (OCCURRENCE,), (), None, (Output("n", "r0c0"),))


def age(path: Path, by: timedelta) -> None:
    """Let everything that is in a table now have been written longer ago."""
    then = time.time() - by.total_seconds()
    for file in path.rglob("*"):
        if file.is_file():
            os.utime(file, (then, then))


def test_retention_drops_what_is_old_and_keeps_the_horizon(spark: SparkSession, tmp_path: Path) -> None:
    """Ranges of the log, published rows, fences and files go; every commit inside the horizon reads the same as before.

    The view `quiet` has not changed since long before the horizon, and changes now: its old version must stay readable.
    """
    path = tmp_path / "w"
    layout = Layout(path, sizes=Sizes(range=4, many=3))
    warehouse = Warehouse.create_or_open(spark, layout, HOUR, "tests")
    warehouse.fence()
    now = datetime.now(timezone.utc)
    loaded = [warehouse.load(view, spark.range(3).selectExpr("id AS n")) for view in (BUSY, QUIET)]
    warehouse.cut_over(loaded, Commit(CommitHeader(1, now - 10 * HOUR)))
    commits = [
        Commit(CommitHeader(number, at), {"busy": Bag.of(("r0c0",), [(number,), (7,)])})
        for number, at in ((n, now - (8 * HOUR if n < 9 else timedelta(minutes=20 - n))) for n in range(2, 11))
    ]
    for several in (commits[:2], commits[2:6]):
        warehouse.append(several)
        warehouse.fold()
    for commit in commits[6:]:
        warehouse.append([commit])
    age(path, timedelta(hours=9))
    warehouse.close()
    warehouse = Warehouse.create_or_open(spark, layout, HOUR, "tests")
    warehouse.fence()
    warehouse.use([BUSY, QUIET])
    warehouse.fold()
    warehouse.append([Commit(CommitHeader(11, now), {"quiet": Bag.of(("r0c0",), [(11,)])})])

    def state(number: int) -> dict[str, list[int]]:
        found = warehouse.snapshot(number)
        return {name: sorted(row.n for row in found.table(name).collect()) for name in found.views}

    before = {number: state(number) for number in (8, 10)}
    assert before[10]["busy"] == sorted([0, 1, 2, *range(2, 11), *[7] * 9])
    warehouse.maintain()
    oldest = inspect.oldest_readable(warehouse.layout, inspect.open_log(warehouse.layout))
    assert oldest == 8, "the ranges 0-3 and 4-7 are gone"
    assert min(row.commit for row in inspect.published(Layout(path))) == 7
    assert {number: state(number) for number in before} == before
    with pytest.raises(UserError, match="no longer kept"):
        warehouse.snapshot(3)
    assert [f.epoch for f in claim.fences(inspect.properties(inspect.open_log(warehouse.layout)))] == [2]
    versions = {name: inspect.version(warehouse.layout.view(name)) for name in ("busy", "quiet")}
    newest = folding.newest_published(warehouse.layout)
    assert newest is not None and newest.commit == 11 and dict(newest.views) == versions
    assert inspect.small_files(warehouse.layout.log, layout.sizes.small) <= 3, "small files were joined"
    warehouse.maintain()
    assert {name: inspect.version(warehouse.layout.view(name)) for name in versions} == versions, "nothing left to do"
    assert {number: state(number) for number in before} == before
