"""Answers look-ups from what the warehouse holds, as of the last commit: copies of relations, and views. Of few keys
without a Spark job.

A copy is a view of its own, of all columns of one relation: loaded, committed, folded and retained as every other, in
the same commits as the views that use it. So it is the relation at exactly the positions that the last header says.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from strobe.algebra.bag import Bag, Row
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


def copy(
    spark: SparkSession, layout: Layout, source: str, lookup: Lookup, types: Mapping[str, str]
) -> tuple[Relation, str]:
    """Rows of a copied relation over `lookup.columns`, and the source's position at which they are.

    There may be more rows than have one of these keys, never fewer. Where the keys are in Spark, so are the rows.
    """
    name = copy_of(source, lookup.relation)
    if isinstance(lookup.keys, Bag):
        rows, header = _rows(layout, name, lookup.columns, lookup.on[:1], [key for key, _ in lookup.keys.items()])
        return rows, header.positions[name][source]
    there = reader.snapshot(spark, layout)
    frame = there.table(name).select(*(quoted(column) for column in lookup.columns))
    return SparkRelation.of_rows(frame, types), there.header.positions[name][source]


def shown(layout: Layout, view: View, lookup: Lookup) -> tuple[Bag, str]:
    """Rows of a relation that a view itself shows, each once, and the source's position at which they are; of many keys
    none."""
    few = lookup.keys if isinstance(lookup.keys, Bag) and len(lookup.keys) <= MOST_KEYS else Bag(lookup.on)
    occurrence = view.occurrences[lookup.occurrence]
    outputs = view.shows(occurrence)
    every = tuple(output.name for output in view.outputs)
    keys = [key for key, _ in few.items()]
    rows, header = _rows(layout, view.name, every, (outputs[lookup.on[0]],), keys)
    there = Bag(every, {row: 1 for row, count in rows.items() if count > 0})
    found = there.project([outputs[c] for c in lookup.columns])
    distinct = Bag(lookup.columns, {row: 1 for row, _ in found.items()})
    return distinct, header.positions[view.name][occurrence.source]


def _rows(
    layout: Layout, name: str, columns: tuple[str, ...], on: tuple[str, ...], keys: list[Row] | None
) -> tuple[Bag, CommitHeader]:
    """The rows of a view at the last commit in which a column has one of these values, and maybe some more."""
    log = inspect.open_log(layout)
    header = inspect.last_header_of(log)
    if header is None or name not in header.positions:
        raise BrokenInvariant("it is not in the warehouse", where=f"view {name}")
    base, version = _base(layout, name, header)
    rows = _stored(layout, name, version, columns, _where(on, keys))
    for file in inspect.log_files(log):
        if file.last > base:
            rows = rows.add(_logged(file.location, name, header, base, columns))
    return rows, header


def _base(layout: Layout, name: str, header: CommitHeader) -> tuple[int, int]:
    """The newest commit that the copy's table holds, and the table's version."""
    generation = header.generations[name]
    definition = next(d for d in inspect.definitions(layout) if (d.view, d.generation) == (name, generation))
    for row in reversed(inspect.published(layout)):
        if definition.from_commit <= row.commit <= header.number and name in row.views:
            return row.commit, row.views[name]
    return definition.base, definition.version


def _stored(layout: Layout, name: str, version: int, columns: tuple[str, ...], where: str) -> Bag:
    table = DeltaTable(layout.view(name), version=version)
    sql = f"SELECT {', '.join(_quoted(c) for c in columns)} FROM t{where}"
    return Bag.of(columns, from_arrow(pa.table(QueryBuilder().register("t", table).execute(sql))))


def _where(on: tuple[str, ...], keys: list[Row] | None) -> str:
    """A condition that narrows what is read where that is simple and exact: by integers and text."""
    if keys is None or not on or len(keys) > MOST_KEYS:
        return ""
    values = {key[0] for key in keys}
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        return f" WHERE {_quoted(on[0])} IN ({', '.join(map(str, values)) or 'NULL'})"
    if all(isinstance(v, str) and "\0" not in v for v in values):
        texts = ", ".join("'" + v.replace("'", "''") + "'" for v in values)
        return f" WHERE {_quoted(on[0])} IN ({texts})"
    return ""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _logged(file: Location, name: str, header: CommitHeader, base: int, columns: tuple[str, ...]) -> Bag:
    """What a file of the log says of the copy after a commit."""
    rows = field(name, header.generations[name])
    parquet = pq.ParquetFile(file)
    schema = parquet.schema_arrow
    if "rows" not in schema.names or schema.field("rows").type.get_field_index(rows) < 0:
        return Bag(columns)
    table = parquet.read(columns=["commit", "view", "count", f"rows.{rows}"])
    wanted = pc.and_(pc.equal(table["view"], name), pc.greater(table["commit"], base))
    table = table.filter(pc.and_(wanted, pc.less_equal(table["commit"], header.number)))
    structs = pc.struct_field(table["rows"], [rows])
    parts: Mapping[str, pa.ChunkedArray] = {c: pc.struct_field(structs, [c]) for c in columns}
    found = from_arrow(pa.table([*parts.values(), table["count"]], names=[*columns, "__count"]))
    counts: dict[Row, int] = {}
    for *values, count in found:
        row = tuple(values)
        counts[row] = counts.get(row, 0) + count
    return Bag(columns, counts)
