"""Which algorithm keeps a view: the one that was asked for, if it can, or the best one for what there is (`auto`)."""

from __future__ import annotations

from dataclasses import dataclass

from strobe.algebra.view import View
from strobe.errors import UserError
from strobe.managers.registry import ALGORITHMS, LEVELS, Algorithm

AUTO = ("sweep", "g-strobe")
"""In this order: the first that can serve the view."""

EVERY = {"sweep", "rv", "strobe", "t-strobe", "g-strobe", "c-strobe", "c-tstrobe", "c-gstrobe"}
"""Algorithms for which `every` means something."""


@dataclass(frozen=True)
class Choice:
    """An algorithm, the reason in words, and what would have to change for a higher level."""

    algorithm: Algorithm
    because: str
    higher: str = ""


def choose(view: View, algorithm: str, level: str, every: int | None = None) -> Choice:
    """The algorithm that will keep a view at a level; `UserError` if none, or the one that was asked for, can."""
    where = f"view {view.name}"
    if algorithm == "auto":
        return _auto(view, level, where)
    if algorithm not in ALGORITHMS:
        raise UserError(
            f"there is no algorithm {algorithm!r}",
            where=where,
            fix=f"Use auto or one of {', '.join(ALGORITHMS)} (`strobe algorithms` explains them).",
        )
    chosen = ALGORITHMS[algorithm]
    refusal = chosen.refusal(view)
    if refusal is not None:
        raise UserError(f"{algorithm} cannot keep this view: {refusal}", where=where, fix="Or use algorithm: auto.")
    if every is not None and algorithm not in EVERY:
        raise UserError(
            f"`every` means nothing to {algorithm}", where=where, fix=f"It is for {', '.join(sorted(EVERY))}."
        )
    reached = _reached(chosen, every)
    if chosen.level == "none":
        return Choice(chosen, f"{algorithm} guarantees nothing: it exists to show what goes wrong without compensation")
    if LEVELS.index(reached) < LEVELS.index(level):
        raise UserError(
            f"{algorithm} reaches {reached}, not {level}",
            where=where,
            fix=f"Ask for consistency: {reached}, or use algorithm: auto.",
        )
    return Choice(chosen, f"{algorithm} was asked for, and reaches {reached}", _higher(view, reached))


def _reached(algorithm: Algorithm, every: int | None) -> str:
    return "strong" if every is not None and every > 1 and algorithm.level == "complete" else algorithm.level


def _auto(view: View, level: str, where: str) -> Choice:
    refused: list[str] = []
    for name in AUTO:
        algorithm = ALGORITHMS[name]
        refusal = algorithm.refusal(view)
        if refusal is None and LEVELS.index(algorithm.level) >= LEVELS.index(level):
            return Choice(algorithm, _reason(name, level, refused), _higher(view, algorithm.level))
        refused.append(f"{name}: {refusal or f'it reaches {algorithm.level}'}")
    possible = next((ALGORITHMS[name].level for name in AUTO if ALGORITHMS[name].refusal(view) is None), None)
    fix = "Change what one of the reasons in brackets names."
    raise UserError(
        f"no algorithm keeps this view at {level} ({'; '.join(refused)})",
        where=where,
        fix=fix if possible is None else f"{fix} Or ask for consistency: {possible}.",
    )


def _reason(name: str, level: str, refused: list[str]) -> str:
    if name == "sweep":
        return f"sweep keeps any view at {level}, without keys and without waiting for quiet times"
    return f"the view shows all keys, so that deletions are found in it; {refused[0]}"


def _higher(view: View, reached: str) -> str:
    """What would have to change for a higher level."""
    if reached == "complete":
        return ""
    refusal = ALGORITHMS["sweep"].refusal(view)
    return f"for complete, use sweep: {refusal}" if refusal else "for complete, use algorithm: auto (sweep)"
