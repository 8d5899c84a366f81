"""Checks every append, right after it, against the rows that the views held before: without Spark, and at a cost that
depends on what has changed, not on how large a view is.

A view's rows are its table, in which those that matter are looked up by Delta's statistics, and what the log has added
since, which is remembered here from one append to the next. Changes too large for that are left to the fold, which
checks every row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from strobe.algebra.bag import Bag, Row
from strobe.messages import Commit
from strobe.warehouse import contradictions, inspect, lookups
from strobe.warehouse.inspect import LogFile
from strobe.warehouse.layout import COPY, Layout
from strobe.warehouse.records import Definition

MOST = 1000
"""Rows that an append changes in a view, beyond which the fold checks them."""

REMEMBERED = 50_000
"""Rows that the log may have added to a view since its table was folded last."""

FOUND = 10_000
"""Rows that are looked through for those that were asked for."""


@dataclass
class _Since:
    """What the log has added to a view's table since a commit."""

    generation: int
    through: int
    changes: dict[int, Bag] = field(default_factory=dict)
    unknown_to: int = 0
    """Up to this commit there was too much to remember."""

    @property
    def rows(self) -> int:
        return sum(map(len, self.changes.values()))


class Ledger:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._log: DeltaTable | None = None
        self._since: dict[str, _Since] = {}

    def check(self, definitions: Collection[Definition], commits: Sequence[Commit]) -> Iterator[tuple[str, int, str]]:
        """The views whose changes in these commits, the last of the log, contradict what they held; for each the commit
        in which they do first, and how."""
        log = self._log = self._log or inspect.open_log(self._layout)
        log.update_incremental()
        files = inspect.log_files(log)
        first, last = commits[0].number, commits[-1].number
        for definition in definitions:
            try:
                found = self._check(definition, files, first, last)
            except (DeltaError, OSError, pa.ArrowException):  # the fold reads the same, and says what is wrong with it
                self._since.pop(definition.view, None)
                continue
            if found is not None:
                yield definition.view, *found

    def _check(self, definition: Definition, files: Sequence[LogFile], first: int, last: int) -> tuple[int, str] | None:
        table = inspect.open_table(self._layout.view(definition.view))
        if inspect.loaded_generation(table, definition.view) != definition.generation:
            return None  # it is being loaded again
        folded = inspect.folded_to(table, definition.view, definition.generation) or definition.base
        columns = tuple(f.name for f in table.schema().fields if f.name != COPY)
        since = self._followed(definition, columns, files, folded, last)
        new = [(commit, change) for commit, change in since.changes.items() if commit >= first]
        if folded >= first or since.unknown_to > folded or sum(len(change) for _, change in new) > MOST:
            return None
        wanted = _wanted(definition.key, columns, new)
        if not wanted:
            return None
        places = [columns.index(c) for c in definition.key or columns]
        before = _held(table, columns, tuple(definition.key or columns), wanted)
        if before is None:
            return None
        for commit, change in since.changes.items():
            if commit < first:
                before = before.add(
                    Bag(columns, {row: n for row, n in change.items() if tuple(row[i] for i in places) in wanted})
                )
        return contradictions.first(definition.key, before, new)

    def _followed(
        self, definition: Definition, columns: tuple[str, ...], files: Sequence[LogFile], folded: int, last: int
    ) -> _Since:
        """What the log has added since the table was folded, up to the last commit."""
        since = self._since.get(definition.view)
        if since is None or since.generation != definition.generation or since.through < folded:
            since = self._since[definition.view] = _Since(definition.generation, folded)
        since.changes = {commit: change for commit, change in since.changes.items() if commit > folded}
        for file in sorted((f for f in files if f.last > since.through), key=lambda f: f.first):
            if pq.read_metadata(file.location).num_rows + since.rows > REMEMBERED:
                since.unknown_to, since.changes = file.last, {}
            else:
                name, generation = definition.view, definition.generation
                read = lookups.logged(file.location, name, generation, since.through, last, columns)
                since.changes |= {commit: change for commit, change in read.items() if commit > since.unknown_to}
        since.through = last
        return since


def _wanted(key: Sequence[str], columns: Sequence[str], changes: Sequence[tuple[int, Bag]]) -> set[Row]:
    """The keys, or the rows where there is no key, of which the view's rows have to be known: without a key only what
    goes can be wrong."""
    places = [columns.index(c) for c in key or columns]
    return {tuple(row[i] for i in places) for _, change in changes for row, n in change.items() if key or n < 0}


def _held(table: DeltaTable, columns: tuple[str, ...], on: tuple[str, ...], wanted: set[Row]) -> Bag | None:
    """The rows of a table that are wanted, by these columns; None if too many would have to be looked through."""
    found = lookups.among(table, columns, on, wanted, FOUND)
    if found is None:
        return None
    places = [columns.index(c) for c in on]
    return Bag(columns, {row: n for row, n in found.items() if tuple(row[i] for i in places) in wanted})
