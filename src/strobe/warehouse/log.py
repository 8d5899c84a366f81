"""Appends commits to the log: one append, one Spark job, whatever views they touch.

Small changes are bags; they enter as one local Arrow table for each view, with the commit's number and the count beside
the attributes, and stay in one partition, so that netting needs no shuffle. Large ones are already in Spark, and join
the same plan as they are. Here, once, a view's condition and expressions are evaluated.

A view that rows are removed from by key, or altogether, is read as it was at the last commit, in the same plan, and
what goes is netted with what comes. A view without removals is not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.schema import quoted
from strobe.algebra.view import View
from strobe.data.arrow import canonical_ddl, to_arrow
from strobe.errors import BrokenInvariant, UserError
from strobe.merge.removals import Resolved, resolve
from strobe.messages import Commit, CommitHeader, Removal
from strobe.spark.relation import SparkRelation, local_data
from strobe.warehouse.layout import RANGE, Layout
from strobe.warehouse.layout import field as column
from strobe.warehouse.records import Generation
from strobe.warehouse.removal_plan import leaving

TOGETHER = 16 * 2**20
"""Up to so many bytes of a view are searched for removed rows by one task: no slower than two, and one job."""

Part = tuple[DataFrame, bool]
"""Rows of a view's changes, and whether they sit in one partition."""

Stored = Callable[[str], tuple[DataFrame, int]]
"""A view's rows at the last commit in pieces with `_count`, and how many bytes must be read for them."""

COMMIT, _COUNT = "_commit", "_count"
_TEXTS = pa.map_(pa.string(), pa.string())
_TIME = pa.timestamp("us", tz="UTC")
_HEADER = pa.schema(
    [
        ("commit", pa.int64()),
        ("committed_at", _TIME),
        ("epoch", pa.int64()),
        ("positions", pa.map_(pa.string(), _TEXTS)),
        ("as_of", pa.map_(pa.string(), pa.map_(pa.string(), _TIME))),
        ("identity", _TEXTS),
        ("view", pa.string()),
        ("count", pa.int64()),
        ("generations", pa.map_(pa.string(), pa.int64())),
    ]
)


@dataclass(frozen=True)
class Batch:
    """Commits with the same views in force. The last of them also brings what is `carried`: net changes of views'
    columns, with `_count`."""

    commits: Sequence[Commit]
    members: Mapping[str, Generation]
    generations: Mapping[str, int]
    carried: Mapping[str, Part] = field(default_factory=dict)

    def headers(self, epoch: int) -> list[CommitHeader]:
        """As they stand in the log, appended under an epoch."""
        return [replace(c.header, epoch=epoch, generations=dict(self.generations)) for c in self.commits]


def append(spark: SparkSession, layout: Layout, epoch: int, batches: Sequence[Batch], stored: Stored) -> None:
    """Append all commits, atomically."""
    frames, fields, all_small = [], [], True
    for batch in batches:
        parts = changed_rows(spark, batch.members, batch.commits, stored)
        last = F.lit(batch.commits[-1].number).cast("bigint")
        parts |= {name: (frame.withColumn(COMMIT, last), small) for name, (frame, small) in batch.carried.items()}
        frames.append(_headers(spark, batch.headers(epoch)))
        frames += [_data(frame, batch.members[name], epoch) for name, (frame, _) in parts.items()]
        fields += [column(name, batch.members[name].number) for name in parts]
        all_small = all_small and all(small for _, small in parts.values())
    whole = _union(frames, list(dict.fromkeys(fields)))
    if all_small:
        whole = whole.coalesce(1)
    whole = whole.withColumn("range", F.expr(f"commit div {RANGE}"))
    whole.write.format("delta").mode("append").save(layout.log)


def changed_rows(
    spark: SparkSession, members: Mapping[str, Generation], commits: Sequence[Commit], stored: Stored
) -> dict[str, Part]:
    """For each changed view its net output rows by commit."""
    changes: dict[str, dict[int, Relation]] = {}
    removals: dict[str, dict[int, Removal]] = {}
    for commit in commits:
        for name, relation in commit.changes.items():
            if not relation.known_empty:
                changes.setdefault(name, {})[commit.number] = relation
        for name, removal in commit.removals.items():
            removals.setdefault(name, {})[commit.number] = removal
    found = {}
    for name in dict.fromkeys([*changes, *removals]):
        if name not in members:
            raise BrokenInvariant("a change of a view that takes part in no commit", where=f"view {name}")
        view = members[name].view
        if name in removals:
            resolved = resolve(view, removals[name], changes.get(name, {}))
            found[name] = _with_removals(spark, view, resolved, *stored(name))
        else:
            raw, small = _raw(spark, view, list(changes[name].items()))
            found[name] = (_net(view, _evaluated(view, raw)), small)
    return found


def _with_removals(
    spark: SparkSession, view: View, resolved: Resolved, rows: DataFrame, size: int
) -> tuple[DataFrame, bool]:
    """What comes and goes of a view, given its rows at the last commit and the size of what holds them."""
    raw, small = _raw(spark, view, resolved.changes)
    for relation, first in resolved.leaving:
        itself = {i: {a: a for a in first.key_attributes(i)} for i in first.occurrences}
        raw = raw.unionByName(leaving(_lifted(spark, view, relation), first, itself, together=False))
        small = False
    first = resolved.stored
    few = first.everything is None and not first.large
    together = size <= TOGETHER and not first.large
    shown = {i: view.key_of(view.occurrences[i]) for i in first.occurrences}
    gone = leaving(rows.coalesce(1) if together else rows, first, shown, together=together)
    if few and not together:
        gone = gone.repartition(1)
    small = small and (few or together)
    whole = _evaluated(view, raw).unionByName(gone)
    return _net(view, whole.coalesce(1) if small else whole), small


