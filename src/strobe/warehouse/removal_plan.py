"""Finds in Spark the rows that removals take out of a view.

Keys come as local data with the number of the first commit that removes them. Where little has to be read, rows and
keys meet in one partition, so that the join needs neither a shuffle nor a broadcast, each of which is a job of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.bounds import Bound
from strobe.algebra.schema import quoted
from strobe.data.arrow import canonical_ddl, to_arrow
from strobe.errors import BrokenInvariant
from strobe.merge.removals import First
from strobe.spark.relation import COUNT, SparkRelation, local_data
from strobe.warehouse.layout import text

COMMIT = "_commit"
"""No column of a view has a name that begins like this."""

_LITERALS = 100
"""Up to so many keys also stand in a filter, with which Parquet can pass over what has none of them."""
_PLAIN = ("int", "bigint", "string")
"""Types whose values are easily written in SQL."""

Shown = Mapping[int, Mapping[str, str]]
"""For each occurrence, in which column each attribute of its key is."""


def leaving(rows: DataFrame, first: First, shown: Shown, bounded: Mapping[str, str], *, together: bool) -> DataFrame:
    """The rows that go, with negative counts, and with the number of the first commit at which each does.

    `rows` has `_count`, and the result `_commit` before all others. `together` says that all rows are in one partition;
    `bounded` is in which column each attribute is that a bound has.
    """
    types = {f.name: f.dataType.simpleString() for f in rows.schema.fields}
    bounds = [(number, _inside(bound, first, bounded)) for number, bound in first.bounds]
    among = _among(types, first, shown, [inside for _, inside in bounds])
    found = rows.where(among) if among else rows
    how = "inner" if first.everything is None and len(first.occurrences) == 1 and not bounds else "left"
    numbers = [] if first.everything is None else [f"{first.everything}L"]
    numbers += [f"CASE WHEN {inside} THEN {number}L END" for number, inside in bounds]
    for occurrence in first.occurrences:
        number = f"{COMMIT}_{occurrence}"
        names = [f"{number}_{i}" for i in range(len(shown[occurrence]))]
        columns = [shown[occurrence][attribute] for attribute in first.key_attributes(occurrence)]
        keys = _keys(rows, first, occurrence, [types[c] for c in columns], [*names, number])
        if together:
            keys = keys.coalesce(1).hint("shuffle_hash")
        elif not first.large:
            keys = F.broadcast(keys)
        same = " AND ".join(f"{quoted(column)} = {name}" for column, name in zip(columns, names, strict=True))
        found = found.join(keys, F.expr(same), how)
        numbers.append(number)
    at = numbers[0] if len(numbers) == 1 else f"least({', '.join(numbers)})"
    kept = [quoted(name) for name in types if name != COUNT]
    return found.where(f"{at} IS NOT NULL").selectExpr(f"{at} AS {COMMIT}", *kept, f"-{COUNT} AS {COUNT}")


def _keys(rows: DataFrame, first: First, occurrence: int, types: Sequence[str], names: Sequence[str]) -> DataFrame:
    """The keys of an occurrence, each once, in these types, and the first commit that removes it; under these names."""
    attributes = first.key_attributes(occurrence)
    own = [canonical_ddl(first.view.attribute_types()[a]) for a in attributes]
    frames = []
    if occurrence in first.keys:
        local = [(*key, number) for key, number in first.keys[occurrence].items()]
        frames.append(local_data(rows.sparkSession, to_arrow(names, [*own, "bigint"], local)))
    for number, delete in first.large:
        if delete.occurrence == occurrence:
            if not isinstance(delete.keys, SparkRelation):
                raise BrokenInvariant(f"keys of an unknown kind: {type(delete.keys).__name__}")
            keys = delete.keys.keys(attributes).dataframe()
            frames.append(
                keys.selectExpr(
                    *(f"cast({a} AS {type_})" for a, type_ in zip(attributes, own, strict=True)), f"{number}L"
                ).toDF(*names)
            )
    whole = reduce(DataFrame.union, frames)
    for name, there, here in zip(names, own, types, strict=False):
        if there != here:
            whole = _fitting(whole, name, there, here)
    if len(frames) > 1:
        whole = whole.groupBy(*names[:-1]).agg(F.min(names[-1]).alias(names[-1]))
    return whole


def _fitting(keys: DataFrame, name: str, there: str, here: str) -> DataFrame:
    """Keys in the type of the column that shows them, which may be an equal one's; without those that do not fit it."""
    fits = f"try_cast(try_cast({name} AS {here}) AS {there}) = {name}"
    return keys.where(fits).withColumn(name, F.expr(f"try_cast({name} AS {here})"))


def _inside(bound: Bound, first: First, columns: Mapping[str, str]) -> str:
    raw = first.view.attribute_types()
    return bound.sql({a: quoted(columns[a]) for a in bound.columns}, {a: canonical_ddl(raw[a]) for a in bound.columns})


def _among(types: Mapping[str, str], first: First, shown: Shown, bounds: Sequence[str]) -> str:
    """A condition that all rows meet which go, and hopefully few others; empty if there is no simple one."""
    if first.everything is not None or first.large or sum(map(len, first.keys.values())) > _LITERALS:
        return ""
    raw = first.view.attribute_types()
    some = list(bounds)
    for occurrence, keys in first.keys.items():
        parts = []
        for i, attribute in enumerate(first.key_attributes(occurrence)):
            column = shown[occurrence][attribute]
            if types[column] in _PLAIN and types[column] == canonical_ddl(raw[attribute]):
                parts.append(f"{quoted(column)} IN ({', '.join(_literals({key[i] for key in keys}))})")
        if not parts:
            return ""
        some.append(" AND ".join(parts))
    return " OR ".join(f"({part})" for part in some)


def _literals(values: set[int | str]) -> list[str]:
    return [text(value) if isinstance(value, str) else str(value) for value in values]
