"""Answers look-ups from what the warehouse holds, as of the last commit: copies of relations, and views. Of few keys
without a Spark job.

A copy is a view of its own, of all columns of one relation: loaded, committed, folded and retained as every other, in
the same commits as the views that use it. So it is the relation at exactly the positions that the last header says.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from strobe.algebra.bag import Bag, Row, picker
from strobe.algebra.copies import copy_of
from strobe.algebra.relation import Relation
from strobe.algebra.schema import quoted
from strobe.algebra.view import View
from strobe.data.arrow import from_arrow
from strobe.errors import BrokenInvariant
from strobe.messages import CommitHeader, Lookup
from strobe.spark.relation import SparkRelation
from strobe.warehouse import inspect, reader
from strobe.warehouse.layout import Layout, field
from strobe.warehouse.storage import Location

MOST_KEYS = 1000
"""Beyond so many keys a copy is read whole."""

MOST_ROWS = 100_000
"""Found in memory, or looked through in the log for those: beyond, a copy is read by Spark, and of a view nothing
is known."""


def copy(
    spark: SparkSession, layout: Layout, source: str, lookup: Lookup, types: Mapping[str, str]
) -> tuple[Relation, str]:
    """Rows of a copied relation over `lookup.columns`, and the source's position at which they are.

    Where the keys are in Spark, so are the rows, and where they are too many for memory: then there may be more rows
    than have one of these keys.
    """
    name = copy_of(source, lookup.relation)
    if isinstance(lookup.keys, Bag):
        keys = [key for key, _ in lookup.keys.items() if lookup.null_safe or None not in key]
        rows, header = _rows(layout, name, lookup.columns, lookup.on[:1], keys)
        if rows is not None:
            pick, wanted = picker([lookup.columns.index(c) for c in lookup.on]), set(keys)
            found = {row: count for row, count in rows.items() if pick(row) in wanted}
            return Bag(lookup.columns, found), header.positions[name][source]
    there = reader.snapshot(spark, layout)
    frame = there.table(name).select(*(quoted(column) for column in lookup.columns))
    return SparkRelation.of_rows(frame, types), there.header.positions[name][source]


def shown(layout: Layout, view: View, lookup: Lookup) -> tuple[Bag, str]:
    """Rows of a relation that a view itself shows, each once, and the source's position at which they are; none of many
    keys, or where the view has many rows of these."""
    few = lookup.keys if isinstance(lookup.keys, Bag) and len(lookup.keys) <= MOST_KEYS else Bag(lookup.on)
    occurrence = view.occurrences[lookup.occurrence]
    outputs = view.shows(occurrence)
    every = tuple(output.name for output in view.outputs)
    keys = [key for key, _ in few.items()]
    rows, header = _rows(layout, view.name, every, (outputs[lookup.on[0]],), keys)
    there = Bag(every, {row: 1 for row, count in rows.items() if count > 0} if rows is not None else {})
    found = there.project([outputs[c] for c in lookup.columns])
    distinct = Bag(lookup.columns, {row: 1 for row, _ in found.items()})
    return distinct, header.positions[view.name][occurrence.source]


def _rows(
    layout: Layout, name: str, columns: tuple[str, ...], on: tuple[str, ...], keys: list[Row] | None
) -> tuple[Bag | None, CommitHeader]:
    """The rows of a view at the last commit in which a column has one of these values, and maybe some more; None if
    these are too many for memory."""
    log = inspect.open_log(layout)
    header = inspect.last_header_of(log)
    if header is None or name not in header.positions:
        raise BrokenInvariant("it is not in the warehouse", where=f"view {name}")
    base, version = _base(layout, name, header)
    rows = _stored(layout, name, version, columns, _where(on, keys))
    since = [file.location for file in inspect.log_files(log) if file.last > base]
    if rows is None or sum(pq.read_metadata(file).num_rows for file in since) > MOST_ROWS:
        return None, header
    for file in since:
        for change in logged(file, name, header.generations[name], base, header.number, columns).values():
            rows = rows.add(change)
    return rows, header


def _base(layout: Layout, name: str, header: CommitHeader) -> tuple[int, int]:
    """The newest commit that the copy's table holds, and the table's version."""
    generation = header.generations[name]
    definition = next(d for d in inspect.definitions(layout) if (d.view, d.generation) == (name, generation))
    for row in reversed(inspect.published(layout)):
        if definition.from_commit <= row.commit <= header.number and name in row.views:
            return row.commit, row.views[name]
    return definition.base, definition.version


def _stored(layout: Layout, name: str, version: int, columns: tuple[str, ...], where: str) -> Bag | None:
    table = DeltaTable(layout.view(name), version=version)
    sql = f"SELECT {', '.join(_quoted(c) for c in columns)} FROM t{where} LIMIT {MOST_ROWS + 1}"
    found = pa.table(QueryBuilder().register("t", table).execute(sql))
    return None if found.num_rows > MOST_ROWS else Bag.of(columns, from_arrow(found))


def among(table: DeltaTable, columns: tuple[str, ...], on: tuple[str, ...], keys: Set[Row], most: int) -> Bag | None:
    """The rows of a table that have one of these keys, and maybe some more; None if there are more different ones than
    so many."""
    conditions = [_one_of(column, {key[i] for key in keys}) for i, column in enumerate(on)]
    names, where = ", ".join(map(_quoted, columns)), " AND ".join(c for c in conditions if c) or "true"
    sql = f"SELECT {names}, count(*) AS n FROM t WHERE {where} GROUP BY {names} LIMIT {most + 1}"
    found = list(from_arrow(pa.table(QueryBuilder().register("t", table).execute(sql))))
    if len(found) > most:
        return None
    counts: dict[Row, int] = {}
    for *values, count in found:
        row = tuple(values)
        counts[row] = counts.get(row, 0) + count
    return Bag(columns, counts)


def _where(on: tuple[str, ...], keys: list[Row] | None) -> str:
    """A condition that narrows what is read where that is simple and exact."""
    if keys is None or not on or len(keys) > MOST_KEYS:
        return ""
    condition = _one_of(on[0], {key[0] for key in keys})
    return f" WHERE {condition}" if condition else ""


def _one_of(column: str, values: Set[Any]) -> str:
    """That a column has one of these values, if that is simple and exact: for integers, text and NULL."""
    known = values - {None}
    if values and not known:
        return f"{_quoted(column)} IS NULL"
    if all(isinstance(v, int) and not isinstance(v, bool) for v in known):
        texts = [str(v) for v in known]
    elif all(isinstance(v, str) and "\0" not in v for v in known):
        texts = ["'" + v.replace("'", "''") + "'" for v in known]
    else:
        return ""
    condition = f"{_quoted(column)} IN ({', '.join(texts) or 'NULL'})"
    return f"({condition} OR {_quoted(column)} IS NULL)" if None in values else condition


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def logged(
    file: Location, name: str, generation: int, after: int, through: int, columns: tuple[str, ...]
) -> dict[int, Bag]:
    """What a file of the log says of a view's rows between two commits, by commit, in the order of commits."""
    rows = field(name, generation)
    parquet = pq.ParquetFile(file)
    schema = parquet.schema_arrow
    if "rows" not in schema.names or schema.field("rows").type.get_field_index(rows) < 0:
        return {}
    table = parquet.read(columns=["commit", "view", "count", f"rows.{rows}"])
    wanted = pc.and_(pc.equal(table["view"], name), pc.greater(table["commit"], after))
    table = table.filter(pc.and_(wanted, pc.less_equal(table["commit"], through)))
    structs = pc.struct_field(table["rows"], [rows])
    parts: Mapping[str, pa.ChunkedArray] = {c: pc.struct_field(structs, [c]) for c in columns}
    names = [*columns, "__count", "__commit"]
    found: dict[int, dict[Row, int]] = {}
    for *values, count, commit in from_arrow(pa.table([*parts.values(), table["count"], table["commit"]], names=names)):
        counts, row = found.setdefault(commit, {}), tuple(values)
        counts[row] = counts.get(row, 0) + count
    return {commit: Bag(columns, found[commit]) for commit in sorted(found)}
