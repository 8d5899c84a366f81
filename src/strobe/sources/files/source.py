"""Drops of files as a source: each accepted drop is a version of a Delta table, and what differs is a transaction.

A file has no log and no snapshots, so Strobe makes both. A drop (CSV, JSON Lines or Parquet; one file replaced in
place, or files in name order, each the full content) that has stopped changing is copied, checked by Spark from the
first record to the last, and only then written over a Delta table under the warehouse. That table's versions are the
positions; the difference between two neighbours is one transaction, the same whenever it is read again; and an answer
reads one version. Version 0 is empty. The table's columns are named by position, because Delta does not take every name
that a CSV header has; its properties hold the names and the identity of the log.

Staging and differences need Spark; everything else reads through `deltalake`, without a JVM.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from functools import lru_cache, reduce
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from strobe.algebra.bag import Bag, Row
from strobe.algebra.schema import Column, RelationSchema
from strobe.data.arrow import arrow_schema, canonical_ddl, ddl_type, fitting, from_arrow
from strobe.errors import BrokenInvariant, SourceLost, SourceUnavailable, UserError
from strobe.messages import Lookup, Position, Seen, Transaction
from strobe.sources.base import Finding, Reader, Source, SourceContext
from strobe.sources.files.drops import Drop, columns_of, copy_whole

if TYPE_CHECKING:
    from strobe.spark.session import DataFrame, SparkSession

DRIVER_ROWS = 100_000
"""A difference of more rows than this stays in Spark."""
POLL = 0.2
WRITING = {
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",  # the same rows again are a version too
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default does not hold the years 1 to 9999
}
GRACE = 3600.0
"""For so many seconds after the next drop a version stays, needed or not."""
WRITING = {
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",  # the same rows again are a version too
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default does not hold the years 1 to 9999
}
TIDY = 20
"""After so many drops, files that no needed version uses are removed."""
IDENTITY, COLUMNS = "strobe.identity", "strobe.columns"
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


_one_at_a_time = threading.Lock()
"""Two streams of a source in one process must not both stage a drop."""


def _position(identity: str, version: int) -> Position:
    """A version and, since versions of different tables look alike, which table it is of."""
    return Position(f"{version}@{identity[-8:]}", (version,))


@lru_cache(maxsize=4)
def _opened(path: str, version: int) -> tuple[ds.Dataset, list[str], str]:
    """A version of a staged table: its rows, the names of its columns, and which table it is. It never changes."""
    table = DeltaTable(path, version=version)
    return table.to_pyarrow_dataset(), _names(table), _identity(table)


class FilesReader(Reader):
    """One version of the staged table, read without a JVM: the given one, or the newest."""

    def __init__(self, table: Path, version: int | None = None) -> None:
        self._path = str(table)
        self._version = version
        self._data: ds.Dataset | None = None
        self._names: list[str] = []

    def open(self) -> Seen:
        version = DeltaTable(self._path).version() if self._version is None else self._version
        self._data, self._names, identity = _opened(self._path, version)
        return Seen(_position(identity, version))

    def lookup(self, lookup: Lookup, keys: Iterable[Row] | None) -> Iterator[Row]:
        if keys is None or not lookup.on:
            return self._rows(lookup.columns, None)
        columns = list(zip(*keys, strict=True))
        if not columns:
            return iter(())
        tests = [self._is_in(name, values) for name, values in zip(lookup.on, columns, strict=True)]
        useful = [test for test in tests if test is not None]
        return self._rows(lookup.columns, reduce(lambda a, b: a & b, useful) if useful else None)

    def scan(self, relation: str, columns: Sequence[str]) -> Iterator[Row]:
        return self._rows(columns, None)

    def rows(self, relation: str) -> int | None:
        return None if self._data is None else int(self._data.count_rows())

    def close(self) -> None:
        self._data = None

    def _rows(self, columns: Sequence[str], condition: ds.Expression | None) -> Iterator[Row]:
        if self._data is None:
            raise SourceUnavailable("the reader is not open", where=self._path)
        stored = [f"c{self._names.index(c)}" for c in columns]
        for batch in self._data.to_batches(columns=stored, filter=condition, batch_readahead=2, fragment_readahead=1):
            yield from from_arrow(batch)

    def _is_in(self, column: str, values: Iterable[Any]) -> ds.Expression | None:
        """Whether a column has one of these values; None where only Spark can tell (NaN and -0.0)."""
        stored = f"c{self._names.index(column)}"
        type_ = self._data.schema.field(stored).type if self._data is not None else pa.null()
        if pa.types.is_floating(type_):
            return None
        return ds.field(stored).isin(pa.array(fitting(set(values), type_), type_))


def _names(table: DeltaTable) -> list[str]:
    names: list[str] = json.loads(table.metadata().configuration[COLUMNS])
    return names


def _files(table: Path, version: int) -> list[Path]:
    """The files that hold a version."""
    return [Path(unquote(uri)) for uri in DeltaTable(str(table), version=version).file_uris()]


def _identity(table: DeltaTable) -> str:
    return str(table.metadata().configuration[IDENTITY])


class FilesSource(Source):
    """A relation whose content comes as files. `spark` is called only when a drop is staged or compared."""

    def __init__(
        self, name: str, config: Config, warehouse: Path, spark: Callable[[], SparkSession] | None, settle: float = 1.0
    ) -> None:
        self.name = name
        self._path = str(config.path)
        self._format = config.format
        self._relation = config.relation
        self._key = tuple(config.key)
        self._declared = {column: canonical_ddl(ddl) for column, ddl in (config.columns or {}).items()}
        self._table = warehouse.absolute() / "staging" / "files" / name
        self._spark = spark
        self._settle = settle
        self._looks: dict[Drop, float] = {}
        self._refused: tuple[Drop, UserError] | None = None
        self._answered_at: int | None = None

    # What it is

    @classmethod
    def from_config(cls, name: str, config: Config, context: SourceContext) -> FilesSource:
        return cls(name, config, context.warehouse, context.spark)

    def schemas(self) -> tuple[RelationSchema, ...]:
        columns = tuple(Column(name, ddl, ddl not in UNSEARCHABLE) for name, ddl in self._columns().items())
        return (RelationSchema(self.name, self._relation, columns, self._key),)

    def check(self, relations: Sequence[str]) -> list[Finding]:
        findings = [self._unknown(relation) for relation in relations if relation != self._relation]
        if not self._staged():
            message = "no drop has been staged yet"
            findings.append(Finding("error", self.name, message, f"run `strobe prepare {self.name}`"))
        elif differ := [n for n, t in self._declared.items() if self._columns().get(n) != t]:
            message = f"the type of {', '.join(differ)} is not the one under which drops have been staged"
            fix = f"run `strobe prepare {self.name} --undo` and `strobe prepare {self.name}`, and rebuild its views"
            findings.append(Finding("error", self.name, message, fix))
        return findings

    def prepare_script(self, relations: Sequence[str]) -> list[str]:
        return [] if self._staged() else [f"-- stage {self._path} as a Delta table at {self._table}"]

    def _unknown(self, relation: str) -> Finding:
        where = f"source {self.name}, relation {relation}"
        return Finding("error", where, "there is no such relation", f"Its relation is {self._relation}.")

    def prepare(self, relations: Sequence[str]) -> None:
        for finding in [self._unknown(relation) for relation in relations if relation != self._relation]:
            raise UserError(finding.message, where=finding.where, fix=finding.fix)
        if not self._staged():
            drops = self._waiting_drops(None)
            if not drops and not self._declared:
                raise UserError(f"there is no file {self._path}", where=self.name, fix="put the first drop there")
            self._create(self._columns())
        while drops := self._waiting():
            if not self._settled(drops[0]):
                time.sleep(min(self._settle, POLL))
            else:
                self._stage(drops[0])

    def undo(self) -> list[str]:
        if not self._table.exists():
            return []
        shutil.rmtree(self._table)
        return [str(self._table)]

    # Where it is

    def identity(self) -> str:
        return _identity(self._open())

    def position(self, text: str) -> Position:
        version, _, log = text.partition("@")
        if not version.isdecimal() or not log:
            raise UserError(f"{text!r} is no position", where=self.name, fix="a position looks like 12@0a1b2c3d")
        return Position(text, (int(version),))

    def now(self) -> Position:
        table = self._open()
        return _position(_identity(table), table.version() + len(self._waiting()))

    def verify(self, position: Position) -> None:
        version, table = position.order[0], self._open()
        if position.text != _position(_identity(table), version).text or version > self.now().order[0]:
            raise self._lost(position)
        if version > table.version():
            return
        try:
            files = _files(self._table, version)
        except Exception as problem:  # deltalake raises several kinds, none of them documented
            raise self._lost(position) from problem
        if not all(file.exists() for file in files):
            raise self._lost(position)

    def _lost(self, position: Position) -> SourceLost:
        message = f"version {position} of the staged drops is no longer there"
        fix = "Rebuild the views that use this source: `strobe rebuild VIEW`."
        return SourceLost(message, source=self.name, where=f"{self.name}: {self._table}", fix=fix)

    def _staged(self) -> bool:
        return DeltaTable.is_deltatable(str(self._table))

    def _open(self) -> DeltaTable:
        if not self._staged():
            raise UserError("no drop has been staged yet", where=self.name, fix=f"run `strobe prepare {self.name}`")
        return DeltaTable(str(self._table))

    # What happens

    def transactions(
        self, after: Position, stops: Sequence[Position], stopped: Callable[[], bool]
    ) -> Iterator[Transaction]:
        self.verify(after)
        done = after.order[0]
        self._answered_at = max([done, *(stop.order[0] for stop in stops)])
        while not stopped():
            if done < self._open().version():
                done += 1
                difference = self._difference(done)
                self._answered_at = max(done, self._answered_at)
                yield difference
                continue
            drops = self._waiting()
            if drops and self._refused and self._refused[0] == drops[0]:
                raise self._refused[1]
            if drops and self._settled(drops[0]):
                with _one_at_a_time:  # views that are about to join have a stream of their own
                    if self._waiting()[:1] == drops[:1]:
                        self._stage(drops[0])
            else:
                time.sleep(POLL)

    def reader(self, *, at_a_position: bool = False) -> Reader:
        """While drops are being reported, the version reported last is read: nobody has to wait until the difference to
        a newer one has been computed. No view stands beyond it."""
        newest = self._open().version()
        return FilesReader(self._table, None if self._answered_at is None else min(self._answered_at, newest))

    def discard(self, through: Position) -> None:
        """Remove the files of the versions before this one, newest first down to one whose files are gone already.
        Every drop is written anew, so no two versions share a file. Some version may still be being read: see GRACE."""
        for version in range(min(through.order[0], self._open().version()) - 1, 0, -1):
            superseded = _commit_info(self._table, version + 1).get("timestamp", 0) / 1000
            if time.time() - superseded < GRACE:
                continue
            files = _files(self._table, version)
            if files and not any(file.exists() for file in files):
                return
            for file in files:
                file.unlink(missing_ok=True)

    def _difference(self, version: int) -> Transaction:
        from strobe.spark.relation import SparkRelation

        table = self._open()
        names = _names(table)
        after, before = (SparkRelation.of_rows(self._version(v).toDF(*names), {}) for v in (version, version - 1))
        change = after.plus(before.negate()).net()
        rows = list(from_arrow(change.dataframe().limit(DRIVER_ROWS + 1).toArrow()))
        bag = Bag(names, {row[:-1]: row[-1] for row in rows})
        changes = {self._relation: change if len(rows) > DRIVER_ROWS else bag}
        fingerprint = _fingerprint(self._table, version)
        at = datetime.fromtimestamp(fingerprint["mtime_ns"] / 1e9, timezone.utc) if fingerprint else None
        return Transaction(
            self.name, _position(_identity(table), version), changes=changes if rows else {}, committed_at=at
        )

    def _version(self, version: int) -> DataFrame:
        return self._session().read.format("delta").option("versionAsOf", version).load(str(self._table))

    # Which drops there are

    def _waiting(self) -> list[Drop]:
        return self._waiting_drops(_fingerprint(self._table, self._open().version()))

    def _waiting_drops(self, last: dict[str, Any] | None) -> list[Drop]:
        """The drops not staged yet, in order: of several files those that follow the last one by name."""
        several = has_magic(self._path)
        paths = sorted(map(Path, glob(self._path)), key=lambda p: p.name) if several else [Path(self._path)]  # noqa: PTH207
        drops = [Drop.of(path) for path in paths if path.is_file() and not path.name.startswith(".")]
        if several and last is not None:
            drops = [drop for drop in drops if drop.path.name >= last["name"]]
        return [drop for drop in drops if drop.fingerprint != last]

    def _settled(self, drop: Drop) -> bool:
        """Whether it looked the same some time ago: a drop that is still being written is left alone."""
        first = self._looks.get(drop)
        if first is None:
            self._looks = {drop: time.monotonic()}
            return False
        return time.monotonic() - first >= self._settle

    # What a drop holds

    def _columns(self) -> dict[str, str]:
        """The columns and their types: as staged, or else as the first drop and the configuration say."""
        if self._staged():
            table = DeltaTable(str(self._table))
            types = [ddl_type(field.type) for field in pa.schema(table.schema().to_arrow())]
            return dict(zip(_names(table), types, strict=True))
        drops = self._waiting_drops(None)
        found = columns_of(drops[0].path, self._format, drops[0].path) if drops else {}
        if drops:
            self._require([*self._declared, *self._key], found, drops[0].path)
        return {**found, **self._declared} if self._format != "parquet" else found

    def _require(self, columns: Iterable[str], found: Iterable[str], path: Path) -> None:
        have = set(found)
        for column in columns:
            if column not in have:
                message = f"the column {column!r} is missing; there are {', '.join(sorted(have)) or 'none'}"
                raise UserError(message, where=str(path), fix="drop a file that has all columns")

    # Staging

    def _create(self, columns: dict[str, str]) -> None:
        properties = {
            IDENTITY: f"files:{uuid.uuid4()}",
            COLUMNS: json.dumps(list(columns)),
            "delta.deletedFileRetentionDuration": "interval 3650 days",
            "delta.logRetentionDuration": "interval 3650 days",
        }
        schema = arrow_schema([f"c{i}" for i in range(len(columns))], list(columns.values()))
        self._table.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(
            str(self._table), schema, mode="ignore", configuration=properties, raise_if_key_not_exists=False
        )

    def _stage(self, drop: Drop) -> None:
        """Make a drop the next version of the table, or refuse it and leave everything as it was."""
        copy = self._table.parent / f"incoming-{uuid.uuid4().hex}"  # no leading dot: Spark overlooks such files
        try:
            copy_whole(drop, copy, self._format)
            if Drop.of(drop.path) == drop:
                self._check_and_write(drop, copy)
        except UserError as problem:
            self._refused = (drop, problem)
            raise
        finally:
            copy.unlink(missing_ok=True)

    def _check_and_write(self, drop: Drop, copy: Path) -> None:
        from strobe.spark.drop_reader import read_checked

        columns = self._columns()
        found = list(columns) if self._format == "jsonl" else list(columns_of(copy, self._format, drop.path))
        self._require(columns, found, drop.path)
        frame = read_checked(self._session(), copy, self._format, found, columns, self._key, str(drop.path))
        before = self._open().version()
        for setting, value in WRITING.items():
            self._session().conf.set(setting, value)
        writer = frame.toDF(*(f"c{i}" for i in range(len(columns)))).write.format("delta").mode("overwrite")
        writer.option("userMetadata", json.dumps(drop.fingerprint)).save(str(self._table))
        if self._open().version() == before:
            raise BrokenInvariant("a drop was written, but there is no new version", where=f"{self.name}: {drop.path}")

    def _session(self) -> SparkSession:
        if self._spark is None:
            raise BrokenInvariant("a command that only looks wants to stage a drop", where=self.name)
        return self._spark()


def _commit_info(table: Path, version: int) -> dict[str, Any]:
    """What a commit of the staged table says about itself."""
    try:
        lines = (table / "_delta_log" / f"{version:020}.json").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return next((entry["commitInfo"] for entry in map(json.loads, lines) if "commitInfo" in entry), {})


def _fingerprint(table: Path, version: int) -> dict[str, Any] | None:
    """The drop whose content a version of the staged table holds."""
    for at in range(version, 0, -1):
        if metadata := _commit_info(table, at).get("userMetadata"):
            found: dict[str, Any] = json.loads(metadata)
            return found
    return None
