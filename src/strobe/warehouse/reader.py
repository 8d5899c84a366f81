"""Reads the views as they were at a commit, through Spark.

A snapshot pins one version of the log and one commit in it. A view is then its table at the newest published commit
that is not later, merged with the log's rows after it: the same for every view, so what is read together was true
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.errors import BrokenInvariant, UserError
from strobe.messages import CommitHeader
from strobe.spark.relation import COUNT
from strobe.warehouse import inspect, view_table
from strobe.warehouse.layout import COPY, Layout
from strobe.warehouse.records import Definition, Published

_SMALL = 100_000
"""Up to so many changed rows are sent to every executor instead of shuffling the table."""


class ViewsAtCommit:
    """All views at one commit. Cheap to make; reads nothing but metadata until a view is asked for."""

    def __init__(self, spark: SparkSession, layout: Layout, log: DeltaTable, header: CommitHeader) -> None:
        self._spark = spark
        self._layout = layout
        self._log = log
        self.header = header

    @property
    def commit(self) -> int:
        return self.header.number

    @property
    def views(self) -> tuple[str, ...]:
        return tuple(sorted(self.header.generations))

    def table(self, view: str) -> DataFrame:
        """A view's rows, copies repeated."""
        base = self._base(view)
        frame = self._spark.read.format("delta").option("versionAsOf", base.version).load(self._layout.view(view))
        through = base.definition.shown_at(self.commit)
        rows = inspect.changes(self._log, base.commit, through).get(view, (0, 0))[1]
        if not rows:
            return frame.drop(COPY)
        change = view_table.net(self._spark, self._log, base.definition, base.commit, through)
        return view_table.merged(frame, change, base.definition.key, rows <= _SMALL)

    def pieces(self, view: str) -> tuple[DataFrame, int]:
        """The rows of `table` in pieces with `_count`, to be summed by row; and how many bytes must be read for them.

        For whoever wants a few of them: nothing has to be merged before these are found.
        """
        base = self._base(view)
        rows, size = view_table.stored(self._spark, self._layout, base.definition, base.version)
        whole = rows.withColumn(COUNT, F.lit(1).cast("bigint"))
        through = base.definition.shown_at(self.commit)
        if base.commit >= through:
            return whole, size
        since, more = view_table.logged(self._spark, self._log, base.definition, base.commit, through)
        return whole.unionByName(since), size + more

    @cached_property
    def _definitions(self) -> Mapping[tuple[str, int], Definition]:
        return {(d.view, d.generation): d for d in inspect.definitions(self._layout)}

    @cached_property
    def _published(self) -> list[Published]:
        return inspect.published(self._layout)

    def _base(self, view: str) -> _Base:
        generation = self.header.generations.get(view)
        if generation is None:
            raise UserError(
                f"there is no view {view!r} at commit {self.commit}",
                where=f"view {view}",
                fix=f"The views at that commit are: {', '.join(self.views) or 'none'}.",
            )
        definition = self._definitions.get((view, generation))
        if definition is None:
            raise BrokenInvariant(f"generation {generation} has no definition", where=f"view {view}")
        for row in reversed(self._published):
            if definition.from_commit <= row.commit <= self.commit and view in row.views:
                return _Base(definition, row.commit, row.views[view])
        return _Base(definition, definition.base, definition.version)


@dataclass(frozen=True)
class _Base:
    """From where a view's rows are rebuilt: a version of its table, and the commit that this version holds."""

    definition: Definition
    commit: int
    version: int


def snapshot(spark: SparkSession, layout: Layout, at: int | None = None) -> ViewsAtCommit:
    """The views at a commit, or at the last one."""
    log = inspect.open_log(layout)
    header = inspect.last_header_of(log) if at is None else inspect.header_of(log, at)
    if header is None:
        raise _no_commit(layout, log, at)
    oldest = inspect.oldest_readable(layout, log)
    if header.number < oldest:
        raise _too_old(header.number, oldest)
    return ViewsAtCommit(spark, layout, log, header)


def commit_at(layout: Layout, time: datetime) -> int:
    """The newest commit that was there at a time."""
    log = inspect.open_log(layout)
    header, oldest = inspect.header_at(log, time), inspect.oldest_readable(layout, log)
    if header is None or header.number < oldest:
        first = inspect.header_of(log, oldest)
        since = f", which was at {first.committed_at:%Y-%m-%d %H:%M:%S} UTC" if first else ""
        raise UserError(
            f"nothing is kept from {time:%Y-%m-%d %H:%M:%S %Z}", fix=f"The oldest commit is {oldest}{since}."
        )
    return header.number


def _too_old(commit: int, oldest: int) -> UserError:
    return UserError(
        f"commit {commit} is no longer kept",
        fix=f"The oldest commit is {oldest}; `retention` in strobe.yml says how far back commits reach.",
    )


def _no_commit(layout: Layout, log: DeltaTable, at: int | None) -> UserError:
    last = inspect.last_header_of(log)
    if last is None:
        return UserError("nothing has been committed yet", where=str(layout.root), fix="Start `strobe run` first.")
    if at is not None and at <= last.number and at > 0:
        return _too_old(at, inspect.oldest_readable(layout, log))
    return UserError(f"there is no commit {at}", where=str(layout.root), fix=f"The last commit is {last.number}.")
