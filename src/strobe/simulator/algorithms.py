"""The algorithms that a scenario can name: those of the registry, and the specimens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strobe.algebra.view import View
from strobe.errors import UserError
from strobe.managers.registry import ALGORITHMS, LEVELS, keys
from strobe.simulator.lab import Lab, Plan
from strobe.simulator.specimens import SPECIMENS

_WRITTEN = re.compile(r"([\w-]+)(?:\s+at\s+(\w+))?(?:\s+every\s+([1-9]\d*))?")


@dataclass(frozen=True)
class Chosen:
    """An algorithm with its settings: `c-strobe every 2`, `sweep at strong`."""

    name: str
    level: str = ""
    every: int | None = None

    def lab(self, plan: Plan) -> Lab:
        """A laboratory in which it keeps the view of a plan."""
        if self.name in SPECIMENS:
            return Lab(plan, SPECIMENS[self.name].make(plan, self.every or 1))
        algorithm = ALGORITHMS[self.name]
        manager = algorithm.manager(plan.view, self.level or algorithm.level, self.every)
        return Lab(plan, manager, single=algorithm.single)

    def check(self, view: View, where: str = "") -> None:
        """`UserError` if it cannot work with a view at all. That it may go wrong is what laboratories are for."""
        keyed = SPECIMENS[self.name].keyed if self.name in SPECIMENS else keys in ALGORITHMS[self.name].lacks
        problem = keys(view) if keyed else None
        if problem:
            fix = "Mark the keys, as in r1(A key, B), and show them in the view."
            raise UserError(f"{self.name} cannot keep this view: {problem}", where=where, fix=fix)

    def __str__(self) -> str:
        at = f" at {self.level}" if self.level else ""
        return f"{self.name}{at}{f' every {self.every}' if self.every else ''}"


def choose(text: str, where: str = "") -> Chosen:
    """The algorithm that a line names."""
    found = _WRITTEN.fullmatch(text.strip())
    if found is None or found[1] not in (*ALGORITHMS, *SPECIMENS):
        fix = f"There are {', '.join([*ALGORITHMS, *SPECIMENS])}; some with `at strong` or `every 2` behind them."
        raise UserError(f"there is no algorithm {text.strip()!r}", where=where, fix=fix)
    if found[2] and found[2] not in LEVELS[1:]:
        raise UserError(f"there is no level {found[2]!r}", where=where, fix=f"There are {', '.join(LEVELS[1:])}.")
    return Chosen(found[1], found[2] or "", int(found[3]) if found[3] else None)
