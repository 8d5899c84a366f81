"""Transactions that are too large to hold, through the live pipeline: nearly everything is in files."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from committing import MemorySink, no_spark
from large import spilled
from memory_live import PROJECT, MemoryWarehouse, compare, contents, opened, run

from strobe.data.scratch import SPILLED
from strobe.engine.recording import encode
from strobe.messages import CommitHeader, Transaction
from strobe.pipeline.backpressure import Limits
from strobe.pipeline.pipeline import Pipeline
from strobe.pipeline.run_end import Failure, RunEnd
from strobe.planning.topology import Topology


def spill_at_once(topology: Topology) -> None:
    """Hardly any row of a transaction is held in memory."""
    for source in topology.sources.values():
        assert source.spill
        source.spill = replace(source.spill, rows=2)


@pytest.mark.parametrize("level", ["strong", "complete"])
def test_every_commit_is_a_state_of_the_sources(tmp_path: Path, level: str) -> None:
    """Nearly everything in files and hardly any row allowed in memory, under concurrent writers: all is right, nothing
    stands still, and no file is left."""
    topology = opened(tmp_path, PROJECT.replace("consistency: complete", f"consistency: {level}"))
    folder = topology.project.warehouse / "staging" / SPILLED
    spill_at_once(topology)
    seen: list[Any] = []

    def enough(warehouse: MemoryWarehouse) -> bool:
        in_files = any(isinstance(m, Transaction) and spilled(m) for m in list(seen))
        return in_files and len(warehouse.commits) > 1

    warehouse, past, states = run(
        topology,
        tmp_path,
        seconds=1,
        commit_seconds=0.02,
        record=lambda m: seen.append(m) or encode(m),
        enough=enough,
        limits=Limits(rows=3),
    )
    assert enough(warehouse)
    assert list(folder.iterdir()) == []
    compare(topology, warehouse, past, states)


def test_a_run_that_ends_in_the_middle_leaves_no_file(tmp_path: Path) -> None:
    """A transaction that has come in and is not committed is read again by the next run: its files are not kept."""
    topology = opened(tmp_path, PROJECT)
    spill_at_once(topology)
    folder = topology.project.warehouse / "staging" / SPILLED
    start = {name: contents(topology, name)[0] for name in topology.sources}
    positions = {name: {s: start[s] for s in planned.view.sources} for name, planned in topology.views.items()}
    last, seen = CommitHeader(1, datetime.now(timezone.utc), positions), list[Any]()
    pipeline = Pipeline(topology, MemorySink(), last, through_spark=no_spark, record=seen.append)
    with closing(sqlite3.connect(tmp_path / "sales.db")) as connection, connection:
        connection.executemany("INSERT INTO orders VALUES (?, 1, 'new')", [(n,) for n in range(1000, 1100)])

    def step() -> RunEnd | None:
        if any(isinstance(message, Transaction) and spilled(message) for message in seen):
            assert list(folder.iterdir())
            raise RuntimeError("in the middle")
        return None

    end = pipeline.run(step)
    assert isinstance(end, Failure) and str(end.error) == "in the middle"
    assert list(folder.iterdir()) == []
