"""A stored view: its table, loading it anew, and folding the log into it.

The table itself remembers two numbers, written atomically with its rows as Delta transaction versions: the generation
that was loaded last (`load:<view>`), and the commit that this generation was folded to (`fold:<view>:g<generation>`).
So loading and folding can be interrupted anywhere and done again.

Where rows can repeat, copies of a row are numbered 1..n in `_copy`, without gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name by which Spark's users know it

from strobe.algebra.schema import quoted
from strobe.algebra.view import View
from strobe.errors import UserError
from strobe.warehouse import inspect, storage
from strobe.warehouse.layout import (
    COPY,
    DELETION_VECTORS,
    RESTORED_PROPERTY,
    UNDONE_PROPERTY,
    Layout,
    field,
    fold_app,
    load_app,
    properties_sql,
    sql_path,
    struct,
    text,
)
from strobe.warehouse.records import Definition
from strobe.warehouse.storage import Location

_COUNT, _LAST, _NEW, _OLD, _COME, _GONE = "_count", "_last", "_new", "_last_row", "_count_come", "_count_gone"
_FORBIDDEN = set(" ,;{}()\n\t=")
_RESERVED = (COPY, _COUNT, _LAST, _NEW, "_commit")
_TXN_APP, _TXN_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"


def check_names(view: View) -> None:
    """`UserError` for column names that a Delta table cannot hold."""
    seen: set[str] = set()
    for output in view.outputs:
        name = output.name.lower()
        if _FORBIDDEN & set(name):
            raise _refused(view, output.name, "has a name with a blank or one of , ; { } ( ) = in it")
        if name in seen:
            raise _refused(view, output.name, "occurs twice; names that differ only in case are the same")
        if name.startswith(_RESERVED):
            raise _refused(view, output.name, f"has a name that begins with one of {', '.join(_RESERVED)}")
        seen.add(name)


def check_types(view: View, types: Mapping[str, str]) -> None:
    """`UserError` for columns of types that a table cannot hold, or whose rows cannot be compared."""
    for name, type_ in types.items():
        if type_ == "void":
            raise _refused(view, name, "has no type")
        if "map<" in type_:
            raise _refused(view, name, "is a map, and rows with maps cannot be compared")


def _refused(view: View, column: str, problem: str) -> UserError:
    return UserError(f"the column {column!r} {problem}", where=f"view {view.name}", fix="Alias or cast it.")


def load(
    spark: SparkSession, layout: Layout, view: View, frame: DataFrame, generation: int, properties: dict[str, str]
) -> int:
    """Overwrite a view's table with freshly computed rows; returns the table's version that holds them."""
    location = layout.view(view.name)
    rows = frame if view.key else _numbered(frame)
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer = writer.option("txnAppId", load_app(view.name)).option("txnVersion", str(generation))
    if not storage.exists(location):
        writer = writer.options(**{DELETION_VECTORS: "false", **properties})
    else:
        allow_types(spark, location, (type_ for _, type_ in rows.dtypes))
    writer.save(location)
    if inspect.rows_of(layout, view.name) >= layout.sizes.large:
        set_properties(spark, location, {DELETION_VECTORS: "true"})
    return inspect.version(location)


def set_properties(spark: SparkSession, location: Location, properties: dict[str, str]) -> None:
    spark.sql(f"ALTER TABLE {sql_path(location)} SET TBLPROPERTIES ({properties_sql(properties)})")


def allow_types(spark: SparkSession, location: Location, types: Iterable[str]) -> None:
    """Delta takes timestamps without a zone into a table that is there only when it has been told to."""
    if any("timestamp_ntz" in type_.lower() for type_ in types):
        set_properties(spark, location, {"delta.feature.timestampNtz": "supported"})


def undo_load(spark: SparkSession, layout: Layout, definition: Definition) -> None:
    """Bring back the generation in force, if a newer one was loaded that never joined."""
    location = layout.view(definition.view)
    table = inspect.open_table(location)
    if inspect.loaded_generation(table, definition.view) == definition.generation:
        return
    back, undone = table.version(), inspect.last_load(table, definition.view)
    while inspect.loaded_generation(table, definition.view) > definition.generation:
        back -= 1
        table.load_as_version(back)
    spark.sql(f"RESTORE TABLE {sql_path(location)} TO VERSION AS OF {back}")
    set_properties(spark, location, {UNDONE_PROPERTY: str(undone), RESTORED_PROPERTY: str(definition.generation)})


def net(spark: SparkSession, log: DeltaTable, definition: Definition, after: int, through: int) -> DataFrame:
    """The net change of a view between two commits: its columns and `_count`, never zero."""
    changes, _ = logged(spark, log, definition, after, through)
    return summed(changes)


def summed(changes: DataFrame) -> DataFrame:
    """Each row once, with the sum of its `_count`s, if that is not zero."""
    columns = [quoted(column) for column in changes.columns if column != _COUNT]
    counted = changes.groupBy(*columns).agg(F.sum(_COUNT).alias(_COUNT))
    return counted.where(F.col(_COUNT) != 0)


def logged(
    spark: SparkSession, log: DeltaTable, definition: Definition, after: int, through: int
) -> tuple[DataFrame, int]:
    """The log's rows of a view between two commits: its columns and `_count`; and how many bytes must be read for them.

    Only the files of this version of the log that hold such commits are read, as what they are, Parquet: the log has no
    deletion vectors, and having Spark rebuild a past state of a long table would cost more than the rows do.
    """
    rows = field(definition.view, definition.generation)
    files = [file for file in inspect.log_files(log) if file.last > after and file.first <= through]
    schema = f"commit BIGINT, view STRING, `count` BIGINT, rows STRUCT<{rows}: {struct(definition.schema)}>"
    wanted = f"commit > {after} AND commit <= {through} AND view = {text(definition.view)}"
    read = spark.read.schema(schema).parquet(*(file.location for file in files)).where(wanted)
    return read.select(f"rows.{rows}.*", F.col("count").alias(_COUNT)), sum(file.size for file in files)


def stored(spark: SparkSession, layout: Layout, definition: Definition, version: int) -> tuple[DataFrame, int]:
    """The rows of a version of a view's table, copies repeated, without `_copy`; and how many bytes must be read.

    Without deletion vectors its files are read as Parquet too, so that Delta runs no job of its own to find them.
    """
    location = layout.view(definition.view)
    table = inspect.open_table(location, version)
    files = inspect.data_files(table)
    size = sum(files.values())
    if inspect.properties(table).get(DELETION_VECTORS) == "true":
        return spark.read.format("delta").option("versionAsOf", version).load(location).drop(COPY), size
    if not files:
        return spark.createDataFrame([], definition.schema), 0
    return spark.read.schema(definition.schema).parquet(*files), size


def fold(
    spark: SparkSession,
    layout: Layout,
    log: DeltaTable,
    definition: Definition,
    after: int,
    through: int,
    unguaranteed: bool = False,
) -> None:
    """Merge the log's rows between two commits into a view's table.

    A log that takes away rows which are not there is a broken invariant, but for an `unguaranteed` view.
    """
    with _transaction(spark, fold_app(definition.view, definition.generation), through):
        catch_up(spark, layout, log, definition, after, through, unguaranteed)


def empty(spark: SparkSession, layout: Layout, definition: Definition) -> None:
    """Take all rows out of the table of a view that has left and was folded to its end, if it still is that view's."""
    location = layout.view(definition.view)
    if (
        storage.exists(location)
        and inspect.loaded_generation(inspect.open_table(location), definition.view) == definition.generation
    ):
        spark.sql(f"DELETE FROM {sql_path(location)}")


