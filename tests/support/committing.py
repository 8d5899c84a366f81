"""A view with keys from two relations, and a sink that keeps what is appended, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strobe.algebra.relation import Relation
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.view import Equality, Occurrence, Output, View
from strobe.messages import Commit, CommitHeader, Lookup, Query, Seen


def relation(name: str, columns: str, key: str) -> RelationSchema:
    return RelationSchema("x", name, tuple(Column(n, "bigint") for n in columns.split()), tuple(key.split()))


R = Occurrence(0, "r", relation("r", "id a", "id"), ("id", "a"))
S = Occurrence(1, "s", relation("s", "m n b", "m n"), ("n", "m", "b"))
OUTPUTS = tuple(Output(f"o_{a}", a) for a in ("r0c0", "r0c1", "r1c1", "r1c0"))
V = View("v", "", (R, S), (Equality(0, "a", 1, "b"),), None, OUTPUTS, ("o_r0c0", "o_r1c1", "o_r1c0"))
KEYS = {0: ("r0c0",), 1: ("r1c1", "r1c0")}


class MemorySink:
    """Keeps what is appended, and has nothing to be asked for."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []

    def append(self, commits: Sequence[Commit]) -> CommitHeader:
        self.commits += commits
        return commits[-1].header

    def copy(self, source: str, lookup: Lookup, types: Mapping[str, str]) -> tuple[Relation, str]:
        raise NotImplementedError

    def shown(self, view: View, lookup: Lookup) -> tuple[Relation, str]:
        raise NotImplementedError


def no_spark(_source: object, _query: Query) -> tuple[tuple[Relation, ...], Seen]:
    raise NotImplementedError
