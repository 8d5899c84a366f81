"""Every algorithm as a real process: Spark, Delta, concurrent writers, killed with -9 and started again."""

from __future__ import annotations

from pathlib import Path

import pytest
from shopfloor import Shop

from strobe.managers.registry import ALGORITHMS, one_source

pytestmark = [pytest.mark.spark, pytest.mark.live]

ONE_SOURCE = (
    "SELECT o.id AS o, o.state, c.id AS c, c.name, n.id AS n FROM sales.orders o "
    "JOIN sales.customers c ON c.id = o.customer JOIN sales.orders n ON n.customer = c.id"
)
TWO_SOURCES = (
    "SELECT o.id AS o, o.state, c.name, c.id AS c, p.id AS p, p.cents FROM sales.orders o "
    "JOIN sales.customers c ON c.id = o.customer JOIN billing.payments p ON p.order_id = o.id WHERE p.cents > 120"
)
HEAD = """
version: 1
project: algorithms
sources:
  sales: {type: sqlite, path: sales.db}
  billing: {type: sqlite, path: billing.db}
views:
"""


def views(level: str) -> dict[str, str]:
    """A view for every algorithm that guarantees exactly this level."""
    names = [name for name, a in ALGORITHMS.items() if a.level == level or (name == "sweep" and level == "strong")]
    single = {name for name in names if one_source in ALGORITHMS[name].lacks}
    return {name.replace("-", "_"): ONE_SOURCE if name in single else TWO_SOURCES for name in names}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", ["strong", "complete"])
def test_every_algorithm_survives_a_kill_at_its_level(tmp_path: Path, gateway: str, level: str) -> None:
    """All views in one warehouse, so that each commit is one state of the sources in all of them."""
    wanted = views(level)
    lines = [
        f'  {view}: {{sql: "{sql}", algorithm: {view.replace("_", "-")}, consistency: {level}, freshness: 200ms}}\n'
        for view, sql in wanted.items()
    ]
    shop = Shop(tmp_path, HEAD + "".join(lines), wanted, gateway=gateway)
    shop.archive.start()
    with shop.load(writers=1, rests=0.5):
        shop.kill_after(5)
        process = shop.start("run")
        shop.wait_for_commits(process, 10)
    shop.kill_at_the_end(process)
    for view, verdict in shop.judge().items():
        assert verdict.wrong == 0, f"{view}: {verdict.first}"
        assert verdict.states > 8, f"{view} has only {verdict.states} states"
    judged = shop.history().verdict(level)
    assert judged.verdict == "valid", judged.document()
