"""Decides for every committed state whether the sources were ever like that: SQLite recomputes, nothing is shared.

The sources as they were at a commit's positions are put into in-memory SQLite databases that are named like them, and
the view's own SQL runs there. It must mean the same to SQLite as to Spark: integers and text, inner joins, comparisons.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from strobe.algebra.bag import Bag
from strobe.auditor.compare import Difference
from strobe.auditor.replay import State, states
from strobe.demo.history import Archive
from strobe.errors import BrokenInvariant


class Oracle:
    """The sources in memory, brought to the positions asked for by what differs."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._held: dict[str, tuple[str, dict[str, Bag]]] = {}
        self._answers: dict[str, tuple[Mapping[str, str], Bag]] = {}
        for source in archive.sources:
            self._connection.execute(f"ATTACH ':memory:' AS {source}")

    def recompute(self, sql: str, positions: Mapping[str, str]) -> Bag:
        """The rows that the SQL yields over the sources at these positions."""
        known = self._answers.get(sql)
        if known and known[0] == positions:
            return known[1]
        for source, position in positions.items():
            self._move(source, position)
        cursor = self._connection.execute(sql)
        found = Bag.of([column for column, *_ in cursor.description], cursor)
        self._answers[sql] = (dict(positions), found)
        return found

    def close(self) -> None:
        self._connection.close()

    def _move(self, source: str, position: str) -> None:
        at, held = self._held.get(source, ("", {}))
        if at == position:
            return
        wanted = self._archive.state_at(source, position)
        for table, rows in wanted.items():
            before = held.get(table)
            if before is None:
                columns = ", ".join(f'"{name}"' for name in rows.attributes)
                self._connection.execute(f'CREATE TABLE {source}."{table}" ({columns})')
            elif before is rows:
                continue
            self._change(f'{source}."{table}"', rows if before is None else rows.add(before.negate()))
        self._held[source] = (position, dict(wanted))

    def _change(self, table: str, change: Bag) -> None:
        places = ", ".join("?" * len(change.attributes))
        same = " AND ".join(f'"{name}" IS ?' for name in change.attributes)
        for row, count in change.items():
            if count > 0:
                self._connection.executemany(f"INSERT INTO {table} VALUES ({places})", [row] * count)
                continue
            doomed = f"SELECT rowid FROM {table} WHERE {same} LIMIT {-count}"
            gone = self._connection.execute(f"DELETE FROM {table} WHERE rowid IN ({doomed})", row)
            if gone.rowcount != -count:
                raise BrokenInvariant(f"the recorded history deletes {row} from {table}, where it is not")


@dataclass(frozen=True)
class Wrong:
    """A committed state that the sources were never in."""

    commit: int
    committed_at: datetime
    positions: Mapping[str, str]
    differences: tuple[Difference, ...]


@dataclass
class Verdict:
    """How a view's committed states compare with the sources' history."""

    states: int = 0
    wrong: int = 0
    first: Wrong | None = None
    last: Wrong | None = None
    """The last committed state, if that is wrong: an error that stayed."""
    positions: Mapping[str, str] = field(default_factory=dict)
    """Where the last state stands."""


def check_every_state(
    warehouse: Path, archive: Archive, views: Mapping[str, str], *, tolerate: Collection[str] = ()
) -> dict[str, Verdict]:
    """Compare every committed state of these views (name to SQL) with a recomputation at exactly its positions.

    Views in `tolerate` may take away rows that are not there: that is just another wrong state.
    """
    verdicts = {view: Verdict() for view in views}
    with closing(Oracle(archive)) as oracle:
        for state in states(warehouse, tolerate=tolerate):
            for view in views.keys() & state.views.keys():
                _judge(state, view, verdicts[view], archive, oracle.recompute(views[view], state.positions[view]))
    return verdicts


def _judge(state: State, view: str, verdict: Verdict, archive: Archive, truth: Bag) -> None:
    positions = state.positions[view]
    for source, before in verdict.positions.items():
        if archive.order(source, positions[source]) < archive.order(source, before):
            raise BrokenInvariant(
                f"commit {state.commit} goes back in source {source}, from {before} to {positions[source]}",
                where=f"view {view}",
            )
    verdict.positions = positions
    verdict.states += 1
    verdict.last = None
    if state.views[view] == truth:
        return
    verdict.wrong += 1
    verdict.last = Wrong(state.commit, state.committed_at, positions, _differences(state.views[view], truth))
    verdict.first = verdict.first or verdict.last


def _differences(found: Bag, truth: Bag) -> tuple[Difference, ...]:
    difference = found.add(truth.negate())
    return tuple(Difference(dict(zip(found.attributes, row, strict=True)), n) for row, n in difference.items())
