"""A view's changes in Spark: here, once, its condition and expressions are evaluated.

Small changes are bags; they enter as one local Arrow table for each view, with the commit's number and the count beside
the attributes, and stay in one partition, so that netting needs no shuffle. Large ones are already in Spark, and join
the same plan as they are.

A view that rows are removed from by key, or altogether, is read as it was at the last commit, in the same plan, and
what goes is netted with what comes. A view without removals is not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.schema import quoted
from strobe.algebra.view import View
from strobe.data.arrow import canonical_ddl, to_arrow
from strobe.errors import BrokenInvariant, UserError
from strobe.merge.removals import Resolved, resolve
from strobe.messages import Commit, Removal
from strobe.spark.relation import COUNT, SparkRelation, local_data
from strobe.warehouse.records import Generation
from strobe.warehouse.removal_plan import COMMIT, leaving

Part = tuple[DataFrame, bool]
"""Rows of a view's changes, and whether they sit in one partition."""

Stored = Callable[[str], tuple[DataFrame, int]]
"""A view's rows at the last commit in pieces with `_count`, and how many bytes must be read for them."""


def changed_rows(
    spark: SparkSession,
    members: Mapping[str, Generation],
    commits: Sequence[Commit],
    stored: Stored,
    together: int,
) -> dict[str, Part]:
    """For each changed view its net output rows by commit. Up to so many bytes of a view are searched by one task
    `together`."""
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
            found[name] = _with_removals(spark, view, resolved, *stored(name), together)
        else:
            raw, small = _raw(spark, view, list(changes[name].items()))
            found[name] = (_net(view, _evaluated(view, raw)), small)
    return found


def _with_removals(
    spark: SparkSession, view: View, resolved: Resolved, rows: DataFrame, size: int, most: int
) -> tuple[DataFrame, bool]:
    """What comes and goes of a view, given its rows at the last commit and the size of what holds them; one task
    searches at the `most` so many bytes."""
    raw, small = _raw(spark, view, resolved.changes)
    for relation, first in resolved.leaving:
        itself = {i: {a: a for a in first.key_attributes(i)} for i in first.occurrences}
        names = {a: a for _, bound in first.bounds for a in bound.columns}
        raw = raw.unionByName(leaving(_lifted(spark, view, relation), first, itself, names, together=False))
        small = False
    first = resolved.stored
    few = first.everything is None and not first.large and not first.bounds
    together = size <= most and not first.large
    shown = {i: view.key_of(view.occurrences[i]) for i in first.occurrences}
    columns = {a: view.shown_as(a)[0] for _, bound in first.bounds for a in bound.columns}
    gone = leaving(rows.coalesce(1) if together else rows, first, shown, columns, together=together)
    if few and not together:
        gone = gone.repartition(1)
    small = small and (few or together)
    whole = _evaluated(view, raw).unionByName(gone)
    return _net(view, whole.coalesce(1) if small else whole), small


def failing_view(
    spark: SparkSession, members: Mapping[str, Generation], commits: Sequence[Commit], carried: Mapping[str, Part]
) -> tuple[str, Exception] | None:
    """The first view whose rows cannot be evaluated, and why, after an append has failed.

    Only what changes bring is evaluated: what goes was evaluated when it came.
    """
    changes: dict[str, list[tuple[int, Relation]]] = defaultdict(list)
    for commit in commits:
        for name, relation in commit.changes.items():
            changes[name].append((commit.number, relation))
    for name in dict.fromkeys([*changes, *carried]):
        view = members[name].view
        brought = [_net(view, _evaluated(view, _raw(spark, view, changes[name])[0]))] if name in changes else []
        brought += [carried[name][0]] if name in carried else []
        try:
            for frame in brought:
                frame.write.format("noop").mode("overwrite").save()
        except Exception as error:
            return name, error
    return None


_DATA_EXCEPTION = "SQLSTATE: 22"
"""The class of SQL errors that rows cause: division by zero, a bad cast, an overflow."""


def data_error(name: str, error: Exception) -> UserError | None:
    """What to tell of a failure that a row of a view has caused; None if it has another cause."""
    if _DATA_EXCEPTION not in str(error):
        return None
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
    return {f.name: f.dataType.simpleString() for f in _evaluated(view, raw).schema if f.name not in (COMMIT, COUNT)}


def _raw(spark: SparkSession, view: View, changes: Sequence[tuple[int, Relation]]) -> tuple[DataFrame, bool]:
    """The raw rows of a view's changes with `_commit` and `_count`; and whether all of them are local data."""
    types = view.attribute_types()
    names = [*view.attributes, COMMIT, COUNT]
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
        *(F.col(a).cast(canonical_ddl(types[a])).alias(a) for a in view.attributes), COUNT
    )


def _evaluated(view: View, raw: DataFrame) -> DataFrame:
    """Select and project: `_commit`, the view's columns, and `_count`."""
    chosen = raw.where(view.condition) if view.condition else raw
    outputs = [f"{output.expression} AS {quoted(output.name)}" for output in view.outputs]
    return chosen.selectExpr(COMMIT, *outputs, COUNT)


def _net(view: View, rows: DataFrame) -> DataFrame:
    columns = [quoted(output.name) for output in view.outputs]
    netted = rows.groupBy(COMMIT, *columns).agg(F.sum(COUNT).alias(COUNT))
    return netted.where(F.col(COUNT) != 0)
