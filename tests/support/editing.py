"""Editing a project while it is under load, and judging every committed state by the definitions at that commit."""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import Any

from shopfloor import Shop

from strobe.auditor.replay import states
from strobe.demo.oracle import Oracle
from strobe.warehouse import inspect, storage
from strobe.warehouse.layout import Layout


def edit(shop: Shop, text: str) -> None:
    (shop.folder / "strobe.yml").write_text(text)


def last(shop: Shop) -> Any:
    warehouse = shop.folder / "warehouse"
    return inspect.last_header(Layout(warehouse)) if storage.exists(Layout(warehouse).log) else None


def wait_for(shop: Shop, commit: int, patience: float = 300) -> None:
    end = time.monotonic() + patience
    while (header := last(shop)) is None or header.number < commit:
        assert time.monotonic() < end, f"there was no commit {commit}"
        time.sleep(0.2)


def ask(shop: Shop, *arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shop.strobe(*arguments, "--json", code=code, timeout=400))
    return found


def judged(shop: Shop) -> dict[str, list[int]]:
    """Every committed state of every view by its definition then; all views at one vector. The commits of each."""
    shop.archive.stop()
    warehouse = shop.folder / "warehouse"
    definitions = {(d.view, d.generation): d.sql for d in inspect.definitions(Layout(warehouse))}
    generations = {p.header.number: p.header.generations for p in inspect.history(Layout(warehouse), 1_000_000)}
    seen: dict[str, list[int]] = {}
    with closing(Oracle(shop.archive)) as oracle:
        for state in states(warehouse):
            assert state.views.keys() == generations[state.commit].keys()
            vector: dict[str, set[str]] = {}
            for view, rows in state.views.items():
                positions = state.positions[view]
                sql = definitions[view, generations[state.commit][view]]
                assert rows == oracle.recompute(sql, positions), f"{view} is wrong at commit {state.commit}"
                seen.setdefault(view, []).append(state.commit)
                for source, position in positions.items():
                    vector.setdefault(source, set()).add(position)
            assert all(len(found) == 1 for found in vector.values()), f"commit {state.commit} is torn: {vector}"
    return seen
