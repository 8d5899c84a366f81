"""Keeps the warehouse from filling the disk: drops what is older than the horizon, and joins small files.

Any commit inside the horizon stays readable. The oldest of them, h, needs the view tables at the newest published
commit p <= h and the log's rows after p; so everything up to p may go, in whole ranges of the log. Delta keeps removed
files for twice the horizon (see `layout.retention_properties`), so a reader at work meanwhile is not disturbed.

Only the coordinator that holds the fence does this.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta, timezone

from pyspark.sql import SparkSession

from strobe.warehouse import claim, inspect, view_table
from strobe.warehouse.layout import OLDEST_PROPERTY, Layout, Sizes, sql_path
from strobe.warehouse.storage import Location


def drop_old(
    spark: SparkSession, layout: Layout, retention: timedelta, appending: AbstractContextManager[object]
) -> int:
    """Drop what no commit inside the horizon needs; returns the oldest commit that can be read."""
    log = inspect.open_log(layout)
    horizon = inspect.header_at(log, datetime.now(timezone.utc) - retention)
    last = inspect.last_header_of(log)
    kept = inspect.oldest_readable(layout, log)
    if horizon is None or last is None:
        return kept
    before = [row.commit for row in inspect.published(layout) if row.commit <= horizon.number]
    if not before or before[-1] <= kept:
        return kept
    oldest = before[-1]
    view_table.set_properties(spark, layout.published, {OLDEST_PROPERTY: str(oldest)})
    spark.sql(f"DELETE FROM {sql_path(layout.published)} WHERE commit < {oldest}")
    size = layout.sizes.range
    ranges = min((oldest + 1) // size, last.number // size)
    if any(file.last < ranges * size for file in inspect.log_files(log)):
        spark.sql(f"DELETE FROM {sql_path(layout.log)} WHERE `range` < {ranges}")
    with appending:
        claim.drop_implied(spark, layout, inspect.oldest_commit(inspect.open_log(layout)) or 0)
    return oldest


def compact(spark: SparkSession, layout: Layout, names: Iterable[str]) -> bool:
    """Join small files where there are many; returns whether a view's table has a new version."""
    spark.conf.set("spark.databricks.delta.optimize.minFileSize", str(layout.sizes.small))
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(16 * layout.sizes.small))
    for location in layout.small:
        _compact(spark, location, layout.sizes)
    compacted = [name for name in names if _compact(spark, layout.view(name), layout.sizes)]
    return bool(compacted)


def vacuum(spark: SparkSession, layout: Layout, names: Iterable[str]) -> None:
    """Delete files that no retained version of a table uses, by the tables' own retention.

    Delta would list the files in 10,000 tasks, most of them empty, and give the tables new versions just to say so.
    """
    spark.conf.set("spark.databricks.delta.vacuum.logging.enabled", "false")
    tasks = str(spark.sparkContext.defaultParallelism)
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", tasks)
    for location in (*layout.small, *map(layout.view, names)):
        spark.sql(f"VACUUM {sql_path(location)}")


def _compact(spark: SparkSession, location: Location, sizes: Sizes) -> bool:
    if inspect.small_files(location, sizes.small) < sizes.many:
        return False
    spark.sql(f"OPTIMIZE {sql_path(location)}")
    return True
