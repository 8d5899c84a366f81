"""The audit in the background: coordinators in this process, on the test run's own Spark."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from service_shop import Shop, still, wait_for
from shopfloor import PROJECT
from unlogged import write_unlogged

from strobe.config.load import load_project
from strobe.coordinator.coordinator import Coordinator
from strobe.coordinator.status import MaintainedView
from strobe.coordinator.timing import Timing
from strobe.report.history import history
from strobe.report.status import status
from strobe.warehouse.control.verified import Verified

pytestmark = [pytest.mark.spark, pytest.mark.live]

AUDITED = PROJECT + "audit: 1s\n"
HURRIED = Timing(audit_share=0.5, audit_keys=2)

UNLOGGED = [
    ("sales", "UPDATE customers SET name = 'Grace' WHERE id = 1"),
    ("billing", "INSERT INTO payments VALUES (7, 11, 999)"),
    ("billing", "DELETE FROM payments WHERE id = 2"),
]
"""Statements that the log does not show, with their database."""

WITNESS = [
    "name='Ada', payment=1, cents=500) should not be there",
    "name='Grace', payment=1, cents=500) is missing",
    "payment=7, cents=999) is missing",
    "payment=2, cents=700) should not be there",
]


def known(coordinator: Coordinator, view: str) -> Verified | None:
    said = coordinator.status.views[view] if coordinator.status else None
    return said.verified if isinstance(said, MaintainedView) else None


def passed(coordinator: Coordinator, view: str, commit: int) -> bool:
    found = known(coordinator, view)
    return found is not None and found.commit > commit


def reported(shop: Shop, view: str) -> Any:
    return status(load_project(shop.folder))["views"][view]["verified"]


def test_views_are_verified_while_everybody_writes(tmp_path: Path, spark: SparkSession) -> None:
    """Part by part, one with a key that it shows and one without, and no right view is called wrong. How far it has
    come is in `status` and `history`, and the next run knows it."""
    shop = Shop(tmp_path, spark, AUDITED)
    shop.timing = HURRIED
    with shop.running() as coordinator:
        first = coordinator.last_number()
        statements = itertools.cycle(
            [
                "INSERT OR REPLACE INTO orders VALUES (20 + {n} % 9, 1 + {n} % 3, 'n{n}')",
                "UPDATE customers SET name = 'c{n}' WHERE id = 2",
                "DELETE FROM orders WHERE id = 20 + {n} % 5",
            ]
        )
        with shop.written("sales", lambda n: next(statements).format(n=n)):
            for view in ("paid", "pairs"):
                wait_for(lambda view=view: passed(coordinator, view, first))
        assert not still(coordinator.status)
    verified = reported(shop, "paid")
    assert verified["commit"] > first and verified["problem"] is None
    by_commit = {c["commit"]: c["verified"] for c in history(load_project(shop.folder))["commits"]}
    assert "paid" in by_commit[verified["commit"]] and "paid" not in by_commit[max(by_commit)]
    shop.timing = Timing()
    with shop.running() as coordinator:
        wait_for(lambda: known(coordinator, "paid") is not None)
        found = known(coordinator, "paid")
        assert found is not None and found.commit >= verified["commit"]


def test_what_no_log_shows_is_found(tmp_path: Path, spark: SparkSession) -> None:
    """Rows changed, added and deleted with triggers switched off: the view stops and names them, the other goes on."""
    shop = Shop(tmp_path, spark, AUDITED)
    shop.coordinator().run(until_idle=True)
    before = shop.rows("paid")
    for database, statement in UNLOGGED:
        write_unlogged(tmp_path / f"{database}.db", statement)
    shop.timing = HURRIED
    with shop.running() as coordinator:
        wait_for(lambda: "paid" in still(coordinator.status))
        said = still(coordinator.status)["paid"]
        assert "4 rows differ" in said and "verified through commit 1" in said and "`strobe rebuild paid`" in said
        for row in WITNESS:
            assert row in said
        shop.write("sales", "UPDATE orders SET state = 'still' WHERE id = 11")
        wait_for(lambda: "still" in str(shop.rows("pairs")))
        assert shop.rows("paid") == before, "readers see it as it was when it was found wrong"
