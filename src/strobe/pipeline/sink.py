"""What a run needs of the warehouse: a place to append to, which can be asked for what it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from strobe.algebra.relation import Relation
from strobe.algebra.view import View
from strobe.messages import Commit, CommitHeader, Lookup


class Sink(Protocol):
    def append(self, commits: Sequence[Commit]) -> CommitHeader:
        """Append commits, all or none; returns the last header. `CommitUnknown` if it may or may not have happened."""

    def copy(self, source: str, lookup: Lookup, types: Mapping[str, str]) -> tuple[Relation, str]:
        """Rows of a relation from the copy that is kept here, and the source's position that they are of."""

    def shown(self, view: View, lookup: Lookup) -> tuple[Relation, str]:
        """Rows of a relation that a view itself shows, and the source's position that they are of."""
