"""The two paths that docs/architecture.md describes function by function, walked and compared."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from postgres_shop import PROJECT, TABLES, PgShop
from pyspark.sql import SparkSession
from service_shop import wait_for
from tracing import Trace, steps

from strobe.spark import session

pytestmark = [pytest.mark.spark, pytest.mark.live]

SWEPT = PROJECT.replace("pairs: {", "pairs: {algorithm: sweep, ")
WHOLE = "ALTER TABLE orders REPLICA IDENTITY FULL; ALTER TABLE customers REPLICA IDENTITY FULL;"


@pytest.fixture
def shop(
    postgres: PostgresServer, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PgShop]:
    made = PgShop(postgres, tmp_path, spark, monkeypatch, SWEPT, TABLES + WHOLE)
    yield made
    postgres.drop(made.database)


def test_one_update_from_postgresql_to_a_reader(shop: PgShop) -> None:
    """One inserted row passes the functions that the page names, in its order, up to where a reader sees it."""
    named = steps("One PostgreSQL update, from the log to a reader")
    with Trace(named).watching() as trace, shop.running() as coordinator:
        wait_for(lambda: coordinator.pipeline is not None and coordinator.pipeline.idle())
        pipeline = coordinator.pipeline
        wait_for(lambda: pipeline.engine.next_cut(0.0) == math.inf)  # also of what concerns no view
        committer = pipeline.committer
        before = committer.last.number
        trace.begin()
        shop.sql("INSERT INTO orders VALUES (11, 1, NULL)")
        wait_for(lambda: committer.last.number > before)
        assert (11, 1, "Ada") in shop.rows("pairs")
        passed = list(trace.passed)
    assert passed == named


def test_a_restart_after_a_kill(shop: PgShop) -> None:
    """A coordinator that begins where another was killed passes the functions that the page names, in its order."""
    named = steps("A restart after a kill")
    with shop.running():
        pass
    shop.sql("INSERT INTO orders VALUES (11, 1, NULL)")
    environment = {**os.environ, "STROBE_SPARK_GATEWAY": session.gateway(), "STROBE_FAILPOINT": "append.before"}
    killed = subprocess.run([sys.executable, "-m", "strobe", "run"], cwd=shop.folder, env=environment, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    with Trace(named).watching() as trace, shop.running():
        wait_for(lambda: (11, 1, "Ada") in shop.rows("pairs"))
        passed = list(trace.passed)
    assert passed == named
