"""Drops of files as a source: each accepted drop is a version of a Delta table, and what differs is a transaction.

A file has no log and no snapshots, so Strobe makes both: drops (CSV, JSON Lines or Parquet; one file replaced in place,
or files in name order, each the full content) are staged in a Delta table under the warehouse. That table's versions
are the positions; the difference between two neighbours is one transaction; and an answer reads one version.

Staging and differences need Spark; everything else reads through `deltalake`, without a JVM.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from strobe.algebra.schema import Column, RelationSchema
from strobe.data.arrow import canonical_ddl
from strobe.data.scratch import STAGING
from strobe.errors import UserError
from strobe.messages import Position, Transaction
from strobe.sources.base import Finding, Reader, Source, SourceContext, SparkStarter
from strobe.sources.files.drops import Expected
from strobe.sources.files.fingerprint import changed, fingerprint
from strobe.sources.files.limits import Limits, Timing
from strobe.sources.files.preflight import check, unknown
from strobe.sources.files.reader import FilesReader
from strobe.sources.files.stream import Stream
from strobe.sources.files.versions import StagedTable, identity_of

UNSEARCHABLE = {"float", "double"}


class Config(Protocol):
    """What `strobe.yml` says about such a source."""

    @property
    def path(self) -> Any: ...
    @property
    def format(self) -> str: ...
    @property
    def relation(self) -> str: ...
    @property
    def key(self) -> list[str]: ...
    @property
    def columns(self) -> dict[str, str] | None: ...
    @property
    def optional(self) -> bool: ...


class FilesSource(Source):
    """A relation whose content comes as files. `spark` is called only when a drop is staged or compared: without it,
    `prepare` only makes the table, and the first load stages the drops that are there."""

    log_unit = "versions"

    def __init__(
        self,
        name: str,
        config: Config,
        warehouse: Path,
        spark: SparkStarter | None,
        timing: Timing | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        declared = {column: canonical_ddl(ddl) for column, ddl in (config.columns or {}).items()}
        key, optional = tuple(config.key), config.optional
        self._expected = Expected(str(config.path), config.format, config.relation, key, declared, optional)
        self._table = StagedTable(name, warehouse.absolute() / STAGING / "files" / name)
        self._timing = timing or Timing()
        self._stream = Stream(name, self._table, self._expected, spark, self._timing, limits or Limits())

    @classmethod
    def from_config(cls, name: str, config: Config, context: SourceContext) -> FilesSource:
        return cls(name, config, context.warehouse, context.spark)

    # What it is

    def schemas(self) -> tuple[RelationSchema, ...]:
        columns = tuple(Column(name, ddl, ddl not in UNSEARCHABLE) for name, ddl in self._stream.columns().items())
        return (RelationSchema(self.name, self._expected.relation, columns, self._expected.key),)

    def check(self, relations: Sequence[str]) -> list[Finding]:
        return [*unknown(self.name, self._expected, relations), *check(self.name, self._table, self._expected)]

    def prepare_script(self, relations: Sequence[str]) -> list[str]:
        path = self._expected.pattern
        return [] if self._table.exists else [f"-- make a Delta table for drops of {path} at {self._table.path}"]

    def prepare(self, relations: Sequence[str]) -> None:
        for finding in unknown(self.name, self._expected, relations):
            raise UserError(finding.message, where=finding.where, fix=finding.fix)
        self._stream.prepare()

    def undo(self) -> list[str]:
        if not self._table.path.exists():
            return []
        shutil.rmtree(self._table.path)
        return [str(self._table.path)]

    # Where it is

    def identity(self) -> str:
        return identity_of(self._table.open())

    def position(self, text: str) -> Position:
        version, _, log = text.partition("@")
        if not version.isdecimal() or not log:
            raise UserError(f"{text!r} is no position", where=self.name, fix="a position looks like 12@0a1b2c3d")
        return Position(text, (int(version),))

    def now(self) -> Position:
        return self._stream.now()

    def fingerprints(self, relations: Collection[str]) -> Mapping[str, str]:
        found = ""
        if self._table.exists:
            found = fingerprint(identity_of(self._table.open()), self._table.columns(), self._expected)
        return {relation: found if relation == self._expected.relation else "" for relation in relations}

    def changed(self, relation: str, columns: Collection[str], before: str, after: str) -> str:
        return changed(columns, before, after)

    def verify(self, position: Position) -> None:
        self._stream.verify(position)

    # What happens

    def transactions(
        self, after: Position, stops: Sequence[Position], stopped: Callable[[], bool]
    ) -> Iterator[Transaction]:
        return self._stream.transactions(after, stops, stopped)

    def reader(self, *, at_a_position: bool = False) -> Reader:
        """While drops are being reported, the version reported last is read: nobody has to wait until the difference to
        a newer one has been computed. No view stands beyond it."""
        if at_a_position:
            self._stream.stage_first()
        newest, answered_at = self._table.open().version(), self._stream.answered_at
        return FilesReader(self._table.path, None if answered_at is None else min(answered_at, newest))

    def discard(self, through: Position) -> None:
        """Remove the files of the versions before this one, newest first down to one whose files are gone already.
        Every drop is written anew, so no two versions share a file. One that may still be being read stays."""
        for version in range(min(through.order[0], self._table.open().version()) - 1, 0, -1):
            if time.time() - self._table.superseded_at(version) < self._timing.grace:
                continue
            files = self._table.files(version)
            if files and not any(file.exists() for file in files):
                return
            for file in files:
                file.unlink(missing_ok=True)
