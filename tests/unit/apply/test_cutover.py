"""An edit that is being applied: how far it has come, and what that means to the run. No Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from strobe.apply.cutover import Cutover
from strobe.apply.plan import ApplyPlan
from strobe.apply.states import ViewState
from strobe.errors import CommitUnknown, NotNow, StrobeError
from strobe.messages import CommitHeader

LAST = CommitHeader(7, datetime.now(timezone.utc), {"kept": {"x": "1"}, "gone": {"x": "1"}})


class Applied:
    """An edit that lets a view go, step by step."""

    def __init__(self, error: StrobeError | None = None) -> None:
        self.error, self.said = error, list[str]()
        self.closed = 0
        self.folding, self.taken_back = True, 0
        self.no_way_back: StrobeError | None = None
        self.definitions: dict[str, Any] = dict.fromkeys(("kept", "gone"), SimpleNamespace(generation=1))
        self.unpublished = False
        self.last: Callable[[CommitHeader, list[Any]], CommitHeader | None] | None = None
        project: Any = SimpleNamespace(directory=None)
        self.cutover = Cutover(project, lambda: None, lambda event: self.said.append(str(event)))  # type: ignore[arg-type,return-value]
        self.old: Any = SimpleNamespace(sources=SimpleNamespace(close=lambda: None))
        sources = SimpleNamespace(close=self._close, closed_on_error=lambda: _Nothing())
        self.fresh: Any = SimpleNamespace(sources=sources, views={}, project=project)
        committer = SimpleNamespace(last=LAST, end_with=self._end_with)
        pipeline: Any = SimpleNamespace(committer=committer, barrier=SimpleNamespace(resume=lambda: None))
        edit = ApplyPlan(drop=("gone",), keep=("kept",))
        self.steps: Iterator[None] = self.cutover.carry_out(
            self.warehouse, pipeline, None, lambda: self.fresh, lambda *_: edit
        )

    @property
    def warehouse(self) -> Any:
        return self

    def _close(self) -> None:
        self.closed += 1

    def _end_with(self, final: Any) -> None:
        self.last = final

    def cut_over(self, _loaded: object, commit: Any, *_: object, **__: object) -> CommitHeader:
        if self.error is not None:
            raise self.error
        del self.definitions["gone"]
        return commit.header  # type: ignore[no-any-return]

    def take_back(self) -> None:
        self.taken_back += 1
        if self.no_way_back is not None:
            raise self.no_way_back

    def until(self, state: ViewState) -> None:
        """Go on to this state."""
        while self.cutover.change is None or self.cutover.change.state is not state:
            next(self.steps)

    def commit(self) -> CommitHeader | None:
        assert self.last is not None
        return self.last(LAST, [])

    @property
    def now(self) -> tuple[bool, bool, bool]:
        return self.cutover.near, self.cutover.ready, self.cutover.over


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_how_far_an_edit_has_come() -> None:
    """Nothing that takes long is begun once it is near; it cannot be given up once it is ready; then the run ends."""
    applied = Applied()
    assert applied.now == (False, False, False)
    applied.until(ViewState.MEETING)
    assert applied.now == (True, False, False)
    next(applied.steps)
    assert applied.last is None, "what takes long goes on"
    applied.folding = False
    next(applied.steps)
    assert applied.now == (True, True, False)
    applied.cutover.abandon()
    assert applied.cutover.change is not None, "too late"
    header = applied.commit()
    assert header is not None and header.positions.keys() == {"kept"} and applied.now == (True, True, True)
    assert list(applied.steps) == []
    assert applied.cutover.joined(applied.warehouse, applied.old) is applied.fresh
    assert applied.cutover.change is None and not applied.taken_back


@pytest.mark.parametrize("error", [NotNow("not at the moment"), CommitUnknown("it may have happened")])
def test_an_edit_whose_commit_fails(error: StrobeError) -> None:
    """If nothing was committed the run ends, and all is as it was; if that is not known, the run ends with the error,
    and the header says."""
    applied = Applied(error)
    applied.folding = False
    applied.until(ViewState.CUTTING_OVER)
    if isinstance(error, NotNow):
        assert applied.commit() is None and applied.now == (True, True, True)
    else:
        with pytest.raises(CommitUnknown):
            applied.commit()
        assert applied.now == (True, True, False)
    assert applied.cutover.joined(applied.warehouse, applied.old) is applied.old
    assert applied.taken_back == applied.closed == 1


def test_an_edit_that_is_given_up() -> None:
    """The run ends before all stand at one vector."""
    applied = Applied()
    applied.until(ViewState.MEETING)
    applied.cutover.abandon()
    assert applied.cutover.change is None and applied.closed == 1 and applied.now == (False, False, False)
    assert applied.cutover.joined(applied.warehouse, applied.old) is applied.old


def test_sources_are_closed_though_the_tables_cannot_be_taken_back() -> None:
    """If Spark has ended the process goes on, and nobody would have them any more."""
    applied = Applied(NotNow("not at the moment"))
    applied.folding = False
    applied.until(ViewState.CUTTING_OVER)
    applied.commit()
    applied.no_way_back = CommitUnknown("the disk is full")
    with pytest.raises(CommitUnknown):
        applied.cutover.joined(applied.warehouse, applied.old)
    assert applied.closed == 1 and applied.cutover.joined(applied.warehouse, applied.old) is applied.old
