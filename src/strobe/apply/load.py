"""Loads views: each source read once, in one snapshot, into staging; each view computed by Spark from the user's own
SQL.

The same recomputation serves the first load, a rebuild and an audit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from strobe.algebra.schema import RelationSchema
from strobe.algebra.view import View
from strobe.apply.plan import rows_of
from strobe.data.scratch import Scratch
from strobe.errors import NotNow, RowFailed, SourceUnavailable
from strobe.messages import CommitHeader, Parts, Position
from strobe.retry import LOAD_SOURCE, Retry
from strobe.sources.base import Source, contained
from strobe.spark import staging
from strobe.spark.failures import FAILURES, reading
from strobe.spark.recompute import recompute
from strobe.warehouse.evaluation import data_error
from strobe.warehouse.failing_rows import failing_rows
from strobe.warehouse.records import Generation
from strobe.warehouse.warehouse import Load, Warehouse

if TYPE_CHECKING:
    from strobe.spark.session import DataFrame, SparkSession

T = TypeVar("T")

Progress = Callable[[str, int, int | None], None]
"""Is told (source, rows read so far, about how many there are: None where only reading them tells)."""


@dataclass(frozen=True)
class LoadSnapshot:
    """The sources as they were read, each in one state of its own."""

    staged: Mapping[str, staging.Staged]
    fingerprints: Mapping[str, str]
    """Of the relations, as they were all the time while they were read."""

    def fingerprints_of(self, view: View) -> dict[str, str]:
        return {relation.id: self.fingerprints[relation.id] for relation in view.relations}

    @property
    def positions(self) -> dict[str, Position]:
        return {source: staged.seen.through for source, staged in self.staged.items()}

    def parts(self, sources: Mapping[str, Source]) -> dict[str, Parts]:
        """Of global transactions, what each source's log has up to where it was read; a single source needs none."""
        if len(self.staged) < 2:
            return {}
        return {s: read_again(partial(sources[s].parts, p), Retry(LOAD_SOURCE)) for s, p in self.positions.items()}

    def compute(self, spark: SparkSession, view: View) -> DataFrame:
        """The view over this snapshot, by its own SQL."""
        return recompute(spark, view, {r.id: self.staged[r.source].dataframe(r) for r in view.relations})

    def load(self, spark: SparkSession, view: View) -> Load:
        """What is written to the view's table."""
        return view, self.compute(spark, view), self.fingerprints_of(view)

    def named(self, spark: SparkSession, view: View, error: RowFailed, stopped: Callable[[], bool]) -> RowFailed:
        """The same, with the row on which the view fails, if it can be found."""

        def compute(rows: Mapping[str, DataFrame]) -> DataFrame:
            if stopped():
                raise interrupted()
            return recompute(spark, view, rows)

        cause = error.__cause__
        if not isinstance(cause, Exception):
            return error
        rows = {r.id: self.staged[r.source].dataframe(r) for r in view.relations}
        try:
            found = failing_rows(view, rows, compute)
        except FAILURES:
            return error
        return data_error(view, cause, found) or error


@contextmanager
def snapshot(
    spark: SparkSession,
    sources: Mapping[str, Source],
    views: Iterable[View],
    scratch: Scratch,
    progress: Progress = lambda _source, _rows, _total: None,
) -> Iterator[LoadSnapshot]:
    """Read what these views use; the staged copies are gone afterwards."""
    wanted: dict[str, dict[str, tuple[RelationSchema, set[str]]]] = {}
    for view in views:
        for relation in view.relations:
            columns = wanted.setdefault(relation.source, {}).setdefault(relation.id, (relation, set()))[1]
            columns.update(view.columns_of(relation))
    staged: dict[str, staging.Staged] = {}
    fingerprints: dict[str, str] = {}
    try:
        for source, relations in wanted.items():
            chosen: staging.Chosen = [
                (relation, [c.name for c in relation.columns if c.name in columns])
                for relation, columns in relations.values()
            ]

            def read(source: str = source, chosen: staging.Chosen = chosen) -> tuple[staging.Staged, dict[str, str]]:
                with contained(source), reading(source):
                    before = _fingerprints(sources[source], chosen)
                    reader = sources[source].reader(at_a_position=True)
                    total = _about(sources[source], chosen)
                    told = partial(_told, progress, source, total)
                    found = staging.snapshot(spark, reader, chosen, scratch, told)
                    if _fingerprints(sources[source], chosen) == before:
                        return found, before
                    found.lease.release()
                    raise SourceUnavailable("its tables were changed while they were read", where=f"source {source}")

            staged[source], found = read_again(read, Retry(LOAD_SOURCE))
            fingerprints |= found
        yield LoadSnapshot(staged, fingerprints)
    finally:
        for one in staged.values():
            one.lease.release()


def _told(progress: Progress, source: str, total: int | None, rows: int) -> None:
    progress(source, rows, total)


def _about(source: Source, chosen: staging.Chosen) -> int | None:
    """How many rows these relations have, as the source estimates; None if it does not know of all."""
    counted = rows_of(source, [relation.name for relation, _ in chosen]).values()
    known = [rows for rows in counted if rows is not None]
    return sum(known) if len(known) == len(chosen) else None


def _fingerprints(source: Source, chosen: staging.Chosen) -> dict[str, str]:
    """Of these relations, by their ids; `SourceUnavailable` while one of them is being changed."""
    found = source.fingerprints([relation.name for relation, _ in chosen])
    for relation, _ in chosen:
        if relation.name not in found:
            message = f"the definition of table {relation.name} is being changed at this moment"
            raise SourceUnavailable(message, where=f"source {source.name}")
    return {relation.id: found[relation.name] for relation, _ in chosen}


def read_again(read: Callable[[], T], retry: Retry) -> T:
    """If reading a source breaks off, all of it is read again, in another snapshot."""
    while True:
        try:
            return read()
        except SourceUnavailable:
            if not retry.again():
                raise


def first_header(sources: Mapping[str, Source], views: Iterable[View], taken: LoadSnapshot) -> CommitHeader:
    """Of the commit that brings views in where none are."""
    vectors = {view.name: {s: taken.positions[s].text for s in view.sources} for view in views}
    found = CommitHeader(positions=vectors, identity={s: sources[s].identity() for s in taken.positions})
    return CommitHeader().cut_over(datetime.now(timezone.utc), found)


@dataclass(frozen=True)
class Loaded:
    """Views in the tables that they will have, which no header names yet."""

    generations: Sequence[Generation]
    at: CommitHeader
    """Where they stand."""
    parts: Mapping[str, Parts]
    """By source, those of global transactions that they have."""


def load(
    spark: SparkSession,
    sources: Mapping[str, Source],
    warehouse: Warehouse,
    views: Sequence[View],
    scratch: Scratch,
    progress: Progress = lambda _source, _rows, _total: None,
    stopped: Callable[[], bool] = lambda: False,
    written: Callable[[int], None] = lambda _views: None,
) -> Loaded:
    """Load views from one snapshot of each source. `written` is told how many views are."""

    def told(number: int) -> None:
        if stopped():
            raise interrupted()
        written(number)

    with snapshot(spark, sources, views, scratch, progress) as taken:
        told(0)
        try:
            generations = warehouse.load_all([partial(taken.load, spark, view) for view in views], told)
        except RowFailed as error:
            view = next(view for view in views if view.name == error.view)
            raise taken.named(spark, view, error, stopped) from error
        return Loaded(generations, first_header(sources, views, taken), taken.parts(sources))


def interrupted() -> NotNow:
    return NotNow("the load was interrupted", fix="Try again.")
