"""Writes the small tables, `published` and `definitions`, and makes all of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from strobe.errors import UserError
from strobe.messages import CommitHeader
from strobe.warehouse import inspect, storage
from strobe.warehouse.layout import (
    DEFINITIONS_SCHEMA,
    DELETION_VECTORS,
    FORMAT,
    FORMAT_PROPERTY,
    HEADER_COLUMNS,
    ID_PROPERTY,
    LOG_SCHEMA,
    PROJECT_PROPERTY,
    PUBLISHED_SCHEMA,
    Layout,
    properties_sql,
    retention_properties,
    sql_path,
)
from strobe.warehouse.records import Definition, Published
from strobe.warehouse.storage import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUBLISHED = pa.schema(
    [
        ("commit", pa.int64()),
        ("published_at", pa.timestamp("us", tz="UTC")),
        ("views", pa.map_(pa.string(), pa.int64())),
    ]
)
_DEFINITIONS = pa.schema(
    [
        ("view", pa.string()),
        ("generation", pa.int64()),
        ("sql", pa.string()),
        ("schema", pa.string()),
        ("key", pa.list_(pa.string())),
        ("from_commit", pa.int64()),
        ("to_commit", pa.int64()),
        ("version", pa.int64()),
        ("fingerprints", pa.map_(pa.string(), pa.string())),
        ("wrong", pa.string()),
        ("right_to", pa.int64()),
    ]
)


def create_or_check(spark: SparkSession, layout: Layout, retention: timedelta, project: str) -> None:
    """Make the tables in an empty folder; `UserError` for a folder of somebody else's, which is left as it is."""
    if storage.exists(layout.log):
        check(layout, project)
        return
    refuse_foreign(layout)
    for table in layout.small:
        if not storage.exists(table):
            storage.remove(table)  # else Delta takes drafts for a table, and makes none
    common = {FORMAT_PROPERTY: str(FORMAT), DELETION_VECTORS: "false", **retention_properties(retention)}
    _create(spark, layout.published, PUBLISHED_SCHEMA, "", common)
    _create(spark, layout.definitions, DEFINITIONS_SCHEMA, "", common)
    own = {
        PROJECT_PROPERTY: project,
        ID_PROPERTY: uuid.uuid4().hex[:12],
        "delta.checkpointInterval": "100",
        "delta.dataSkippingStatsColumns": "commit,committed_at,epoch,view",
    }
    _create(spark, layout.log, LOG_SCHEMA, "PARTITIONED BY (`range`)", {**common, **own})


def check_before_use(layout: Layout, project: str) -> None:
    """`UserError` unless the folder is this project's warehouse, or can become one. Writes nothing, starts no JVM."""
    if storage.exists(layout.log):
        check(layout, project)
    else:
        refuse_foreign(layout)


def check_end(layout: Layout, last: CommitHeader | None) -> None:
    """`UserError` if commits were published that the log does not have any more: it lost its end."""
    newest = max((published.commit for published in inspect.published(layout)), default=0)
    if newest > (last.number if last else 0):
        raise UserError(
            f"the log ends at commit {last.number if last else 0}, and commit {newest} has been published: files of "
            "the log are missing",
            where=str(layout.root),
            fix="The warehouse is damaged. Restore the whole folder from a backup, or choose an empty one and load "
            "anew.",
        )


def check(layout: Layout, project: str) -> None:
    """That the tables are there, whole, ours, and of a format that is understood."""
    owner = inspect.properties(inspect.open_log(layout)).get(PROJECT_PROPERTY, project)
    if owner != project:
        raise UserError(
            f"the warehouse belongs to the project {owner!r}",
            where=str(layout.root),
            fix=f"Set `project: {owner}` in strobe.yml, or choose another folder for `warehouse`.",
        )
    inspect.open_table(layout.published)
    inspect.open_table(layout.definitions)


def refuse_foreign(layout: Layout) -> None:
    """`UserError` for a folder that holds anything but a warehouse (or one whose making was interrupted)."""
    if not layout.root.exists():
        return
    if not layout.root.is_dir():
        raise UserError("this is a file, not a folder", where=str(layout.root), fix="Set `warehouse` to a folder.")
    entries, foreign = layout.entries()
    if not foreign and all(map(_half_made, layout.small)):
        return
    shown = ", ".join(entries[:3])
    raise UserError(
        f"the folder is not empty and holds no warehouse (it holds {shown})",
        where=str(layout.root),
        fix="Set `warehouse` in strobe.yml to an empty or absent folder.",
    )


def deleted(layout: Layout) -> UserError:
    return UserError(
        "the warehouse was deleted, or replaced by another one, while it was in use",
        where=str(layout.root),
        fix="Put the folder back as it was, or start again: then all views are loaded into a new one.",
    )


def remove_remains(layout: Layout, views: Iterable[str]) -> None:
    """What was being written while the warehouse was deleted, which would keep others from making one here: files of
    tables that are no tables any more, and a log that an append has begun as a new table."""
    if storage.exists(layout.log):
        log = inspect.open_table(layout.log)
        ours = {field.name for field in log.schema().fields} >= set(HEADER_COLUMNS)
        if ours and FORMAT_PROPERTY not in inspect.properties(log):
            storage.remove(layout.log)
    for location in (*layout.small, *map(layout.view, views)):
        if not storage.exists(location):
            storage.remove_written(location, layout.root)


def _half_made(table: Location) -> bool:
    """Whether a table is ours and whole, or nothing was ever committed to it."""
    if storage.exists(table):
        return FORMAT_PROPERTY in inspect.properties(inspect.open_table(table))
    return storage.never_committed(table)


def append_published(layout: Layout, row: Published) -> None:
    record = {"commit": row.commit, "published_at": row.published_at, "views": list(row.views.items())}
    _write(layout.published, pa.Table.from_pylist([record], schema=_PUBLISHED), "append")


def write_definitions(layout: Layout, rows: Sequence[Definition]) -> None:
    """Replace the definitions, atomically."""
    records = [{**vars(row), "key": list(row.key), "fingerprints": list(row.fingerprints.items())} for row in rows]
    _write(layout.definitions, pa.Table.from_pylist(records, schema=_DEFINITIONS), "overwrite")


def _write(location: Location, rows: pa.Table, mode: Literal["append", "overwrite"]) -> None:
    """A few rows are written without Spark: commits wait for definitions, and a job takes longer than they do. A table
    that an older Strobe has made is given the columns that it lacks; one that is gone is not made again."""
    table = inspect.open_table(location)
    try:
        write_deltalake(table, rows, mode=mode, schema_mode="merge")
    except DeltaError as error:
        raise OSError(f"{location}: {error}") from error


def _create(spark: SparkSession, location: Location, schema: str, partitions: str, properties: dict[str, str]) -> None:
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {sql_path(location)} ({schema}) USING DELTA {partitions} "
        f"TBLPROPERTIES ({properties_sql(properties)})"
    )
