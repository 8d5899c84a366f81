"""Views that are more than inner joins, through the whole service: coordinators in this process, over SQLite."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from service_shop import Shop, still, wait_for
from tree_views import DATABASES, PORTABLE, SPARKS, project, writing

from strobe.algebra.bag import Bag
from strobe.auditor.compare import differences
from strobe.auditor.replay import states
from strobe.config.load import load_project
from strobe.coordinator.timing import Timing
from strobe.demo.history import Archive
from strobe.demo.oracle import check_every_state
from strobe.planning.topology import assemble
from strobe.retry import Policy
from strobe.warehouse import reader
from strobe.warehouse.appender import APPENDS
from strobe.warehouse.layout import Layout
from strobe.warehouse.parts import computed

pytestmark = [pytest.mark.spark, pytest.mark.live]


def idle(shop: Shop) -> None:
    shop.coordinator().run(until_idle=True)


def archived(shop: Shop) -> Archive:
    return Archive({name: shop.folder / f"{name}.db" for name in DATABASES})


def shown(shop: Shop, view: str) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in reader.snapshot(shop.spark, Layout(shop.warehouse)).table(view).collect()}


def judged_by_sqlite(shop: Shop, archive: Archive, views: Mapping[str, str] = PORTABLE) -> dict[str, int]:
    """How many states each view had; all of them are right."""
    verdicts = check_every_state(shop.warehouse, archive, views)
    wrong = {name: verdict.first for name, verdict in verdicts.items() if verdict.wrong}
    assert not wrong, wrong
    return {name: verdict.states for name, verdict in verdicts.items()}


def judged_by_spark(shop: Shop, archive: Archive, views: Collection[str], most: int) -> None:
    """Some of the states of each view, the last among them, are what Spark makes of the sources at their positions."""
    topology = assemble(load_project(shop.folder))
    topology.sources.close()
    every = list(states(shop.warehouse))
    for name in views:
        view = topology.views[name].view
        for state in every[:: -max(1, len(every) // most)]:
            positions = state.positions[name]
            rows = {
                r.id: archive.state_at(r.source, positions[r.source])[r.name].project(view.columns_of(r))
                for r in view.relations
            }
            assert all(isinstance(each, Bag) for each in rows.values())
            there = reader.snapshot(shop.spark, Layout(shop.warehouse), state.commit).table(name)
            total, found = differences(there, computed(shop.spark, view, rows))
            assert not total, (name, state.commit, found[:5])


TOGETHER = [("left_to_many", "unpaid", "by_customer", "latest", "words"), tuple({**PORTABLE, **SPARKS})]


@pytest.mark.parametrize("names", [TOGETHER[0], pytest.param(TOGETHER[1], marks=pytest.mark.slow)], ids=["some", "all"])
def test_operators_under_writers(names: tuple[str, ...], tmp_path: Path, spark: SparkSession) -> None:
    """NULLs, duplicates, keys that change: at strong every state is recomputed, over a restart, and by another
    engine."""
    views = {name: sql for name, sql in {**PORTABLE, **SPARKS}.items() if name in names}
    shop = Shop(tmp_path, spark, project(views), DATABASES)
    with archived(shop) as archive:
        for seed in (1, 2):
            with writing(tmp_path, seed), shop.running() as coordinator:
                first = coordinator.last_number()
                wait_for(lambda first=first, of=coordinator: of.last_number() > first + 3, 400)
        idle(shop)
    seen = judged_by_sqlite(shop, archive, {name: sql for name, sql in views.items() if name in PORTABLE})
    assert min(seen.values()) > 6
    judged_by_spark(shop, archive, [name for name in views if name in SPARKS], 4)


COMPLETE = {name: PORTABLE[name] for name in ("left_to_many", "everything", "by_customer", "latest", "balances")}


def test_every_update_has_its_state_at_complete(tmp_path: Path, spark: SparkSession) -> None:
    """Many of them in one append."""
    shop = Shop(tmp_path, spark, project(COMPLETE, "complete"), DATABASES)
    with archived(shop) as archive:
        with writing(tmp_path), shop.running() as coordinator:
            wait_for(lambda: coordinator.last_number() > 20, 400)
        idle(shop)
    seen = judged_by_sqlite(shop, archive, COMPLETE)
    assert min(seen.values()) > 20


TYPICAL = {
    "one": PORTABLE["left_to_one"],
    "many": "SELECT c.id AS id, o.id AS o FROM sales.customers c LEFT JOIN sales.orders o ON o.customer = c.id",
    "sums": "SELECT o.customer AS customer, sum(o.cents) AS cents FROM sales.orders o GROUP BY o.customer",
    "latest": PORTABLE["latest"],
}
QUESTIONS = {"one": 1, "many": 2, "sums": 1, "latest": 1}
"""What a new order costs a source, if it alone is in the batch."""


@pytest.mark.parametrize("view", TYPICAL)
def test_what_a_change_costs(view: str, tmp_path: Path, spark: SparkSession) -> None:
    """Questions for a change, and one Spark job of one task for its append."""
    shop = Shop(tmp_path, spark, project({view: TYPICAL[view]}), DATABASES)
    tracker = spark.sparkContext.statusTracker()
    with shop.running() as coordinator:
        wait_for(lambda: coordinator.pipeline is not None and coordinator.pipeline.idle())
        first, before = coordinator.last_number(), set(tracker.getJobIdsForGroup(APPENDS))
        shop.write("sales", "INSERT INTO orders VALUES (20, 1, 'new', 3)")
        wait_for(lambda: coordinator.last_number() > first)
        asked = coordinator.pipeline.answerer.asked["sales"]
        jobs = [job for job in tracker.getJobIdsForGroup(APPENDS) if job not in before]
        assert asked.queries <= QUESTIONS[view]
        assert len(jobs) == 1
        assert [tracker.getStageInfo(stage).numTasks for stage in tracker.getJobInfo(jobs[0]).stageIds] == [1]


def test_a_row_that_cannot_be_computed_stops_its_view_alone(tmp_path: Path, spark: SparkSession) -> None:
    """It names the row, and goes on by itself when that has changed."""
    views = {
        "shares": "SELECT o.id AS id, c.name AS name, 100 / o.cents AS share FROM sales.orders o "
        "LEFT JOIN sales.customers c ON c.id = o.customer",
        "states": PORTABLE["states"],
    }
    shop = Shop(tmp_path, spark, project(views), DATABASES)
    shop.timing = Timing(probe=Policy((0.2,)), verify=Policy((0.5,)))
    with shop.running():
        wait_for(lambda: len(shown(shop, "shares")) == 4)
        shop.write("sales", "INSERT INTO orders VALUES (20, 2, 'bad', 0), (21, 2, 'good', 4)")
        wait_for(lambda: "shares" in still(shop.notes.last_status))
        problem = still(shop.notes.last_status)["shares"]
        assert re.search(r"view shares.*sales\.orders \(id=20\)", problem) and "DIVIDE_BY_ZERO" in problem
        assert "id=21" not in problem
        wait_for(lambda: (2, "bad") in shown(shop, "states"))
        shop.write("sales", "UPDATE orders SET cents = 5 WHERE id = 20")
        wait_for(lambda: {(20, "Bob", 20.0), (21, "Bob", 25.0)} <= shown(shop, "shares"))
        wait_for(lambda: not still(shop.notes.last_status))


def test_views_join_leave_and_are_rebuilt_under_writers(tmp_path: Path, spark: SparkSession) -> None:
    """Views of the kind catch up beside the others, and come in where these are."""
    before = {name: PORTABLE[name] for name in ("left_to_one", "totals")}
    after = {name: PORTABLE[name] for name in ("left_to_one", "by_customer", "balances")}
    shop = Shop(tmp_path, spark, project({**before, **after}), DATABASES)  # all tables are recorded from the beginning
    (tmp_path / "strobe.yml").write_text(project(before))
    with archived(shop) as archive:
        idle(shop)
        (tmp_path / "strobe.yml").write_text(project(after))
        with writing(tmp_path):
            reply = shop.ask("apply")
        assert (set(reply["add"]), reply["drop"]) == ({"by_customer", "balances"}, ["totals"])
        shop.write("sales", "INSERT INTO orders VALUES (30, NULL, 'last', 8)")
        idle(shop)
    judged_by_sqlite(shop, archive, after)
