"""Which parts of global transactions a load lacks, as far as the logs of its sources tell."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

import pytest

from strobe.engine.halves import Half, halves
from strobe.messages import GlobalTransaction, Parts

NOW = datetime(2026, 11, 18, 12, tzinfo=timezone.utc)
WITHIN = 60.0


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def parts(seconds: Mapping[str, float], since: float | None, among: str = "xy") -> Parts:
    """By identifier, how long ago each part was committed; and how far back the log goes."""
    committed = {GlobalTransaction(name, frozenset(among)): ago(s) for name, s in seconds.items()}
    return Parts(committed, None if since is None else ago(since))


@pytest.mark.parametrize(
    ("since", "committed", "found"),
    [
        (600, 5, [Half("g", "y", True)]),
        (600, 500, [Half("g", "y", True)]),  # it goes back far enough, so the part never came
        (20, 5, [Half("g", "y", False)]),  # it may have been before the log begins, or is on its way
        (None, 5, [Half("g", "y", False)]),
        (20, 500, []),  # whatever is to come has come by now
        (None, 500, []),
    ],
)
def test_a_part_that_is_not_in_a_log(since: float | None, committed: float, found: list[Half]) -> None:
    """It is missing for certain, or perhaps, or was before the log begins."""
    loaded = {"x": parts({"g": committed}, 1_000), "y": parts({}, since)}
    assert list(halves(loaded, NOW, WITHIN)) == found


def test_what_is_whole_or_has_not_begun_lacks_nothing() -> None:
    """Parts at sources that are not loaded are nobody's concern."""
    both = {"x": parts({"g": 5}, 600), "y": parts({"g": 4}, 600)}
    assert list(halves(both, NOW, WITHIN)) == []
    assert list(halves({"x": parts({}, 600), "y": parts({}, 600)}, NOW, WITHIN)) == []
    elsewhere = {"x": parts({"g": 5}, 600, "xz"), "y": parts({}, 600)}
    assert list(halves(elsewhere, NOW, WITHIN)) == []


def test_each_source_that_lacks_a_part_is_named() -> None:
    loaded = {"x": parts({"g": 5, "h": 5}, 600, "xyz"), "y": parts({"h": 5}, 600, "xyz"), "z": parts({}, 600)}
    assert {(half.id, half.source) for half in halves(loaded, NOW, WITHIN)} == {("g", "y"), ("g", "z"), ("h", "z")}
