"""Through which commit each view is verified, and how far the audit in the background has come. Outlives a restart.

Nothing depends on it: without it views count as verified as they were loaded, and a round begins again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from strobe.messages import CommitHeader
from strobe.warehouse.control.store import ControlStore
from strobe.warehouse.records import Definition

_NAME = "verified.json"


@dataclass(frozen=True)
class Round:
    """All parts of a view, one after another."""

    commit: int
    """The first part was checked at this commit, the others later: when all are, the view is verified through here."""
    began: float
    """When, in seconds since 1970."""
    parts: int
    next: int = 0
    """The part to be checked next."""
    gap: str = ""
    """Why a part that came before could not be checked."""


@dataclass(frozen=True)
class Verified:
    """What is known of a generation of a view."""

    generation: int
    commit: int
    """Every row of the view at this commit, and every row that it ought to have had, has been checked since."""
    at: float
    """When the last round began, in seconds since 1970."""
    round: Round | None = None
    problem: str = ""
    """Why no part of it can be checked."""

    @classmethod
    def as_loaded(cls, definition: Definition, now: float) -> Verified:
        """A load computes every row."""
        return cls(definition.generation, definition.from_commit, now)

    def covers(self, view: str, header: CommitHeader) -> bool:
        """Whether the view is verified as it was at a commit."""
        return header.generations.get(view) == self.generation and header.number <= self.commit

    def checked(self) -> Verified:
        """After the next part: at the end of a round without a gap the view is verified further."""
        if (now := self.round) is None:
            return self
        if now.next + 1 < now.parts:
            return replace(self, round=replace(now, next=now.next + 1), problem=now.gap)
        commit = self.commit if now.gap else now.commit
        return Verified(self.generation, commit, now.began, problem=now.gap)


def read(store: ControlStore, definitions: Mapping[str, Definition]) -> dict[str, Verified]:
    """Of these definitions in force; those of which nothing is known are left out."""
    found = {}
    for view, document in (store.get(_NAME) or {}).items():
        known = _read(document)
        if known is not None and view in definitions and known.generation == definitions[view].generation:
            found[view] = known
    return found


def _read(document: Any) -> Verified | None:
    try:
        return Verified(
            int(document["generation"]),
            int(document["commit"]),
            float(document["at"]),
            _read_round(document.get("round")),
            str(document.get("problem", "")),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _read_round(document: Any) -> Round | None:
    if document is None:
        return None
    numbers = int(document["commit"]), float(document["began"]), int(document["parts"]), int(document["next"])
    return Round(*numbers, gap=str(document.get("gap", "")))


def write(store: ControlStore, known: Mapping[str, Verified]) -> None:
    store.put(_NAME, {view: asdict(verified) for view, verified in known.items()})
