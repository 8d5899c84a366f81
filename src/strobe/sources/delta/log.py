"""The log of a Delta table, commit by commit: which files a version brought and took, and what the table became.

A position is a version and a digest of its commit file, `12@0a1b2c3d4e5f`. Versions are numbers that every table has; a
commit file holds times and random names, so that a table restored from a backup or made anew differs in the digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from strobe.data.arrow import canonical_ddl
from strobe.errors import LostGuarantee, RelationLost, SourceUnavailable, UserError
from strobe.messages import Position

FEED = "delta.enableChangeDataFeed"
MAPPING = "delta.columnMapping.mode"
READABLE = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "variantType", "variantType-preview"}
"""Features a reader has to know, and this one does: none of them changes what a data file says of supported types."""
TRUSTED = ("Apache-Spark/", "Databricks-Runtime/")
"""Writers whose change data says what their commits did. That of `delta-rs` does not always: it takes the difference of
sets where rows can repeat. What others did is told by the files that came and went."""
_Body = Mapping[str, Any]
_COMMIT = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True)
class Protocol:
    """What a reader of the table has to know."""

    version: int
    features: frozenset[str] = frozenset()

    @property
    def unknown(self) -> list[str]:
        """What this reader does not."""
        known = self.version <= 2 or self.version == 3
        return sorted(self.features - READABLE) if known else [f"reader version {self.version}"]


@dataclass(frozen=True)
class Shape:
    """What a table is from some version on. Columns of types that Strobe does not carry are left out."""

    id: str
    types: Mapping[str, str]
    left_out: Mapping[str, str] = field(default_factory=dict)
    partitioned: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, id_: str, schema: str, partitioned: Sequence[str], properties: Mapping[str, str]) -> Shape:
        types, left_out = {}, {}
        for column in json.loads(schema)["fields"]:
            declared = _declared(column, column["name"] in partitioned)
            try:
                types[column["name"]] = canonical_ddl(declared)
            except UserError:
                left_out[column["name"]] = declared
        return cls(id_, types, left_out, tuple(partitioned), properties)

    @property
    def has_feed(self) -> bool:
        return self.properties.get(FEED, "").lower() == "true"

    @property
    def mapped(self) -> bool:
        """Whether columns have other names in the files."""
        return self.properties.get(MAPPING, "none").lower() != "none"


def _declared(column: Mapping[str, Any], partitioned: bool) -> str:
    type_, metadata = column["type"], column.get("metadata", {})
    if not isinstance(type_, str):
        element = type_.get("elementType")
        if type_["type"] != "array" or not isinstance(element, str):
            return str(type_["type"])
        type_ = f"array<{element}>"
    if "__COLLATIONS" in metadata:
        return "collated string"
    if re.search(r"\bchar\(", str(metadata.get("__CHAR_VARCHAR_TYPE_STRING"))):
        return "padded string"  # Spark pads when it reads: change data may have blanks that data files have not
    return "binary as a partition" if partitioned and type_ == "binary" else type_


@dataclass(frozen=True)
class DataFile:
    """A file whose rows all come (+1), all go (-1), or say so row by row (0)."""

    path: str
    partition: Mapping[str, str | None] | None
    """As the log writes it. A partition that is NULL may be left out; None where the log does not tell at all."""
    sign: int

    def partitioned_by(self, columns: Sequence[str]) -> DataFile:
        """The same with a value for each of the columns that the table is partitioned by."""
        return replace(self, partition={column: (self.partition or {}).get(column) for column in columns})


@dataclass(frozen=True)
class Commit:
    """One version: a whole transaction. `files` hold what it says that it changed, in full and nothing else; `moved`
    are the data files that it adds to the table and removes."""

    position: Position
    at: datetime | None = None
    files: tuple[DataFile, ...] = ()
    moved: tuple[DataFile, ...] = ()
    shape: Shape | None = None
    protocol: Protocol | None = None

    @property
    def version(self) -> int:
        return self.position.order[0]


class ActiveFiles:
    """The data files of a table, followed from commit to commit.

    Writers that race each other may remove a file that another has replaced meanwhile (an overwrite by `delta-rs`
    beside a compaction does), or add one that is there: neither does anything to the table. What such a commit says of
    its changes is not so.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = set(paths)

    def follow(self, commit: Commit) -> tuple[DataFile, ...]:
        """The files that hold what a commit really changed."""
        removed = {file.path: file for file in commit.moved if file.sign < 0}
        added = {file.path: file for file in commit.moved if file.sign > 0}
        as_told = removed.keys() <= self._paths and not added.keys() & self._paths
        gone = [file for path, file in removed.items() if path in self._paths and path not in added]
        came = [file for path, file in added.items() if path not in self._paths]
        self._paths.difference_update(removed)
        self._paths.update(added)
        return commit.files if as_told else (*gone, *came)


