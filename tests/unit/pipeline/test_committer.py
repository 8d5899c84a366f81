"""The committer: what becomes one commit, and what somebody else appends for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from datetime import datetime, timezone

import pytest
from committing import MemorySink, V
from patience import PATIENCE, eventually

from strobe.algebra.bag import Bag
from strobe.errors import BrokenInvariant, CommitUnknown, DefinitionChanged, NotNow
from strobe.messages import ActionList, Commit, CommitHeader, Position, WarehouseTransaction
from strobe.pipeline.committer import Committer
from strobe.pipeline.states import Committing

BEGIN = CommitHeader(1, datetime.now(timezone.utc), {"v": {"x": "0"}})


class Desk:
    """A committer over memory."""

    def __init__(self, kept: MemorySink | None = None) -> None:
        self.kept, self.failed = kept or MemorySink(), list[BaseException]()
        self.held: Collection[str] = ()
        """The sources of which nothing can be proven."""
        self.lost: Exception | None = None
        self.committer = Committer(
            self.kept, BEGIN, {"v": V}, {"v": {"x": Position("0", (0,))}}, prove=self.prove, fail=self.failed.append
        )

    def prove(self, _sources: Collection[str]) -> Collection[str]:
        if self.lost is not None:
            raise self.lost
        return self.held

    def submit(self, number: int, *, rows: bool = True) -> None:
        change = Bag(V.attributes, {(number, 1, 1, 1, 1): 1} if rows else {})
        actions = (ActionList("v", (number,), change),)
        position = {"x": Position(str(number), (number,))}
        self.committer.submit(WarehouseTransaction((number,), actions, position), wait=0, keep=False)

    def end(self) -> None:
        self.committer.stop()
        self.committer.join(PATIENCE)
        assert not self.failed


class Gate(MemorySink):
    """A sink whose appends last until they are let through, and fail if they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.open = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def append(self, commits: Sequence[Commit]) -> CommitHeader:
        self.entered.set()
        assert self.open.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return super().append(commits)


def at_the_gate() -> tuple[Desk, Gate]:
    """A committer whose first append is on its way."""
    gate = Gate()
    desk = Desk(gate)
    desk.committer.start()
    assert desk.committer.state is Committing.IDLE
    desk.submit(1)
    assert gate.entered.wait(PATIENCE)
    assert desk.committer.state is Committing.APPENDING
    return desk, gate


def places(commits: Sequence[Commit]) -> list[tuple[int, str]]:
    return [place(commit.header) for commit in commits]


def place(header: CommitHeader) -> tuple[int, str]:
    return header.number, header.positions["v"]["x"]


@pytest.mark.parametrize("moved", [False, True])
def test_what_is_waiting_is_appended_by_a_last_commit(moved: bool) -> None:
    """A commit that is not an ordinary one takes along what is waiting, also what only moves positions."""
    desk, given = Desk(), list[Sequence[Commit]]()

    def final(last: CommitHeader, before: Sequence[Commit]) -> CommitHeader:
        given.append(before)
        return CommitHeader(last.number + 1, last.committed_at, last.positions)

    desk.committer.hold()
    desk.committer.start()
    desk.submit(1)
    desk.submit(2, rows=False)
    desk.submit(3)
    if moved:
        desk.submit(4, rows=False)
    desk.committer.end_with(final)
    desk.committer.join(PATIENCE)
    desk.end()
    assert not desk.kept.commits
    waiting = [(2, "1"), (3, "3"), *([(4, "4")] if moved else [])]
    assert [places(commits) for commits in given] == [waiting]
    assert place(desk.committer.last) == (waiting[-1][0] + 1, waiting[-1][1])


def test_a_last_commit_that_could_not_be_made_leaves_all_as_it_was() -> None:
    """Then the last durable commit is the one before, and what was waiting is read again from there."""
    desk = Desk()
    desk.committer.hold()
    desk.committer.start()
    desk.submit(1)
    desk.committer.end_with(lambda _last, _before: None)
    desk.committer.join(PATIENCE)
    desk.end()
    assert desk.committer.last == BEGIN
    assert not desk.kept.commits


def test_nothing_is_appended_while_it_is_held() -> None:
    """What is handed over is not committed here; after `release` what came since is; a stop ends it, held or not."""
    desk = Desk()
    desk.committer.hold()
    desk.committer.start()
    desk.submit(1)
    time.sleep(0.2)  # it would be appended by now
    assert places(desk.committer.hand_over()) == [(2, "1")]
    assert not desk.committer.busy
    desk.submit(2)
    desk.end()
    assert places(desk.kept.commits) == [(3, "2")]


def test_a_hold_waits_for_the_append_that_is_on_its_way() -> None:
    """It is not held before that is durable; what came meanwhile is appended after `release`."""
    desk, gate = at_the_gate()
    desk.committer.hold()
    assert desk.committer.state is Committing.HOLDING and desk.committer.working
    with pytest.raises(BrokenInvariant, match="the committer is HOLDING"):
        desk.committer.hand_over()
    desk.submit(2)
    gate.open.set()
    eventually(lambda: desk.committer.state is Committing.HELD)
    assert places(gate.commits) == [(2, "1")] and desk.committer.busy and not desk.committer.working
    desk.committer.release()
    eventually(lambda: not desk.committer.busy)
    assert places(gate.commits) == [(2, "1"), (3, "2")] and desk.committer.state is Committing.IDLE
    desk.end()
    assert desk.committer.state is Committing.ENDED


