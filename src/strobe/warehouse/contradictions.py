"""Changes that contradict what a view holds: a row is taken away that is not there, or a key comes twice.

Such a change proves that the view is wrong, whatever the reason. Every append is checked right after it, for the rows
that it takes away and the keys that it brings (see `ledger`); what is too much for that is found when it is folded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.bag import Bag, Row
from strobe.algebra.schema import quoted
from strobe.data.arrow import from_arrow
from strobe.errors import ViewWrong
from strobe.redaction import content, said
from strobe.spark.relation import COUNT
from strobe.warehouse import view_table
from strobe.warehouse.layout import COPY, Layout
from strobe.warehouse.records import Definition

_VALUE, _ROW = 60, 300
"""Characters of a value and of a row that are shown."""


def error(definition: Definition) -> ViewWrong:
    """What there is to say of a view that was found wrong."""
    name = definition.view
    return ViewWrong(
        definition.wrong,
        view=name,
        where=f"view {name}",
        fix=f"It stays as it was at commit {definition.right_to}, and the other views go on. `strobe audit {name}` "
        f"says whether it is wrong; `strobe rebuild {name}` loads it again.",
    )


def first(key: Sequence[str], held: Bag, changes: Iterable[tuple[int, Bag]]) -> tuple[int, str] | None:
    """The first of some commits whose change contradicts what a view holds, and how. `held` has at least the rows that
    the changes name, and those with the same keys, as they were before."""
    columns = held.attributes
    places = [columns.index(c) for c in key]
    counts, keys = defaultdict[Row, int](int), defaultdict[Row, int](int)
    for row, count in held.items():
        counts[row] += count
        keys[tuple(row[i] for i in places)] += count
    for commit, change in changes:
        for row, count in change.items():
            counts[row] += count
            keys[tuple(row[i] for i in places)] += count
        for row in dict(change.items()):
            if counts[row] < 0:
                return commit, _missing(f"commit {commit}", key, columns, row)
        for row, count in change.items():
            if key and count > 0 and keys[tuple(row[i] for i in places)] > 1:
                return commit, _twice(f"commit {commit}", key, [row[i] for i in places])
    return None


def in_fold(
    spark: SparkSession, layout: Layout, log: DeltaTable, definition: Definition, after: int, through: int
) -> str | None:
    """How the log between two commits contradicts a view's table that holds the first; None if it does not."""
    table = spark.read.format("delta").load(layout.view(definition.view)).drop(COPY)
    change = view_table.net(spark, log, definition, after, through)
    both = table.withColumn(COUNT, F.lit(1).cast("bigint")).unionByName(change)
    names = list(map(quoted, table.columns))
    counted = both.groupBy(*names).agg(F.sum(COUNT).alias(COUNT))
    commits = f"commits {after + 1} to {through}" if through > after + 1 else f"commit {through}"
    for *row, _ in from_arrow(counted.where(F.col(COUNT) < 0).limit(1).toArrow()):
        return _missing(commits, definition.key, table.columns, row)
    if definition.key:
        key = list(map(quoted, definition.key))
        twice = counted.groupBy(*key).agg(F.sum(COUNT).alias(COUNT)).where(F.col(COUNT) > 1)
        for *values, _ in from_arrow(twice.limit(1).toArrow()):
            return _twice(commits, definition.key, values)
    return None


def _missing(commits: str, key: Sequence[str], columns: Sequence[str], row: Sequence[Any]) -> str:
    """By its key; a view without one may hold anything in any column."""
    shown = _shown(key, [row[columns.index(c)] for c in key]) if key else content(_shown(columns, row), "one")
    return f"{commits} took away a row that the view does not hold: {shown}"


def _twice(commits: str, key: Sequence[str], values: Sequence[Any]) -> str:
    return f"{commits} brought a second row with the key {_shown(key, values)}"


def _shown(columns: Sequence[str], row: Sequence[Any]) -> str:
    parts = (f"{name}={_cut(repr(value), _VALUE)}" for name, value in zip(columns, row, strict=True))
    return said(f"({_cut(', '.join(parts), _ROW)})")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