class DeltaLog:
    """The commits of the table in a folder, which is a relation of a source."""

    def __init__(self, name: str, root: Path, relation: str) -> None:
        self.name, self.root, self.relation = name, root, relation
        self._folder = root / "_delta_log"
        self._known: dict[int, tuple[tuple[int, ...], Position]] = {}
        self._newest: tuple[Position, Shape, Protocol] | None = None
        self._lock = threading.Lock()

    @property
    def where(self) -> str:
        return f"{self.name}: {self.root}"

    def lost(self, message: str, fix: str = "") -> RelationLost:
        """A source is one table: only the views that use it stand still."""
        fix = fix or "Rebuild the views that use this source."
        return RelationLost(message, source=self.name, relations=[self.relation], where=self.where, fix=fix)

    def versions(self) -> list[int]:
        """The versions whose commits are there, in order."""
        try:
            found = sorted(int(m[1]) for m in map(_COMMIT.fullmatch, os.listdir(self._folder)) if m)  # noqa: PTH208
        except OSError as problem:
            raise self._away(problem) from problem
        if not found:
            raise self._away(None)
        return found

    def _away(self, problem: OSError | None) -> SourceUnavailable:
        reason = f": {problem.strerror}" if problem is not None else ""
        fix = "Is the path right, and the file system mounted?"
        return SourceUnavailable(f"there is no Delta table{reason}", where=self.where, fix=fix)

    def table(self, version: int) -> DeltaTable:
        """The table as of a version."""
        try:
            return DeltaTable(str(self.root), version=version)
        except (DeltaError, OSError, ValueError) as problem:
            reason = str(problem).splitlines()[0]
            newest = self.versions()[-1]
            if version < newest and self.table(newest):
                message = f"version {version} can no longer be opened, which a later one can: {reason}"
                raise self.lost(message) from problem
            raise SourceUnavailable(f"version {version} cannot be opened: {reason}", where=self.where) from problem

    def newest(self) -> tuple[Shape, Protocol]:
        """What the table is now: of the commits since the last time, or else of its newest version."""
        with self._lock:
            known = self._newest
        try:
            while known is not None and (commit := self.after(known[0])) is not None:
                known = commit.position, commit.shape or known[1], commit.protocol or known[2]
        except LostGuarantee:
            known = None
        if known is None:
            version = self.versions()[-1]
            position, table = self.position(version), self.table(version)
            known = position, *self.shape(table)
        with self._lock:
            self._newest = known
        return known[1:]

    def shape(self, table: DeltaTable) -> tuple[Shape, Protocol]:
        metadata, protocol = table.metadata(), table.protocol()
        partitioned = list(metadata.partition_columns)
        shape = Shape.of(str(metadata.id), table.schema().to_json(), partitioned, dict(metadata.configuration))
        return shape, Protocol(protocol.min_reader_version, frozenset(protocol.reader_features or ()))

    def active(self, table: DeltaTable) -> ActiveFiles:
        return ActiveFiles(self.data_path(path) for path in pa.table(table.get_add_actions())["path"].to_pylist())

    def position(self, version: int) -> Position:
        """The position of a version whose commit is there."""
        path = self._path(version)
        try:
            found = path.stat()
            sign = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
            with self._lock:
                known = self._known.get(version)
            if known is not None and known[0] == sign:
                return known[1]
            position = _position(version, path.read_bytes())
        except OSError as problem:
            raise self._missing(version, problem) from problem
        with self._lock:
            self._known = {**dict(list(self._known.items())[-15:]), version: (sign, position)}
        return position

    def _path(self, version: int) -> Path:
        return self._folder / f"{version:020}.json"

    def _missing(self, version: int, problem: OSError) -> LostGuarantee | SourceUnavailable:
        if not isinstance(problem, FileNotFoundError):
            return self._away(problem)
        found = self.versions()
        if version > found[-1]:
            return self.lost(f"there is no version {version} any more: the table was restored from a backup")
        return self.lost(
            f"the commit of version {version} is no longer in the table's log, which begins at {found[0]}",
            "Rebuild the views that use this source; for the future raise delta.logRetentionDuration.",
        )

    def verify(self, position: Position) -> None:
        """Raise unless the table went through this position, and every commit since is there."""
        version = position.order[0]
        if self.position(version).text != position.text:
            raise self.lost(f"version {version} is not the one that was read: the table was restored or made anew")
        later = [v for v in self.versions() if v > version]
        if later != list(range(version + 1, version + 1 + len(later))):
            raise self.lost(f"commits after version {version} are missing in the table's log")

    def after(self, position: Position) -> Commit | None:
        """The commit that follows a position just read, if there is one yet. Delta may clean the one before it away."""
        path = self._path(position.order[0] + 1)
        try:
            if self.position(position.order[0]).text != position.text:
                self.verify(position)
        except LostGuarantee:
            if self._path(position.order[0]).exists() or not path.exists():
                raise
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise self._away(problem) from problem
        return self._commit(position.order[0] + 1, content)

    def _commit(self, version: int, content: bytes) -> Commit:
        try:
            actions = [json.loads(line) for line in content.splitlines() if line.strip()]
        except ValueError as problem:
            raise SourceUnavailable(f"the commit of version {version} is not whole", where=self.where) from problem
        by_kind: dict[str, list[_Body]] = {}
        for action in actions:
            for kind, body in action.items():
                by_kind.setdefault(kind, []).append(body)
        info = by_kind.get("commitInfo", [{}])[0]
        shape = next(map(_shape, by_kind.get("metaData", ())), None)
        protocol = next(map(_protocol, by_kind.get("protocol", ())), None)
        moves = [(body, 1) for body in by_kind.get("add", ())] + [(body, -1) for body in by_kind.get("remove", ())]
        feed = by_kind.get("cdc", ()) if str(info.get("engineInfo")).startswith(TRUSTED) else ()
        files = self._files(version, moves, feed)
        moved = tuple(self._file(body, sign) for body, sign in moves)
        return Commit(_position(version, content), _time(info), files, moved, shape, protocol)

    def _files(self, version: int, moves: Sequence[tuple[_Body, int]], feed: Sequence[_Body]) -> tuple[DataFile, ...]:
        """Where change data was written it is all there is to read; else whole files came and went.

        A rewrite that changes no row says so (`dataChange`).
        """
        if feed:
            return tuple(self._file(body, 0) for body in feed)
        changed = [(body, sign) for body, sign in moves if body["dataChange"]]
        if any(body.get("deletionVector") for body, _ in changed):
            raise self.lost(f"version {version} has deletion vectors, which this source cannot read")
        return tuple(self._file(body, sign) for body, sign in changed)

    def _file(self, body: _Body, sign: int) -> DataFile:
        return DataFile(self.data_path(body["path"]), body.get("partitionValues"), sign)

    def data_path(self, written: str) -> str:
        """Where a file is that the log names, relative to the table or (in a shallow clone) absolutely."""
        path = unquote(written)
        if path.startswith("file:"):
            return "/" + path.removeprefix("file:").lstrip("/")
        if "://" in path:
            raise UserError(f"it has a file at {path}, which is not on a file system here", where=self.where)
        return str(self.root / path)


def _position(version: int, content: bytes) -> Position:
    return Position(f"{version}@{hashlib.sha256(content).hexdigest()[:12]}", (version,))


def _shape(body: Mapping[str, Any]) -> Shape:
    return Shape.of(
        body["id"], body["schemaString"], body.get("partitionColumns") or (), body.get("configuration") or {}
    )


def _protocol(body: Mapping[str, Any]) -> Protocol:
    return Protocol(body["minReaderVersion"], frozenset(body.get("readerFeatures") or ()))


def _time(info: Mapping[str, Any]) -> datetime | None:
    millis = info.get("inCommitTimestamp") or info.get("timestamp")
    return None if millis is None else datetime.fromtimestamp(millis / 1000, timezone.utc)
