"""Where the warehouse's tables lie, and how their files are found: folders of a file system.

A *location* says where a table or a file is, as Delta, Spark and Arrow take it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable

from strobe.data.private import look, user
from strobe.errors import UserError

Location = str


def exists(location: Location) -> bool:
    """Whether there is a table."""
    return DeltaTable.is_deltatable(location)


def never_committed(location: Location) -> bool:
    """Whether nothing was ever committed to what might become a table: drafts of a first commit are hidden."""
    return not any(path.is_file() and not path.name.startswith(".") for path in Path(location).rglob("*"))


def own_folder(folder: Path, mode: int, owners: Collection[int], fix: str) -> None:
    """Make a folder with this mode; or see that it is one, and of these users. Its mode stays as it is then."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = look(folder, fix)
        if found.st_uid not in owners:
            raise UserError(f"this folder belongs to {user(found.st_uid)}", where=str(folder), fix=fix) from None
    else:
        folder.chmod(mode)


def mode(folder: Path) -> int | None:
    """Who may do what with a folder; None if it is not there."""
    try:
        return folder.stat().st_mode & 0o777
    except FileNotFoundError:
        return None


def remove(location: Location) -> None:
    """Do away with what is there, if anything is."""
    shutil.rmtree(location, ignore_errors=True)


def remove_written(location: Location, root: Path) -> None:
    """Do away with files as Spark and Delta write them for a table, and with the folders up to a root that are empty
    then. Anything else stays."""
    place = Path(location)
    for path in sorted(place.rglob("*"), reverse=True):
        if path.is_dir():
            _remove_empty(path)
        elif path.name.startswith(("part-", ".part-", "_temporary")) or path.parent.name == "_delta_log":
            path.unlink(missing_ok=True)
    for folder in (place, *place.parents):
        if not folder.is_relative_to(root) or not _remove_empty(folder):
            return


def _remove_empty(folder: Path) -> bool:
    """Whether the folder is gone."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


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
