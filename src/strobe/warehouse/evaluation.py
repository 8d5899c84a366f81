"""A view's changes in Spark: here, once, its condition and expressions are evaluated.

Small changes are bags; they enter as one local Arrow table for each view, with the commit's number and the count beside
the attributes, and stay in one partition, so that netting needs no shuffle. Large ones are already in Spark, and join
the same plan as they are.

A view that rows are removed from by key, or altogether, is read as it was at the last commit, in the same plan, and
what goes is netted with what comes. A view without removals is not read. Of a view that is a tree of operators,
`fragments` evaluates what a commit brings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.bag import Bag, Row
from strobe.algebra.relation import Relation
from strobe.algebra.schema import quoted
from strobe.algebra.view import Occurrence, View
from strobe.data.arrow import canonical_ddl, to_arrow
from strobe.errors import BrokenInvariant, RowFailed, RowOf
from strobe.merge.removals import Resolved, resolve
from strobe.messages import Commit, Fragment, Removal
from strobe.redaction import content
from strobe.spark.relation import COUNT, SparkRelation, local_data
from strobe.warehouse import fragments
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
    trees: dict[str, list[tuple[int, Fragment]]] = {}
    for commit in commits:
        for name, some in commit.fragments.items():
            trees.setdefault(name, []).extend((commit.number, fragment) for fragment in some)
        for name, relation in commit.changes.items():
            if not relation.known_empty:
                changes.setdefault(name, {})[commit.number] = relation
        for name, removal in commit.removals.items():
            removals.setdefault(name, {})[commit.number] = removal
    found = {}
    for name in dict.fromkeys([*changes, *removals, *trees]):
        if name not in members:
            raise BrokenInvariant("a change of a view that takes part in no commit", where=f"view {name}")
        view = members[name].view
        if name in trees:
            if name in changes or name in removals:
                raise BrokenInvariant("a change that is not a fragment, of a tree", where=f"view {name}")
            rows, small = fragments.net_change(spark, view, trees[name])
            found[name] = (_net(view, rows), small)
        elif name in removals:
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
) -> RowFailed | None:
    """The first view with a row that cannot be computed, and which row that is, after an append has failed.

    Each view is evaluated alone, and then ever smaller parts of its changes. Only what changes bring is evaluated: what
    goes was evaluated when it came.
    """
    changes: dict[str, list[Relation]] = defaultdict(list)
    trees: dict[str, list[Fragment]] = defaultdict(list)
    for commit in commits:
        for name, relation in commit.changes.items():
            changes[name].append(relation)
        for name, some in commit.fragments.items():
            trees[name] += some
    for name in dict.fromkeys([*changes, *trees, *carried]):
        view, error = members[name].view, None
        if name in trees and (error := _tried(partial(_over, spark, view, trees[name]))) is not None:
            return data_error(view, error, _failing_parts(spark, view, trees[name]))
        if name in changes and (error := _failure(spark, view, changes[name])) is not None:
            bags = [relation for relation in changes[name] if isinstance(relation, Bag)]
            row = _failing_row(spark, view, bags)
            parts = [_part(o, _values(view, o, row)) for o in view.occurrences] if row is not None else []
            return data_error(view, error, parts)
        if name in carried and (error := _tried(partial(itemgetter(0), carried[name]))) is not None:
            return data_error(view, error)
    return None


def _failure(spark: SparkSession, view: View, changes: Sequence[Relation]) -> Exception | None:
    """Why these changes of a view cannot be evaluated, if they cannot."""
    return _tried(lambda: _net(view, _evaluated(view, _raw(spark, view, [(0, change) for change in changes])[0])))


def _tried(frame: Callable[[], DataFrame]) -> Exception | None:
    try:
        frame().write.format("noop").mode("overwrite").save()
    except Exception as error:
        return error
    return None


def _over(spark: SparkSession, view: View, some: Sequence[Fragment]) -> DataFrame:
    return fragments.evaluated(spark, view, some)[0]


def _failing_parts(spark: SparkSession, view: View, some: Sequence[Fragment]) -> list[RowOf | None]:
    """Rows of relations over which a tree cannot be evaluated."""
    found = fragments.narrowed(some, lambda less: _tried(partial(_over, spark, view, less)) is not None)
    return [_part(view.occurrences[index], row) for index, row in found.items()]


def _failing_row(spark: SparkSession, view: View, changes: Sequence[Bag]) -> Row | None:
    """One of the rows over a view's attributes that cannot be evaluated by itself; None if there is none."""
    rows = [row for change in changes for row, _ in change.project(view.attributes).items()]

    def fails(some: Sequence[Row]) -> bool:
        return bool(some) and _failure(spark, view, [Bag.of(view.attributes, some)]) is not None

    while len(rows) > 1:
        half = rows[: len(rows) // 2]
        rows = half if fails(half) else rows[len(rows) // 2 :]
    return rows[0] if fails(rows) else None


_DATA_EXCEPTION = "SQLSTATE: 22"
"""The class of SQL errors that rows cause: division by zero, a bad cast, an overflow."""
UNFIT = (pa.ArrowException, ValueError, OverflowError)
"""What making Arrow data raises of a value that is not of its column's type."""


def data_error(view: View, error: Exception, rows: Sequence[RowOf | None] = ()) -> RowFailed | None:
    """What to tell of a failure that a row of a view has caused, joined from these rows of relations (None for one that
    has no key); None if it has another cause. Of a tree nobody knows whether there are others to blame: a part of a
    group may fail where the whole does not."""
    if isinstance(error, UNFIT):
        reason = f"a value is not of its column's type: {content(str(error), 'a message')}"
    elif _DATA_EXCEPTION in str(error):
        told = next((line for line in str(error).splitlines() if "[" in line), str(error).splitlines()[0])
        kind, _, text = told[told.find("[") :].partition("]")
        reason = f"{kind}]: {content(text.strip(), 'a message')}"
    else:
        return None
    known = [each for each in rows if each is not None]
    shown = f", of {' and '.join(map(str, known))}," if known else ""
    return RowFailed(
        f"a row{shown} cannot be computed: {reason}",
        view=view.name,
        rows=known,
        complete=bool(rows) and len(known) == len(rows) and view.tree is None,
        where=f"view {view.name}",
        fix="Change the row at its source: the view is then loaded again by itself; the others go on meanwhile. Or "
        "change the view's SQL so that it copes with such rows (`try_divide`, `try_cast`, …), and run `strobe apply`.",
    )


def _part(occurrence: Occurrence, values: Row) -> RowOf | None:
    """What an occurrence has contributed to a row; None if that has no key."""
    relation = occurrence.relation
    if not relation.key or not set(relation.key) <= set(occurrence.columns):
        return None
    return RowOf(relation.source, relation.name, tuple(relation.key), occurrence.columns, values)


def _values(view: View, occurrence: Occurrence, row: Row) -> Row:
    """An occurrence's part of a row over a view's attributes."""
    return tuple(row[view.attributes.index(attribute)] for attribute in occurrence.attributes)


def output_types(spark: SparkSession, view: View) -> dict[str, str]:
    """The Spark types of a view's columns, as commits will yield them."""
    if view.tree is not None:
        rows = fragments.net_change(spark, view, [(0, Fragment({}, {}))])[0]
    else:
        rows = _evaluated(view, _raw(spark, view, [(0, Bag(view.attributes))])[0])
    return {f.name: f.dataType.simpleString() for f in rows.schema if f.name not in (COMMIT, COUNT)}


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
