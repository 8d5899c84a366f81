"""How often the log of a Delta table is looked at, and how large a change is read without Spark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """In seconds."""

    poll: float = 0.1
    """Between two looks for the next commit."""


@dataclass(frozen=True)
class Limits:
    driver_rows: int = 100_000
    """A change of more rows than this is read by Spark, and stays there unless little of it is left net."""
