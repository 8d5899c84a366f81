"""The service in this process, on the test run's own Spark: what happens around the loop."""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from service_shop import DOWN, Shop, still, wait_for
from shopfloor import PROJECT, VIEWS

from strobe.auditor.replay import states
from strobe.coordinator.timing import Timing
from strobe.demo.history import Archive
from strobe.demo.oracle import check_every_state
from strobe.errors import LostGuarantee, UserError
from strobe.retry import Policy
from strobe.warehouse import inspect, reader
from strobe.warehouse.layout import Layout

pytestmark = [pytest.mark.spark, pytest.mark.live]


def test_everything_through_spark(tmp_path: Path, spark: SparkSession) -> None:
    """`evaluate: spark` reads and joins through executors, and every state is right too."""
    shop = Shop(tmp_path, spark, PROJECT + "evaluate: spark\n")
    archive = Archive({name: tmp_path / f"{name}.db" for name in ("sales", "billing")})
    with archive:
        with shop.running() as coordinator:
            for n in range(4):
                shop.write("sales", f"INSERT OR REPLACE INTO orders VALUES ({10 + n}, {1 + n % 2}, 's{n}')")
                shop.write("billing", f"INSERT INTO payments VALUES ({100 + n}, {10 + n % 3}, {500 + n})")
            wait_for(lambda: coordinator.pipeline is not None and coordinator.pipeline.idle())
            asked = coordinator.pipeline.answerer.asked if coordinator.pipeline else {}
            assert sum(a.through_spark for a in asked.values()) > 0
    verdicts = check_every_state(shop.warehouse, archive, VIEWS)
    assert {view: verdict.wrong for view, verdict in verdicts.items()} == {"paid": 0, "pairs": 0}


def test_nothing_is_committed_when_nothing_happens(tmp_path: Path, spark: SparkSession) -> None:
    """A quiet system leaves the log alone; another run, and another fold, too."""
    shop = Shop(tmp_path, spark)
    shop.coordinator().run(until_idle=True)
    before = DeltaTable(str(shop.warehouse / "log")).history(), inspect.published(Layout(shop.warehouse))
    with shop.running():
        time.sleep(3)
    after = DeltaTable(str(shop.warehouse / "log")).history(), inspect.published(Layout(shop.warehouse))
    appends = [[entry for entry in history if entry["operation"] == "WRITE"] for history, _ in (before, after)]
    assert len(appends[0]) == len(appends[1])
    assert before[1] == after[1]


def test_other_engines_read_the_same(tmp_path: Path, spark: SparkSession) -> None:
    """After a clean stop the view tables, read without Spark, hold exactly what readers see at the last commit."""
    folder = tmp_path / "with a space"
    folder.mkdir()
    shop = Shop(folder, spark)
    shop.coordinator().run(until_idle=True)
    shop.write("sales", "INSERT INTO orders VALUES (13, 1, 'new'), (14, 1, 'new')", "DELETE FROM orders WHERE id = 11")
    shop.coordinator().run(until_idle=True)
    for view in VIEWS:
        table = DeltaTable(str(shop.warehouse / "views" / view)).to_pyarrow_table()
        names = [name for name in table.column_names if name != "_copy"]
        read = sorted(tuple(row[name] for name in names) for row in table.to_pylist())
        assert read == shop.rows(view)
    published = inspect.published(Layout(shop.warehouse))[-1]
    last = inspect.last_header(Layout(shop.warehouse))
    assert last is not None
    assert published.commit == last.number
    assert published.views == {v: DeltaTable(str(shop.warehouse / "views" / v)).version() for v in VIEWS}


