"""Whole lives of a project on virtual time: crashes, sources that come and go, views that are added and dropped,
audits, groups that are tied. A seed that fails is named, with the command that shows it again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from strobe.engine import engine as engine_module
from strobe.engine.commits import Commits
from strobe.engine.engine import Effect, Engine, Group, ToViews
from strobe.integrator.integrator import Integrator
from strobe.merge.painting import Painting
from strobe.messages import Position
from strobe.simulator import lifetime
from strobe.simulator.lifetime import lived
from strobe.simulator.lifetime_checks import Wrong

CHUNK = 50
INCIDENTS = (
    *("crash", "goes away", "are detached", "are taken in again", "is loaded", "comes in", "is dropped", "audited"),
    *("ties", "lacks the part", "not now"),
)


@pytest.mark.parametrize("first", range(0, 4 * CHUNK, CHUNK))
def test_every_commit_is_right_whatever_befalls_the_coordinator(first: int) -> None:
    diaries = [line for seed in range(first, first + CHUNK) for line in lived(seed).diary]
    missing = [what for what in INCIDENTS[:-1] if not any(what in line for line in diaries)]
    assert not missing, "these seeds do not show all that can happen"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 6_000, 500))
def test_more_lives(first: int) -> None:
    for seed in range(first, first + 500):
        lived(seed)


def test_a_seed_is_the_same_life_everywhere() -> None:
    """In another process too, where sets have another order."""
    command = [sys.executable, "-m", lifetime.__name__, "5"]
    shown = [
        subprocess.run(command, env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}, capture_output=True)
        for seed in ("1", "2")
    ]
    assert [each.returncode for each in shown] == [0, 0]
    assert shown[0].stdout == shown[1].stdout != b""
    assert "\n".join(lived(5).diary).encode() in shown[0].stdout


# Bugs that are planted on purpose.


def _from_the_latest(positions: Iterable[Mapping[str, Position]]) -> dict[str, Position]:
    """A source is read from where the view is that reflects most of it."""
    found: dict[str, Position] = {}
    for vector in positions:
        for source, at in vector.items():
            found[source] = max(found.get(source, at), at, key=lambda p: p.order)
    return found


def _all_are_given_everything(self: Integrator, views: Any, _positions: Any, settled: Any) -> None:
    _integrator(self, views, {}, settled)


def _floors_forgotten(self: Commits, last: Any, views: Any, floors: Any, unguaranteed: Any = ()) -> None:
    lowest: dict[str, Position] = {}
    for vector in floors.values():
        for source, at in vector.items():
            lowest[source] = min(lowest.get(source, at), at, key=lambda p: p.order)
    _commits(self, last, views, {name: {s: lowest[s] for s in vector} for name, vector in floors.items()}, unguaranteed)


def _told_to_one(self: Engine, group: Group, ended: Any, now: float) -> list[Effect]:
    return [replace(e, views=e.views[:1]) if isinstance(e, ToViews) else e for e in _cut(self, group, ended, now)]


_integrator, _commits, _cut = Integrator.__init__, Commits.__init__, Engine._cut

BUGS: dict[str, tuple[Any, str, Any, str]] = {
    "read from the latest position": (engine_module, "_first", _from_the_latest, ", not Bag"),
    "a view that is ahead is given everything": (Integrator, "__init__", _all_are_given_everything, ", not Bag"),
    "floors forgotten": (Commits, "__init__", _floors_forgotten, "goes back"),
    "ahead forgotten": (Painting, "_all_ahead", lambda _: {}, ", not Bag"),
    "tie ignored": (Engine, "_torn", lambda *_: frozenset(), "tears"),
    "parts that were there at the start are waited for": (Integrator, "_unsettled", lambda _, p: p, "not at rest"),
    "a view comes in with half a global transaction": (lifetime, "halves", lambda *_: (), "by half"),
    "nothing stops at the vector": (Painting, "stop_at", lambda *_: None, "was brought to"),
    "a cut is told to one view of several": (Engine, "_cut", _told_to_one, "not at rest"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, wrong, complaint = BUGS[name]
    monkeypatch.setattr(owner, attribute, wrong)
    for seed in range(300):
        try:
            lived(seed)
        except Wrong as error:
            assert f"{lifetime.__name__} {seed}" in str(error)
            if complaint in str(error):
                return
    pytest.fail("nobody noticed")
