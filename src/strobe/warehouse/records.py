"""A commit as it enters the log, the header that it leaves there, and what else the small tables say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from strobe.algebra.relation import Relation
from strobe.merge.removals import Removal

Positions = Mapping[str, Mapping[str, str]]
Times = Mapping[str, Mapping[str, datetime]]


@dataclass(frozen=True)
class Commit:
    """One atomic step of all views: where they stand afterwards, and how their rows change.

    First `removals` go from the views as the commit before left them; then `changes` are added. A view's change is over
    its raw attributes. Spark finds what goes, and selects, projects and nets what comes, in the plan of the append.
    """

    number: int
    committed_at: datetime
    positions: Positions
    as_of: Times = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Relation] = field(default_factory=dict)
    removals: Mapping[str, Removal] = field(default_factory=dict)


@dataclass(frozen=True)
class Header:
    """What the log says about a commit. `generations` names the definition of each view that is in force."""

    number: int
    committed_at: datetime
    epoch: int
    positions: Positions
    as_of: Times
    identity: Mapping[str, str]
    generations: Mapping[str, int]


@dataclass(frozen=True)
class Past:
    """A commit as `history` tells it."""

    header: Header
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Published:
    """Versions of the view tables that hold exactly the state after a commit."""

    commit: int
    published_at: datetime
    views: Mapping[str, int]


@dataclass(frozen=True)
class Definition:
    """A definition that a view has, or had. `version` is the version of its table to which the log's rows from
    `from_commit` on are added: that commit may carry what changed since the table was loaded."""

    view: str
    generation: int
    sql: str
    schema: str
    key: tuple[str, ...]
    from_commit: int
    to_commit: int | None
    version: int

    @property
    def base(self) -> int:
        """The last commit whose rows `version` needs no more."""
        return self.from_commit - 1
