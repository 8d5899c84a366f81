"""What the log and the small tables say, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from strobe.algebra.view import View
from strobe.errors import BrokenInvariant
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
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Of its relations, as they were last proven; none in a warehouse that is older than these."""
    wrong: str = ""
    """How its changes contradicted its rows, if they did: it is kept no more."""
    right_to: int = 0
    """Then readers see it as it was at this commit."""

    @classmethod
    def of(cls, generation: Generation, from_commit: int) -> Definition:
        """The row that says since when a generation is in force."""
        view, version = generation.view, generation.table_version
        schema, known = generation.schema, generation.fingerprints
        return cls(view.name, generation.number, view.sql, schema, view.key, from_commit, None, version, known)

    def shown_at(self, commit: int) -> int:
        """The commit as of which readers of another one see it."""
        return min(commit, self.right_to) if self.wrong else commit

    @property
    def base(self) -> int:
        """The last commit whose rows `version` needs no more."""
        return self.from_commit - 1

    def compiled(self, view: View) -> Generation:
        """The generation of which this row is, with its view as it was compiled from this very SQL."""
        if view.name != self.view or view.sql != self.sql:
            raise BrokenInvariant("this definition was never loaded", where=f"view {view.name}")
        return Generation(view, self.generation, self.schema, self.version, self.fingerprints)


@dataclass(frozen=True)
class Generation:
    """A view under one of its definitions: its columns, and the version of its table to which changes are added."""

    view: View
    number: int
    schema: str
    table_version: int
    fingerprints: Mapping[str, str] = field(default_factory=dict)