def test_a_hold_that_is_released_before_it_has_begun() -> None:
    desk, gate = at_the_gate()
    desk.committer.hold()
    desk.committer.release()
    gate.open.set()
    eventually(lambda: desk.committer.state is Committing.IDLE)
    desk.end()


def test_a_hold_that_comes_when_the_run_is_over() -> None:
    """Whoever asks for it, in another thread, may not know yet that the run has failed."""
    desk, gate = at_the_gate()
    desk.committer.stop(everything=False)
    desk.committer.hold()
    gate.open.set()
    desk.end()
    assert places(gate.commits) == [(2, "1")] and desk.committer.state is Committing.ENDED


def test_a_last_commit_waits_for_the_append_that_is_on_its_way() -> None:
    """And nothing follows it, whatever is submitted, and though it is told to stop."""
    desk, gate = at_the_gate()
    begun, go_on = threading.Event(), threading.Event()

    def final(last: CommitHeader, before: Sequence[Commit]) -> CommitHeader:
        assert places(before) == [(3, "2")] and desk.committer.working
        begun.set()
        assert go_on.wait(PATIENCE)
        return CommitHeader(last.number + 1, last.committed_at, last.positions)

    desk.committer.end_with(final)
    desk.submit(2)
    assert desk.committer.state is Committing.ENDING and not begun.is_set()
    gate.open.set()
    assert begun.wait(PATIENCE)
    desk.submit(3)
    desk.committer.stop()
    assert desk.committer.state is Committing.CUTTING_OVER
    go_on.set()
    desk.end()
    assert places(gate.commits) == [(2, "1")] and place(desk.committer.last) == (4, "2")


def test_a_stop_comes_before_a_last_commit_that_has_not_begun() -> None:
    """What is waiting is appended as usual, and the last commit is not made."""
    desk, gate = at_the_gate()
    desk.committer.end_with(lambda _last, _before: pytest.fail("it was told to stop"))
    desk.submit(2)
    desk.committer.stop()
    gate.open.set()
    desk.end()
    assert places(gate.commits) == [(2, "1"), (3, "2")]


def test_it_may_be_held_while_it_drains() -> None:
    """Whoever holds the committer of another pipeline cannot know that this one has come to its end meanwhile."""
    desk, gate = at_the_gate()
    desk.committer.stop()
    assert desk.committer.state is Committing.DRAINING
    desk.committer.hold()
    gate.open.set()
    desk.end()
    desk.committer.hold()
    assert places(gate.commits) == [(2, "1")] and not desk.committer.working


@pytest.mark.parametrize("stopped", [False, True])
def test_an_append_that_fails_is_the_last(stopped: bool) -> None:
    """It may have happened: nothing more is appended, and whoever waits for it to end waits until the run does."""
    desk, gate = at_the_gate()
    gate.error = CommitUnknown("the append may have happened")
    desk.submit(2)
    if stopped:
        desk.committer.stop()
    gate.open.set()
    desk.committer.join(PATIENCE)
    assert desk.failed == [gate.error] and not gate.commits
    desk.submit(3)
    desk.committer.hold()
    desk.committer.release()
    desk.committer.stop()
    assert desk.committer.state is Committing.FAILED and desk.committer.working and desk.committer.last == BEGIN


def test_what_cannot_be_proven_waits() -> None:
    """It is appended as soon as it can be; at the end it is left out, because it will be read again."""
    desk = Desk()
    desk.held = {"x"}
    desk.committer.start()
    desk.submit(1)
    eventually(lambda: desk.committer.state is Committing.GATHERING)
    assert desk.committer.busy and not desk.kept.commits
    desk.held = ()
    eventually(lambda: places(desk.kept.commits) == [(2, "1")])
    desk.held = {"x"}
    desk.submit(2)
    desk.end()
    assert places(desk.kept.commits) == [(2, "1")] and place(desk.committer.last) == (2, "1")


def test_positions_are_shown_when_they_are_proven() -> None:
    """A position says that readers see everything up to there: of what the log does not report too."""
    desk = Desk()
    desk.held = {"x"}
    desk.committer.start()
    desk.submit(1, rows=False)
    threading.Event().wait(0.5)  # longer than it takes to look
    assert "x" not in desk.committer.visible
    desk.held = ()
    eventually(lambda: desk.committer.visible.get("x") == Position("1", (1,)))
    desk.end()


def test_a_definition_that_has_changed_ends_it_though_nothing_waits() -> None:
    """The views stop, and say so, when nobody changes a row afterwards too."""
    desk = Desk()
    desk.committer.start()
    desk.lost = DefinitionChanged("a partition was dropped", views=["v"])
    eventually(lambda: desk.failed == [desk.lost])
    eventually(lambda: desk.committer.state is Committing.FAILED)
    assert not desk.kept.commits


def test_a_last_commit_waits_for_its_proof() -> None:
    desk, made = Desk(), threading.Event()
    desk.held = {"x"}

    def final(last: CommitHeader, before: Sequence[Commit]) -> CommitHeader:
        made.set()
        return CommitHeader(last.number + 1, last.committed_at, last.positions)

    desk.committer.hold()
    desk.committer.start()
    desk.submit(1)
    with pytest.raises(NotNow, match="the tables of x cannot be proven now"):
        desk.committer.hand_over()
    desk.committer.end_with(final)
    threading.Event().wait(0.2)
    assert not made.is_set() and desk.committer.state is Committing.ENDING
    desk.held = ()
    assert made.wait(PATIENCE)
    desk.end()
