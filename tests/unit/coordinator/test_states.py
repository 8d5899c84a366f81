"""The tables of states: every state is reached, those that end end, and what a table does not have is refused."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from strobe.apply.states import VIEW, ViewState
from strobe.coordinator.coordinator import Failures
from strobe.coordinator.states import MACHINES, PHASES, Phase
from strobe.errors import BrokenInvariant
from strobe.pipeline.states import COMMITTER, Committing, Machine

ENDS: dict[Enum, set[Enum]] = {
    PHASES.begins: {Phase.ENDED},
    VIEW.begins: {ViewState.RETIRED},
    COMMITTER.begins: {Committing.FAILED, Committing.ENDED},
}
"""By the first state of a machine, those that nothing leads out of."""


@pytest.mark.parametrize("machine", MACHINES, ids=[machine.name for machine in MACHINES])
def test_every_table(machine: Machine[Any, Any]) -> None:
    reached, new = set[Enum](), {machine.begins}
    while new:
        reached |= new
        new = {after for (state, _), after in machine.table.items() if state in reached} - reached
    assert reached == set(type(machine.begins)), "and no state is there that nothing leads to"
    assert machine.ends == ENDS.get(machine.begins, set())
    events = {event for _, event in machine.table}
    for state in reached:
        for event in events:
            if (state, event) in machine.table:
                assert machine.next(state, event) is machine.table[state, event]
            else:
                with pytest.raises(BrokenInvariant, match=f"{machine.name} is {state.name}"):
                    machine.next(state, event)
    print(f"{machine.name}\n\n{machine.markdown()}\n")
    assert len(machine.markdown().splitlines()) == 2 + len(machine.table)


def test_failures_one_after_another() -> None:
    """A commit in between makes them a new beginning."""
    failures = Failures()
    assert [failures.after(commit) for commit in (7, 7, 7, 8, 8, 9)] == [1, 2, 3, 1, 2, 1]
