"""Reads the warehouse without a JVM: the last header, history, published versions, definitions, row counts.

Delta's own statistics tell which files of the log hold which commits, so only the few that matter are opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from strobe.errors import UserError
from strobe.messages import CommitHeader
from strobe.warehouse import storage
from strobe.warehouse.layout import (
    FORMAT,
    FORMAT_PROPERTY,
    HEADER_COLUMNS,
    OLDEST_PROPERTY,
    RESTORED_PROPERTY,
    UNDONE_PROPERTY,
    Layout,
    fold_app,
    load_app,
)
from strobe.warehouse.records import Definition, Past, Published
from strobe.warehouse.storage import Location

_ROUNDING = timedelta(milliseconds=2)
"""Delta keeps the statistics of timestamps in milliseconds."""


@dataclass(frozen=True)
class LogFile:
    """A file of the log, with the commits in it."""

    location: Location
    first: int
    last: int
    since: datetime | None
    """No header in the file is older; None if it holds no header."""
    size: int


def open_table(location: Location, version: int | None = None) -> DeltaTable:
    try:
        return DeltaTable(location, version=version)
    except TableNotFoundError as error:
        raise UserError("there is no table here", where=location, fix="Is this the warehouse's folder?") from error
    except (DeltaError, OSError, ValueError) as error:
        raise _damaged(f"the table cannot be read: {str(error).splitlines()[0]}", location) from error


def open_log(layout: Layout) -> DeltaTable:
    """The log, if it is one that this Strobe understands."""
    table = open_table(layout.log)
    number = properties(table).get(FORMAT_PROPERTY)
    if number is None:
        raise UserError(
            "this folder holds something else than a Strobe warehouse",
            where=str(layout.root),
            fix="Set `warehouse` in strobe.yml to an empty or absent folder.",
        )
    if not number.isdigit() or int(number) > FORMAT:
        raise UserError(
            f"the warehouse has format {number}, and this Strobe knows formats up to {FORMAT}",
            where=str(layout.root),
            fix="Use the version of Strobe that wrote it, or a newer one.",
        )
    return table


def properties(table: DeltaTable) -> dict[str, str]:
    return dict(table.metadata().configuration)


def version(location: Location) -> int:
    return int(open_table(location).version())


def data_files(table: DeltaTable) -> dict[Location, int]:
    """The files of a table, with their sizes."""
    batch = pa.table(table.get_add_actions(flatten=True))
    files = storage.absolute(table, batch["path"].to_pylist())
    return dict(zip(files, batch["size_bytes"].to_pylist(), strict=True))


def small_files(location: Location, size: int) -> int:
    """How many files of a table are smaller than a size."""
    return sum(found < size for found in data_files(open_table(location)).values())


def last_header(layout: Layout) -> CommitHeader | None:
    """The header of the last commit."""
    return last_header_of(open_log(layout))


def last_header_of(log: DeltaTable) -> CommitHeader | None:
    files = log_files(log)
    if not files:
        return None
    last = max(file.last for file in files)
    found = headers(file for file in files if file.last == last)
    return max(found, key=lambda header: header.number)


def header_of(log: DeltaTable, commit: int) -> CommitHeader | None:
    """The header of one commit."""
    around = [file for file in log_files(log) if file.first <= commit <= file.last]
    return next((header for header in headers(around) if header.number == commit), None)


def oldest_commit(log: DeltaTable) -> int | None:
    return min((file.first for file in log_files(log)), default=None)


def oldest_readable(layout: Layout, log: DeltaTable) -> int:
    """The oldest commit whose views can still be read."""
    kept = properties(open_table(layout.published)).get(OLDEST_PROPERTY, "0")
    return max(oldest_commit(log) or 0, int(kept))


def header_at(log: DeltaTable, time: datetime) -> CommitHeader | None:
    """The newest commit that was there at a time."""
    files = [file for file in log_files(log) if file.since is not None and file.since - _ROUNDING <= time]
    best: CommitHeader | None = None
    for file in sorted(files, key=lambda file: file.last, reverse=True):
        if best is not None and file.last < best.number:
            break
        before = [header for header in headers([file]) if header.committed_at <= time]
        best = max([*before, *([best] if best else [])], key=lambda header: header.number, default=None)
    return best


def history(layout: Layout, limit: int) -> list[Past]:
    """The last commits, newest first."""
    log = open_log(layout)
    files = log_files(log)
    after = max((file.last for file in files), default=0) - limit
    recent = [file for file in files if file.last > after]
    changed: dict[int, set[str]] = {}
    for commit, view, _ in _changes(recent, after, after + limit):
        changed.setdefault(commit, set()).add(view)
    found = sorted((h for h in headers(recent) if h.number > after), key=lambda h: h.number, reverse=True)
    return [Past(header, tuple(sorted(changed.get(header.number, ())))) for header in found]


def changes(log: DeltaTable, after: int, through: int) -> dict[str, tuple[int, int]]:
    """For each view with rows in the log between two commits: the last commit that has any, and how many there are."""
    found: dict[str, tuple[int, int]] = {}
    between = [file for file in log_files(log) if file.last > after and file.first <= through]
    for commit, view, rows in _changes(between, after, through):
        last, before = found.get(view, (0, 0))
        found[view] = (max(last, commit), before + rows)
    return found


def published(layout: Layout) -> list[Published]:
    """All rows of `published`, oldest first; the last of several for one commit is the one to use."""
    table = open_table(layout.published).to_pyarrow_table()
    rows = [Published(row["commit"], _utc(row["published_at"]), dict(row["views"])) for row in _rows(table)]
    return sorted(rows, key=lambda row: (row.commit, row.published_at))


def definitions(layout: Layout) -> list[Definition]:
    """Every definition that a view has or had, oldest first."""
    table = open_table(layout.definitions).to_pyarrow_table()
    return sorted(map(_definition, _rows(table)), key=lambda row: (row.view, row.generation))


def _definition(row: dict[str, Any]) -> Definition:
    """An older Strobe has written fewer columns, and those that it did not know are empty."""
    key, fingerprints = tuple(row["key"]), dict(row.get("fingerprints") or ())
    wrong, right_to = row.get("wrong") or "", row.get("right_to") or 0
    return Definition(**{**row, "key": key, "fingerprints": fingerprints, "wrong": wrong, "right_to": right_to})


def rows_of(layout: Layout, view: str) -> int:
    """How many rows a view's table holds now, deletion vectors taken into account."""
    table = open_table(layout.view(view))
    alive = pa.table(table.deletion_vectors())["selection_vector"].combine_chunks().flatten()
    return int(table.count()) - int(pc.sum(pc.invert(alive)).as_py() or 0)


