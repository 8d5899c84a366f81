"""Loads views: each source read once, in one snapshot, into staging; each view computed by Spark from the user's own
SQL.

The same recomputation serves the first load, a rebuild and an audit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strobe.algebra.schema import RelationSchema
from strobe.algebra.view import View, snapshot_name
from strobe.dataplane import staging
from strobe.errors import UserError
from strobe.messages import Position
from strobe.sources.base import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[str, int], None]
"""Is told (source, rows read so far)."""


@dataclass(frozen=True)
class Snapshot:
    """The sources as they were read, each in one state of its own."""

    staged: Mapping[str, staging.Staged]

    @property
    def positions(self) -> dict[str, Position]:
        return {source: staged.seen.through for source, staged in self.staged.items()}

    def compute(self, spark: SparkSession, view: View) -> DataFrame:
        """The view over this snapshot, by its own SQL."""
        from pyspark.errors import AnalysisException

        for relation in view.relations:
            rows = self.staged[relation.source].dataframe(relation)
            _whole(rows, relation).createOrReplaceTempView(snapshot_name(relation))
        try:
            return spark.sql(view.recompute_sql)
        except AnalysisException as error:
            raise UserError(
                f"Spark does not accept the view's SQL: {str(error).splitlines()[0]}",
                where=f"view {view.name}",
                fix="Change the SQL; types are Spark's, as `strobe explain` shows them.",
            ) from error


def _whole(rows: DataFrame, relation: RelationSchema) -> DataFrame:
    """All columns of the relation, as the SQL may name them; those that the view makes no use of are not read: NULL."""
    from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

    there = set(rows.columns)
    return rows.select(
        *(
            rows[f"`{c.name.replace('`', '``')}`"] if c.name in there else F.lit(None).cast(c.type).alias(c.name)
            for c in relation.columns
        )
    )


@contextmanager
def snapshot(
    spark: SparkSession,
    sources: Mapping[str, Source],
    views: Iterable[View],
    warehouse: Path,
    progress: Progress = lambda _source, _rows: None,
) -> Iterator[Snapshot]:
    """Read what these views use; the staged copies are gone afterwards."""
    wanted: dict[str, dict[str, tuple[RelationSchema, set[str]]]] = {}
    for view in views:
        for relation in view.relations:
            columns = wanted.setdefault(relation.source, {}).setdefault(relation.id, (relation, set()))[1]
            columns.update(view.columns_of(relation))
    staged: dict[str, staging.Staged] = {}
    try:
        for source, relations in wanted.items():
            chosen = [
                (relation, [c.name for c in relation.columns if c.name in columns])
                for relation, columns in relations.values()
            ]

            def report(rows: int, source: str = source) -> None:
                progress(source, rows)

            reader = sources[source].reader(at_a_position=True)
            staged[source] = staging.snapshot(spark, reader, chosen, warehouse / "staging", report)
        yield Snapshot(staged)
    finally:
        for one in staged.values():
            one.remove()
