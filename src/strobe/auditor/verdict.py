"""The levels by name, how they imply each other, and what a judge says about a history."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strobe.errors import UserError

LEVELS = ("inconsistent", "convergent", "weak", "consistent", "strong", "complete")

_IMPLIES = {
    "unknown": {"inconsistent"},
    "inconsistent": {"inconsistent"},
    "convergent": {"inconsistent", "convergent"},
    "weak": {"inconsistent", "convergent", "weak"},
    "consistent": {"inconsistent", "consistent"},
    "strong": {"inconsistent", "convergent", "weak", "consistent", "strong"},
    "complete": set(LEVELS),
}
_COMPLETE_N = re.compile(r"complete-([1-9][0-9]*)")


def satisfies(level: str, wanted: str, complete_n: int | None = None) -> bool:
    """Whether a history of this level keeps what another level promises."""
    every = _COMPLETE_N.fullmatch(wanted)
    if every:
        return level == "complete" or (complete_n is not None and int(every[1]) % complete_n == 0)
    return wanted in _IMPLIES[level]


def check_level(wanted: str) -> str:
    if wanted not in LEVELS[1:] and not _COMPLETE_N.fullmatch(wanted):
        fix = f"There are {', '.join(LEVELS[1:])}, and complete-2, complete-3 and so on."
        raise UserError(f"there is no level {wanted!r}", fix=fix)
    return wanted


@dataclass(frozen=True)
class Finding:
    """What was found about one view, or about all together."""

    verdict: str
    """Against the wanted level: valid, invalid or unknown."""
    level: str
    """The level that held: one of LEVELS, or unknown."""
    because: str
    witness: tuple[str, ...] = ()
    complete_n: int | None = None
    """The smallest N > 1 with which a strong history is complete-N."""

    def document(self) -> dict[str, Any]:
        body = {"verdict": self.verdict, "level": self.level, "because": self.because}
        every = {"complete_n": self.complete_n} if self.complete_n else {}
        return {**body, "witness": list(self.witness) or None, **every}


@dataclass(frozen=True)
class Verdict:
    """The finding over all views together, and over each alone."""

    wanted: str
    together: Finding
    views: Mapping[str, Finding]

    @property
    def verdict(self) -> str:
        return self.together.verdict

    @property
    def level(self) -> str:
        return self.together.level

    def document(self) -> dict[str, Any]:
        """The public JSON document."""
        views = {view: finding.document() for view, finding in self.views.items()}
        return {**self.together.document(), "wanted": self.wanted, "views": views}
