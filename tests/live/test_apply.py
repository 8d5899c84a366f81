"""Views come, change and go under load: every committed state of every view is right, and all views move together."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from deltalake import DeltaTable
from editing import ask, edit, judged, last, wait_for
from shopfloor import Shop

from strobe.algebra.bag import Bag
from strobe.auditor.replay import states

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow]

KILLED = -signal.SIGKILL
PAID = (
    "SELECT o.id, o.state, c.name, p.id AS payment, p.cents FROM sales.orders o "
    "JOIN sales.customers c ON c.id = o.customer JOIN billing.payments p ON p.order_id = o.id WHERE p.cents > 120"
)
PAIRS = "SELECT a.state, b.state AS other FROM sales.orders a JOIN sales.orders b ON a.customer = b.customer"
NAMED = "SELECT a.id, c.name FROM sales.orders a JOIN sales.customers c ON c.id = a.customer"
FRESH = "SELECT p.cents, o.state FROM billing.payments p JOIN sales.orders o ON o.id = p.order_id"
HEAD = """
version: 1
project: shop
spark: {spark.master: "local[2]", spark.driver.memory: 1g}
sources:
  sales: {type: sqlite, path: sales.db}
  billing: {type: sqlite, path: billing.db}
views:
"""


def project(**views: str) -> str:
    """A project with these views: SQL, and after a `;` further settings."""
    lines = []
    for name, text in views.items():
        sql, _, settings = text.partition(";")
        lines.append(f'  {name}: {{sql: "{sql}", freshness: 1s{settings}}}\n')
    return HEAD + "".join(lines)


BEFORE = project(paid=PAID, pairs=f"{PAIRS};, consistency: complete", gone=NAMED)
AFTER = project(
    paid=PAID, pairs=f"{PAIRS} WHERE a.id < b.id;, consistency: complete", fresh=f"{FRESH};, cache: [sales.orders]"
)
EDIT: dict[str, Any] = {
    "add": ["copy__sales__orders", "fresh"],
    "rebuild": ["pairs"],
    "drop": ["gone"],
    "keep": ["paid"],
}


@contextmanager
def running(shop: Shop, commits: int = 3) -> Iterator[Popen[str]]:
    """`strobe run`, ended cleanly; some commits have been made before."""
    process = shop.start("run")
    try:
        wait_for(shop, commits)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output


@pytest.mark.timeout(600)
def test_an_edit_is_applied_to_a_running_system(tmp_path: Path) -> None:
    """One view is added (with a copy that it needs), one changed, one dropped, in one commit, under writers."""
    shop = Shop(tmp_path, BEFORE)
    shop.archive.start()
    with shop.load(writers=1), running(shop):
        edit(shop, AFTER)
        planned = ask(shop, "plan")
        assert {name: planned[name] for name in EDIT} == EDIT
        before = last(shop).number
        applied = ask(shop, "apply")
        assert {name: applied[name] for name in EDIT} == EDIT
        wait_for(shop, applied["commit"] + 3)
        assert ask(shop, "plan")["keep"] == ["copy__sales__orders", "paid", "pairs", "fresh"]
    commit = applied["commit"]
    seen = judged(shop)
    assert seen["gone"] == list(range(1, commit))
    assert seen["fresh"] == seen["copy__sales__orders"] == list(range(commit, seen["paid"][-1] + 1))
    assert seen["paid"] == seen["pairs"] == list(range(1, seen["paid"][-1] + 1))
    assert commit - before > 2, "the others stood still while the views were loaded"
    table = DeltaTable(tmp_path / "warehouse" / "views" / "gone").to_pyarrow_table().to_pylist()
    final = next(state for state in states(tmp_path / "warehouse") if state.commit == commit - 1)
    rows = (tuple(value for name, value in row.items() if name != "_copy") for row in table)
    assert Bag.of(final.views["gone"].attributes, rows) == final.views["gone"], "the table that is kept is behind"


@pytest.mark.timeout(900)
def test_killed_while_an_edit_is_applied(tmp_path: Path) -> None:
    """With -9, before and after the joining commit: all of the edit is there or nothing, and every state is right."""
    shop = Shop(tmp_path, BEFORE.replace("complete", "strong"))
    shop.archive.start()
    shop.strobe("run", "--until-idle")
    edit(shop, AFTER.replace("complete", "strong"))
    with shop.load(writers=1):
        for failpoint in ("load.definitions", "load.joined"):
            assert last(shop).generations.keys() == {"paid", "pairs", "gone"}
            shop.strobe("apply", code=KILLED, failpoint=failpoint)
        assert last(shop).generations.keys() == {"paid", "pairs", "fresh", "copy__sales__orders"}
        assert last(shop).generations["pairs"] > 1
    shop.strobe("run", "--until-idle")
    assert ask(shop, "plan")["add"] == []
    seen = judged(shop)
    assert seen["gone"][-1] == seen["fresh"][0] - 1
    assert not list((tmp_path / "warehouse" / "staging").glob("joining/*"))
