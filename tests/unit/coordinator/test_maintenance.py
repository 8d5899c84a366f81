"""How far sources are told that they may discard their logs, and who looks at a log that nobody reads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from patience import eventually

from strobe.config.model import PUBLISH
from strobe.coordinator.maintenance import Maintenance
from strobe.coordinator.states import Reason
from strobe.coordinator.timing import USUAL, Timing
from strobe.errors import SourceLost, SourceUnavailable, UserError, ViewWrong
from strobe.messages import CommitHeader, Position, Seen
from strobe.sources.base import Kept
from strobe.warehouse.records import Definition

POSITIONS = {
    "a": {"read": "5", "waiting": "2"},
    "b": {"read": "3"},
    "c": {"read": "1", "lost": "4"},
    "d": {"read": "0", "other": "16/B"},
}
"""`a` waits for its source `waiting`, `b` is kept, `c` has been given up, `d` stands still: `other` is another."""


@dataclass
class FakeSource:
    """A log that ends at 9, and what was asked of it."""

    end: Position | None = field(default_factory=lambda: Position("9", (9,)))
    """Up to where everything is visible."""
    too_much: bool = False
    discarded: list[str] = field(default_factory=list)
    guarded: int = 0
    asked: int = 0

    def position(self, text: str) -> Position:
        if not text.isdigit():
            raise UserError("no position")
        return Position(text, (int(text),))

    def now(self) -> Position:
        raise AssertionError("what is in the log may not be visible yet")

    def reader(self, *, at_a_position: bool) -> FakeSource:
        assert at_a_position
        return self

    def open(self) -> Seen:
        if self.end is None:
            raise SourceUnavailable("it is down")
        return Seen(self.end)

    def close(self) -> None: ...

    def discard(self, through: Position) -> None:
        self.discarded.append(through.text)

    def kept(self) -> Kept | None:
        self.asked += 1
        if self.end is None:
            raise SourceUnavailable("it is down")
        return Kept(4096)

    def guard(self) -> None:
        self.guarded += 1
        if self.too_much:
            raise SourceLost("it keeps too much")


def made(
    sources: dict[str, FakeSource],
    failed: list[BaseException],
    timing: Timing = USUAL,
    definitions: dict[str, Definition] | None = None,
    publish: timedelta = PUBLISH,
) -> Maintenance:
    last = CommitHeader(1, datetime.now(timezone.utc), POSITIONS)
    pipeline: Any = SimpleNamespace(
        committer=SimpleNamespace(last=last),
        prover=SimpleNamespace(known={}),
        topology=SimpleNamespace(sources=sources, views={"read"}),
        vector={"read": Position("5", (5,))},
        problem=lambda _: None,
        fail=failed.append,
    )
    warehouse: Any = SimpleNamespace(empty=lambda: None, definitions=definitions or {})
    maintenance = Maintenance(pipeline, warehouse, lambda _: None, timing, publish)
    maintenance.stopped = {"c": Reason.RELATION_LOST, "d": Reason.SOURCE_LOST}
    return maintenance


def test_a_view_that_a_fold_has_found_wrong_ends_the_run() -> None:
    """So that the next one begins without it; one that stands still already does not."""
    failed = list[BaseException]()
    wrong = Definition("read", 1, "", "", (), 1, None, 0, wrong="commit 7 took away a row", right_to=6)
    maintenance = made({}, failed, definitions={"lost": replace(wrong, view="lost"), "read": wrong})
    maintenance.start()
    maintenance.join(60)
    assert [type(error) for error in failed] == [ViewWrong] and "view read: commit 7" in str(failed[0])


def test_logs_are_discarded_as_far_as_nobody_needs_them() -> None:
    """Of a source that is read, up to the view that is last of those that are kept; of one that nobody will read, all
    that can be seen; of one whose view waits, or may have been lost by mistake, nothing."""
    sources = {name: FakeSource() for name in ("read", "waiting", "lost", "other", "unused")}
    maintenance = made(sources, [], Timing(end_every=0.0))
    maintenance.discard()
    assert {name: source.discarded for name, source in sources.items()} == {
        "read": ["3"],
        "waiting": [],
        "lost": ["9"],
        "other": [],
        "unused": [],
    }
    assert {name: source.guarded for name, source in sources.items()} == {
        "read": 1,
        "waiting": 1,
        "lost": 1,
        "other": 1,
        "unused": 0,
    }
    sources["lost"].end = None
    maintenance.discard()
    assert sources["lost"].discarded == ["9"] and sources["read"].discarded == ["3"], "said once"
    maintenance.logs_needed = lambda: True
    maintenance.discard()
    assert sources["waiting"].guarded == 2, "views that are about to join need all of it"


def test_how_much_log_is_kept_is_remembered_while_a_source_is_down() -> None:
    """Only sources that are read are asked; of one that does not answer, what it last said stays."""
    failed: list[BaseException] = []
    source = FakeSource()
    maintenance = made({"read": source, "waiting": FakeSource()}, failed, Timing(measure_every=0.0, fold_idle=1e9))
    maintenance.start()
    eventually(lambda: maintenance.retained == {"read": 4096})
    source.end, maintenance.retained["read"] = None, 1024
    asked = source.asked
    eventually(lambda: source.asked > asked)
    maintenance.stop()
    maintenance.join(60)
    assert (failed, maintenance.retained) == ([], {"read": 1024})


@pytest.mark.parametrize(
    ("publish", "took", "ages", "due"),
    [
        (60.0, 0.0, (59.0, 0.0), False),
        (60.0, 0.0, (60.0, 0.0), True),
        (1.0, 0.0, (1.1, 0.0), True),
        (1.0, 2.0, (19.0, 0.0), False),
        (1.0, 2.0, (20.0, 0.0), True),
        (3600.0, 0.0, (6.0, 6.0), True),
        (3600.0, 0.0, (600.0, 1.0), False),
        (2.0, 9.0, (3.0, 3.0), True),
    ],
)
def test_when_the_view_tables_are_published(publish: float, took: float, ages: tuple[float, float], due: bool) -> None:
    """`publish` after the last fold while commits come, or ten times as long as folding takes; and soon after the last
    commit. `ages` are seconds since the last fold and since the last commit."""
    maintenance = made({}, [], publish=timedelta(seconds=publish))
    since_fold, since_commit = ages
    last = CommitHeader(2, datetime.now(timezone.utc) - timedelta(seconds=since_commit), POSITIONS)
    maintenance._pipeline.committer.last = last
    maintenance._fold_took, maintenance._folded, maintenance._folded_at = took, 1, 0.0
    assert maintenance._fold_due(since_fold) is due
    maintenance._folded = 2
    assert not maintenance._fold_due(since_fold), "there is nothing to publish"


def test_too_much_log_that_nobody_reads_is_told() -> None:
    """To the coordinator, which ends with it or lets the views be rebuilt."""
    failed: list[BaseException] = []
    maintenance = made({"read": FakeSource(), "waiting": FakeSource(too_much=True)}, failed, Timing(discard_every=0.0))
    maintenance.start()
    maintenance.join(60)
    assert [str(error) for error in failed] == ["it keeps too much"]
