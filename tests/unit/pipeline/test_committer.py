"""The committer: what becomes one commit, and what somebody else appends for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone

import pytest
from committing import MemorySink, V
from patience import PATIENCE

from strobe.algebra.bag import Bag
from strobe.messages import ActionList, Commit, CommitHeader, Position, WarehouseTransaction
from strobe.pipeline.committer import Committer

BEGIN = CommitHeader(1, datetime.now(timezone.utc), {"v": {"x": "0"}})


class Desk:
    """A committer over memory."""

    def __init__(self) -> None:
        self.kept, self.failed = MemorySink(), list[BaseException]()
        self.committer = Committer(
            self.kept, BEGIN, {"v": V}, {"v": {"x": Position("0", (0,))}}, fail=self.failed.append
        )

    def submit(self, number: int, *, rows: bool = True) -> None:
        change = Bag(V.attributes, {(number, 1, 1, 1, 1): 1} if rows else {})
        actions = (ActionList("v", (number,), change),)
        position = {"x": Position(str(number), (number,))}
        self.committer.submit(WarehouseTransaction((number,), actions, position), wait=0, keep=False)

    def end(self) -> None:
        self.committer.stop()
        self.committer.join(PATIENCE)
        assert not self.failed


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
