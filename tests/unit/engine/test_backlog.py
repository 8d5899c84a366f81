"""What a transaction of a backlog costs does not depend on how many others wait: twice as many take twice the
operations. Operations are counted, not timed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from backlog import Database, Run, joined
from operations import Operations

from strobe.algebra.bag import total
from strobe.algebra.view import View
from strobe.engine.engine import Promise
from strobe.integrator.blocks import Sizes
from strobe.managers.base import ViewManager
from strobe.managers.eca import Eca
from strobe.managers.nested_sweep import NestedSweep
from strobe.managers.rv import Rv
from strobe.managers.sweep import Sweep

MOST = 2.2
"""Times as many operations for twice as many transactions: in proportion, and a little for what grows by logarithms."""

COMPENSATED = 2.6
"""The same where open queries are compensated for every update: of twice as many, each meets a few more that join."""

MANAGERS: dict[str, tuple[Callable[[View], ViewManager], str]] = {
    "sweep": (lambda view: Sweep(view, complete=False), "strong"),
    "sweep, complete": (lambda view: Sweep(view, complete=True), "complete"),
    "nested-sweep": (NestedSweep, "strong"),
    "eca": (Eca, "strong"),
    "lca": (lambda view: Eca(view, complete=True), "complete"),
    "rv": (lambda view: Rv(view, every=10_000), "strong"),
}


def operations(transactions: int, name: str, order: str, sources: int, views: int = 1) -> int:
    make, level = MANAGERS[name]
    joins = [joined(f"v{n}", payments="shop" if sources == 1 else "billing") for n in range(views)]
    database = Database(joins[0])
    database.transact(transactions)
    promise = Promise(level, eager=name in ("eca", "lca"))
    run = Run(database, {view.name: make(view) for view in joins}, promise, order)
    counted = Operations(apart=("answer",)).of(run.drain)
    covered = {number for each in run.submitted for action in each.actions for number in action.covers}
    assert len(covered) == transactions
    return counted


@pytest.mark.parametrize(
    ("name", "order", "sources"),
    [
        ("sweep", "source", 1),
        ("sweep", "views", 2),
        ("sweep, complete", "source", 2),
        ("sweep, complete", "views", 1),
        ("nested-sweep", "source", 2),
        ("rv", "source", 1),
    ],
)
def test_a_backlog_costs_in_proportion(name: str, order: str, sources: int) -> None:
    assert operations(400, name, order, sources) <= MOST * operations(200, name, order, sources)


@pytest.mark.parametrize(("name", "order"), [("eca", "source"), ("lca", "views")])
def test_an_update_meets_only_the_open_queries_that_it_joins_with(name: str, order: str) -> None:
    """Although every other update of the backlog has an open query at the same time."""
    assert operations(400, name, order, 1) <= COMPENSATED * operations(200, name, order, 1)


def test_a_backlog_of_several_views_costs_in_proportion() -> None:
    """Their action lists wait for each other in the view-update table."""
    few, many = (operations(n, "sweep, complete", "source", 1, views=2) for n in (200, 400))
    assert many <= MOST * few


@pytest.mark.parametrize("name", ["sweep", "sweep, complete"])
def test_a_backlog_is_committed_in_steps(name: str) -> None:
    """Although every answer has seen the end of the log; and in the end everything is there."""
    make, level = MANAGERS[name]
    view = joined(payments="billing")
    database = Database(view)
    before = database.contents()
    database.transact(1000)
    run = Run(database, {"v": make(view)}, Promise(level), sizes=Sizes(step=10, first=50, least=50, most=100))
    run.drain()
    covered = [len(each.numbers) for each in run.submitted]
    assert sum(covered) == 1000 and max(covered) <= 100 and len(covered) >= 10
    changes = [action.delta for each in run.submitted for action in each.actions]
    assert total(before.attributes, [before, *changes]) == database.contents()
