"""Rebuilds every committed state from the warehouse on disk, as a stranger could: without a JVM and without Strobe.

Only the stored format is used. A view begins as the table version that `definitions` names for the commit that brought
it in; after that, the log says how every commit changed its rows. Where retention has dropped the beginning, the oldest
published commit takes its place. Tables are read by DataFusion, which understands deletion vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from strobe.algebra.bag import Bag
from strobe.errors import BrokenInvariant, UserError

_COPY = "_copy"
_OLDEST = "strobe.oldest"

_Row = dict[str, Any]


@dataclass(frozen=True)
class State:
    """What readers see at a commit: where every view stands in every source, and its rows."""

    commit: int
    committed_at: datetime
    positions: Mapping[str, Mapping[str, str]]
    views: Mapping[str, Bag]


def states(path: Path, *, tolerate: Collection[str] = ()) -> Iterator[State]:
    """Every retained committed state, in order.

    `BrokenInvariant` if the log takes away a row that is not there, unless `tolerate` names the view: the bags of such
    views may hold negative counts.
    """
    replay = _Replay(path)
    for commit, rows in groupby(replay.log(), key=lambda row: int(row["commit"])):
        yield replay.step(commit, list(rows), tolerate)


class _Replay:
    """The views as they are at one commit, moved on commit by commit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._views: dict[str, Bag] = {}
        self._definitions = _query(self._table("definitions"), "SELECT * FROM t ORDER BY from_commit")
        published = self._table("published")
        self._oldest = int(published.metadata().configuration.get(_OLDEST, "0"))
        self._published = _query(published, "SELECT * FROM t ORDER BY commit, published_at")

    def log(self) -> Iterator[_Row]:
        """The log's rows from the oldest readable commit on; headers first."""
        table = self._table("log")
        sql = f"SELECT * FROM t WHERE commit >= {self._oldest} ORDER BY commit, view NULLS FIRST"
        return iter(_query(table, sql))

    def step(self, commit: int, rows: list[_Row], tolerate: Collection[str]) -> State:
        headers = [row for row in rows if row["view"] is None]
        if len(headers) != 1:
            raise BrokenInvariant(f"commit {commit} has {len(headers)} headers, not one", where=str(self._path))
        positions = {view: dict(sources) for view, sources in headers[0]["positions"]}
        for view in positions:
            changes = [row for row in rows if row["view"] == view]
            self._views[view] = self._after(view, commit, changes, view in tolerate)
        self._views = {view: self._views[view] for view in positions}
        return State(commit, headers[0]["committed_at"], positions, dict(self._views))

    def _after(self, view: str, commit: int, changes: list[_Row], tolerate: bool) -> Bag:
        definition = self._definition(view, commit)
        if definition["from_commit"] == commit:
            before = self._stored(view, definition["version"])
        elif view not in self._views:
            return self._stored(view, self._published_version(view, commit))
        else:
            before = self._views[view]
        if not changes:
            return before
        field = f"{view}_g{definition['generation']}"
        names = before.attributes
        after = before
        for count, some in groupby(sorted(changes, key=_count), key=_count):
            after = after.add(Bag.of(names, (tuple(row["rows"][field][name] for name in names) for row in some), count))
        missing = next((row for row, count in after.items() if count < 0), None)
        if missing is not None and not tolerate:
            shown = dict(zip(after.attributes, missing, strict=True))
            raise BrokenInvariant(f"commit {commit} takes away a row that is not there: {shown}", where=f"view {view}")
        return after

    def _definition(self, view: str, commit: int) -> _Row:
        """The definition in force: the last one that began before or with the commit."""
        found = [d for d in self._definitions if d["view"] == view and d["from_commit"] <= commit]
        if not found:
            raise BrokenInvariant(f"commit {commit} has no definition in force", where=f"view {view}")
        return found[-1]

    def _published_version(self, view: str, commit: int) -> int:
        """Several rows for one commit hold the same rows; the newest is sure to be there still."""
        found = [dict(row["views"]) for row in self._published if row["commit"] == commit]
        if not found or view not in found[-1]:
            raise BrokenInvariant(f"commit {commit} is the oldest and was not published", where=f"view {view}")
        return int(found[-1][view])

    def _stored(self, view: str, version: int) -> Bag:
        table = self._table(f"views/{view}", version)
        columns = [field.name for field in table.schema().fields if field.name != _COPY]
        rows = _query(table, "SELECT * FROM t")
        return Bag.of(columns, (tuple(row[column] for column in columns) for row in rows))

    def _table(self, name: str, version: int | None = None) -> DeltaTable:
        where = str(self._path / name)
        try:
            return DeltaTable(where, version=version)
        except (DeltaError, OSError, ValueError) as error:
            message = f"the table cannot be read: {str(error).splitlines()[0]}"
            raise UserError(message, where=where, fix="Is this the warehouse's folder?") from error


def _count(row: _Row) -> int:
    return int(row["count"])


def _query(table: DeltaTable, sql: str) -> list[_Row]:
    found = QueryBuilder().register("t", table).execute(sql)
    rows: list[_Row] = pa.table(found).to_pylist()
    return rows
