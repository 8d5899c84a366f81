"""Through which commit each view is verified, and how far the audit in the background has come. Outlives a restart.

Nothing depends on it: without it views count as verified as they were loaded, and a round begins again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from strobe.messages import CommitHeader
from strobe.warehouse.control.documents import VERIFIED
from strobe.warehouse.control.store import ControlStore, Document
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
    known = {view: _read(document) for view, document in (store.get(_NAME, VERIFIED) or {}).items()}
    return {n: v for n, v in known.items() if n in definitions and v.generation == definitions[n].generation}


def _read(document: Document) -> Verified:
    own = {f.name: document[f.name] for f in fields(Verified)}
    if (round_ := document["round"]) is not None:
        own["round"] = Round(**{f.name: round_[f.name] for f in fields(Round)})
    return Verified(**own)


def write(store: ControlStore, known: Mapping[str, Verified]) -> None:
    store.put(_NAME, {view: asdict(verified) for view, verified in known.items()})
