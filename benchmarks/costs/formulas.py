"""The cost formulas as they are printed (ECA paper, 6 and D), by curve: RV and ECA, each at its best and its worst."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

CASES = ("RV best", "RV worst", "ECA best", "ECA worst")
"""The curves of Figures 6.2 to 6.5."""

Curves = dict[str, float]


@dataclass(frozen=True)
class Parameters:
    """Table 1, with its default values."""

    C: int = 100
    """Tuples of a relation."""
    J: int = 4
    """Tuples that have a particular value of a join attribute."""
    S: int = 4
    """Bytes of the projected attributes."""
    sigma: float = 1 / 2
    """The part of all tuples that the condition selects."""
    K: int = 20
    """Tuples of a physical block."""

    @property
    def blocks(self) -> int:
        """The paper's I: I/Os to read a whole relation."""
        return math.ceil(self.C / self.K)

    @property
    def pairs(self) -> int:
        """The paper's I': pairs of blocks that hold a relation."""
        return math.ceil(self.C / (2 * self.K))


def messages_rv(k: int, s: int) -> int:
    return 2 * math.ceil(k / s)


def messages_eca(k: int) -> int:
    return 2 * k


def bytes_three(p: Parameters) -> Curves:
    """B of Example 6 as it is printed: three insertions, one into each relation."""
    view = p.S * p.sigma * p.J**2
    return dict(zip(CASES, (view * p.C, 3 * view * p.C, 3 * view, 3 * p.S * p.sigma * p.J * (p.J + 1)), strict=True))


def bytes_many(p: Parameters, k: float) -> Curves:
    """B of k updates."""
    view = p.S * p.sigma * p.J**2
    compensation = k * (k - 1) * p.S * p.sigma * p.J / 3
    return dict(zip(CASES, (view * p.C, k * view * p.C, k * view, k * view + compensation), strict=True))


def io_indexed(p: Parameters, k: float) -> Curves:
    """IO of k updates in Scenario 1, for J < I."""
    best = k * (p.J + 1)
    return dict(zip(CASES, (3 * p.blocks, 3 * k * p.blocks, best, best + k * (k - 1) / 3), strict=True))


def io_nested(p: Parameters, k: float) -> Curves:
    """IO of k updates in Scenario 2."""
    best = k * p.blocks * p.pairs
    return dict(zip(CASES, (p.blocks**3, k * p.blocks**3, best, best + p.blocks * k * (k - 1) / 3), strict=True))


def crossing(curves: Callable[[float], Curves], case: str, most: float = 1000) -> float:
    """The k at which a case of ECA costs as much as recomputing once."""
    low, high = 0.0, most
    for _ in range(100):
        middle = (low + high) / 2
        at = curves(middle)
        low, high = (middle, high) if at[case] < at["RV best"] else (low, middle)
    return high
