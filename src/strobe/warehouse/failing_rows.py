"""Which rows of its relations make a view impossible to load, after the load has failed.

One relation after the other is halved by a hash of its key: the half with which the view cannot be computed is kept,
until it has one row. That is about as much work as computing the view once more for each relation, and reads the staged
rows as often as their number has binary digits. It pays: a source can be asked for a row by its key, again and again,
where otherwise the view would have to be loaded to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.schema import RelationSchema, quoted
from strobe.algebra.view import View
from strobe.errors import RowOf
from strobe.spark.relation import SparkRelation
from strobe.warehouse.evaluation import data_error

Compute = Callable[[Mapping[str, DataFrame]], DataFrame]
"""A view from these rows of its relations, by their ids."""

DIGITS = 48
"""Of the hash, more than a table can have rows for."""


def failing_rows(view: View, rows: Mapping[str, DataFrame], compute: Compute) -> list[RowOf | None]:
    """A row of each relation with which the view cannot be computed, or None for a relation without a key; empty if it
    takes several of one relation, or could be computed after all."""
    left, found = dict(rows), list[RowOf | None]()
    for relation in view.relations:
        if relation.key and set(relation.key) <= set(view.columns_of(relation)):
            _narrow(left, relation, partial(_fails, view, compute))
            found.append(_the_one_row(left[relation.id], view, relation))
        else:
            found.append(None)
    return found if _fails(view, compute, left) else []


def _fails(view: View, compute: Compute, rows: Mapping[str, DataFrame]) -> bool:
    try:
        compute(rows).write.format("noop").mode("overwrite").save()
    except Exception as error:
        if data_error(view, error) is None:
            raise
        return True
    return False


def _narrow(
    left: dict[str, DataFrame], relation: RelationSchema, fails: Callable[[Mapping[str, DataFrame]], bool]
) -> None:
    """Leave one row of a relation."""
    key = [quoted(column) for column in relation.key or ()]
    for digit in range(DIGITS):
        rows = left[relation.id]
        if len(rows.select(*key).take(2)) < 2:
            return
        bit = F.shiftright(F.xxhash64(*key), digit).bitwiseAND(F.lit(1))
        left[relation.id] = rows.where(bit == 0)
        if not fails(left):
            left[relation.id] = rows.where(bit == 1)


def _the_one_row(rows: DataFrame, view: View, relation: RelationSchema) -> RowOf | None:
    columns = view.columns_of(relation)
    types = {column.name: column.type for column in relation.columns}
    bag = SparkRelation.of_rows(rows.select(*map(quoted, columns)).limit(2), types).collect()
    if len(bag) != 1:
        return None
    ((values, _),) = bag.items()
    return RowOf(relation.source, relation.name, tuple(relation.key or ()), columns, values)
