"""What `strobe algorithms` reports: what each algorithm reaches, needs and costs."""

from __future__ import annotations

from strobe.managers.registry import ALGORITHMS
from strobe.report.document import Document


def algorithms() -> Document:
    """The public document."""
    listed = [
        {
            "name": a.name,
            "reaches": a.level,
            "scenarios": dict(a.reaches),
            "needs": a.needs,
            "costs": a.costs,
            "origin": a.origin,
        }
        for a in ALGORITHMS.values()
    ]
    return {"algorithms": listed}
