"""Signed bags as data in Spark: what a manager holds when a change or an answer is too large for the driver.

Everything is composed lazily into one plan. Inside, the columns are named by position (`c0`, `c1`, …, `_count`), so
that renaming costs nothing and no attribute's name can collide, need quoting or differ only in case. A row may stand
there in several pieces whose counts cancel; they are summed only where that matters: for `keys`, and in the end. `_net`
remembers that there is nothing to sum.

A manager may use a relation twice in computing the next (what is new in an answer is what was not there before, and is
then there): plans double, and after some large changes no optimizer would end. So a plan beyond a number of leaves is
computed and kept by Spark, and the next one begins there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it
from pyspark.sql.pandas.types import from_arrow_schema

from strobe.algebra.bag import Bag
from strobe.algebra.bounds import Bound
from strobe.algebra.relation import Relation
from strobe.data.arrow import from_arrow, to_arrow
from strobe.errors import BrokenInvariant

COUNT = "_count"

LEAVES = 24
"""In a plan, at the most."""


class SparkRelation:
    """A signed bag in Spark. `types` gives the Spark types of attributes that bags brought in later may have."""

    __slots__ = ("_attributes", "_frame", "_known_empty", "_leaves", "_net", "_types")

    def __init__(
        self,
        frame: DataFrame,
        attributes: Sequence[str],
        types: Mapping[str, str],
        *,
        net: bool = False,
        known_empty: bool = False,
        leaves: int = 1,
    ) -> None:
        """`leaves` says how many relations the frame is computed from."""
        self._frame = frame if leaves <= LEAVES else frame.localCheckpoint()
        self._leaves = leaves if leaves <= LEAVES else 1
        self._attributes = tuple(attributes)
        self._types = types
        self._net = net
        self._known_empty = known_empty

    @classmethod
    def of_rows(cls, frame: DataFrame, types: Mapping[str, str]) -> SparkRelation:
        """The rows of a DataFrame, whose columns are the attributes, each row as often as it is there."""
        return cls(_positional(frame.withColumn(COUNT, F.lit(1).cast("bigint"))), frame.columns, types)

    @classmethod
    def of_bag(cls, spark: SparkSession, bag: Bag, types: Mapping[str, str]) -> SparkRelation:
        """A bag as local data in Spark."""
        names = [*_names(len(bag.attributes)), COUNT]
        ddl = [types.get(a) or _inferred(bag, i) for i, a in enumerate(bag.attributes)]
        table = to_arrow(names, [*ddl, "bigint"], [(*row, n) for row, n in bag.items()])
        return cls(local_data(spark, table), bag.attributes, types, net=True, known_empty=bag.known_empty)

    def typed(self, types: Mapping[str, str]) -> SparkRelation:
        """The same, for being combined with bags whose attributes have these types."""
        return self._like(self._frame, self._attributes, net=self._net, types=types)

    @property
    def attributes(self) -> tuple[str, ...]:
        return self._attributes

    @property
    def known_empty(self) -> bool:
        return self._known_empty

    def dataframe(self) -> DataFrame:
        """A column for each attribute, and `_count`. A row may come in pieces: sum `_count` by row to have it net."""
        return self._frame.toDF(*self._attributes, COUNT)

    def net(self) -> SparkRelation:
        """The same relation with each row once and no zero counts."""
        if self._net:
            return self
        summed = self._frame.groupBy(*self._columns()).agg(F.sum(COUNT).alias(COUNT))
        return self._with(summed.where(F.col(COUNT) != 0), net=True)

    def collect(self) -> Bag:
        """The rows as a bag in memory."""
        rows = from_arrow(self.net()._frame.toArrow())
        return Bag(self._attributes, {row[:-1]: row[-1] for row in rows})

    def plus(self, other: Relation) -> SparkRelation:
        theirs = self.lift(other)
        if theirs.known_empty:
            return self
        theirs = theirs.project(self._attributes)
        both = self._leaves + theirs._leaves
        return theirs if self.known_empty else self._with(self._frame.union(theirs._frame), net=False, leaves=both)

    def negate(self) -> SparkRelation:
        return self._with(self._frame.withColumn(COUNT, -F.col(COUNT)), net=self._net)

    def join(self, other: Relation, on: Sequence[tuple[str, str]]) -> SparkRelation:
        theirs = self.lift(other)
        attributes = self._attributes + theirs._attributes
        pairs = self._frame.join(theirs._beside(), self._equal(theirs, on), "inner")
        columns = [F.col(name) for name in _names(len(attributes) - len(theirs._attributes))]
        columns += [F.col(f"k{i}") for i in range(len(theirs._attributes))]
        frame = pairs.select(*columns, F.col(COUNT) * F.col("k_count")).toDF(*_names(len(attributes)), COUNT)
        return SparkRelation(
            frame,
            attributes,
            self._types,
            net=self._net and theirs._net,
            known_empty=self._known_empty or theirs._known_empty,
            leaves=self._leaves + theirs._leaves,
        )

    def project(self, attributes: Sequence[str]) -> SparkRelation:
        if tuple(attributes) == self._attributes:
            return self
        frame = self._frame.select(*self._columns(attributes), COUNT).toDF(*_names(len(attributes)), COUNT)
        whole = set(attributes) == set(self._attributes)
        return self._like(frame, attributes, net=self._net and whole)

    def rename(self, names: Mapping[str, str]) -> SparkRelation:
        attributes = [names.get(a, a) for a in self._attributes]
        return self._like(self._frame, attributes, net=self._net)

    def keys(self, attributes: Sequence[str], *, nulls: bool = False) -> SparkRelation:
        found = self.net().project(attributes)
        whole = found._frame.withColumn(COUNT, F.lit(1).cast("bigint"))
        for column in () if nulls else found._columns():  # not `dropna`, to which NaN is missing too
            whole = whole.where(column.isNotNull())
        return found._with(whole.distinct(), net=True)

    def key_delete(self, keys: Relation, on: Sequence[tuple[str, str]]) -> SparkRelation:
        gone = self.lift(keys).net()
        condition = self._equal(gone, on, nulls=True)
        rest = self._frame.join(gone._beside(), condition, "left_anti")
        return self._with(rest, net=self._net, leaves=self._leaves + gone._leaves)

    def outside(self, bound: Bound) -> SparkRelation:
        names = dict(zip(self._attributes, _names(len(self._attributes)), strict=True))
        types = {a: self._frame.schema[name].dataType.simpleString() for a, name in names.items()}
        return self._with(self._frame.where(f"NOT {bound.sql(names, types)}"), net=self._net)

    def part(self, sign: int) -> SparkRelation:
        found = self.net()
        return found._with(found._frame.where(F.col(COUNT) * sign > 0).withColumn(COUNT, F.abs(COUNT)), net=True)

    def lift(self, other: Relation) -> SparkRelation:
        if isinstance(other, SparkRelation):
            return other
        if isinstance(other, Bag):
            fields = zip(self._attributes, self._frame.schema.fields, strict=False)
            own = {attribute: field.dataType.simpleString() for attribute, field in fields}
            return SparkRelation.of_bag(self._frame.sparkSession, other, {**own, **self._types})
        raise BrokenInvariant(f"a relation of kind {type(other).__name__} cannot be brought into Spark")

    def _with(self, frame: DataFrame, *, net: bool, leaves: int | None = None) -> SparkRelation:
        return self._like(frame, self._attributes, net=net, leaves=leaves)

    def _like(
        self,
        frame: DataFrame,
        attributes: Sequence[str],
        *,
        net: bool,
        leaves: int | None = None,
        types: Mapping[str, str] | None = None,
    ) -> SparkRelation:
        return SparkRelation(
            frame,
            attributes,
            self._types if types is None else types,
            net=net,
            known_empty=self._known_empty,
            leaves=leaves or self._leaves,
        )

    def _columns(self, attributes: Sequence[str] | None = None) -> list[Column]:
        wanted = self._attributes if attributes is None else attributes
        return [F.col(f"c{self._attributes.index(a)}") for a in wanted]

    def _beside(self) -> DataFrame:
        """The frame under names that do not collide with another's: `k0`, `k1`, …, `k_count`."""
        return self._frame.toDF(*(f"k{i}" for i in range(len(self._attributes))), "k_count")

    def _equal(self, beside: SparkRelation, on: Sequence[tuple[str, str]], *, nulls: bool = False) -> Column:
        condition = F.lit(True)
        for mine, theirs in on:
            left, right = F.col(f"c{self._attributes.index(mine)}"), F.col(f"k{beside._attributes.index(theirs)}")
            condition = condition & (left.eqNullSafe(right) if nulls else left == right)
        return condition


def local_data(spark: SparkSession, table: pa.Table) -> DataFrame:
    """An Arrow table in Spark, in its own types: left alone, Spark takes a timestamp without a zone for one with."""
    return spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))


def _names(width: int) -> list[str]:
    return [f"c{i}" for i in range(width)]


def _positional(frame: DataFrame) -> DataFrame:
    return frame.toDF(*_names(len(frame.columns) - 1), COUNT)


def _inferred(bag: Bag, place: int) -> str:
    """The type of an attribute that nobody declared, from its values."""
    values = [row[place] for row, _ in bag.items() if row[place] is not None]
    if any(isinstance(v, Decimal) for v in values):
        return f"decimal(38,{max(_scale(v) for v in values)})"
    return _type_of(values[0]) if values else "string"


def _scale(value: Any) -> int:
    exponent = Decimal(value).as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _type_of(value: Any) -> str:
    if isinstance(value, datetime):
        return "timestamp" if value.tzinfo else "timestamp_ntz"
    kinds = {bool: "boolean", int: "bigint", float: "double", str: "string", bytes: "binary", date: "date"}
    return kinds[type(value)]