def catch_up(
    spark: SparkSession,
    layout: Layout,
    log: DeltaTable,
    definition: Definition,
    after: int,
    through: int,
    unguaranteed: bool = False,
) -> None:
    """The same from a log that need not be this warehouse's own: how a loaded table comes to where it joins."""
    location = layout.view(definition.view)
    table = spark.read.format("delta").load(location)
    columns = [c for c in table.columns if c != COPY]
    change = net(spark, log, definition, after, through)
    if definition.key:
        source, merge = _by_key(change, columns, definition.key, definition.view, unguaranteed)
    else:
        source, merge = _by_copy(table, change, columns, definition.view, unguaranteed)
    source.createOrReplaceTempView("strobe_fold")
    spark.sql(f"MERGE INTO {sql_path(location)} AS t USING strobe_fold AS s {merge}")


def _by_key(
    change: DataFrame, columns: Sequence[str], key: Sequence[str], view: str, unguaranteed: bool
) -> tuple[DataFrame, str]:
    """One source row for each key: the row that goes, if one does, and the one that comes, if one does."""
    row = F.struct(*(F.col(quoted(c)) for c in columns))
    coming, going = F.when(F.col(_COUNT) > 0, row), F.when(F.col(_COUNT) < 0, row)
    source = change.groupBy(*map(quoted, key)).agg(
        F.max(coming).alias(_NEW),
        F.max(going).alias(_OLD),
        F.sum(F.greatest(F.col(_COUNT), F.lit(0))).alias(_COME),
        F.sum(F.greatest(-F.col(_COUNT), F.lit(0))).alias(_GONE),
    )
    there = " AND ".join(f"t.{quoted(c)} <=> s.{_OLD}.{quoted(c)}" for c in columns)
    on = " AND ".join(f"t.{quoted(c)} <=> s.{quoted(c)}" for c in key)  # a group may have NULL
    updates = ", ".join(f"t.{quoted(c)} = s.{_NEW}.{quoted(c)}" for c in columns)
    names, values = ", ".join(map(quoted, columns)), ", ".join(f"s.{_NEW}.{quoted(c)}" for c in columns)
    if unguaranteed:
        return source, (
            f"ON {on} WHEN MATCHED AND s.{_NEW} IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET {updates} "
            f"WHEN NOT MATCHED AND s.{_NEW} IS NOT NULL THEN INSERT ({names}) VALUES ({values})"
        )
    # raised by values, not by conditions: those Spark may evaluate for any row
    wrong = f"raise_error({text(f'view {view}: the log contradicts the rows of the table')})"
    changed, came = f"s.{_COME} <= 1 AND s.{_GONE} = 1 AND {there}", f"s.{_COME} = 1 AND s.{_GONE} = 0"
    return source, (
        f"ON {on} WHEN MATCHED AND {changed} AND s.{_NEW} IS NULL THEN DELETE "
        f"WHEN MATCHED AND {changed} THEN UPDATE SET {updates} "
        f"WHEN MATCHED THEN UPDATE SET t.{quoted(key[0])} = {wrong} "
        f"WHEN NOT MATCHED AND {came} THEN INSERT ({names}) VALUES ({values}) "
        f"WHEN NOT MATCHED THEN INSERT ({quoted(key[0])}) VALUES ({wrong})"
    )


