"""The staged table: a Delta table under the warehouse whose versions are the drops that were accepted.

Version 0 is empty. The columns are named by position, because Delta does not take every name that a CSV header has; the
table's properties hold the names and the identity of the log, and each commit the drop that it was made of.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from strobe.data.arrow import arrow_schema, ddl_type
from strobe.errors import SourceLost, UserError
from strobe.messages import Position

IDENTITY, COLUMNS = "strobe.identity", "strobe.columns"


def position_at(identity: str, version: int) -> Position:
    """A version and, since versions of different tables look alike, which table it is of."""
    return Position(f"{version}@{identity[-8:]}", (version,))


def names_of(table: DeltaTable) -> list[str]:
    names: list[str] = json.loads(table.metadata().configuration[COLUMNS])
    return names


def identity_of(table: DeltaTable) -> str:
    return str(table.metadata().configuration[IDENTITY])


class StagedTable:
    """The versions of one source, read without a JVM."""

    def __init__(self, source: str, path: Path) -> None:
        self._source, self.path = source, path

    @property
    def exists(self) -> bool:
        return DeltaTable.is_deltatable(str(self.path))

    def open(self) -> DeltaTable:
        """At its newest version."""
        if not self.exists:
            fix = f"run `strobe prepare {self._source}`"
            raise UserError("no drop has been staged yet", where=self._source, fix=fix)
        return DeltaTable(str(self.path))

    def columns(self) -> dict[str, str]:
        """The columns with their types, of a table that exists."""
        table = DeltaTable(str(self.path))
        types = [ddl_type(field.type) for field in pa.schema(table.schema().to_arrow())]
        return dict(zip(names_of(table), types, strict=True))

    def create(self, columns: Mapping[str, str]) -> None:
        properties = {
            IDENTITY: f"files:{uuid.uuid4()}",
            COLUMNS: json.dumps(list(columns)),
            "delta.deletedFileRetentionDuration": "interval 3650 days",
            "delta.logRetentionDuration": "interval 3650 days",
        }
        schema = arrow_schema([f"c{i}" for i in range(len(columns))], list(columns.values()))
        self.path.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(
            str(self.path), schema, mode="ignore", configuration=properties, raise_if_key_not_exists=False
        )

    def files(self, version: int) -> list[Path]:
        """The files that hold a version."""
        return [Path(unquote(uri)) for uri in DeltaTable(str(self.path), version=version).file_uris()]

    def verify(self, position: Position, last: int) -> None:
        """Raise `LostGuarantee` unless the table passes through a position, of which `last` is the furthest, and still
        has its files."""
        version, table = position.order[0], self.open()
        if position.text != position_at(identity_of(table), version).text or version > last:
            raise self._lost(position)
        if version > table.version():
            return
        try:
            files = self.files(version)
        except Exception as problem:  # deltalake raises several kinds, none of them documented
            raise self._lost(position) from problem
        if not all(file.exists() for file in files):
            raise self._lost(position)

    def _lost(self, position: Position) -> SourceLost:
        message = f"version {position} of the staged drops is no longer there"
        fix = "Rebuild the views that use this source: `strobe rebuild VIEW`."
        return SourceLost(message, source=self._source, where=f"{self._source}: {self.path}", fix=fix)

    def has(self, version: int) -> bool:
        return self._commit_file(version).exists()

    def superseded_at(self, version: int) -> float:
        """When the version after this one was written, in seconds since 1970."""
        return float(self._commit_info(version + 1).get("timestamp", 0) / 1000)

    def drop(self, version: int) -> dict[str, Any] | None:
        """The identity of the drop whose content a version holds."""
        for at in range(version, 0, -1):
            if metadata := self._commit_info(at).get("userMetadata"):
                found: dict[str, Any] = json.loads(metadata)
                return found
        return None

    def _commit_info(self, version: int) -> dict[str, Any]:
        """What a commit says about itself."""
        try:
            lines = self._commit_file(version).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return {}
        return next((entry["commitInfo"] for entry in map(json.loads, lines) if "commitInfo" in entry), {})

    def _commit_file(self, version: int) -> Path:
        return self.path / "_delta_log" / f"{version:020}.json"
