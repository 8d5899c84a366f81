"""Figures 6.2 to 6.5 of the ECA paper: the printed curves, and beside them what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.costs.chart import Axis, Chart, Series
from benchmarks.costs.example6 import Example
from benchmarks.costs.formulas import CASES, Curves, Parameters, bytes_many, bytes_three, io_indexed, io_nested
from benchmarks.costs.study import measured

P = Parameters()
SIZES = (4, 8, 12, 20, 40, 60, 100, 200, 400)
"""C of Figure 6.2."""
MANY = (1, 3, 6, 12, 18, 24, 30, 45, 60, 75, 90, 105, 120)
"""k of Figure 6.3."""
FEW = tuple(range(1, 13))
"""k of Figures 6.4 and 6.5."""

COLOURS = dict(zip(CASES, ("#0072b2", "#56b4e9", "#009e73", "#d55e00"), strict=True))
MARKERS = dict(zip(CASES, ("square", "diamond", "circle", "triangle"), strict=True))
BETWEEN, RANDOM = "#8c6bb1", "#777777"

LAYOUTS = {"RV best": "apart", "RV worst": "apart", "ECA best": "apart", "ECA worst": "joining"}
"""The tuples for which each formula is meant."""


NOTE = "line: printed; mark: measured"


def figures() -> dict[str, Chart]:
    """By the name of its file."""
    few, many = [(k, Example(k=k)) for k in FEW], [(k, Example(k=k)) for k in MANY]
    return {
        "figure-6-2.svg": Chart(
            "Figure 6.2: bytes transferred versus C, three updates",
            Axis("C, tuples of a relation", 1, 400, log=True),
            Axis("B, bytes", 50, 50_000, log=True),
            _curves(lambda c: bytes_three(Parameters(C=int(c))), "paper_bytes", [(c, Example(C=c)) for c in SIZES]),
            NOTE,
        ),
        "figure-6-3.svg": Chart(
            "Figure 6.3: bytes transferred versus k, C = 100",
            Axis("k, updates", 0, 120),
            Axis("B, bytes", 20, 500_000, log=True),
            [
                *_curves(lambda k: bytes_many(P, k), "paper_bytes", many),
                Series(
                    "ECA, random schedules",
                    BETWEEN,
                    marks=[(k, cost("paper_bytes", "ECA random", replace(e, layout="joining"))) for k, e in many],
                    marker="cross",
                ),
                _as_they_come("paper_bytes", many),
            ],
            NOTE,
        ),
        "figure-6-3-raw.svg": Chart(
            "Figure 6.3 in raw rows, as Strobe's sources send them",
            Axis("k, updates", 0, 120),
            Axis("B, bytes", 100, 500_000, log=True),
            [
                Series(
                    case,
                    COLOURS[case],
                    marks=[(k, cost("bytes", case, replace(e, layout="random"))) for k, e in many],
                    marker=MARKERS[case],
                )
                for case in CASES
            ],
            "measured, random tuples",
        ),
        "figure-6-4.svg": Chart(
            "Figure 6.4: I/O versus k, Scenario 1 (indexes)",
            Axis("k, updates", 0, 12),
            Axis("IO", 0, 120),
            [*_curves(lambda k: io_indexed(P, k), "indexed", few), _as_they_come("indexed", few)],
            NOTE,
        ),
        "figure-6-5.svg": Chart(
            "Figure 6.5: I/O versus k, Scenario 2 (nested loops)",
            Axis("k, updates", 0, 12),
            Axis("IO", 10, 2000, log=True),
            [*_curves(lambda k: io_nested(P, k), "nested", few), _as_they_come("nested", few)],
            NOTE,
        ),
    }


def _curves(printed: Callable[[float], Curves], name: str, over: Sequence[tuple[int, Example]]) -> list[Series]:
    """The four curves as printed, and what was measured of the tuples for which each is meant."""
    at = [(x, printed(x)) for x in range(1, over[-1][0] + 1)]
    return [
        Series(
            case,
            COLOURS[case],
            [(x, curves[case]) for x, curves in at],
            [(x, cost(name, case, replace(example, layout=LAYOUTS[case]))) for x, example in over],
            MARKERS[case],
        )
        for case in CASES
    ]


def _as_they_come(name: str, over: Sequence[tuple[int, Example]]) -> Series:
    marks = [(k, cost(name, "ECA worst", replace(example, layout="random"))) for k, example in over]
    return Series("ECA worst, random tuples", RANDOM, marks=marks, marker="triangle")


def cost(name: str, case: str, example: Example) -> float:
    """A measured cost, by the name of its field."""
    found: float = getattr(measured(case, example), name)
    return found
