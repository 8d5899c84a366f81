"""Evaluates a view that is a tree of operators over fragments: the rows that matter, before and after.

All fragments of an append are evaluated by one SQL text, in one plan (see `algebra.render`). Every side of every
fragment is a unit, whose number its rows carry: twice that of the fragment, and one more after than before. A row of
the view counts 1 where it comes out of what is after, and -1 before.

Rows in memory enter as one local Arrow table for each occurrence, in one partition each. In a session that never
broadcasts (`one_task_session`) such a plan has no exchange, unless a UNION ALL is grouped or joined: it is part of the
append's one task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import count
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.bag import Bag, Row
from strobe.algebra.relation import Relation
from strobe.algebra.render import Keys, Tables, render
from strobe.algebra.schema import quoted
from strobe.algebra.tree import UNIT, Group, Operator, Window, attribute_of, operators
from strobe.algebra.view import View
from strobe.data.arrow import canonical_ddl, to_arrow
from strobe.errors import BrokenInvariant
from strobe.messages import Commit, Covered, Fragment, KeyDelete
from strobe.spark.relation import COUNT, SparkRelation, local_data
from strobe.spark.session import own_session
from strobe.warehouse.removal_plan import COMMIT

Numbered = Sequence[tuple[int, Fragment]]
"""Fragments, each with the commit that it belongs to."""

_ONE_TASK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "1",
}
_UNIT = (UNIT, "bigint")
_ITSELF = f"least({UNIT}, {UNIT} + spark_partition_id())"
"""The number, computed so that Spark moves no filter or semi join below: there, rows are in several partitions yet."""
_EVERYTHING = Covered(Bag((), {(): 1}))
_views = count(1)


def one_task_session(spark: SparkSession) -> SparkSession:
    """A session for plans over rows that are all in one partition."""
    session = own_session(spark)
    for name, value in _ONE_TASK.items():
        session.conf.set(name, value)
    return session


def in_memory(commits: Iterable[Commit]) -> bool:
    """Whether commits have fragments, and whatever they bring is in memory."""
    relations = [relation for commit in commits for relation in _relations(commit)]
    return any(commit.fragments for commit in commits) and all(isinstance(each, Bag) for each in relations)


def _relations(commit: Commit) -> Iterator[Relation]:
    yield from commit.changes.values()
    for removal in commit.removals.values():
        yield from (delete.keys for delete in removal.deletes if isinstance(delete, KeyDelete))
    for fragments in commit.fragments.values():
        for fragment in fragments:
            yield from _all_rows(fragment)


def _all_rows(fragment: Fragment) -> Iterator[Relation]:
    yield from fragment.before.values()
    yield from fragment.after.values()
    for covered in fragment.covered.values():
        yield from (each.keys for each in covered)


def net_change(spark: SparkSession, view: View, fragments: Numbered) -> tuple[DataFrame, bool]:
    """What a view changes by, in pieces: `_commit`, its columns and `_count`; and whether all of it is in one
    partition."""
    rows, small = evaluated(spark, view, [fragment for _, fragment in fragments])
    commits = ", ".join(f"{commit}L" for commit, _ in fragments)
    commit = F.expr(f"element_at(array({commits}), cast({UNIT} div 2 + 1 AS INT))")
    sign = F.expr(f"{UNIT} % 2 * 2 - 1")
    columns = [F.col(quoted(output.name)) for output in view.outputs]
    return rows.select(commit.alias(COMMIT), *columns, sign.alias(COUNT)), small


def evaluated(spark: SparkSession, view: View, fragments: Sequence[Fragment]) -> tuple[DataFrame, bool]:
    """The rows of a view over every side of these fragments: `_g`, and its columns; and whether all of it is in one
    partition."""
    if view.tree is None:
        raise BrokenInvariant("fragments of a view that is a flat join", where=f"view {view.name}")
    small = all(isinstance(rows, Bag) for fragment in fragments for rows in _all_rows(fragment))
    types = {attribute: canonical_ddl(type_) for attribute, type_ in view.attribute_types().items()}
    frames: dict[Hashable, DataFrame] = {}
    if any(isinstance(each, Group) and not each.by for each in operators(view.tree)):
        frames["units"] = _local(spark, [_UNIT], [(n,) for n in range(2 * len(fragments))])
    once: set[int] = set()
    for occurrence in view.occurrences:
        sides = [(n, side[occurrence.index]) for n, side in _sides(fragments) if occurrence.index in side]
        if all(isinstance(rows, Bag) and all(n == 1 for _, n in rows.items()) for _, rows in sides):
            once.add(occurrence.index)  # as nearly always: then the plan is a simpler one
        frames[occurrence.index] = _rows(spark, {a: types[a] for a in occurrence.attributes}, sides)
    covered = _covered(fragments)
    for (number, columns), keys in covered.items():
        operator = _together(view.tree, number)
        frames[number, columns] = _rows(spark, {c: types[attribute_of(operator.child, c)] for c in columns}, keys)
    with _named(spark, frames) as names:
        whole: dict[int, list[Keys]] = defaultdict(list)
        for number, columns in covered:
            whole[number].append(Keys(names[number, columns], columns))
        tables = Tables({o.index: names[o.index] for o in view.occurrences}, names.get("units", ""), whole, once)
        return spark.sql(render(view.tree, view.outputs, tables)), small


def narrowed(fragments: Sequence[Fragment], fails: Callable[[Sequence[Fragment]], bool]) -> dict[int, Row]:
    """Of fragments with which an evaluation fails: one row of each occurrence with which it still does, as far as there
    are such; occurrences without which it fails as well are left out."""
    some = [
        Fragment({}, side, fragment.covered)
        for fragment in fragments
        for side in (fragment.before, fragment.after)
        if all(isinstance(rows, Bag) for rows in side.values())
    ]
    while len(some) > 1:
        half = some[: len(some) // 2]
        some = half if fails(half) else some[len(some) // 2 :]
    if not fails(some):
        return {}
    (fragment,) = some
    found: dict[int, Row] = {}
    for index, relation in fragment.after.items():
        rows = [row for row, _ in relation.collect().items()]
        while rows:
            parts = (rows[: len(rows) // 2], rows[len(rows) // 2 :]) if len(rows) > 1 else ([],)
            for less in parts:
                smaller = replace(fragment, after={**fragment.after, index: Bag.of(relation.attributes, less)})
                if fails([smaller]):
                    fragment, rows = smaller, less
                    break
            else:
                break
        if len(rows) == 1:
            found[index] = rows[0]
    return found


def _sides(fragments: Sequence[Fragment]) -> Iterator[tuple[int, Mapping[int, Relation]]]:
    for number, fragment in enumerate(fragments):
        yield 2 * number, fragment.before
        yield 2 * number + 1, fragment.after


def _covered(fragments: Sequence[Fragment]) -> dict[tuple[int, tuple[str, ...]], list[tuple[int, Relation]]]:
    """By operator, and by the columns that say which of its groups are whole: their keys, with the number of the side.
    On sides where an operator is not mentioned, all of its groups are."""
    mentioned = {number for fragment in fragments for number in fragment.covered}
    found: dict[tuple[int, tuple[str, ...]], list[tuple[int, Relation]]] = defaultdict(list)
    for place, fragment in enumerate(fragments):
        for number in mentioned:
            for each in fragment.covered.get(number, (_EVERYTHING,)):
                sides = (2 * place, each.keys), (2 * place + 1, each.keys)
                found[number, each.keys.attributes].extend(sides)
    for number in mentioned - {number for number, _ in found}:
        found[number, ()] = []
    return found


def _together(tree: Operator, number: int) -> Group | Window:
    return next(o for o in operators(tree) if isinstance(o, (Group, Window)) and o.number == number)


def _rows(spark: SparkSession, types: Mapping[str, str], sides: Sequence[tuple[int, Relation]]) -> DataFrame:
    """Rows over attributes of these types, with the number of the side, and how often each is there."""
    rows: list[tuple[Any, ...]] = []
    frames: list[DataFrame] = []
    for number, relation in sides:
        if isinstance(relation, Bag):
            rows += [(*row, number, n) for row, n in relation.project(tuple(types)).items()]
        else:
            frame = _large(relation, types).withColumn(UNIT, F.lit(number).cast("bigint"))
            frames.append(frame.select(*types, UNIT, COUNT))
    if rows or not frames:
        frames.insert(0, _local(spark, [*types.items(), _UNIT, (COUNT, "bigint")], rows))
    return reduce(DataFrame.union, frames)


def _large(relation: Relation, types: Mapping[str, str]) -> DataFrame:
    """A relation that is in Spark already, with `_count`, each row once."""
    if not isinstance(relation, SparkRelation):
        raise BrokenInvariant(f"a relation of an unknown kind: {type(relation).__name__}")
    frame = relation.project(tuple(types)).net().dataframe()
    return frame.select(*(F.col(name).cast(type_).alias(name) for name, type_ in types.items()), COUNT)


def _local(spark: SparkSession, columns: Sequence[tuple[str, str]], rows: Sequence[Row]) -> DataFrame:
    """Rows in memory, in one partition."""
    names, types = zip(*columns, strict=True)
    return local_data(spark, to_arrow(names, types, rows)).coalesce(1).withColumn(UNIT, F.expr(_ITSELF))


@contextmanager
def _named(spark: SparkSession, frames: Mapping[Hashable, DataFrame]) -> Iterator[dict[Hashable, str]]:
    """Names under which these frames can be mentioned in SQL meanwhile."""
    names = {key: f"strobe_fragments_{next(_views)}" for key in frames}
    try:
        for key, frame in frames.items():
            frame.createOrReplaceTempView(names[key])
        yield names
    finally:
        for name in names.values():
            spark.catalog.dropTempView(name)
