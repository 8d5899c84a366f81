"""What follows what, in the process that keeps a warehouse: tables, no threads, no clock."""

from __future__ import annotations

from enum import Enum
from typing import Any

from strobe.apply.states import VIEW
from strobe.errors import RelationLost, RowFailed, RowUnfit, SourceLost, ViewWrong
from strobe.pipeline import run_end
from strobe.pipeline.run_end import RunEnd
from strobe.pipeline.states import COMMITTER, MONITOR, Machine


class Phase(Enum):
    """What the coordinator is at."""

    OPENING = "Spark is started, the warehouse claimed, its last header read; the first time, all views are loaded"
    RUNNING = "one run after another keeps the views that can be kept, from the last header"
    CLAIMING = "an append may have happened: the warehouse is claimed again, as after a crash"
    ENDED = "the process ends, with the error of the last run if it had one"


class Opened:
    """The warehouse is claimed, and its last commit known."""


class Claimed:
    """It is so again."""


PHASES: Machine[Phase, type[RunEnd | Opened | Claimed]] = Machine(
    "the coordinator",
    Phase.OPENING,
    {
        (Phase.OPENING, Opened): Phase.RUNNING,
        (Phase.OPENING, run_end.SparkEnded): Phase.OPENING,
        (Phase.OPENING, run_end.Fenced): Phase.ENDED,
        (Phase.OPENING, run_end.Failed): Phase.ENDED,
        (Phase.RUNNING, run_end.Stopped): Phase.ENDED,
        (Phase.RUNNING, run_end.MembersChanged): Phase.RUNNING,
        (Phase.RUNNING, run_end.CutOver): Phase.RUNNING,
        (Phase.RUNNING, run_end.SourceLost): Phase.RUNNING,
        (Phase.RUNNING, run_end.AppendUnknown): Phase.CLAIMING,
        (Phase.RUNNING, run_end.SparkEnded): Phase.OPENING,
        (Phase.RUNNING, run_end.Fenced): Phase.ENDED,
        (Phase.RUNNING, run_end.Failed): Phase.ENDED,
        (Phase.CLAIMING, Claimed): Phase.RUNNING,
        (Phase.CLAIMING, run_end.AppendUnknown): Phase.CLAIMING,
        (Phase.CLAIMING, run_end.SparkEnded): Phase.OPENING,
        (Phase.CLAIMING, run_end.Fenced): Phase.ENDED,
        (Phase.CLAIMING, run_end.Failed): Phase.ENDED,
    },
)
"""By how a run, or an attempt to open or to claim the warehouse, has ended. Too many appends of unknown outcome, or
ends of Spark, one after another without a commit in between are `Failed`, and so is a source lost with no view left."""


class SourceState(Enum):
    """What is known of a source. That a source is lost is no state of its own: it may be lost to one view, and followed
    for another that was loaded since."""

    CONNECTING = "it is verified before views are kept from it"
    STREAMING = "it is read and asked"
    RETRYING = "it fails, and is tried again; its views wait"
    UNAVAILABLE = "it has been down for too long: the other views go on without its own"
    UNREACHED = "it was down before it could be asked what it offers: its views are not compiled"


class SourceEvent(Enum):
    BEGIN = "a run begins"
    VERIFIED = "verified"
    UNREACHABLE = "it cannot be reached"
    NOT_DESCRIBED = "it does not say what it offers"
    FAIL = "its stream or a question failed"
    SUCCEED = "whatever failed succeeds"
    DOWN_TOO_LONG = "ten seconds, and some view can go on without it"
    ANSWER = "a probe was answered"


SOURCE: Machine[SourceState, SourceEvent] = Machine(
    "a source",
    SourceState.CONNECTING,
    {
        (SourceState.CONNECTING, SourceEvent.VERIFIED): SourceState.STREAMING,
        (SourceState.CONNECTING, SourceEvent.UNREACHABLE): SourceState.UNAVAILABLE,
        (SourceState.CONNECTING, SourceEvent.NOT_DESCRIBED): SourceState.UNREACHED,
        (SourceState.CONNECTING, SourceEvent.BEGIN): SourceState.CONNECTING,
        (SourceState.STREAMING, SourceEvent.FAIL): SourceState.RETRYING,
        (SourceState.STREAMING, SourceEvent.BEGIN): SourceState.CONNECTING,
        (SourceState.RETRYING, SourceEvent.SUCCEED): SourceState.STREAMING,
        (SourceState.RETRYING, SourceEvent.DOWN_TOO_LONG): SourceState.UNAVAILABLE,
        (SourceState.RETRYING, SourceEvent.BEGIN): SourceState.CONNECTING,
        (SourceState.UNAVAILABLE, SourceEvent.ANSWER): SourceState.CONNECTING,
        (SourceState.UNAVAILABLE, SourceEvent.NOT_DESCRIBED): SourceState.UNREACHED,
        (SourceState.UNAVAILABLE, SourceEvent.BEGIN): SourceState.UNAVAILABLE,
        (SourceState.UNREACHED, SourceEvent.BEGIN): SourceState.CONNECTING,
    },
)


class Log(Enum):
    """Whether a source keeps log for a view that is stopped."""

    KEPT = "until it is dropped or loaded anew"
    KEPT_UNLESS_READ = "as long as the source is not read for others: it may be the wrong one, or come back"
    RELEASED = "not at all"


class Reason(Enum):
    """Why a view is stopped."""

    SOURCE_LOST = "a source is another one, or its log does not reach back"
    RELATION_LOST = "a table cannot be followed any more"
    LOG_RELEASED = "log that it needed was let go on purpose"
    NOT_COMPILED = "a source has no more of what it uses"
    VIEW_WRONG = "its changes contradict the rows that it holds"
    ROW_FAILED = "a row cannot be read or computed"

    @property
    def log(self) -> Log:
        if self in (Reason.NOT_COMPILED, Reason.ROW_FAILED):
            return Log.KEPT
        given_up = self in (Reason.RELATION_LOST, Reason.VIEW_WRONG)
        return Log.RELEASED if given_up else Log.KEPT_UNLESS_READ

    @property
    def rebuilt(self) -> bool:
        """Whether it is loaded anew without anybody's asking."""
        return self is Reason.LOG_RELEASED

    @property
    def heals(self) -> bool:
        """Whether it is loaded anew when the row for which it stopped is another one."""
        return self is Reason.ROW_FAILED

    @property
    def may_pass(self) -> bool:
        """Whether what was lost may be found again."""
        return self is Reason.SOURCE_LOST


def reason_of(error: SourceLost) -> Reason:
    """Why a view is stopped that was compiled."""
    if isinstance(error, (RowFailed, RowUnfit)):
        return Reason.ROW_FAILED
    if isinstance(error, ViewWrong):
        return Reason.VIEW_WRONG
    if isinstance(error, RelationLost):
        return Reason.RELATION_LOST
    return Reason.LOG_RELEASED if error.rebuild else Reason.SOURCE_LOST


MACHINES: tuple[Machine[Any, Any], ...] = (PHASES, SOURCE, VIEW, COMMITTER, MONITOR)
"""All that have states, the largest first."""
