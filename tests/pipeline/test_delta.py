"""The live path over Delta tables under concurrent writers, the warehouse in memory: no JVM.

Each commit is compared with a recomputation at exactly the versions that it claims, which `deltalake` reads by itself.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from committing import no_spark
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from memory_live import MemoryWarehouse, compare, contents, keep
from patience import PATIENCE, Writing

from strobe.algebra.bag import Bag
from strobe.config.load import load_project
from strobe.data.arrow import from_arrow
from strobe.managers.registry import ALGORITHMS
from strobe.messages import CommitHeader
from strobe.pipeline.pipeline import Pipeline
from strobe.planning.topology import Topology, assemble
from strobe.simulator.world import Contents, evaluate

TABLES = {
    "orders": pa.schema([("id", pa.int64()), ("customer", pa.int32()), ("state", pa.string())]),
    "customers": pa.schema([("id", pa.int32()), ("name", pa.string()), ("region", pa.string())]),
    "payments": pa.schema([("id", pa.int64()), ("order_id", pa.int64()), ("amount", pa.decimal128(12, 2))]),
}
VIEW = """
  v:
    sql: SELECT o.id AS o, o.state, c.id AS c, c.name, p.id AS p, p.amount FROM orders.orders o
         JOIN customers.customers c ON c.id = o.customer JOIN payments.payments p ON p.order_id = o.id
    algorithm: {algorithm}
    consistency: {level}
    freshness: 20ms
"""


class Past:
    """The tables as they were at any version, read without Strobe."""

    def at(self, topology: Topology, positions: Mapping[str, str]) -> dict[str, Contents]:
        found = {}
        for source, text in positions.items():
            version = topology.sources[source].position(text).order[0]
            table = DeltaTable(topology.project.sources[source].path, version=version).to_pyarrow_table()  # type: ignore[union-attr]
            found[source] = {source: Bag.of(tuple(table.column_names), from_arrow(table))}
        return found


def some(name: str, rng: random.Random, n: int) -> pa.Table:
    """A few new rows; keys are unique among them."""
    first, second = rng.sample(range(1, 6), 2)
    values = {
        "orders": [(first, rng.randint(1, 3), f"v{n}"), (second, rng.randint(1, 3), None)],
        "customers": [(first % 3 + 1, f"c{n}", rng.choice(["east", "west"]))],
        "payments": [(n, rng.randint(1, 5), None), (n + 1000, first, None)],
    }[name]
    return pa.table([list(column) for column in zip(*values, strict=True)], schema=TABLES[name])


def write(path: Path, seed: int, writing: Writing, pause: float) -> None:
    """Merges, deletes, updates, compactions and overwrites; who loses a race tries something else."""
    rng, name = random.Random(f"{path.name} {seed}"), path.name
    n = seed * 10_000
    while writing.goes_on:
        n += 1
        table = DeltaTable(str(path))
        kind = rng.random()
        try:
            if kind < 0.55:
                merge = table.merge(some(name, rng, n), "s.id = t.id", "s", "t")
                merge.when_matched_update_all().when_not_matched_insert_all().execute()
            elif kind < 0.7:
                table.delete(f"id % 5 = {rng.randint(0, 4)}" if name != "payments" else f"id < {n - 30}")
            elif kind < 0.85:
                column = {"orders": "state", "customers": "name", "payments": "order_id"}[name]
                table.update(updates={column: "1" if name == "payments" else f"'u{n}'"}, predicate="id % 2 = 0")
            elif kind < 0.93:
                table.optimize.compact()
            else:
                write_deltalake(table, some(name, rng, n), mode="overwrite")
        except CommitFailedError:
            continue
        writing.rest(rng.random() * pause)


@pytest.mark.parametrize("algorithm", ["sweep", "nested-sweep", "t-strobe"])
def test_every_commit_is_a_state_of_the_tables(tmp_path: Path, algorithm: str) -> None:
    """Three tables, one of them partitioned, each written by two writers at once; by one where keys must hold, which
    an overwrite that races a compaction breaks."""
    keyed = algorithm == "t-strobe"
    rng = random.Random(0)
    for name, schema in TABLES.items():
        partitioned = ["region"] if name == "customers" else None
        feed = {"delta.enableChangeDataFeed": "true"}
        DeltaTable.create(str(tmp_path / name), schema, partition_by=partitioned, configuration=feed)
        write_deltalake(str(tmp_path / name), some(name, rng, 1), mode="append")
    sources = "".join(f"  {name}: {{type: delta, path: {name}, key: [{'id' if keyed else ''}]}}\n" for name in TABLES)
    level = ALGORITHMS[algorithm].level
    text = f"version: 1\nproject: shop\nsources:\n{sources}views:{VIEW.format(algorithm=algorithm, level=level)}"
    (tmp_path / "strobe.yml").write_text(text)
    topology = assemble(load_project(tmp_path))
    assert [f for name, source in topology.sources.items() for f in source.check([name])] == []
    start = {name: contents(topology, name) for name in topology.sources}
    view = topology.views["v"].view
    initial = {"v": evaluate(view, {s: c for s, (_, c) in start.items()})}
    last = CommitHeader(1, datetime.now(timezone.utc), {"v": {s: start[s][0] for s in start}})
    warehouse = MemoryWarehouse(topology, last, initial, 0.02)
    pipeline = Pipeline(topology, warehouse, last, through_spark=no_spark)
    pause = 0.1 if algorithm == "sweep" else 0.6  # the others put what comes at once into one commit
    seeds = (1,) if keyed else (1, 2)
    writing = Writing(2.0, lambda: sum(bool(commit.changes) for commit in warehouse.commits) > 5)
    work = [threading.Thread(target=write, args=(tmp_path / name, n, writing, pause)) for name in TABLES for n in seeds]
    for thread in work:
        thread.start()
    deadline = time.monotonic() + 2 * PATIENCE

    def done() -> bool:
        assert time.monotonic() < deadline, "the pipeline did not come to rest"
        return not any(thread.is_alive() for thread in work) and pipeline.idle()

    try:
        keep(pipeline, done)
    finally:
        writing.stop()
    assert sum(bool(commit.changes) for commit in warehouse.commits) > 5
    compare(topology, warehouse, Past(), initial)  # type: ignore[arg-type]  # a past of Delta's
    topology.sources.close()
