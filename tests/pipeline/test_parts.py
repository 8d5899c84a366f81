"""Parts of views, read from their sources beside the managers while everybody writes: no JVM."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from memory_live import HEAD, PROJECT, compare, opened, run
from parts import Reads, read
from patience import Writing

from strobe.pipeline.part_reader import anchor
from strobe.pipeline.pipeline import Pipeline
from strobe.sources.base import TooLarge

UNKEYED = """\
  names: {sql: "SELECT c.name, p.cents FROM sales.orders o JOIN sales.customers c ON c.id = o.customer
                JOIN billing.payments p ON p.order_id = o.id", freshness: 20ms}
"""


@pytest.mark.parametrize("order", ["source", "views"])
def test_a_part_is_read_as_of_a_commit_while_everybody_writes(tmp_path: Path, order: str) -> None:
    """Whatever the sources' snapshots have seen by then: for some keys that are there and some that are not, of views
    over one source or two, self-joins, and a view that shows no key."""
    topology = opened(tmp_path, PROJECT + UNKEYED + f"order: {order}\n")
    reads = Reads()
    warehouse, past, initial = run(topology, tmp_path, 1.0, 0.02, beside=reads.go_on, enough=lambda _: reads.enough(20))
    reads.judge(warehouse, initial, partial(past.at, topology))
    compare(topology, warehouse, past, initial)


def test_a_part_that_joins_with_too_many_rows_is_refused(tmp_path: Path) -> None:
    """Before they are in memory."""
    topology = opened(tmp_path, PROJECT)
    with closing(sqlite3.connect(tmp_path / "billing.db")) as connection, connection:
        connection.executemany("INSERT INTO payments VALUES (?, 10, ?)", [(-n, n) for n in range(1, 51)])
    refused: list[bool] = []

    def beside(pipeline: Pipeline, writing: Writing) -> None:
        view = topology.views["paid"].view
        with pytest.raises(TooLarge):
            read(pipeline, view, [(10,)], most=20)
        refused.append(bool(read(pipeline, view, [(11,)], most=20).found))

    run(topology, tmp_path, 0.1, 0.0, beside=beside, enough=lambda _: bool(refused))
    assert refused == [True]


def test_the_key_that_leads_to_the_others_takes_a_view_apart(tmp_path: Path) -> None:
    """Of the keys that a view shows, the one from which the rest is found by key; none, where none is shown."""
    views = """\
  lines: {sql: "SELECT c.id AS customer, o.id, p.id AS payment FROM sales.orders o
                JOIN sales.customers c ON c.id = o.customer JOIN billing.payments p ON p.order_id = o.id"}
  sums: {sql: "SELECT o.customer AS customer, o.state FROM sales.orders o"}
"""
    topology = opened(tmp_path, HEAD + views)
    first = anchor(topology.views["lines"].view)
    assert first is not None and first.relation.id == "billing.payments"
    assert anchor(topology.views["sums"].view) is None
