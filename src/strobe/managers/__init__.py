"""View managers: one algorithm, one module, a pure state machine for one view.

`ALGORITHMS` lists them all, with what each needs, what it guarantees and what it costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strobe.algebra.view import View
from strobe.errors import UserError
from strobe.managers.base import ViewManager
from strobe.managers.conventional import Conventional
from strobe.managers.sweep import Sweep

LEVELS = ("none", "convergent", "weak", "strong", "complete")
"""Consistency levels, each implying those before it."""


@dataclass(frozen=True)
class Algorithm:
    """An entry of the registry: what a user reads in `strobe algorithms`, and how a manager is made."""

    name: str
    reaches: str
    needs: str
    costs: str
    origin: str
    make: Callable[[View, str], ViewManager]


ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "sweep",
            reaches="complete",
            needs="old row images in the change stream; no keys",
            costs="one look-up for each other relation of the view (fewer where several live at one source), per "
            "batch and changed relation; at complete a batch is many updates, each with a state of its own",
            origin="beyond the papers; the telescoping sum over occurrences",
            make=lambda view, level: Sweep(view, complete=level == "complete"),
        ),
        Algorithm(
            "conventional",
            reaches="none",
            needs="nothing; it believes every answer",
            costs="as sweep at complete",
            origin="ECA paper, 5.1",
            make=lambda view, _level: Conventional(view),
        ),
    )
}


def choose(view: str, algorithm: str, level: str) -> tuple[Algorithm, str]:
    """The algorithm that will keep a view at a level, and the reason in words; `UserError` if it cannot."""
    if algorithm == "auto":
        return ALGORITHMS["sweep"], f"sweep keeps any view at {level}, without keys and without waiting for quiet times"
    if algorithm not in ALGORITHMS:
        raise UserError(
            f"there is no algorithm {algorithm!r}",
            where=f"view {view}",
            fix=f"Use auto or one of {', '.join(ALGORITHMS)} (`strobe algorithms` explains them).",
        )
    chosen = ALGORITHMS[algorithm]
    if chosen.reaches == "none":
        return chosen, f"{algorithm} guarantees nothing: it exists to show what goes wrong without compensation"
    if LEVELS.index(chosen.reaches) < LEVELS.index(level):
        raise UserError(
            f"{algorithm} reaches {chosen.reaches}, not {level}",
            where=f"view {view}",
            fix=f"Ask for consistency: {chosen.reaches}, or use algorithm: auto.",
        )
    return chosen, f"{algorithm} was asked for, and reaches {level}"
