"""Every algorithm on the live path: real SQLite databases under concurrent writers, the warehouse in memory, no JVM.

Each commit is compared with a recomputation at exactly the positions that it claims.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_live import HEAD, compare, opened, run

from strobe.managers.registry import ALGORITHMS, one_source
from strobe.planning.topology import Topology

TWO_SOURCES = """
    sql: SELECT o.id AS o, o.state, c.id AS c, c.name, p.id AS p, p.cents FROM sales.orders o
         JOIN sales.customers c ON c.id = o.customer JOIN billing.payments p ON p.order_id = o.id
"""
ONE_SOURCE = """
    sql: SELECT o.id AS o, o.state, c.id AS c, c.name, n.id AS n FROM sales.orders o
         JOIN sales.customers c ON c.id = o.customer JOIN sales.orders n ON n.customer = c.id
"""


def project(folder: Path, views: str) -> Topology:
    return opened(folder, HEAD + views)


def view(name: str, algorithm: str, sql: str, more: str = "") -> str:
    level = ALGORITHMS[algorithm].level
    every = "every" in more
    wanted = "strong" if every or level == "none" else level
    return f"  {name}:{sql}    algorithm: {algorithm}\n    consistency: {wanted}\n    freshness: 20ms\n{more}"


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        *((name, "") for name in ALGORITHMS if name != "conventional"),
        ("rv", "    every: 3\n"),
        ("c-tstrobe", "    every: 3\n"),
        *((name, "    cache: [sales.customers]\n") for name in ALGORITHMS if name not in ("conventional", "sc")),
        ("rv", "    cache: [sales.customers, billing.payments]\n"),
        ("eca", "    cache: [sales.customers, sales.orders]\n"),
        ("t-strobe", "    ask_view: true\n"),
        ("c-strobe", "    ask_view: true\n"),
        ("t-strobe", "    every: 4\n"),
        ("t-strobe", "    cache: [sales.customers, billing.payments]\n"),
    ],
)
def test_every_commit_is_a_state_of_the_sources(tmp_path: Path, algorithm: str, more: str) -> None:
    sql = ONE_SOURCE if one_source in ALGORITHMS[algorithm].lacks else TWO_SOURCES
    topology = project(tmp_path, view("v", algorithm, sql, more))
    warehouse, past, states = run(
        topology, tmp_path, seconds=0.7, commit_seconds=0.02, enough=lambda w: len(w.commits) > 3
    )
    assert len(warehouse.commits) > 3
    compare(topology, warehouse, past, states)


def test_views_of_different_algorithms_share_their_commits(tmp_path: Path) -> None:
    """Each commit is one state of the sources in all views, whatever algorithm keeps them."""
    names = ("sweep", "nested-sweep", "rv", "t-strobe")
    views = "".join(view(f"v{i}", name, TWO_SOURCES) for i, name in enumerate(names)).replace("complete", "strong")
    views += view("v9", "eca", ONE_SOURCE)
    topology = project(tmp_path, views)
    warehouse, past, states = run(topology, tmp_path, seconds=1.2, commit_seconds=0.05)
    assert len(warehouse.commits) > 3
    compare(topology, warehouse, past, states)


def test_conventional_goes_wrong(tmp_path: Path) -> None:
    """The same writers, the same path: what nobody compensates is wrong, sooner or later."""

    def go_right(folder: Path) -> None:
        folder.mkdir()
        topology = project(folder, view("v", "conventional", TWO_SOURCES))
        warehouse, past, states = run(topology, folder, seconds=1, commit_seconds=0.02)
        compare(topology, warehouse, past, states)

    with pytest.raises(AssertionError, match="v at commit"):
        for attempt in range(10):
            go_right(tmp_path / str(attempt))
