"""How far views are verified: what a round of the audit makes of it, and what outlives the process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strobe.messages import CommitHeader
from strobe.warehouse.control import verified
from strobe.warehouse.control.store import ControlStore
from strobe.warehouse.control.verified import Round, Verified
from strobe.warehouse.records import Definition

LOADED = Definition("v", 2, "SELECT 1", "a INT", (), 10, None, 0)


def test_a_view_is_verified_further_when_all_parts_were_right() -> None:
    """Through the commit at which the round began, and not before the last part; a gap leaves the mark where it was."""
    known = Verified.as_loaded(LOADED, 100.0)
    assert (known.commit, known.round) == (10, None)
    known = replace(known, round=Round(17, 200.0, 3))
    marks = []
    for _ in range(3):
        known = known.checked()
        marks.append((known.commit, known.round and known.round.next))
    assert marks == [(10, 1), (10, 2), (17, None)]
    assert known.at == 200.0
    gap = replace(known, round=Round(25, 300.0, 2, 0, "too many rows")).checked()
    assert gap.problem == "too many rows"
    after = gap.checked()
    assert (after.commit, after.at, after.round, after.problem) == (17, 300.0, None, "too many rows")
    again = replace(after, round=Round(30, 400.0, 1)).checked()
    assert (again.commit, again.problem) == (30, "")


def test_it_is_known_of_a_generation_at_commits_up_to_the_mark() -> None:
    known = Verified(2, 17, 0.0)
    assert known.covers("v", CommitHeader(17, generations={"v": 2}))
    assert not known.covers("v", CommitHeader(18, generations={"v": 2}))
    assert not known.covers("v", CommitHeader(9, generations={"v": 1}))


def test_it_outlives_the_process(tmp_path: Path) -> None:
    """For the generation that it was said of; a round goes on where it was."""
    store = ControlStore(tmp_path)
    known = {"v": Verified(2, 17, 5.5, Round(20, 6.5, 9, 4, "gap"), "why"), "w": Verified(1, 3, 0.0)}
    verified.write(store, known)
    other = replace(LOADED, view="w", generation=2)
    assert verified.read(store, {"v": LOADED, "w": other}) == {"v": known["v"]}


@pytest.mark.parametrize("damaged", [[], {"generation": 2}, {"generation": 2, "commit": "x", "at": 0}, None])
def test_what_cannot_be_read_is_not_known(tmp_path: Path, damaged: object) -> None:
    """Then the view counts as verified as it was loaded."""
    store = ControlStore(tmp_path)
    store.put("verified.json", {"v": damaged})
    assert verified.read(store, {"v": LOADED}) == {}