def test_a_source_that_is_down(tmp_path: Path, spark: SparkSession) -> None:
    """The view that needs it stands still and says so, the other goes on; both are right again when it is back. So too
    if it is down when the run starts, or if all are."""
    shop = Shop(tmp_path, spark, DOWN)
    shop.timing = Timing(detach=1.0)
    with shop.running() as coordinator:
        shop.write("sales", "INSERT INTO orders VALUES (20, 1, 'before')")
        wait_for(lambda: "before" in str(shop.rows("orders")))
        (tmp_path / "billing.db").rename(tmp_path / "away.db")
        shop.write("sales", "INSERT INTO orders VALUES (21, 1, 'meanwhile')")
        wait_for(lambda: "meanwhile" in str(shop.rows("orders")))
        wait_for(lambda: shop.notes.document["views"]["paid"]["stale"])
        assert shop.notes.document["sources"]["billing"]["state"] == "down"
        (tmp_path / "away.db").rename(tmp_path / "billing.db")
        shop.write("billing", "INSERT INTO payments VALUES (50, 21, 5000)")
        wait_for(lambda: (21, 5000) in shop.rows("paid"))
        wait_for(lambda: coordinator.pipeline is not None and coordinator.pipeline.idle())
    (tmp_path / "billing.db").rename(tmp_path / "away.db")
    (tmp_path / "sales.db").rename(tmp_path / "gone.db")
    with shop.running() as coordinator:
        wait_for(lambda: any("orders stands still" in said for said in shop.notes.said))
        (tmp_path / "gone.db").rename(tmp_path / "sales.db")
        shop.write("sales", "INSERT INTO orders VALUES (22, 1, 'without it')")
        wait_for(lambda: "without it" in str(shop.rows("orders")))
        wait_for(lambda: shop.notes.document["views"]["paid"]["waits_for"] == ["billing"])
        (tmp_path / "away.db").rename(tmp_path / "billing.db")
        shop.write("billing", "INSERT INTO payments VALUES (51, 22, 5100)")
        wait_for(lambda: (22, 5100) in shop.rows("paid"))
    for state in states(shop.warehouse):
        assert state.positions.keys() == {"orders", "paid"}


def test_a_restored_source_stops_its_views_and_rebuilds_help(tmp_path: Path, spark: SparkSession) -> None:
    """A backup that was put back has another past: nothing is guessed, the message says what to do, and that works, one
    view after the other; views of other sources go on."""
    sums = '  sums: {sql: "SELECT p.id, p.cents + 1 AS more FROM billing.payments p", freshness: 100ms}\n'
    shop = Shop(tmp_path, spark, DOWN + sums)
    shop.coordinator().run(until_idle=True)
    backup = sqlite3.connect(tmp_path / "backup.db")
    live = sqlite3.connect(tmp_path / "billing.db")
    live.backup(backup)
    live.close()
    backup.close()
    shop.write("billing", "INSERT INTO payments VALUES (60, 10, 1)")
    shop.coordinator().run(until_idle=True)
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"billing.db{suffix}").unlink(missing_ok=True)
    (tmp_path / "backup.db").rename(tmp_path / "billing.db")
    shop.write("billing", "INSERT INTO payments VALUES (61, 11, 2)")
    before = inspect.last_header(Layout(shop.warehouse))
    assert before is not None
    shop.write("sales", "INSERT INTO orders VALUES (30, 1, 'goes on')")
    with pytest.raises(LostGuarantee, match=r"(?s)billing: paid, sums stand still: .*rebuild"):
        shop.coordinator().run(until_idle=True)
    assert any(re.search(r"(?s)^paid, sums stand still: .*billing.*rebuild", said) for said in shop.notes.said)
    assert (30, "goes on") in shop.rows("orders")
    after = inspect.last_header(Layout(shop.warehouse))
    assert after is not None and {view: after.positions[view] for view in ("paid", "sums")} == {
        view: before.positions[view] for view in ("paid", "sums")
    }
    shop.ask("rebuild", views=["paid"])
    assert shop.rows("paid") == [(10, 500), (11, 2), (12, 700)]
    assert (60, 2) in shop.rows("sums")
    shop.write("billing", "INSERT INTO payments VALUES (62, 12, 7)")
    with pytest.raises(LostGuarantee, match="sums stands still"):
        shop.coordinator().run(until_idle=True)
    assert (12, 7) in shop.rows("paid")
    assert any(said.startswith("sums stands still") for said in shop.notes.said)
    assert (60, 2) in shop.rows("sums")
    shop.write("billing", "DELETE FROM payments WHERE id = 62")
    shop.ask("rebuild", views=["sums"])
    shop.coordinator().run(until_idle=True)
    assert shop.rows("sums") == [(1, 501), (2, 701), (61, 3)]


