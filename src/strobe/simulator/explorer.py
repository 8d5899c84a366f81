"""All schedules of a laboratory, or a random one."""

from __future__ import annotations

import random
from collections.abc import Iterator

from strobe.simulator.lab import Event, Lab


def all_schedules(lab: Lab) -> Iterator[tuple[tuple[Event, ...], Lab]]:
    """Every schedule, with the laboratory at its end. The laboratory given is used up."""
    stack: list[tuple[tuple[Event, ...], Lab]] = [((), lab)]
    while stack:
        done, here = stack.pop()
        choices = here.choices()
        while len(choices) == 1:
            here.step(choices[0])
            done = (*done, choices[0])
            choices = here.choices()
        if not choices:
            yield done, here
            continue
        for event in choices[1:]:
            twin = here.fork()
            twin.step(event)
            stack.append(((*done, event), twin))
        here.step(choices[0])
        stack.append(((*done, choices[0]), here))


def random_schedule(lab: Lab, rng: random.Random) -> tuple[Event, ...]:
    """Run a laboratory to its end."""
    done: list[Event] = []
    while choices := lab.choices():
        event = rng.choice(choices)
        lab.step(event)
        done.append(event)
    return tuple(done)


def calm_schedule(lab: Lab) -> tuple[Event, ...]:
    """Run a laboratory to its end, in which no source does anything while anything is on its way."""
    done: list[Event] = []
    while choices := lab.choices():
        event = next((e for e in choices if e[0] != "execute"), choices[0])
        lab.step(event)
        done.append(event)
    return tuple(done)


def run(lab: Lab, schedule: tuple[Event, ...]) -> Lab:
    """Run a schedule, as far as it is possible; then whatever is left, in a fixed order."""
    for event in schedule:
        if event in lab.choices():
            lab.step(event)
    while choices := lab.choices():
        lab.step(choices[-1])
    return lab
