"""Views that are more than inner joins through the live pipeline, over SQLite databases under concurrent writers."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_live import compare, opened, run
from patience import Writing
from tree_views import DATABASES, PORTABLE, Writer, project

VIEWS = {name: sql for name, sql in PORTABLE.items() if name != "balances"}
"""Those that can be evaluated in memory: what it computes, only Spark does."""


def write(folder: Path, source: str, writing: Writing) -> None:
    def goes_on() -> bool:
        writing.rest(0.003)
        return writing.goes_on

    Writer(folder, source, 1).write(goes_on)


@pytest.mark.parametrize(("level", "seconds"), [("strong", 0.05), ("strong", 0.3), ("complete", 0.0)])
def test_every_commit_is_a_state_of_the_sources(tmp_path: Path, level: str, seconds: float) -> None:
    """Real threads, real databases, real interleavings, NULLs and duplicates: each commit equals a recomputation."""
    topology = opened(tmp_path, project(VIEWS, level), DATABASES)
    assert all(planned.view.tree is not None for planned in topology.views.values())
    warehouse, past, states = run(topology, tmp_path, seconds=1.0, commit_seconds=seconds, write=write)
    assert len(warehouse.commits) > 5
    compare(topology, warehouse, past, states)


def test_copies_answer_in_the_place_of_sources(tmp_path: Path) -> None:
    """Look-ups in copies at the warehouse, between which there are commits."""
    views = {name: VIEWS[name] for name in ("left_to_many", "everything", "latest")}
    text = project(views).replace("freshness", "algorithm: sc, freshness")
    topology = opened(tmp_path, text, DATABASES)
    warehouse, past, states = run(topology, tmp_path, seconds=1.0, commit_seconds=0.05, write=write)
    assert len(warehouse.commits) > 5
    compare(topology, warehouse, past, states)