def test_applying_edits(tmp_path: Path, spark: SparkSession) -> None:
    """By itself, with no coordinator: views come, change and go; a mistake leaves everything as it was."""
    shop = Shop(tmp_path, spark, DOWN)
    shop.coordinator().run(until_idle=True)
    head, _, _ = DOWN.partition("views:")
    orders = 'views:\n  orders: {sql: "SELECT o.id, o.state FROM sales.orders o", freshness: 100ms}\n'
    states = '  states: {sql: "SELECT o.state FROM sales.orders o", freshness: 100ms}\n'
    bad = '  bad: {sql: "SELECT 1 / (o.id - 11) AS x FROM sales.orders o", freshness: 100ms}\n'
    (tmp_path / "strobe.yml").write_text(head + orders + states)
    shop.write("sales", "INSERT INTO orders VALUES (20, 1, 'open')")
    with shop.written("sales", lambda n: f"UPDATE orders SET state = 's{n}' WHERE id = 20"):
        reply = shop.ask("apply")
    assert (reply["add"], reply["drop"], reply["keep"]) == (["states"], ["paid"], ["orders"])
    shop.write("sales", "UPDATE orders SET state = 'open' WHERE id = 20")
    shop.coordinator().run(until_idle=True)
    assert shop.rows("states") == [("open",), ("open",), ("open",), ("shut",)]
    for commit in range(reply["commit"], shop.coordinator().last_number() + 1):
        state = reader.snapshot(spark, Layout(shop.warehouse), commit)
        shown = Counter(row.state for row in state.table("orders").collect())
        assert Counter(row.state for row in state.table("states").collect()) == shown, commit
    kept = DeltaTable(str(shop.warehouse / "views" / "paid")).to_pyarrow_table().num_rows
    assert kept == 2

    (tmp_path / "strobe.yml").write_text(head + orders + states + bad)
    before = inspect.last_header(Layout(shop.warehouse))
    with pytest.raises(UserError, match=r"(?s)view bad.*DIVIDE_BY_ZERO"):
        shop.ask("apply")
    after = inspect.last_header(Layout(shop.warehouse))
    assert before is not None and after is not None
    assert after.generations == before.generations
    shop.coordinator().run(until_idle=True)

    changed = states.replace("o.state FROM", "o.state, o.id FROM")
    (tmp_path / "strobe.yml").write_text(head + "views:\n" + changed)
    reply = shop.ask("apply", drop_tables=True)
    assert (reply["rebuild"], reply["drop"]) == (["states"], ["orders"])
    assert DeltaTable(str(shop.warehouse / "views" / "orders")).to_pyarrow_table().num_rows == 0
    shop.write("sales", "DELETE FROM orders WHERE id = 10")
    shop.coordinator().run(until_idle=True)
    assert shop.rows("states") == [("open", 11), ("open", 20), ("shut", 12)]
    old = reader.snapshot(spark, Layout(shop.warehouse), reply["commit"] - 1)
    assert old.table("orders").count() == 4
    assert shop.ask("apply")["commit"] == inspect.last_header(Layout(shop.warehouse)).number  # type: ignore[union-attr]


FAILING = DOWN.replace("SELECT o.id, o.state FROM", "SELECT o.id, 100 / CAST(o.state AS INT) AS share FROM")


