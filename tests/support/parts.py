"""Parts of views that are read while a pipeline runs, and whether they were what they had to be."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memory_live import MemoryWarehouse
from patience import PATIENCE, Writing

from strobe.algebra.bag import Bag, Row
from strobe.algebra.view import Occurrence, View
from strobe.errors import NotNow
from strobe.messages import Position
from strobe.pipeline.part_reader import PartReader, anchor
from strobe.pipeline.pipeline import Pipeline
from strobe.simulator.world import Contents, evaluate


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


class Reads:
    """Reads of random keys, one after another, until others have written enough."""

    def __init__(self) -> None:
        self.done: list[Read] = []
        self.behind = False
        """Whether sources had gone on since the commit of one of them."""

    def enough(self, number: int) -> bool:
        return len(self.done) >= number and self.behind

    def go_on(self, pipeline: Pipeline, writing: Writing) -> None:
        rng = random.Random(1)
        views = [planned.view for planned in pipeline.topology.views.values()]
        while writing.goes_on:
            keys = [(key,) for key in rng.sample(range(1, 20), rng.randint(1, 8))]
            try:
                found = read(pipeline, rng.choice(views), keys)
            except NotNow:
                continue
            self.behind |= any(p < pipeline.monitors[s].position for s, p in found.at.items())
            self.done.append(found)

    def judge(
        self,
        warehouse: MemoryWarehouse,
        initial: Mapping[str, Bag],
        past: Callable[[Mapping[str, str]], dict[str, Contents]],
    ) -> None:
        """Every part is computed from the rows that the sources had at the positions it says, and the view is at these
        positions at its commit. `initial` is how the views were at commit 1."""
        held = {(name, 1): rows for name, rows in initial.items()}
        for commit in warehouse.commits:
            for name in initial:
                rows = held[name, commit.number - 1]
                if name in commit.removals:
                    rows = commit.removals[name].rest(rows).collect()
                held[name, commit.number] = rows.add(commit.changes.get(name, Bag(rows.attributes)).collect())
        for each in self.done:
            truth = past({source: position.text for source, position in each.at.items()})
            assert each.rows(each.contents) == each.rows(truth), f"{each.view.name} at {each.at}"
            assert held[each.view.name, each.commit] == evaluate(each.view, truth), f"{each.view.name} at {each.commit}"
