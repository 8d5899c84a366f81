"""Computes a view by its own SQL, over rows of its relations that were read together: the load and the audit do."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.schema import RelationSchema, quoted
from strobe.algebra.view import View, snapshot_name
from strobe.errors import UserError


def recompute(spark: SparkSession, view: View, relations: Mapping[str, DataFrame]) -> DataFrame:
    """The view over these rows of its relations, by `source.table`."""
    for relation in view.relations:
        _whole(relations[relation.id], relation).createOrReplaceTempView(snapshot_name(relation))
    try:
        return spark.sql(view.recompute_sql)
    except AnalysisException as error:
        raise UserError(
            f"Spark does not accept the view's SQL: {str(error).splitlines()[0]}",
            where=f"view {view.name}",
            fix="Change the SQL; types are Spark's, as `strobe explain` shows them.",
        ) from error


def _whole(rows: DataFrame, relation: RelationSchema) -> DataFrame:
    """All columns of the relation, as the SQL may name them; those that the view makes no use of are not read: NULL."""
    there = set(rows.columns)
    return rows.select(
        *(rows[quoted(c.name)] if c.name in there else F.lit(None).cast(c.type).alias(c.name) for c in relation.columns)
    )
