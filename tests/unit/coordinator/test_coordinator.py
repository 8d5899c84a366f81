"""What follows when a run has ended, with runs that end as they are told: no Spark, no sources."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memory_live import HEAD

from strobe import errors
from strobe.config.load import load_project
from strobe.coordinator.coordinator import Coordinator
from strobe.coordinator.run import Until
from strobe.coordinator.states import Claimed, Opened
from strobe.pipeline.run_end import AppendUnknown, CutOver, Failed, Fenced, MembersChanged, RunEnd, SourceLost, Stopped

UNKNOWN = AppendUnknown(errors.CommitUnknown("the append may have happened"))
LOST = SourceLost(errors.SourceLost("its log is gone", source="billing"))
FENCED = Fenced(errors.Fenced("another one has taken over"))
WRONG = errors.UserError("divided by zero")
GONE = errors.SparkLost("Spark's process ended")
CUT_SHORT = AppendUnknown(errors.CommitUnknown("Spark's process ended during an append"))


class Told(Coordinator):
    """A coordinator whose runs end as they are told; each commits something if `commits` says so."""

    def __init__(self, folder: Path, ends: Iterator[RunEnd | Exception], *, commits: bool) -> None:
        (folder / "strobe.yml").write_text(HEAD + '  orders: {sql: "SELECT id, state FROM sales.orders"}\n')
        super().__init__(load_project(folder), SimpleNamespace(tell=lambda _: None))  # type: ignore[arg-type]
        self._ends, self._commits = ends, commits
        self._stop: Any = SimpleNamespace(is_set=lambda: False, wait=self._waited)
        self._last: Any = SimpleNamespace(number=1)
        self._warehouse: Any = SimpleNamespace(fence=self._fence, epoch=1)
        self.lost: errors.SparkLost | None = None
        self.did: list[str] = []

    def _waited(self, seconds: float) -> bool:
        self.did.append(f"wait {seconds}")
        return False

    def _fence(self, **_: object) -> None:
        self.did.append("fence")

    def last_number(self) -> int:
        return self._last.number  # type: ignore[no-any-return]

    def _spark_lost(self, patience: float = 0.0) -> errors.SparkLost | None:
        return self.lost

    def _open(self, *_: object) -> Opened:
        self.did.append("open")
        self.lost = None
        return Opened()

    def _run(self, until: Until) -> RunEnd:
        self.did.append("run")
        self._last = SimpleNamespace(number=self._last.number + self._commits)
        end = next(self._ends)
        if end in (GONE, CUT_SHORT):
            self.lost = GONE
        if isinstance(end, Exception):
            raise end
        return end


def did(folder: Path, *ends: RunEnd | Exception, commits: bool = False, fails: Exception | None = None) -> list[str]:
    coordinator = Told(folder, iter(ends), commits=commits)
    with nullcontext() if fails is None else pytest.raises(type(fails)) as raised:
        coordinator.keep_views(Until(threading.Event(), idle=False, seconds=None), take_over=False)
    assert fails is None or raised.value is fails
    return coordinator.did


def test_what_follows(tmp_path: Path) -> None:
    """Another run from the last header, or the end, with the error if it is one."""
    assert did(tmp_path, MembersChanged(), CutOver(), LOST, Stopped()) == ["open", *["run"] * 4]
    assert did(tmp_path, FENCED, fails=FENCED.error) == ["open", "run"]
    assert did(tmp_path, Failed(WRONG), fails=WRONG) == did(tmp_path, WRONG, fails=WRONG) == ["open", "run"]


def test_appends_of_unknown_outcome(tmp_path: Path) -> None:
    """The warehouse is claimed again, a little later each time; the fifth without a commit in between ends it."""
    tried = [step for n in range(1, 5) for step in ("run", f"wait {n}.0", "fence")]
    assert did(tmp_path, *[UNKNOWN] * 5, fails=UNKNOWN.error) == ["open", *tried, "run"]
    committed = ["run", "wait 1.0", "fence"] * 7
    assert did(tmp_path, *[UNKNOWN] * 7, Stopped(), commits=True) == ["open", *committed, "run"]


def test_a_claim_of_unknown_outcome_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as one more append that may have happened."""
    claimed = iter([UNKNOWN, UNKNOWN, Claimed()])
    monkeypatch.setattr(Told, "_claim_again", lambda _self, _before: next(claimed))
    assert did(tmp_path, UNKNOWN, Stopped()) == ["open", "run", "run"]


def test_spark_ends(tmp_path: Path) -> None:
    """It is started again, and the warehouse opened; the third time without a commit in between ends it."""
    assert did(tmp_path, GONE, GONE, GONE, fails=GONE) == ["open", "run"] * 3
    assert did(tmp_path, *[GONE] * 4, Stopped(), commits=True) == ["open", "run"] * 5
    assert did(tmp_path, CUT_SHORT, Stopped()) == ["open", "run"] * 2, "it is claimed when it is opened"
