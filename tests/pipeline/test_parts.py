"""Parts of views, read from their sources beside the managers while everybody writes: no JVM."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from memory_live import HEAD, PROJECT, compare, opened, run
from patience import PATIENCE, Writing

from strobe.algebra.bag import Bag, Row
from strobe.algebra.view import Occurrence, View
from strobe.errors import NotNow
from strobe.messages import Position
from strobe.pipeline.part_reader import PartReader, anchor
from strobe.pipeline.pipeline import Pipeline
from strobe.simulator.world import Contents, evaluate
from strobe.sources.base import TooLarge

UNKEYED = """\
  names: {sql: "SELECT c.name, p.cents FROM sales.orders o JOIN sales.customers c ON c.id = o.customer
                JOIN billing.payments p ON p.order_id = o.id", freshness: 20ms}
"""


@dataclass(frozen=True)
class Read:
    """What was read of a part, and where the view stood."""

    view: View
    commit: int
    at: Mapping[str, Position]
    first: Occurrence | None
    keys: Sequence[Row]
    found: Mapping[str, Bag]

    def rows(self, contents: Mapping[str, Contents]) -> Bag:
        """Of the view over these contents, those with the keys."""
        rows = evaluate(self.view, contents)
        if self.first is None:
            return rows
        columns = [self.first.attribute(c) for c in self.first.relation.key]
        keys = Bag(columns, dict.fromkeys(self.keys, 1))
        return rows.add(rows.key_delete(keys, [(c, c) for c in columns]).collect().negate())

    @property
    def contents(self) -> dict[str, Contents]:
        known: dict[str, Contents] = {source: {} for source in self.view.sources}
        for relation in self.view.relations:
            empty = Bag(self.view.columns_of(relation))
            known[relation.source][relation.name] = self.found.get(relation.id, empty)
        return known


def read(pipeline: Pipeline, view: View, keys: Sequence[Row], most: int = 10_000) -> Read:
    first = anchor(view)
    with pipeline.tapped(view) as tap:
        deadline = time.monotonic() + PATIENCE
        while True:
            last, at = pipeline.standing(view.name)
            if all(tap.since[source] <= at[source] for source in tap.since):
                break
            assert time.monotonic() < deadline
            time.sleep(0.005)
        part = PartReader(view, pipeline.topology.sources, tap, lambda: False, most, PATIENCE)
        return Read(view, last.number, at, first, keys, part.read(at, first, keys))


@pytest.mark.parametrize("order", ["source", "views"])
def test_a_part_is_read_as_of_a_commit_while_everybody_writes(tmp_path: Path, order: str) -> None:
    """Whatever the sources' snapshots have seen by then: for some keys that are there and some that are not, of views
    over one source or two, self-joins, and a view that shows no key."""
    topology = opened(tmp_path, PROJECT + UNKEYED + f"order: {order}\n")
    reads: list[Read] = []
    changed: list[bool] = []

    def beside(pipeline: Pipeline, writing: Writing) -> None:
        rng = random.Random(1)
        while writing.goes_on:
            view = rng.choice([planned.view for planned in topology.views.values()])
            keys = [(key,) for key in rng.sample(range(1, 20), rng.randint(1, 8))]
            try:
                reads.append(read(pipeline, view, keys))
            except NotNow:
                continue
            changed.append(any(p < pipeline.monitors[s].position for s, p in reads[-1].at.items()))

    def enough(_: object) -> bool:
        return len(reads) > 20 and any(changed)

    warehouse, past, states = run(topology, tmp_path, 1.0, 0.02, beside=beside, enough=enough)
    held = {(name, 1): rows for name, rows in states.items()}
    for commit in warehouse.commits:
        for name in states:
            before = held[name, commit.number - 1]
            held[name, commit.number] = before.add(commit.changes.get(name, Bag(before.attributes)).collect())
    compare(topology, warehouse, past, states)
    for each in reads:
        truth = past.at(topology, {source: position.text for source, position in each.at.items()})
        assert each.rows(each.contents) == each.rows(truth), f"{each.view.name} at {each.at}"
        assert held[each.view.name, each.commit] == evaluate(each.view, truth), "and so is the view at that commit"


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
