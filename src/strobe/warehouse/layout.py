"""Where the warehouse's tables are, what is in them, and the settings they are made with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from strobe.algebra.schema import quoted
from strobe.data.scratch import STAGING
from strobe.warehouse import storage
from strobe.warehouse.control.store import ControlStore, Refused, unheard
from strobe.warehouse.storage import Location

_VIEWS, _CONTROL = "views", "_strobe"

FORMAT = 1
"""Stands in the properties of the log; a warehouse with a newer one is refused."""

FORMAT_PROPERTY = "strobe.format"
PROJECT_PROPERTY = "strobe.project"
UNDONE_PROPERTY = "strobe.undone"
RESTORED_PROPERTY = "strobe.restored"
ID_PROPERTY = "strobe.warehouse"
OLDEST_PROPERTY = "strobe.oldest"
"""In the properties of `published`: commits before this one can no longer be read."""
LOG_RETENTION = "delta.logRetentionDuration"
FILE_RETENTION = "delta.deletedFileRetentionDuration"
DELETION_VECTORS = "delta.enableDeletionVectors"

COPY = "_copy"

HEADER_COLUMNS = ("commit", "committed_at", "epoch", "positions", "as_of", "identity", "generations")

LOG_SCHEMA = """
    commit BIGINT, committed_at TIMESTAMP, epoch BIGINT,
    positions MAP<STRING, MAP<STRING, STRING>>, as_of MAP<STRING, MAP<STRING, TIMESTAMP>>, identity MAP<STRING, STRING>,
    view STRING, `count` BIGINT, generations MAP<STRING, BIGINT>, `range` BIGINT
"""
"""`rows` is added after `count` when the first view joins: a struct must have a field."""

PUBLISHED_SCHEMA = "commit BIGINT, published_at TIMESTAMP, views MAP<STRING, BIGINT>"

DEFINITIONS_SCHEMA = """
    view STRING, generation BIGINT, sql STRING, schema STRING, key ARRAY<STRING>, from_commit BIGINT, to_commit BIGINT,
    version BIGINT, fingerprints MAP<STRING, STRING>, wrong STRING, right_to BIGINT
"""


@dataclass(frozen=True)
class Sizes:
    """What is large or small, and how much belongs together."""

    range: int = 10_000
    """Commits per partition of the log: whole ranges are dropped when they have become too old."""
    large: int = 500_000
    """From so many rows on a view's table has deletion vectors: changing a few rows must not rewrite whole files.
    Smaller tables have none, so that every engine can read them."""
    together: int = 16 * 2**20
    """Up to so many bytes of a view are searched for removed rows by one task: no slower than two, and one job."""
    small: int = 8 * 2**20
    """Files below this many bytes are small: compaction joins them, and leaves larger ones alone, so that a row is
    rewritten a few times at most."""
    many: int = 50
    """So many small files in a table are worth a compaction."""


@dataclass(frozen=True)
class Layout:
    """Where the parts of a warehouse are."""

    root: Path
    views: Path | None = None
    """Where the tables of views lie, if not with the log."""
    sizes: Sizes = Sizes()
    refused: Refused = unheard
    """Is told of documents in the control folder that are none."""

    def own_folders(self, umask: int, trusted: Path) -> None:
        """Make the folders of the warehouse, for those whom `umask` lets read it; or see that they belong to this
        user, to root, or to the owner of `trusted`. `UserError` for anybody else's, and for links."""
        owners = {os.geteuid(), 0, trusted.stat().st_uid}
        fix = "Move it away, or set `warehouse` in strobe.yml to a folder of your own."
        for folder, closed in self._closed(umask):
            storage.own_folder(folder.resolve() if folder == self.root else folder, 0o777 & ~closed, owners, fix)

    def unlike(self, umask: int) -> Iterator[tuple[Path, int, int]]:
        """The folders that others may enter though `umask` does not say so, or the other way round: what mode each
        has, and should have."""
        for folder, closed in self._closed(umask):
            mode = storage.mode(folder)
            if mode is not None and mode != 0o777 & ~closed:
                yield folder, mode, 0o777 & ~closed

    def _closed(self, umask: int) -> tuple[tuple[Path, int], ...]:
        """The folders, with what their modes must not have."""
        return (self.root, umask), (self._control, umask), (self.staging, 0o077)

    @property
    def log(self) -> Location:
        return self._table("log")

    @property
    def published(self) -> Location:
        return self._table("published")

    @property
    def definitions(self) -> Location:
        return self._table("definitions")

    @property
    def small(self) -> tuple[Location, ...]:
        """The tables that are made with the warehouse, the log last: with it there is one."""
        return self.published, self.definitions, self.log

    @property
    def control(self) -> ControlStore:
        """Lock, heartbeat, requests and notes: what is no table."""
        return ControlStore(self._control, self.refused)

    @property
    def _control(self) -> Path:
        return self.root / _CONTROL

    @property
    def staging(self) -> Path:
        """For what is needed for a while only, and for what sources keep there."""
        return self.root / STAGING

    def view(self, name: str) -> Location:
        return str((self.views or self.root / _VIEWS) / name)

    def beside(self, folder: Path) -> Layout:
        """A log of its own in another folder, over the tables that the views have here."""
        return replace(self, root=folder, views=(self.views or self.root / _VIEWS).absolute())

    def entries(self) -> tuple[list[str], bool]:
        """What lies here; and whether some of it is no part of a warehouse in the making."""
        found = {entry.name for entry in self.root.iterdir()}
        own = {STAGING, _CONTROL, *(Path(table).name for table in self.small)}
        return sorted(found), not found <= own

    def _table(self, name: str) -> Location:
        return str(self.root / name)


def sql_path(location: Location) -> str:
    """A table in SQL by its location."""
    return f"delta.{quoted(location)}"


def text(value: str) -> str:
    """A string literal. Where Spark sees `${…}` it puts a setting, or what the environment has under that name."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"


def field(view: str, generation: int) -> str:
    """The field of `rows` that holds a view's rows under one of its definitions."""
    return f"{view}_g{generation}"


def struct(schema: str) -> str:
    """The type of a struct with the columns of a definition's schema."""
    return f"STRUCT<{schema.replace('` ', '`: ')}>"


def fold_app(view: str, generation: int) -> str:
    """Under this application id a view's table remembers the commit that it was folded to."""
    return f"fold:{view}:g{generation}"


def load_app(view: str) -> str:
    """Under this application id a view's table remembers the generation that was loaded last."""
    return f"load:{view}"


def retention_properties(retention: timedelta) -> dict[str, str]:
    """Delta refuses a version older than the file retention, and forgets its log after the log retention.

    A commit inside the horizon may need a table version that was written before the horizon; versions are renewed when
    they reach half the horizon's age (see `retention`), so twice the horizon is enough for all of them.
    """
    kept = f"interval {max(1, int(2 * retention.total_seconds()))} seconds"
    return {LOG_RETENTION: kept, FILE_RETENTION: kept}


def properties_sql(properties: dict[str, str]) -> str:
    return ", ".join(f"{text(name)} = {text(value)}" for name, value in properties.items())
