"""What is done in every turn of the loop, and why a run ends."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from strobe.coordinator.run import Run, Until
from strobe.pipeline.run_end import CutOver, MembersChanged, RunEnd, Stopped


class Turn:
    """A run of which everything can be set; `did` is what it does in a turn."""

    def __init__(self, *, idle: bool = False, seconds: float | None = None) -> None:
        self.did: list[str] = []
        self.now = 100.0
        self.stop, self.detached = threading.Event(), None
        self.cutover: Any = SimpleNamespace(over=False, ready=False)
        self.pipeline: Any = SimpleNamespace(
            tied=frozenset(), settled=True, idle=lambda: True, end_blocks=lambda: self.did.append("end blocks")
        )
        self.handler: Any = SimpleNamespace(
            look=lambda: self.did.append("look"), rebuild=lambda _: self.did.append("rebuild")
        )
        self.availability: Any = SimpleNamespace(
            down=set(), refused={}, ready=[], mind=lambda _: self.detached, tie=lambda _: frozenset({"as before"})
        )
        self.until = Until(self.stop, idle=idle, seconds=seconds, clock=self.clock)
        self.run = Run(
            self.pipeline,
            self.handler,
            self.availability,
            self.cutover,
            self.until,
            clock=self.clock,
            status=lambda: self.did.append("status"),
            release=lambda: self.did.append("release"),
        )

    def clock(self) -> float:
        """A second passes whenever somebody looks."""
        self.now += 1
        return self.now

    def ends(self, **set_: Any) -> RunEnd | None:
        """How the next turn ends, with these detached, or with anything of a pipeline or an edit set."""
        for name, value in set_.items():
            whose: Any = next((o for o in (self.cutover, self.pipeline, self.availability) if hasattr(o, name)), self)
            setattr(whose, name, value)
        self.did.clear()
        return self.run.step()


def test_a_turn_in_which_nothing_happens() -> None:
    """What is due is done, and the run goes on."""
    turn = Turn()
    assert turn.ends() is None
    assert turn.did == ["look", "release", "status", "rebuild"]


def test_why_a_run_ends() -> None:
    """Sources that came or went, or are tied; being told to stop counts more, a commit that brings views in most."""
    turn = Turn()
    gone = frozenset({"billing"})
    assert turn.ends(detached=gone) == MembersChanged(gone)
    assert "rebuild" not in turn.did
    assert turn.ends(tied=frozenset({"sales", "billing"})) == MembersChanged(frozenset({"as before"}))
    turn.stop.set()
    assert turn.ends() == Stopped()
    assert turn.ends(over=True) == CutOver() and turn.did == []


def test_nothing_but_a_stop_ends_a_run_whose_views_are_joining() -> None:
    """It ends with the commit that brings them in, and the next one starts with what has changed."""
    turn = Turn()
    assert turn.ends(ready=True, detached=frozenset({"billing"}), tied=frozenset({"sales"})) is None
    turn.stop.set()
    assert turn.ends() == Stopped()


def test_a_run_until_idle() -> None:
    """Idle for a moment, with no source that is waited for and no view that is still to be loaded anew."""
    turn = Turn(idle=True)
    turn.availability.ready = ["a view"]
    assert turn.ends(down={"billing"}) is turn.ends(down=set()) is turn.ends() is None
    turn.availability.ready, turn.availability.refused = [], {"v": "a table does not answer"}
    assert turn.ends() is turn.ends() is None
    turn.availability.refused = {}
    assert turn.ends() is None and turn.did[-1] == "end blocks", "it may be idle by accident"
    assert turn.ends() == Stopped()
    turn = Turn()
    assert turn.ends() is turn.ends() is None


def test_a_run_for_some_seconds() -> None:
    """They count from when views were kept first, not from the last run that began."""
    turn = Turn(seconds=60)
    assert turn.ends() is None
    turn.until.begin()
    turn.now += 50
    turn.until.begin()
    assert turn.ends() is None
    turn.now += 10
    assert turn.ends() == Stopped()
