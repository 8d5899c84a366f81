"""Appends commits to the log: one append, one Spark job, whatever views they touch.

Small changes are bags; they enter as one local Arrow table for each view, with the commit's number and the count beside
the attributes, and stay in one partition, so that netting needs no shuffle. Large ones are already in Spark, and join
the same plan as they are. Here, once, a view's condition and expressions are evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.view import View
from strobe.dataplane.arrow import to_arrow
from strobe.dataplane.relation import SparkRelation
from strobe.errors import BrokenInvariant, UserError
from strobe.warehouse.header import Commit
from strobe.warehouse.layout import RANGE, Layout, field, quoted

_COMMIT, _COUNT = "_commit", "_count"
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
class Member:
    """A view that takes part in commits, under its present definition."""

    view: View
    generation: int


def append(
    spark: SparkSession,
    layout: Layout,
    epoch: int,
    members: Mapping[str, Member],
    commits: Sequence[Commit],
    generations: Mapping[str, int],
) -> None:
    """Append all commits, atomically."""
    parts = changed_rows(spark, members, commits)
    frames = [_headers(spark, epoch, commits, generations)]
    frames += [_data(frame, members[name], epoch) for name, (frame, _) in parts.items()]
    whole = _union(frames, [f"{field(n, members[n].generation)}" for n in parts])
    if all(small for _, small in parts.values()):
        whole = whole.coalesce(1)
    whole = whole.withColumn("range", F.expr(f"commit div {RANGE}"))
    whole.write.format("delta").mode("append").save(str(layout.log))


def changed_rows(
    spark: SparkSession, members: Mapping[str, Member], commits: Sequence[Commit]
) -> dict[str, tuple[DataFrame, bool]]:
    """For each changed view its net output rows by commit, and whether they sit in one partition."""
    changes: dict[str, list[tuple[int, Relation]]] = {}
    for commit in commits:
        for name, relation in commit.changes.items():
            if not relation.known_empty:
                changes.setdefault(name, []).append((commit.number, relation))
    found = {}
    for name, relations in changes.items():
        if name not in members:
            raise BrokenInvariant("a change of a view that takes part in no commit", where=f"view {name}")
        raw, small = _raw(spark, members[name].view, relations)
        found[name] = (_evaluated(members[name].view, raw), small)
    return found


def failing_view(
    spark: SparkSession, members: Mapping[str, Member], commits: Sequence[Commit]
) -> tuple[str, Exception] | None:
    """The first view whose rows cannot be evaluated, and why, after an append has failed."""
    for name in dict.fromkeys(n for commit in commits for n in commit.changes):
        try:
            for frame, _ in changed_rows(spark, {name: members[name]}, [_only(c, name) for c in commits]).values():
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
    return {f.name: f.dataType.simpleString() for f in _evaluated(view, raw).schema if f.name not in (_COMMIT, _COUNT)}


def _only(commit: Commit, name: str) -> Commit:
    kept = {n: relation for n, relation in commit.changes.items() if n == name}
    return Commit(commit.number, commit.committed_at, commit.positions, changes=kept)


def _raw(spark: SparkSession, view: View, changes: Sequence[tuple[int, Relation]]) -> tuple[DataFrame, bool]:
    """The raw rows of a view's changes with `_commit` and `_count`; and whether all of them are local data."""
    types = view.attribute_types()
    names = [*view.attributes, _COMMIT, _COUNT]
    rows: list[tuple[Any, ...]] = []
    frames: list[DataFrame] = []
    for number, relation in changes:
        if isinstance(relation, Bag):
            rows.extend((*row, number, n) for row, n in relation.project(view.attributes).items())
        elif isinstance(relation, SparkRelation):
            frames.append(relation.dataframe().withColumn(_COMMIT, F.lit(number).cast("bigint")).select(*names))
        else:
            raise BrokenInvariant(
                f"a relation of an unknown kind: {type(relation).__name__}", where=f"view {view.name}"
            )
    small = not frames
    if rows or small:
        table = to_arrow(names, [*(types[a] for a in view.attributes), "bigint", "bigint"], rows)
        frames.append(spark.createDataFrame(table).coalesce(1))
    return reduce(DataFrame.unionByName, frames), small


def _evaluated(view: View, raw: DataFrame) -> DataFrame:
    """Select, project and net: `_commit`, the view's columns, and `_count`."""
    chosen = raw.where(view.condition) if view.condition else raw
    outputs = [f"{output.expression} AS {quoted(output.name)}" for output in view.outputs]
    projected = chosen.selectExpr(_COMMIT, *outputs, _COUNT)
    columns = [quoted(output.name) for output in view.outputs]
    netted = projected.groupBy(_COMMIT, *columns).agg(F.sum(_COUNT).alias(_COUNT))
    return netted.where(F.col(_COUNT) != 0)


def _data(frame: DataFrame, member: Member, epoch: int) -> DataFrame:
    columns = [F.col(quoted(output.name)) for output in member.view.outputs]
    return frame.select(
        F.col(_COMMIT).alias("commit"),
        F.lit(epoch).cast("bigint").alias("epoch"),
        F.lit(member.view.name).alias("view"),
        F.col(_COUNT).alias("count"),
        F.struct(*columns).alias(field(member.view.name, member.generation)),
    )


def _headers(spark: SparkSession, epoch: int, commits: Sequence[Commit], generations: Mapping[str, int]) -> DataFrame:
    rows = [
        {
            "commit": commit.number,
            "committed_at": commit.committed_at,
            "epoch": epoch,
            "positions": [(view, list(sources.items())) for view, sources in commit.positions.items()],
            "as_of": [(view, list(sources.items())) for view, sources in commit.as_of.items()],
            "identity": list(commit.identity.items()),
            "generations": list(generations.items()),
        }
        for commit in commits
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
