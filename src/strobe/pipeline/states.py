"""States as data: a machine is an enum of states and one table, and anything that the table does not have is a mistake
of Strobe's own."""

from __future__ import annotations

from collections.abc import Mapping
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
        return frozenset(type(self.begins)) - {state for state, _ in self.table}

    def markdown(self) -> str:
        """The table for people, in the order in which it is written."""
        rows = [(state.name, _named(event), after.name) for (state, event), after in self.table.items()]
        return "\n".join(["| state | event | next |", "|---|---|---|", *(f"| {s} | {e} | {n} |" for s, e, n in rows)])


def _named(event: Enum | type) -> str:
    return event.__name__ if isinstance(event, type) else str(event.value)
