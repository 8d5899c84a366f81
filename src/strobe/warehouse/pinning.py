"""Pins the published tables of one commit in another engine: the statements that open each at the version that belongs
to it. Needs no JVM.

Columns are named one by one, since a version's columns never change and not every engine can leave one out: `_copy`,
which only tells copies of a row apart.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from deltalake import DeltaTable

from strobe.algebra.copies import COPIES
from strobe.algebra.schema import quoted
from strobe.errors import UserError
from strobe.warehouse import inspect, storage
from strobe.warehouse.layout import COPY, Layout, sql_path
from strobe.warehouse.records import Published
from strobe.warehouse.storage import Location


@dataclass(frozen=True)
class PinnedTable:
    """A view's table at the version that holds a commit, and the columns that the view's SQL has."""

    location: Location
    version: int
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Pinned:
    """A published commit, with the version of each view's table that holds it."""

    commit: int
    tables: Mapping[str, PinnedTable]


@dataclass(frozen=True)
class Statements:
    """What to execute. `once` is for an engine that has to be told where the tables are before it can read them."""

    statements: tuple[str, ...]
    once: tuple[str, ...] = ()


def pinned(layout: Layout, at: int | datetime | None = None) -> Pinned:
    """The newest published commit that is not later than a commit or a time."""
    log = inspect.open_log(layout)
    oldest = inspect.oldest_readable(layout, log)
    rows = [row for row in inspect.published(layout) if row.commit >= oldest]
    if not rows:
        raise UserError(
            "no commit has been published yet", where=str(layout.root), fix="`strobe fold` publishes the last one."
        )
    row = rows[-1] if at is None else _newest_until(rows, log, at)
    return Pinned(row.commit, {v: _table(layout, v, n) for v, n in sorted(row.views.items()) if _of_user(v)})


def _newest_until(rows: Sequence[Published], log: DeltaTable, at: int | datetime) -> Published:
    """Rows are in order, so that the last of several for one commit is the one whose versions live longest."""
    if isinstance(at, datetime):
        header, what = inspect.header_at(log, at), f"{at:%Y-%m-%d %H:%M:%S %Z}"
        limit = header.number if header else 0
    else:
        last = inspect.last_header_of(log)
        if last is None or at > last.number:
            raise UserError(f"there is no commit {at}", fix=_nearest(rows, at))
        limit, what = at, f"commit {at}"
    found = [row for row in rows if row.commit <= limit]
    if not found:
        raise UserError(f"nothing that was published is as old as {what}", fix=_nearest(rows, limit))
    return found[-1]


def _nearest(rows: Sequence[Published], commit: int) -> str:
    before = [row.commit for row in rows if row.commit <= commit][-1:]
    after = [row.commit for row in rows if row.commit > commit][:1]
    nearest = " and ".join(map(str, before + after))
    return f"The nearest published commits are {nearest}." if before and after else f"The nearest one is {nearest}."


def _table(layout: Layout, view: str, version: int) -> PinnedTable:
    location = layout.view(view)
    columns = tuple(field.name for field in inspect.open_table(location, version).schema().fields)
    return PinnedTable(location, version, tuple(name for name in columns if name != COPY))


def _of_user(view: str) -> bool:
    return not view.startswith(COPIES)


# Engines.


def duckdb(found: Pinned, _project: str) -> Statements:
    """DuckDB 1.5.4 or newer, whose delta extension it loads (and the first time fetches) by itself."""
    return Statements(
        tuple(
            f"CREATE OR REPLACE VIEW {_name(view)} AS SELECT {_listed(table, _name)} "
            f"FROM delta_scan({_text(table.location)}, version => {table.version})"
            for view, table in found.tables.items()
        )
    )


def spark(found: Pinned, _project: str) -> Statements:
    """A Spark session that has Delta."""
    return Statements(
        tuple(
            f"CREATE OR REPLACE TEMPORARY VIEW {quoted(view)} AS SELECT {_listed(table, quoted)} "
            f"FROM {sql_path(table.location)} VERSION AS OF {table.version}"
            for view, table in found.tables.items()
        )
    )


