"""A warehouse, and a table of file drops, written by hand in the public format: without Spark and without Strobe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from strobe.algebra.bag import Bag

START = datetime(2026, 1, 1, tzinfo=timezone.utc)

POSITIONS = pa.map_(pa.string(), pa.map_(pa.string(), pa.string()))
ROW = pa.struct([("a", pa.int64()), ("b", pa.string())])


def write_warehouse(
    path: Path,
    loaded: Mapping[str, Sequence[tuple[Any, ...]]],
    commits: Sequence[tuple[Mapping[str, str], Mapping[str, Mapping[tuple[Any, ...], int]]]],
) -> None:
    """Views are over (a, b), generation 1. `commits` are (positions, signed rows by view); the first one brings the
    views in, as `loaded` says."""
    log = []
    for number, (positions, changes) in enumerate(commits, start=1):
        vector = [(view, list(positions.items())) for view in loaded]
        at = START + timedelta(seconds=number)
        log.append({"commit": number, "committed_at": at, "positions": vector, "view": None})
        for view, rows in changes.items():
            for (a, b), count in rows.items():
                values = {f"{view}_g1": {"a": a, "b": b}}
                log.append({"commit": number, "view": view, "count": count, "rows": values})
    rows_type = pa.struct([(f"{view}_g1", ROW) for view in loaded])
    fields = [("commit", pa.int64()), ("committed_at", pa.timestamp("us", tz="UTC")), ("positions", POSITIONS)]
    fields += [("view", pa.string()), ("count", pa.int64()), ("rows", rows_type)]
    write(path / "log", log, pa.schema(fields))
    for view, rows in loaded.items():
        copies = [{"a": a, "b": b, "_copy": rows[:i].count((a, b)) + 1} for i, (a, b) in enumerate(rows)]
        write(path / "views" / view, copies, pa.schema([*ROW, ("_copy", pa.int64())]))
    definitions = [{"view": v, "generation": 1, "from_commit": 1, "to_commit": None, "version": 0} for v in loaded]
    names = ("generation", "from_commit", "to_commit", "version")
    write(path / "definitions", definitions, pa.schema([("view", pa.string()), *((n, pa.int64()) for n in names)]))
    published = [{"commit": 1, "published_at": START, "views": [(view, 0) for view in loaded]}]
    kind = pa.map_(pa.string(), pa.int64())
    fields = [("commit", pa.int64()), ("published_at", pa.timestamp("us", tz="UTC")), ("views", kind)]
    write(path / "published", published, pa.schema(fields))


def write(path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema, **options: Any) -> None:
    path.mkdir(parents=True, exist_ok=True)
    write_deltalake(str(path), pa.Table.from_pylist(list(rows), schema=schema), **options)


def bag(*rows: tuple[Any, ...]) -> Bag:
    return Bag.of(("a", "b"), rows)


def write_drop(path: Path, columns: dict[str, list[Any]]) -> None:
    """A version of a staged table: columns by place, and their names in its properties. Version 0 is empty."""
    data = pa.table({f"c{i}": values for i, values in enumerate(columns.values())})
    if not DeltaTable.is_deltatable(str(path)):
        names = {"strobe.columns": json.dumps(list(columns))}
        DeltaTable.create(str(path), data.schema, configuration=names, raise_if_key_not_exists=False)
    write_deltalake(str(path), data, mode="overwrite")
