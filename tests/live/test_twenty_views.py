"""Twenty views over three databases: killed, edited and killed again under load, and right together at every commit."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from editing import ask, edit, judged, last, wait_for
from shopfloor import DATABASES, STOCK, Shop

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow]

HEAD = """
version: 1
project: many
spark: {spark.master: "local[2]", spark.driver.memory: 2g}
sources:
  sales: {type: sqlite, path: sales.db}
  billing: {type: sqlite, path: billing.db}
  stock: {type: sqlite, path: stock.db}
views:
"""
ORDERS = "sales.orders o JOIN sales.customers c ON c.id = o.customer"
KINDS = [
    ("sweep", f"SELECT o.state, c.name FROM {ORDERS} WHERE o.id <> {{n}}"),
    ("eca", f"SELECT o.id, c.name FROM {ORDERS} WHERE o.id > {{n}} - 5"),
    ("t-strobe", "SELECT o.id AS o, p.id, p.cents FROM sales.orders o JOIN billing.payments p ON p.order_id = o.id"),
    ("nested-sweep", "SELECT p.cents + {n} AS cents FROM billing.payments p WHERE p.cents > 100 * {n}"),
    ("sweep", f"SELECT o.id, p.cents, k.grams FROM {ORDERS} JOIN billing.payments p ON p.order_id = o.id "
     "JOIN stock.parcels k ON k.order_id = o.id"),
    ("g-strobe", "SELECT k.id AS k, k.grams, o.id AS o FROM stock.parcels k JOIN sales.orders o ON o.id = k.order_id"),
    ("rv", "SELECT k.grams, p.cents FROM stock.parcels k JOIN billing.payments p ON p.order_id = k.order_id"),
]  # fmt: skip


def views(numbers: range) -> dict[str, tuple[str, str]]:
    """By name, the algorithm and the SQL."""
    return {f"v{n}": (KINDS[n % 7][0], KINDS[n % 7][1].format(n=n)) for n in numbers}


def project(wanted: dict[str, tuple[str, str]]) -> str:
    return HEAD + "".join(
        f'  {name}: {{sql: "{sql}", algorithm: {algorithm}, freshness: 500ms}}\n'
        for name, (algorithm, sql) in wanted.items()
    )


@pytest.mark.timeout(1800)
def test_twenty_views_are_one_truth(tmp_path: Path) -> None:
    """Two kills, a view added, one changed and one dropped, under writers: every commit is one state in all views."""
    wanted = views(range(20))
    kept = {name: sql for name, (_, sql) in wanted.items() if name not in ("v3", "v4")}
    shop = Shop(tmp_path, project(wanted), kept, {**DATABASES, "stock": STOCK})
    shop.archive.start()
    with shop.load(writers=1):
        process = shop.start("run")
        wait_for(shop, 8, patience=400)
        process.kill()
        process.communicate()
        process = shop.start("run")
        wait_for(shop, last(shop).number + 5, patience=400)
        changed = {**wanted, "v4": ("sweep", KINDS[0][1].format(n=11)), **views(range(20, 21))}
        del changed["v3"]
        edit(shop, project(changed))
        applied = ask(shop, "apply")
        assert (applied["add"], applied["rebuild"], applied["drop"]) == (["v20"], ["v4"], ["v3"])
        wait_for(shop, applied["commit"] + 5, patience=400)
        process.kill()
        process.communicate()
        shop.strobe("run", "--for", "60", timeout=400)
    shop.strobe("run", "--until-idle", timeout=400)
    time.sleep(1)
    seen = judged(shop)
    assert len(seen) == 21
    assert all(seen[name] == list(range(1, seen["v0"][-1] + 1)) for name in kept)
    verdict = shop.history().verdict("strong")
    assert verdict.verdict == "valid", verdict.document()
