"""What a drop is before Spark sees it: a file that looks the same for a while, with columns, copied byte by byte."""

from __future__ import annotations

import codecs
import csv
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import IO, Any, AnyStr

import pyarrow as pa
import pyarrow.parquet as pq

from strobe.data.arrow import ddl_type
from strobe.errors import SourceUnavailable, UserError

LONGEST = 1 << 24
"""Bytes of a header or of a first record; others are Spark's to read."""


@dataclass(frozen=True)
class Expected:
    """What a drop has to be: where it comes, its format, its key and the types declared for columns."""

    pattern: str
    format: str
    relation: str
    key: tuple[str, ...]
    declared: Mapping[str, str]
    optional: bool = False
    """Whether the first drop may come later."""

    def lacking(self) -> UserError:
        """That there is no drop, and never was one."""
        fix = "Put the first drop there, correct `path`, or write `optional: true` if the first drop comes later."
        beside = Path(self.pattern).parent
        names = sorted(p.name for p in beside.iterdir() if p.is_file()) if beside.is_dir() else []
        if close := difflib.get_close_matches(Path(self.pattern).name, names, n=1):
            fix = f"Did you mean {beside / close[0]}? {fix}"
        return UserError(f"there is no file {self.pattern}, and there never was a drop", fix=fix)


@dataclass(frozen=True)
class Drop:
    """A file as it was when it was looked at."""

    path: Path
    size: int
    mtime_ns: int
    ctime_ns: int
    """The file system sets it at every change, and nobody else can: so a file shows that has the size and the time of
    modification of the one that it replaced."""

    @classmethod
    def of(cls, path: Path) -> Drop:
        try:
            stat = path.stat()
        except OSError as problem:
            raise SourceUnavailable(f"the drop cannot be read: {problem.strerror}", where=str(path)) from problem
        return cls(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    @property
    def identity(self) -> dict[str, str | int]:
        """What is kept of it with the version that it becomes."""
        return {"name": self.path.name, "size": self.size, "mtime_ns": self.mtime_ns, "ctime_ns": self.ctime_ns}


def waiting_drops(pattern: str, last: Mapping[str, Any] | None) -> list[Drop]:
    """The drops after the last one staged, in order: of several files those that follow it by name."""
    several = has_magic(pattern)
    paths = sorted(map(Path, glob(pattern)), key=lambda p: p.name) if several else [Path(pattern)]  # noqa: PTH207
    drops = [Drop.of(path) for path in paths if path.is_file() and not path.name.startswith(".")]
    if several and last is not None:
        drops = [drop for drop in drops if drop.path.name >= last["name"]]
    return [drop for drop in drops if drop.identity != last]


def require_columns(columns: Iterable[str], found: Iterable[str], path: Path) -> None:
    have = set(found)
    for column in columns:
        if column not in have:
            message = f"the column {column!r} is missing; there are {', '.join(sorted(have)) or 'none'}"
            raise UserError(message, where=str(path), fix="drop a file that has all columns")


def columns_of(path: Path, format_: str, where: Path) -> dict[str, str]:
    """The columns that a file has, with the types it brings itself; text has none, and is `string`."""
    if format_ == "parquet":
        return _parquet_columns(path, where)
    names = _header(path, where) if format_ == "csv" else _first_record(path, where)
    if repeated := sorted({n for n in names if names.count(n) > 1}):
        raise UserError(f"the column {repeated[0]!r} comes twice", where=str(where), fix="name each column once")
    return dict.fromkeys(names, "string")


def _parquet_columns(path: Path, where: Path) -> dict[str, str]:
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as problem:
        raise UserError(f"this is no complete Parquet file: {problem}", where=str(where)) from problem
    types = {}
    for field in schema:
        try:
            types[field.name] = ddl_type(field.type)
        except UserError as problem:
            raise UserError(problem.message, where=f"{where}: column {field.name}") from problem
    return types


def _header(path: Path, where: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names: list[str] = next(csv.reader(_beginning(file, where)), [])
    except (UnicodeDecodeError, csv.Error) as problem:
        raise UserError(f"the header cannot be read: {problem}", where=f"{where}: line 1") from problem
    if not names or not all(names):
        raise UserError("the first line must name every column", where=f"{where}: line 1", fix="write a header line")
    return names


def _beginning(file: IO[AnyStr], where: Path) -> Iterator[AnyStr]:
    """The lines at the beginning of a file, which may be of any size."""
    left = LONGEST
    while line := file.readline(left):
        left -= len(line)
        if not left:
            raise UserError(f"its first record has more than {LONGEST:,} bytes", where=f"{where}: line 1")
        yield line


def _first_record(path: Path, where: Path) -> list[str]:
    with path.open("rb") as file:
        line = next(_beginning(file, where), b"")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"this is no JSON: {problem}", where=f"{where}: line 1") from problem
    if not isinstance(record, dict):
        raise UserError("a record must be a JSON object", where=f"{where}: line 1")
    return list(record)


def copy_whole(drop: Drop, copy: Path, format_: str) -> None:
    """Copy a drop, so that all that follows reads the same bytes; look for what shows only in the whole text."""
    decoder, quotes, line = codecs.getincrementaldecoder("utf-8")(), 0, 1
    copy.parent.mkdir(parents=True, exist_ok=True)
    with drop.path.open("rb") as source, copy.open("wb") as target:
        while chunk := source.read(1 << 20):
            target.write(chunk)
            if format_ == "parquet":
                continue
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError as problem:
                line += chunk[: problem.start].count(b"\n")
                raise UserError("the text is not UTF-8", where=f"{drop.path}: line {line}") from problem
            quotes += chunk.count(b'"')
            line += chunk.count(b"\n")
    if format_ == "csv" and quotes % 2:
        raise UserError('a quotation mark (") is never closed', where=str(drop.path), fix='write a quote inside as ""')
