"""A view in parts, by the keys of one of its relations: each key is in one part, by its hash."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.bag import Bag, Row
from strobe.algebra.schema import quoted
from strobe.algebra.view import Occurrence, View
from strobe.data.arrow import canonical_ddl, from_arrow, to_arrow
from strobe.spark.recompute import recompute
from strobe.spark.relation import local_data


@dataclass(frozen=True)
class Parts:
    """All parts of a view: `number` of them, by the key of an occurrence that the view shows."""

    view: View
    anchor: Occurrence
    number: int

    @property
    def columns(self) -> tuple[str, ...]:
        return self.anchor.relation.key

    @property
    def types(self) -> list[str]:
        return [canonical_ddl(self.anchor.relation.column(c).type) for c in self.columns]

    def _shown(self, rows: DataFrame) -> list[Column]:
        """The key, from the columns of the view, in the relation's types."""
        outputs = self.view.key_of(self.anchor)
        names = [outputs[self.anchor.attribute(c)] for c in self.columns]
        return [rows[quoted(name)].cast(type_) for name, type_ in zip(names, self.types, strict=True)]

    def _hashed(self, key: Sequence[Column], part: int) -> Column:
        return F.pmod(F.xxhash64(*key), F.lit(self.number)) == F.lit(part)

    def of_view(self, rows: DataFrame, part: int) -> DataFrame:
        """The rows of the view that are in a part."""
        return rows if self.number == 1 else rows.where(self._hashed(self._shown(rows), part))

    def keys_of_view(self, rows: DataFrame) -> set[Row]:
        names = [f"k{i}" for i in range(len(self.columns))]
        shown = [key.alias(name) for key, name in zip(self._shown(rows), names, strict=True)]
        return set(from_arrow(rows.select(*shown).distinct().toArrow()))

    def keys_of_relation(self, keys: DataFrame, part: int) -> set[Row]:
        """The keys in a part, of a table that has all of them under the relation's own names."""
        columns = [F.col(quoted(c)) for c in self.columns]
        some = keys if self.number == 1 else keys.where(self._hashed(columns, part))
        return set(from_arrow(some.select(*columns).toArrow()))

    def with_keys(self, spark: SparkSession, rows: DataFrame, keys: Collection[Row]) -> DataFrame:
        """The rows of the view with one of these keys."""
        names = [f"__key{i}" for i in range(len(self.columns))]
        known = F.broadcast(local_data(spark, to_arrow(names, self.types, keys)))
        same = F.lit(True)
        for key, name in zip(self._shown(rows), names, strict=True):
            same = same & (key == known[name])
        return rows.join(known, same, "left_semi")


def computed(spark: SparkSession, view: View, relations: Mapping[str, Bag]) -> DataFrame:
    """The view over these rows of its relations, by its own SQL. Relations that are not named have none."""
    frames = {}
    for relation in view.relations:
        columns = view.columns_of(relation)
        rows = relations.get(relation.id, Bag(columns))
        copies = [row for row, count in rows.items() for _ in range(count)]
        if columns:
            names = [f"c{i}" for i in range(len(columns))]
            types = [canonical_ddl(relation.column(c).type) for c in columns]
            frames[relation.id] = local_data(spark, to_arrow(names, types, copies)).toDF(*columns)
        else:
            frames[relation.id] = spark.range(len(copies)).select()
    return recompute(spark, view, frames)