def with_numbers(tmp_path: Path, spark: SparkSession) -> Shop:
    """A shop whose view `orders` divides by a text."""
    shop = Shop(tmp_path, spark, FAILING)
    shop.write("sales", "UPDATE orders SET state = id")
    shop.timing = Timing(probe=Policy((0.2,)), verify=Policy((0.5,)))
    return shop


def test_an_expression_that_fails_on_a_row(tmp_path: Path, spark: SparkSession) -> None:
    """Its view stops at its last right state, and says for which row and what to do, without its values. The others go
    on. When the row has changed, the view goes on by itself; so it does after a restart meanwhile."""
    shop = with_numbers(tmp_path, spark)
    with shop.running() as coordinator:
        before = shop.rows("orders")
        shop.write("sales", "INSERT INTO orders VALUES (30, 1, 'secret')")
        wait_for(lambda: "orders" in still(shop.notes.last_status))
        problem = still(shop.notes.last_status)["orders"]
        for expected in ("view orders", "sales.orders (id=30)", "CAST_INVALID_INPUT", "loaded again by itself"):
            assert expected in problem
        assert "secret" not in problem
        shop.write("billing", "INSERT INTO payments VALUES (50, 30, 5000)")
        wait_for(lambda: (30, 5000) in shop.rows("paid"))
        assert shop.rows("orders") == before and "orders" in still(shop.notes.last_status)
        shop.write("sales", "UPDATE orders SET state = '50' WHERE id = 30")
        wait_for(lambda: (30, 2.0) in shop.rows("orders"))
        wait_for(lambda: not still(shop.notes.last_status))
        shop.write("sales", "INSERT INTO orders VALUES (31, 1, '25')")
        wait_for(lambda: (31, 4.0) in shop.rows("orders"))
        shop.write("sales", "INSERT INTO orders VALUES (32, 1, '0')")
        wait_for(lambda: "DIVIDE_BY_ZERO" in still(shop.notes.last_status).get("orders", ""))
    with shop.running() as coordinator:
        wait_for(lambda: "(id=32)" in still(shop.notes.last_status).get("orders", ""))
        shop.write("sales", "DELETE FROM orders WHERE id = 32")
        shop.write("sales", "INSERT INTO orders VALUES (33, 1, '10')")
        wait_for(lambda: (33, 10.0) in shop.rows("orders"))
        wait_for(lambda: coordinator.pipeline is not None and coordinator.pipeline.idle())
    assert [row for row in shop.rows("orders") if row[0] >= 30] == [(30, 2.0), (31, 4.0), (33, 10.0)]


def test_several_rows_on_which_expressions_fail(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of the many in a transaction is named. When it has changed and another one fails, the view waits for that
    one too. If all views are stopped, the run waits all the same."""
    monkeypatch.setattr("strobe.coordinator.requests.REBUILD", Policy((0.2,)))
    shop = with_numbers(tmp_path, spark)
    (tmp_path / "strobe.yml").write_text(FAILING[: FAILING.index("  paid:")])
    with shop.running():
        values = ", ".join(f"({n}, 1, '{n if n not in (140, 160) else 'no'}')" for n in range(100, 200))
        shop.write("sales", f"INSERT INTO orders VALUES {values}")
        wait_for(lambda: "(id=140)" in still(shop.notes.last_status).get("orders", ""))
        shop.write("sales", "UPDATE orders SET state = '1' WHERE id = 140")
        wait_for(lambda: "(id=160)" in still(shop.notes.last_status).get("orders", ""))
        shop.write("sales", "DELETE FROM orders WHERE id = 160")
        wait_for(lambda: (140, 100.0) in shop.rows("orders"))
    assert len(shop.rows("orders")) == 3 + 99
    shop.write("sales", "INSERT INTO orders VALUES (30, 1, 'no')")
    with pytest.raises(UserError, match=r"(?s)orders stands still.*\(id=30\)"):
        shop.coordinator().run(until_idle=True)
    shop.write("sales", "DELETE FROM orders WHERE id = 30")
    shop.coordinator().run(until_idle=True)
