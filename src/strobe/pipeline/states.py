"""States as data: a machine is an enum of states and one table, and anything that the table does not have is a mistake
of Strobe's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from strobe.errors import BrokenInvariant

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound="Enum | type")


@dataclass(frozen=True)
class Machine(Generic[State, Event]):
    """What becomes of each state at each event. An event is a member of an enum, or a class of values."""

    name: str
    begins: State
    table: Mapping[tuple[State, Event], State]

    def next(self, state: State, event: Event) -> State:
        try:
            return self.table[state, event]
        except KeyError:
            raise BrokenInvariant(f"{self.name} is {state.name} and cannot be told {_named(event)}") from None

    @property
    def ends(self) -> frozenset[State]:
        """States that nothing leads out of."""
        return frozenset(type(self.begins)) - {state for (state, _), after in self.table.items() if after is not state}

    def markdown(self) -> str:
        """The table for people, in the order in which it is written."""
        rows = [(state.name, _named(event), after.name) for (state, event), after in self.table.items()]
        return "\n".join(["| state | event | next |", "|---|---|---|", *(f"| {s} | {e} | {n} |" for s, e, n in rows)])


def _named(event: Enum | type) -> str:
    return event.__name__ if isinstance(event, type) else str(event.value)


class Committing(Enum):
    """What the committer is at."""

    IDLE = "no rows wait, positions perhaps"
    GATHERING = "transactions wait until they are due, or enough"
    APPENDING = "one append is on its way, and more may gather"
    HOLDING = "one append is on its way, the last until it is released"
    HELD = "nothing is appended, what comes gathers"
    HANDED_OVER = "what had gathered is appended by somebody else"
    ENDING = "no more ordinary appends: what waits goes with the last commit"
    CUTTING_OVER = "the last commit is on its way, with all that waited"
    DRAINING = "what waits is appended, however little, and then it ends"
    FAILED = "an append failed, or its outcome is not known: nothing more is appended"
    ENDED = "nothing more is appended"


class CommitterEvent(Enum):
    SUBMITTED = "rows submitted"
    DUE = "due, enough, or flushed"
    DURABLE = "durable"
    PUT_OFF = "nothing of it can be proven now"
    HOLD = "hold"
    RELEASE = "release"
    HAND_OVER = "hand over"
    END_WITH = "end with a last commit"
    BEGIN_LAST = "the last commit begins"
    STOP = "stop"
    DRAINED = "nothing is left"
    FAIL = "failed"


def _unmoved(states: Iterable[State], event: Event) -> dict[tuple[State, Event], State]:
    return {(state, event): state for state in states}


COMMITTER: Machine[Committing, CommitterEvent] = Machine(
    "the committer",
    Committing.IDLE,
    {
        (Committing.IDLE, CommitterEvent.SUBMITTED): Committing.GATHERING,
        (Committing.IDLE, CommitterEvent.DUE): Committing.APPENDING,
        (Committing.IDLE, CommitterEvent.HOLD): Committing.HELD,
        (Committing.IDLE, CommitterEvent.END_WITH): Committing.ENDING,
        (Committing.IDLE, CommitterEvent.STOP): Committing.DRAINING,
        (Committing.GATHERING, CommitterEvent.DUE): Committing.APPENDING,
        (Committing.GATHERING, CommitterEvent.HOLD): Committing.HELD,
        (Committing.GATHERING, CommitterEvent.END_WITH): Committing.ENDING,
        (Committing.GATHERING, CommitterEvent.STOP): Committing.DRAINING,
        (Committing.APPENDING, CommitterEvent.DURABLE): Committing.IDLE,
        (Committing.APPENDING, CommitterEvent.PUT_OFF): Committing.GATHERING,
        (Committing.APPENDING, CommitterEvent.HOLD): Committing.HOLDING,
        (Committing.APPENDING, CommitterEvent.END_WITH): Committing.ENDING,
        (Committing.APPENDING, CommitterEvent.STOP): Committing.DRAINING,
        (Committing.APPENDING, CommitterEvent.FAIL): Committing.FAILED,
        (Committing.HOLDING, CommitterEvent.DURABLE): Committing.HELD,
        (Committing.HOLDING, CommitterEvent.PUT_OFF): Committing.HELD,
        (Committing.HOLDING, CommitterEvent.RELEASE): Committing.APPENDING,
        (Committing.HOLDING, CommitterEvent.END_WITH): Committing.ENDING,
        (Committing.HOLDING, CommitterEvent.STOP): Committing.DRAINING,
        (Committing.HOLDING, CommitterEvent.FAIL): Committing.FAILED,
        (Committing.HELD, CommitterEvent.RELEASE): Committing.IDLE,
        (Committing.HELD, CommitterEvent.HAND_OVER): Committing.HANDED_OVER,
        (Committing.HELD, CommitterEvent.END_WITH): Committing.ENDING,
        (Committing.HELD, CommitterEvent.STOP): Committing.DRAINING,
        (Committing.HANDED_OVER, CommitterEvent.STOP): Committing.DRAINING,
        (Committing.ENDING, CommitterEvent.BEGIN_LAST): Committing.CUTTING_OVER,
        (Committing.ENDING, CommitterEvent.STOP): Committing.DRAINING,
        (Committing.ENDING, CommitterEvent.FAIL): Committing.FAILED,
        (Committing.CUTTING_OVER, CommitterEvent.DURABLE): Committing.ENDED,
        (Committing.CUTTING_OVER, CommitterEvent.FAIL): Committing.FAILED,
        (Committing.DRAINING, CommitterEvent.DRAINED): Committing.ENDED,
        (Committing.DRAINING, CommitterEvent.FAIL): Committing.FAILED,
        # A look at definitions, whatever else was asked for meanwhile.
        **dict.fromkeys(
            [
                (state, CommitterEvent.FAIL)
                for state in (Committing.IDLE, Committing.GATHERING, Committing.HELD, Committing.HANDED_OVER)
            ],
            Committing.FAILED,
        ),
        # An append that was on its way when something else was asked for.
        **_unmoved((Committing.ENDING, Committing.DRAINING), CommitterEvent.DURABLE),
        **_unmoved((Committing.ENDING, Committing.DRAINING), CommitterEvent.PUT_OFF),
        **_unmoved((Committing.DRAINING,), CommitterEvent.DUE),
        # Told by others, who cannot know that it makes no difference.
        **_unmoved(
            [s for s in Committing if s not in (Committing.IDLE, Committing.DRAINING)], CommitterEvent.SUBMITTED
        ),
        **_unmoved(
            (Committing.HOLDING, Committing.HELD, Committing.DRAINING, Committing.FAILED, Committing.ENDED),
            CommitterEvent.HOLD,
        ),
        **_unmoved(
            (Committing.IDLE, Committing.GATHERING, Committing.APPENDING, Committing.FAILED), CommitterEvent.RELEASE
        ),
        **_unmoved((Committing.FAILED,), CommitterEvent.END_WITH),
        **_unmoved(
            (Committing.CUTTING_OVER, Committing.DRAINING, Committing.FAILED, Committing.ENDED), CommitterEvent.STOP
        ),
    },
)


class Reading(Enum):
    """What a monitor is at."""

    READING = "transactions come in as they are committed"
    PAUSING = "nothing more is to come in; what is being read may"
    PAUSED = "nothing comes in"
    READING_TO = "transactions come in up to a position, or up to a part of a global transaction"
    AT = "it is there, and nothing comes in"


class MonitorEvent(Enum):
    PAUSE = "pause"
    RESTED = "nothing is being read"
    HOLD_AT = "go on, to a position or a part"
    REACHED = "it is reached"
    RESUME = "resume"


MONITOR: Machine[Reading, MonitorEvent] = Machine(
    "a monitor",
    Reading.READING,
    {
        (Reading.READING, MonitorEvent.PAUSE): Reading.PAUSING,
        (Reading.PAUSING, MonitorEvent.RESTED): Reading.PAUSED,
        (Reading.PAUSING, MonitorEvent.RESUME): Reading.READING,
        (Reading.PAUSED, MonitorEvent.HOLD_AT): Reading.READING_TO,
        (Reading.PAUSED, MonitorEvent.RESUME): Reading.READING,
        (Reading.READING_TO, MonitorEvent.REACHED): Reading.AT,
        (Reading.READING_TO, MonitorEvent.RESUME): Reading.READING,
        (Reading.AT, MonitorEvent.HOLD_AT): Reading.READING_TO,
        (Reading.AT, MonitorEvent.RESUME): Reading.READING,
        # Whoever pauses or resumes all sources does so however far it came.
        **_unmoved((Reading.PAUSING, Reading.PAUSED), MonitorEvent.PAUSE),
        **_unmoved((Reading.READING,), MonitorEvent.RESUME),
    },
)