def folded_to(table: DeltaTable, view: str, generation: int) -> int | None:
    """The commit that a view's table says it was folded to."""
    found = table.transaction_version(fold_app(view, generation))
    return None if found is None else int(found)


def last_load(table: DeltaTable, view: str) -> int:
    """The generation that was loaded last into a view's table, joined or not; 0 if none ever was."""
    return int(table.transaction_version(load_app(view)) or 0)


def loaded_generation(table: DeltaTable, view: str) -> int:
    """The generation whose rows a view's table holds. A load that was undone leaves its number in the table's
    transactions for ever; the table's properties then say what was brought back."""
    last, known = last_load(table, view), properties(table)
    return int(known[RESTORED_PROPERTY]) if known.get(UNDONE_PROPERTY) == str(last) else last


def log_files(log: DeltaTable) -> list[LogFile]:
    batch = pa.table(log.get_add_actions(flatten=True))
    names = ("size_bytes", "min.commit", "max.commit", "min.committed_at")
    columns = [batch.column(n).to_pylist() if n in batch.schema.names else [None] * batch.num_rows for n in names]
    return [
        LogFile(location, first, last, _utc(since) if since else None, size)
        for location, size, first, last, since in zip(
            storage.absolute(log, batch["path"].to_pylist()), *columns, strict=True
        )
        if first is not None
    ]


def _read(file: LogFile, columns: list[str]) -> pa.Table:
    try:
        return pq.read_table(file.location, columns=columns, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(f"a file of the log cannot be read: {str(error).splitlines()[0]}", file.location) from error


def _damaged(message: str, location: Location) -> UserError:
    fix = "The warehouse is damaged. Restore the folder from a backup, or choose an empty one and load anew."
    return UserError(message, where=location, fix=fix)


def headers(files: Iterable[LogFile]) -> list[CommitHeader]:
    found: list[CommitHeader] = []
    for file in files:
        table = _read(file, [*HEADER_COLUMNS, "view"])
        is_header = pc.is_null(table.column("view"))
        found.extend(_header(row) for row in _rows(table.filter(is_header)))
    return found


def _changes(files: Iterable[LogFile], after: int, through: int) -> Iterator[tuple[int, str, int]]:
    """Commit, view and number of rows, for the commits between two."""
    for file in files:
        table = _read(file, ["commit", "view"])
        between = pc.and_(pc.greater(table["commit"], after), pc.less_equal(table["commit"], through))
        wanted = table.filter(pc.and_(between, pc.is_valid(table["view"])))
        counted = wanted.group_by(["commit", "view"]).aggregate([([], "count_all")])
        yield from zip(*(counted[name].to_pylist() for name in ("commit", "view", "count_all")), strict=True)


def _header(row: dict[str, Any]) -> CommitHeader:
    return CommitHeader(
        number=row["commit"],
        committed_at=_utc(row["committed_at"]),
        epoch=row["epoch"],
        positions=_nested(row["positions"], str),
        as_of=_nested(row["as_of"], _utc),
        identity=dict(row["identity"] or ()),
        generations=dict(row["generations"] or ()),
    )


def _nested(value: Any, convert: Callable[[Any], Any]) -> dict[str, dict[str, Any]]:
    return {outer: {k: convert(v) for k, v in inner} for outer, inner in value or ()}


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _utc(value: datetime) -> datetime:
    return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)
