"""What managers say about the queries that they have open, for people to look at."""

from __future__ import annotations

from collections.abc import Sequence

from strobe.managers.base import Asked
from strobe.managers.evaluation import Evaluation
from strobe.messages import Lookup


def asked(evaluation: Evaluation, lookups: Sequence[Lookup], first: int = 0) -> tuple[Asked, ...]:
    """The terms of an evaluation that these look-ups were asked for."""
    return tuple(Asked(tuple(evaluation.known), rows, tuple(lookups), first) for rows in evaluation.terms.values())
