"""Loads views: each source read once, in one snapshot, into staging; each view computed by Spark from the user's own
SQL.

The same recomputation serves the first load, a rebuild and an audit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from strobe.algebra.schema import RelationSchema
from strobe.algebra.view import View
from strobe.data.scratch import Scratch
from strobe.errors import SourceUnavailable
from strobe.messages import Commit, CommitHeader, Position
from strobe.retry import LOAD_SOURCE, Retry
from strobe.sources.base import Source
from strobe.spark import staging
from strobe.spark.failures import reading
from strobe.spark.recompute import recompute
from strobe.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from strobe.spark.session import DataFrame, SparkSession

T = TypeVar("T")

Progress = Callable[[str, int], None]
"""Is told (source, rows read so far)."""


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

    def compute(self, spark: SparkSession, view: View) -> DataFrame:
        """The view over this snapshot, by its own SQL."""
        return recompute(spark, view, {r.id: self.staged[r.source].dataframe(r) for r in view.relations})


@contextmanager
def snapshot(
    spark: SparkSession,
    sources: Mapping[str, Source],
    views: Iterable[View],
    scratch: Scratch,
    progress: Progress = lambda _source, _rows: None,
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
                with reading(source):
                    before = _fingerprints(sources[source], chosen)
                    reader = sources[source].reader(at_a_position=True)
                    found = staging.snapshot(spark, reader, chosen, scratch, partial(progress, source))
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


def load(
    spark: SparkSession,
    sources: Mapping[str, Source],
    warehouse: Warehouse,
    views: list[View],
    progress: Progress = lambda _source, _rows: None,
) -> CommitHeader:
    """Load the first views from one snapshot of each source, and bring them in with one commit."""
    with snapshot(spark, sources, views, Scratch(warehouse.layout.staging), progress) as taken:
        first = Commit(first_header(sources, views, taken))
        loaded = [warehouse.load(view, taken.compute(spark, view), taken.fingerprints_of(view)) for view in views]
        header = warehouse.cut_over(loaded, first)
        warehouse.fold()
        return header
