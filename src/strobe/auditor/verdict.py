"""The levels by name, how they imply each other, and what a judge says about a history."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from strobe.errors import StrobeError, UserError

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


def block(wanted: str) -> int | None:
    """The N of complete-N; None for other levels."""
    match = _COMPLETE_N.fullmatch(wanted)
    return int(match[1]) if match else None


def satisfies(level: str, wanted: str, every: Collection[int] = ()) -> bool:
    """Whether a history of this level, and complete-N with these N, keeps what another level promises."""
    n = block(wanted)
    if n is not None:
        return level == "complete" or any(n % known == 0 for known in every)
    return wanted in _IMPLIES[level]


def check_level(wanted: str) -> str:
    if wanted not in LEVELS[1:] and block(wanted) is None:
        fix = f"There are {', '.join(LEVELS[1:])}, and complete-2, complete-3 and so on."
        raise UserError(f"there is no level {wanted!r}", fix=fix)
    return wanted


class CannotEvaluate(StrobeError):
    """What a view is cannot be told here, for the reason given: the verdict is then unknown."""

    code = "cannot_evaluate"


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
