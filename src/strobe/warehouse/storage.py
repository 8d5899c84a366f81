"""Where the warehouse's tables lie, and how their files are found: folders of a file system.

A *location* says where a table or a file is, as Delta, Spark and Arrow take it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable

Location = str


def exists(location: Location) -> bool:
    """Whether there is a table."""
    return DeltaTable.is_deltatable(location)


def never_committed(location: Location) -> bool:
    """Whether nothing was ever committed to what might become a table: drafts of a first commit are hidden."""
    return not any(path.is_file() and not path.name.startswith(".") for path in Path(location).rglob("*"))


def remove(location: Location) -> None:
    """Do away with what is there, if anything is."""
    shutil.rmtree(location, ignore_errors=True)


def absolute(table: DeltaTable, files: Iterable[str]) -> list[Location]:
    """Where files of a table are, which it names from its own place."""
    root = Path(unquote(table.table_uri.removeprefix("file://")))
    return [str(root / file) for file in files]


def written_at(location: Location, version: int) -> datetime:
    """When a version of a table was written; long ago if Delta has already forgotten."""
    try:
        seconds = (Path(location) / "_delta_log" / f"{version:020d}.json").stat().st_mtime
    except FileNotFoundError:
        seconds = 0.0
    return datetime.fromtimestamp(seconds, timezone.utc)


def uri(location: Location) -> str:
    """For engines that want to be told what kind of place it is."""
    return Path(location).as_uri()