def trino(found: Pinned, project: str) -> Statements:
    """Trino with its Delta Lake connector as catalog `delta`; tables and views cannot share a schema there."""
    tables, views = f"{project}_tables", project
    once = [f"CREATE SCHEMA IF NOT EXISTS delta.{_name(schema)}" for schema in (tables, views)]
    once += [
        f"CALL delta.system.register_table(schema_name => {_text(tables)}, table_name => {_text(view)}, "
        f"table_location => {_text(storage.uri(table.location))})"
        for view, table in found.tables.items()
    ]
    return Statements(
        tuple(
            f"CREATE OR REPLACE VIEW delta.{_name(views)}.{_name(view)} AS SELECT {_listed(table, _name)} "
            f"FROM delta.{_name(tables)}.{_name(view)} FOR VERSION AS OF {table.version}"
            for view, table in found.tables.items()
        ),
        tuple(once),
    )


def polars(found: Pinned, _project: str) -> Statements:
    """Python, with `polars` and `deltalake`: a lazy frame for each view."""
    return Statements(
        (
            "import polars",
            *(
                f"{view}{'_' if keyword.iskeyword(view) else ''} = polars.scan_delta({table.location!r}, "
                f"version={table.version}).select({_listed(table, repr)})"
                for view, table in found.tables.items()
            ),
        )
    )


ENGINES: Mapping[str, Callable[[Pinned, str], Statements]] = {
    "duckdb": duckdb,
    "spark": spark,
    "trino": trino,
    "polars": polars,
}
"""Each is given the pinned tables and the project's name."""


# The same, so that no version is written down: each time, `published` is read for the newest commit. No engine takes a
# version from a subquery, so the map of versions goes into a variable of the session, and all views come out of it:
# read one by one, two views of a statement could be of two commits.

_VERSIONS = "strobe_versions"


def duckdb_current(found: Pinned, published: Location) -> Statements:
    """Macros, which a database file keeps, and the statement that moves all of them; it comes before them too, since
    DuckDB looks at a macro's tables when it is made."""
    move = (
        f'SET VARIABLE {_VERSIONS} = (SELECT arg_max(views, ("commit", published_at)) '
        f"FROM delta_scan({_text(published)}))"
    )
    macros = (
        f"CREATE OR REPLACE MACRO {_name(view)}() AS TABLE SELECT COLUMNS(c -> c <> '{COPY}') "
        f"FROM delta_scan({_text(table.location)}, version => coalesce(getvariable('{_VERSIONS}')[{_text(view)}], "
        f"error({_text(f'view {view} is not in the published commit, or {_VERSIONS} is not set')})))"
        for view, table in found.tables.items()
    )
    return Statements((move,), (move, *macros))


def spark_current(found: Pinned, published: Location) -> Statements:
    """Temporary views, which are made again with the versions of one row."""
    statements = [
        f"SET VARIABLE {_VERSIONS} = (SELECT max_by(views, struct(commit, published_at)) FROM {sql_path(published)})"
    ]
    for view, pinned in zip(found.tables, spark(found, "").statements, strict=True):
        text = pinned.removesuffix(str(found.tables[view].version))
        version = f"CAST({_VERSIONS}[{_spark_text(view)}] AS STRING)"
        statements.append(f"SET VARIABLE strobe_view = {_spark_text(text)} || {version}")
        statements.append("EXECUTE IMMEDIATE strobe_view")
    declared = (f"{_VERSIONS} MAP<STRING, BIGINT>", "strobe_view STRING")
    return Statements(tuple(statements), tuple(f"DECLARE OR REPLACE VARIABLE {variable}" for variable in declared))


def polars_current(found: Pinned, published: Location) -> Statements:
    """Python, with `polars` and `deltalake`: a function that returns a lazy frame for each view."""
    views = "".join(
        f"        {view!r}: polars.scan_delta({table.location!r}, version=versions[{view!r}])"
        f".drop({COPY!r}, strict=False),\n"
        for view, table in found.tables.items()
    )
    return Statements(
        ("views = current()",),
        (
            "import deltalake, polars",
            f"""def current():
    rows = deltalake.DeltaTable({published!r}).to_pyarrow_table().to_pylist()
    versions = dict(max(rows, key=lambda row: (row["commit"], row["published_at"]))["views"])
    return {{
{views}    }}""",
        ),
    )


CURRENT: Mapping[str, Callable[[Pinned, Location], Statements]] = {
    "duckdb": duckdb_current,
    "spark": spark_current,
    "polars": polars_current,
}
"""Each is given the pinned tables and where `published` is."""


def _spark_text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _listed(table: PinnedTable, quote: Callable[[str], str]) -> str:
    return ", ".join(map(quote, table.columns))


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
