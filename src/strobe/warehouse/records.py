"""What the log and the small tables say, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from strobe.messages import CommitHeader


@dataclass(frozen=True)
class Past:
    """A commit as `history` tells it."""

    header: CommitHeader
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
