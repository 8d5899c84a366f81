"""How long a drop has to stay the same, how long its version stays, and how large a difference leaves Spark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """In seconds."""

    settle: float = 1.0
    """A drop that has looked the same for so long is complete."""
    poll: float = 0.2
    """Between two looks for drops."""
    grace: float = 3600.0
    """A version stays for so long after the next one, needed or not: it may still be being read."""


@dataclass(frozen=True)
class Limits:
    driver_rows: int = 100_000
    """A difference of more rows than this stays in Spark."""