def failing_view(spark: SparkSession, batch: Batch) -> tuple[str, Exception] | None:
    """The first view whose rows cannot be evaluated, and why, after an append has failed.

    Only what changes bring is evaluated: what goes was evaluated when it came.
    """
    changes: dict[str, list[tuple[int, Relation]]] = defaultdict(list)
    for commit in batch.commits:
        for name, relation in commit.changes.items():
            changes[name].append((commit.number, relation))
    for name in dict.fromkeys([*changes, *batch.carried]):
        view = batch.members[name].view
        brought = [_net(view, _evaluated(view, _raw(spark, view, changes[name])[0]))] if name in changes else []
        carried = [batch.carried[name][0]] if name in batch.carried else []
        try:
            for frame in brought + carried:
                frame.write.format("noop").mode("overwrite").save()
        except Exception as error:
            return name, error
    return None


def evaluation_error(name: str, error: Exception) -> UserError:
    reason = next((line for line in str(error).splitlines() if "[" in line), str(error).splitlines()[0])
    return UserError(
        f"a row that a change brings cannot be computed: {reason[reason.find('[') :]}",
        where=f"view {name}",
        fix="Change the view's SQL so that it copes with such a row (for example `try_divide`, `try_cast`), "
        "or mend the row at its source.",
    )


def output_types(spark: SparkSession, view: View) -> dict[str, str]:
    """The Spark types of a view's columns, as commits will yield them."""
    raw, _ = _raw(spark, view, [(0, Bag(view.attributes))])
    return {f.name: f.dataType.simpleString() for f in _evaluated(view, raw).schema if f.name not in (COMMIT, _COUNT)}


def _raw(spark: SparkSession, view: View, changes: Sequence[tuple[int, Relation]]) -> tuple[DataFrame, bool]:
    """The raw rows of a view's changes with `_commit` and `_count`; and whether all of them are local data."""
    types = view.attribute_types()
    names = [*view.attributes, COMMIT, _COUNT]
    rows: list[tuple[Any, ...]] = []
    frames: list[DataFrame] = []
    for number, relation in changes:
        if isinstance(relation, Bag):
            rows.extend((*row, number, n) for row, n in relation.project(view.attributes).items())
        else:
            frame = _lifted(spark, view, relation)
            frames.append(frame.withColumn(COMMIT, F.lit(number).cast("bigint")).select(*names))
    small = not frames
    if rows or small:
        table = to_arrow(names, [*(types[a] for a in view.attributes), "bigint", "bigint"], rows)
        frames.append(local_data(spark, table).coalesce(1))
    return reduce(DataFrame.unionByName, frames), small


def _lifted(spark: SparkSession, view: View, relation: Relation) -> DataFrame:
    """A relation over a view's attributes in Spark, in the attributes' own types."""
    types = view.attribute_types()
    if isinstance(relation, Bag):
        relation = SparkRelation.of_bag(spark, relation, types)
    if not isinstance(relation, SparkRelation):
        raise BrokenInvariant(f"a relation of an unknown kind: {type(relation).__name__}", where=f"view {view.name}")
    return relation.dataframe().select(
        *(F.col(a).cast(canonical_ddl(types[a])).alias(a) for a in view.attributes), _COUNT
    )


def _evaluated(view: View, raw: DataFrame) -> DataFrame:
    """Select and project: `_commit`, the view's columns, and `_count`."""
    chosen = raw.where(view.condition) if view.condition else raw
    outputs = [f"{output.expression} AS {quoted(output.name)}" for output in view.outputs]
    return chosen.selectExpr(COMMIT, *outputs, _COUNT)


def _net(view: View, rows: DataFrame) -> DataFrame:
    columns = [quoted(output.name) for output in view.outputs]
    netted = rows.groupBy(COMMIT, *columns).agg(F.sum(_COUNT).alias(_COUNT))
    return netted.where(F.col(_COUNT) != 0)


def _data(frame: DataFrame, member: Generation, epoch: int) -> DataFrame:
    columns = [F.col(quoted(output.name)) for output in member.view.outputs]
    return frame.select(
        F.col(COMMIT).alias("commit"),
        F.lit(epoch).cast("bigint").alias("epoch"),
        F.lit(member.view.name).alias("view"),
        F.col(_COUNT).alias("count"),
        F.struct(*columns).alias(column(member.view.name, member.number)),
    )


def _headers(spark: SparkSession, headers: Sequence[CommitHeader]) -> DataFrame:
    rows = [
        {
            "commit": header.number,
            "committed_at": header.committed_at,
            "epoch": header.epoch,
            "positions": [(view, list(sources.items())) for view, sources in header.positions.items()],
            "as_of": [(view, list(sources.items())) for view, sources in header.as_of.items()],
            "identity": list(header.identity.items()),
            "generations": list(header.generations.items()),
        }
        for header in headers
    ]
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=_HEADER)).coalesce(1)


def _union(frames: Sequence[DataFrame], fields: Sequence[str]) -> DataFrame:
    """The frames as one, with their fields gathered into the struct `rows`."""
    whole = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)
    if not fields:
        return whole
    columns = [F.col(name) for name in whole.columns if name not in fields]
    rows = F.when(F.col("view").isNotNull(), F.struct(*fields)).alias("rows")
    return whole.select(*columns, rows)
