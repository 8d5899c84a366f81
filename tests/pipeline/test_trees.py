"""Views that are more than inner joins through the live pipeline, over SQLite databases under concurrent writers."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_live import HEAD, compare, opened, run

VIEWS = {
    "orders": "SELECT o.id, o.state, c.name FROM sales.orders o LEFT JOIN sales.customers c ON c.id = o.customer",
    "everything": "SELECT o.id, p.id AS payment, c.name FROM sales.orders o FULL JOIN billing.payments p "
    "ON p.order_id = o.id LEFT JOIN sales.customers c ON c.id = o.customer",
    "unpaid": "SELECT o.id FROM sales.orders o WHERE NOT EXISTS "
    "(SELECT 1 FROM billing.payments p WHERE p.order_id = o.id AND p.cents > 110)",
    "totals": "SELECT o.customer, count(*) AS n, sum(p.cents) AS cents FROM sales.orders o "
    "LEFT JOIN billing.payments p ON p.order_id = o.id GROUP BY o.customer",
    "latest": "SELECT id, customer FROM (SELECT o.id, o.customer, row_number() OVER (PARTITION BY o.customer "
    "ORDER BY o.id DESC) AS place FROM sales.orders o) x WHERE place = 1",
    "numbers": "SELECT order_id AS n FROM billing.payments UNION ALL SELECT id FROM sales.orders",
}


def project(level: str, more: str = "") -> str:
    views = (f'  {n}: {{sql: "{sql}", consistency: {level}, freshness: 20ms{more}}}\n' for n, sql in VIEWS.items())
    return HEAD + "".join(views)


@pytest.mark.parametrize(("level", "seconds"), [("strong", 0.3), ("strong", 0.0), ("complete", 0.0), ("complete", 0.2)])
def test_every_commit_is_a_state_of_the_sources(tmp_path: Path, level: str, seconds: float) -> None:
    """Real threads, real databases, real interleavings: each commit equals a recomputation at its positions."""
    topology = opened(tmp_path, project(level))
    assert all(planned.view.tree is not None for planned in topology.views.values())
    warehouse, past, states = run(topology, tmp_path, seconds=1.0, commit_seconds=seconds)
    assert len(warehouse.commits) > 5
    compare(topology, warehouse, past, states)


def test_copies_answer_in_the_place_of_sources(tmp_path: Path) -> None:
    """Look-ups in copies at the warehouse, between which there are commits."""
    topology = opened(tmp_path, project("strong", ", algorithm: sc"))
    warehouse, past, states = run(topology, tmp_path, seconds=1.0, commit_seconds=0.05)
    assert len(warehouse.commits) > 5
    compare(topology, warehouse, past, states)
