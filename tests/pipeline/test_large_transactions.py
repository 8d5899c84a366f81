"""Transactions that are too large to hold, through the live coordinator: nearly everything is in files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from large import spilled
from memory_live import PROJECT, MemoryWarehouse, compare, opened, run

from strobe.engine.recording import encode
from strobe.messages import Transaction
from strobe.pipeline.backpressure import Limits


@pytest.mark.parametrize("level", ["strong", "complete"])
def test_every_commit_is_a_state_of_the_sources(tmp_path: Path, level: str) -> None:
    """Nearly everything in files and hardly any row allowed in memory, under concurrent writers: all is right, nothing
    stands still, and no file is left."""
    topology = opened(tmp_path, PROJECT.replace("consistency: complete", f"consistency: {level}"))
    folders = set()
    for source in topology.sources.values():
        assert source.spill
        source.spill = replace(source.spill, rows=2)
        folders.add(source.spill.folder)
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
    assert all(list(folder.iterdir()) == [] for folder in folders)
    compare(topology, warehouse, past, states)
