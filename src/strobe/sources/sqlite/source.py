"""SQLite: a trigger log, read in the answer's own read transaction (WAL mode).

Strobe writes to the database in `prepare`, `undo` and `discard` only. Everything else happens in short read
transactions on read-only connections, which in WAL mode block nobody.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from strobe.algebra.schema import RelationSchema
from strobe.errors import SourceUnavailable, UserError
from strobe.messages import Position, Seen, Transaction
from strobe.sources.base import Finding, Reader, Source, SourceContext
from strobe.sources.sqlite.catalog import read_table, table_names
from strobe.sources.sqlite.connection import ConnectionSettings, KeptConnection
from strobe.sources.sqlite.fingerprint import changed, fingerprints
from strobe.sources.sqlite.gate import Gate
from strobe.sources.sqlite.inspection import Inspection
from strobe.sources.sqlite.limits import Limits, Timing
from strobe.sources.sqlite.position import end_of_log, position_at, require_passed
from strobe.sources.sqlite.preflight import check
from strobe.sources.sqlite.preparation import (
    prepare_statements,
    prepared,
    require_prepared,
    undo_statements,
)
from strobe.sources.sqlite.reader import SqliteReader
from strobe.sources.sqlite.stream import Stream
from strobe.sources.sqlite.triggers import LOG, note_name


class SqliteSource(Source):
    """A SQLite database. See `stream` for what a reported transaction is."""

    log_unit = "logged changes"

    unlogged = "a connection may switch triggers off (.dbconfig enable_trigger off) or write past them (blobopen)"

    def __init__(self, name: str, path: Path, timing: Timing | None = None, limits: Limits | None = None) -> None:
        self.name = name
        self.settings = ConnectionSettings(name, Path(path), timing or Timing(), limits or Limits())
        self._gate = Gate()
        self._inspection = Inspection(self.settings)
        self._kept = KeptConnection(self.settings)
        self._focus: Mapping[str, Collection[str]] | None = None

    @classmethod
    def from_config(cls, name: str, config: Any, context: SourceContext) -> SqliteSource:
        return cls(name, config.path)

    def schemas(self) -> tuple[RelationSchema, ...]:
        """Tables with their columns of a supported declared type; other columns are left out."""
        with self.settings.session() as connection:
            tables = [read_table(connection, name) for name in table_names(connection)]
        return tuple(t.schema(self.name) for t in tables if t.offered)

    def focus(self, columns: Mapping[str, Collection[str]]) -> None:
        self._focus = columns

    def check(self, relations: Sequence[str]) -> list[Finding]:
        path = self.settings.path
        if not path.is_file():
            return [Finding("error", self.settings.where, f"there is no file {path}", "Mend `path` in strobe.yml.")]
        try:
            with self.settings.session() as connection:
                return list(check(connection, self.name, path, relations))
        except UserError as error:
            return [Finding("error", error.where or self.settings.where, error.message, error.fix)]

    def prepare_script(self, relations: Sequence[str]) -> list[str]:
        with self.settings.session() as connection:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            statements = prepare_statements(connection, self.name, relations, mode)
        pragma = [] if mode == "wal" else ["PRAGMA journal_mode = WAL"]
        return pragma + (["BEGIN IMMEDIATE", *statements, "COMMIT"] if statements else [])

    def prepare(self, relations: Sequence[str]) -> None:
        with self.settings.session("rw") as connection:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            prepare_statements(connection, self.name, relations, mode)  # refuses before anything is changed
            if mode != "wal":
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            for statement in prepare_statements(connection, self.name, relations, mode):
                connection.execute(statement)
            connection.execute("COMMIT")

    def undo(self) -> list[str]:
        """The journal mode first, because it cannot change while others use the database: then nothing is changed."""
        self._kept.close()
        with self.settings.session("rw") as connection:
            state = prepared(connection)
            taken = []
            if state and state.journal_mode != "wal":
                connection.execute(f"PRAGMA journal_mode = {state.journal_mode}")
                taken.append("WAL mode")
            connection.execute("BEGIN IMMEDIATE")
            for what, statement in undo_statements(connection):
                connection.execute(statement)
                taken.append(what)
            connection.execute("COMMIT")
            return taken

    def identity(self) -> str:
        with self.settings.session() as connection:
            return f"sqlite:{require_prepared(connection, self.settings).identity}"

    def position(self, text: str) -> Position:
        try:
            seq, mark = map(int, text.split(":"))
        except ValueError:
            raise UserError(f"{text!r} is not a position of a SQLite log", where=self.settings.where) from None
        return position_at(seq, mark)

    def now(self) -> Position:
        with self.settings.session() as connection:
            require_prepared(connection, self.settings)
            return end_of_log(connection, self.settings)

    def verify(self, position: Position) -> None:
        with self.settings.session() as connection:
            connection.execute("BEGIN")
            state = require_prepared(connection, self.settings)
            require_passed(connection, self.settings, position)
            for watched in state.watched:
                if watched.since > position.order[0]:
                    raise self.settings.lost(
                        f"table {watched.relation} was changed and prepared anew after position {position.text}"
                    )

    def fingerprints(self, relations: Collection[str]) -> Mapping[str, str]:
        with self._kept.snapshot() as connection:
            return fingerprints(connection, self._inspection, relations)

    def changed(self, relation: str, columns: Collection[str], before: str, after: str) -> str:
        return changed(columns, before, after)

    def transactions(
        self, after: Position, stops: Sequence[Position], stopped: Callable[[], bool]
    ) -> Iterator[Transaction]:
        """Everything committed between two looks is one transaction; see `stream`."""
        stream = Stream(self.settings, self._gate, self._inspection, stops, stopped, self._focus, self.spill)
        return stream.transactions(after)

    def reader(self, *, at_a_position: bool = False) -> Reader:
        return SqliteReader(self.settings, self._gate, self._inspection)

    @contextmanager
    def elsewhere(self) -> Iterator[Callable[[Seen], None]]:
        with self._gate.snapshot() as taken:
            yield lambda seen: taken(seen.through)

    def discard(self, through: Position) -> None:
        """Take away log before the position, and notes, in small steps that give way to every writer."""
        timing, most = self.settings.timing, self.settings.limits.discarded
        try:
            with closing(self.settings.connect("rw", timing.discard_busy)) as connection:
                state = prepared(connection)
                if state is None:
                    return
                doomed = [(LOG, "seq", f"WHERE seq < {through.order[0]}")]
                doomed += [(note_name(w.id), "r0", "") for w in state.current]
                until = time.monotonic() + timing.discard
                for table, column, where in doomed:
                    some = f"SELECT {column} FROM {table} {where} ORDER BY {column} LIMIT {most}"
                    delete = f"DELETE FROM {table} WHERE {column} IN ({some})"
                    while time.monotonic() < until and connection.execute(delete).rowcount >= most:
                        time.sleep(timing.discard_pause)
        except (sqlite3.Error, SourceUnavailable):
            return  # another time

    def close(self) -> None:
        self._kept.close()