def _by_copy(
    table: DataFrame, change: DataFrame, columns: Sequence[str], view: str, unguaranteed: bool
) -> tuple[DataFrame, str]:
    """One source row for each copy that comes or goes: the last copies go, new ones come after them."""
    touched = table.alias("t").join(change.alias("s"), _same("t", "s", columns), "left_semi")
    none = F.lit(0).cast("bigint")
    both = touched.withColumn(_COUNT, none).unionByName(change.withColumn(COPY, none))
    counted = both.groupBy(*map(quoted, columns)).agg(F.sum(_COUNT).alias(_COUNT), F.max(COPY).alias(_LAST))
    message = text(f"view {view}: the log takes away rows that the table does not hold")
    otherwise = f"IF({_LAST} > 0, sequence(1, {_LAST}), array())" if unguaranteed else f"raise_error({message})"
    copies = (
        f"CASE WHEN {_COUNT} > 0 THEN sequence({_LAST} + 1, {_LAST} + {_COUNT}) "
        f"WHEN {_LAST} + {_COUNT} >= 0 THEN sequence({_LAST} + {_COUNT} + 1, {_LAST}) "
        f"ELSE {otherwise} END"
    )
    source = counted.select(*map(quoted, columns), _COUNT, F.explode(F.expr(copies)).alias(COPY))
    names = [*columns, COPY]
    on = " AND ".join(f"t.{quoted(c)} <=> s.{quoted(c)}" for c in names)
    values = ", ".join(f"s.{quoted(c)}" for c in names)
    return source, (
        f"ON {on} WHEN MATCHED AND s.{_COUNT} < 0 THEN DELETE "
        f"WHEN NOT MATCHED AND s.{_COUNT} > 0 THEN INSERT ({', '.join(map(quoted, names))}) VALUES ({values})"
    )


def merged(base: DataFrame, change: DataFrame, key: Sequence[str], small: bool) -> DataFrame:
    """A view's rows after a change: a table as it was, and a net change. Without `_copy`.

    Of the copies of a row that are fewer now, any may go, so those with the lowest numbers do: no counting, and where
    the change is small no shuffle of the table.
    """
    columns = [c for c in base.columns if c != COPY]
    names = list(map(quoted, columns))
    going = change.where(F.col(_COUNT) < 0)
    going = F.broadcast(going) if small else going
    matches = _same("t", "s", key or columns)
    if not key:
        matches = matches & (F.col(f"t.{COPY}") <= -F.col(f"s.{_COUNT}"))
    staying = base.alias("t").join(going.alias("s"), matches, "left_anti").select(*names)
    coming = change.where(F.col(_COUNT) > 0).withColumn(_LAST, F.explode(F.expr(f"sequence(1, {_COUNT})")))
    return staying.unionByName(coming.select(*names))


def _same(left: str, right: str, columns: Sequence[str]) -> Column:
    condition = F.lit(True)
    for column in columns:
        condition = condition & F.col(f"{left}.{quoted(column)}").eqNullSafe(F.col(f"{right}.{quoted(column)}"))
    return condition


def _numbered(frame: DataFrame) -> DataFrame:
    names = list(map(quoted, frame.columns))
    counted = frame.groupBy(*names).agg(F.count(F.lit(1)).alias(_COUNT))
    return counted.select(*names, F.explode(F.expr(f"sequence(1, {_COUNT})")).alias(COPY))


@contextmanager
def _transaction(spark: SparkSession, app: str, number: int) -> Iterator[None]:
    """What is written inside carries this application's number, once. Only for a session that nobody else uses."""
    spark.conf.set(_TXN_APP, app)
    spark.conf.set(_TXN_VERSION, str(number))
    try:
        yield
    finally:
        spark.conf.unset(_TXN_APP)
        spark.conf.unset(_TXN_VERSION)
