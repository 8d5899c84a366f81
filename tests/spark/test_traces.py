"""The two paths that docs/architecture.md describes function by function, walked and compared."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from pyspark.sql import SparkSession
from service_shop import wait_for
from test_postgres_service import PgShop
from tracing import Trace, steps

pytestmark = [pytest.mark.spark, pytest.mark.live]


@pytest.fixture
def shop(
    postgres: PostgresServer, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PgShop]:
    made = PgShop(postgres, tmp_path, spark, monkeypatch)
    yield made
    postgres.drop(made.database)


def test_one_update_from_postgresql_to_a_reader(shop: PgShop) -> None:
    """One inserted row passes the functions that the page names, in its order, up to where a reader sees it."""
    named = steps("One PostgreSQL update, from the log to a reader")
    with Trace(named).watching() as trace:
        with shop.running():
            wait_for(lambda: (10, 1, "Ada") in shop.rows("pairs"))
            trace.begin()
            shop.sql("INSERT INTO orders VALUES (11, 1, NULL)")
            wait_for(lambda: (11, 1, "Ada") in shop.rows("pairs"))
    assert trace.passed == named


def test_a_restart_after_a_kill(shop: PgShop) -> None:
    """A coordinator that begins where another was killed passes the functions that the page names, in its order."""
    named = steps("A restart after a kill")
    shop.killed_after("INSERT INTO orders VALUES (11, 1, NULL)")
    with Trace(named).watching() as trace:
        with shop.running():
            wait_for(lambda: (11, 1, "Ada") in shop.rows("pairs"))
    assert trace.passed == named
