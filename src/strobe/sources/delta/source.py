"""A Delta table as a source: versions are positions, and a version's change data is one transaction.

Delta has no transaction over several tables, so a source is one table. Nothing is written to the table, and nothing in
it has to be kept for Strobe but what its retention settings keep anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from strobe.algebra.schema import Column, RelationSchema
from strobe.errors import StrobeError, UserError
from strobe.messages import Position, Transaction
from strobe.sources.base import Finding, Reader, Source, SourceContext
from strobe.sources.delta.data_files import searchable
from strobe.sources.delta.fingerprint import changed, fingerprint
from strobe.sources.delta.limits import Limits, Timing
from strobe.sources.delta.log import DeltaLog, Shape
from strobe.sources.delta.preflight import check, enable
from strobe.sources.delta.reader import DeltaReader
from strobe.sources.delta.stream import Stream


class Config(Protocol):
    """What `strobe.yml` says about such a source."""

    @property
    def path(self) -> Any: ...
    @property
    def relation(self) -> str | None: ...
    @property
    def key(self) -> list[str]: ...


class DeltaSource(Source):
    """One table. `spark` is called only for changes of very many rows."""

    log_unit = "versions"

    def __init__(
        self,
        name: str,
        config: Config,
        spark: Callable[[], Any] | None,
        timing: Timing | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        root = Path(config.path).absolute()
        self._relation = config.relation or root.name
        self.log = DeltaLog(name, root, self._relation)
        self._key = tuple(config.key)
        self._spark = spark
        self._timing, self._limits = timing or Timing(), limits or Limits()
        self._focus: Collection[str] | None = None
        self._types: Mapping[str, str] | None = None

    @classmethod
    def from_config(cls, name: str, config: Config, context: SourceContext) -> DeltaSource:
        return cls(name, config, context.spark)

    # What it is

    def schemas(self) -> tuple[RelationSchema, ...]:
        """Rows are found without a scan by the columns by which the table is partitioned."""
        shape = self._shape()
        self._types = shape.types
        columns = tuple(Column(name, ddl, searchable(ddl)) for name, ddl in shape.types.items())
        indexes = tuple((c.name,) for c in columns if c.name in shape.partitioned and c.searchable)
        return (RelationSchema(self.name, self._relation, columns, self._key, indexes),)

    def focus(self, columns: Mapping[str, Collection[str]]) -> None:
        self._focus = columns.get(self._relation, ())

    def check(self, relations: Sequence[str]) -> list[Finding]:
        unknown = [relation for relation in relations if relation != self._relation]
        if unknown:
            return [self._unknown(relation) for relation in unknown]
        try:
            return list(check(self.log, self._key))
        except StrobeError as error:
            return [Finding("error", error.where, error.message, error.fix)]

    def _unknown(self, relation: str) -> Finding:
        where = f"source {self.name}, relation {relation}"
        return Finding("error", where, "there is no such relation", f"Its relation is {self._relation}.")

    def prepare_script(self, relations: Sequence[str]) -> list[str]:
        return [] if self._shape().has_feed else [enable(self.log)]

    def prepare(self, relations: Sequence[str]) -> None:
        """Nothing is done to the table: its properties are its owner's."""
        for finding in [self._unknown(relation) for relation in relations if relation != self._relation]:
            raise UserError(finding.message, where=finding.where, fix=finding.fix)
        if not self._shape().has_feed:
            fix = f"Let the table's owner run {enable(self.log)}"
            raise UserError("the change data feed is off", where=self.log.where, fix=fix)

    def undo(self) -> list[str]:
        return []

    def _shape(self) -> Shape:
        return self.log.shape(self.log.table(self.log.versions()[-1]))[0]

    # Where it is

    def identity(self) -> str:
        return f"delta:{self._shape().id}"

    def position(self, text: str) -> Position:
        version, _, digest = text.partition("@")
        if not version.isdecimal() or not digest:
            raise UserError(f"{text!r} is no position", where=self.name, fix="A position looks like 12@0a1b2c3d4e5f.")
        return Position(text, (int(version),))

    def now(self) -> Position:
        return self.log.position(self.log.versions()[-1])

    def fingerprints(self, relations: Collection[str]) -> Mapping[str, str]:
        found = fingerprint(*self.log.newest())
        return {relation: found if relation == self._relation else "" for relation in relations}

    def changed(self, relation: str, columns: Collection[str], before: str, after: str) -> str:
        return changed(columns, before, after)

    def verify(self, position: Position) -> None:
        self.log.verify(position)

    def reader(self, *, at_a_position: bool = False) -> Reader:
        """Every version is a position."""
        types = self._types
        if types is None:
            types = self._types = self._shape().types
        return DeltaReader(self.log, types)

    def discard(self, through: Position) -> None:
        """Nothing: how long versions and change data stay is the owner's decision."""

    def transactions(
        self, after: Position, stops: Sequence[Position], stopped: Callable[[], bool]
    ) -> Iterator[Transaction]:
        """A version is one transaction, so that none spans a stop."""
        stream = Stream(self.log, self._key, self._types, self._focus, self._spark, stopped, self._timing, self._limits)
        return stream.transactions(after)
