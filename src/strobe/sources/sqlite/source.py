"""SQLite: a trigger log, read in the answer's own read transaction (WAL mode).

A position is the number of the last row of the log at that point, with the random mark that the row was given: a
database that was restored from a backup and went another way has other marks. SQLite shows triggers no transaction
identifiers, so a reported transaction is everything committed between two looks at the log, split at `stops`: whole
transactions, one or several. Of a group only its net changes are kept, in files if they are many.

Strobe writes to the database in `prepare`, `undo` and `discard` only. Everything else happens in short read
transactions on read-only connections, which in WAL mode block nobody.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from strobe.algebra.relation import Relation
from strobe.algebra.schema import RelationSchema
from strobe.errors import SourceUnavailable, UserError
from strobe.messages import Position, Seen, Transaction
from strobe.sources.base import Finding, Reader, Source, SourceContext
from strobe.sources.net_changes import NetChanges, remove_files
from strobe.sources.sqlite.catalog import read_table, table_names
from strobe.sources.sqlite.preflight import check
from strobe.sources.sqlite.preparation import Prepared, Watched, prepare_statements, prepared, undo_statements
from strobe.sources.sqlite.reader import Gate, Place, Rows, SqliteReader, end_of_log, position_at
from strobe.sources.sqlite.triggers import LOG, note_name

POLL_SECONDS = 0.02
DISCARD_BATCH = 1000
DISCARD_SECONDS = 0.5


class SqliteSource(Source):
    """A SQLite database. See the module for what a reported transaction is."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._place = Place(name, Path(path))
        self._gate = Gate()
        self._focus: Mapping[str, Collection[str]] | None = None

    @classmethod
    def from_config(cls, name: str, config: Any, context: SourceContext) -> SqliteSource:
        return cls(name, config.path)

    def schemas(self) -> tuple[RelationSchema, ...]:
        """Tables with their columns of a supported declared type; other columns are left out."""
        with self._place.session() as connection:
            tables = [read_table(connection, name) for name in table_names(connection)]
        return tuple(t.schema(self.name) for t in tables if t.offered)

    def focus(self, columns: Mapping[str, Collection[str]]) -> None:
        self._focus = columns

    def check(self, relations: Sequence[str]) -> list[Finding]:
        path = self._place.path
        if not path.is_file():
            return [Finding("error", f"source {self.name}", f"there is no file {path}", "Mend `path` in strobe.yml.")]
        try:
            with self._place.session() as connection:
                return list(check(connection, self.name, path, relations))
        except UserError as error:
            return [Finding("error", error.where or f"source {self.name}", error.message, error.fix)]

    def prepare_script(self, relations: Sequence[str]) -> list[str]:
        with self._place.session() as connection:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            statements = prepare_statements(connection, self.name, relations, mode)
        pragma = [] if mode == "wal" else ["PRAGMA journal_mode = WAL"]
        return pragma + (["BEGIN IMMEDIATE", *statements, "COMMIT"] if statements else [])

    def prepare(self, relations: Sequence[str]) -> None:
        with self._place.session("rw") as connection:
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
        with self._place.session("rw") as connection:
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
        with self._place.session() as connection:
            return f"sqlite:{self._prepared(connection).identity}"

    def position(self, text: str) -> Position:
        try:
            seq, mark = map(int, text.split(":"))
        except ValueError:
            raise UserError(f"{text!r} is not a position of a SQLite log", where=f"source {self.name}") from None
        return position_at(seq, mark)

    def now(self) -> Position:
        with self._place.session() as connection:
            self._prepared(connection)
            return end_of_log(connection)

    def verify(self, position: Position) -> None:
        with self._place.session() as connection:
            connection.execute("BEGIN")
            state = self._prepared(connection)
            self._anchored(connection, position)
            for watched in state.watched:
                if watched.since > position.order[0]:
                    raise self._place.lost(
                        f"table {watched.relation} was changed and prepared anew after position {position.text}"
                    )
            self._intact(connection, state)

    def transactions(
        self, after: Position, stops: Sequence[Position], stopped: Callable[[], bool]
    ) -> Iterator[Transaction]:
        """Everything committed between two looks is one transaction; see the module."""
        while not stopped():
            with self._place.session() as connection:
                file = self._file()
                version = schema = None
                while not stopped() and self._file() == file:
                    (current,) = connection.execute("PRAGMA data_version").fetchone()
                    if current == version:
                        time.sleep(POLL_SECONDS)
                        continue
                    version = current
                    schema, groups = self._look(connection, after, stops, schema, stopped)
                    try:
                        while groups:
                            transaction = groups.pop(0)
                            after = transaction.position
                            yield transaction
                    finally:
                        for transaction in groups:  # nobody took it: it will be read again
                            remove_files(transaction.changes, transaction.gone)

    def _file(self) -> tuple[int, int]:
        """The file under the path: a database that was put in another's place is another file."""
        try:
            found = self._place.path.stat()
        except OSError as error:
            raise SourceUnavailable(str(error), where=f"source {self.name}") from error
        return found.st_dev, found.st_ino

    def _look(
        self,
        connection: sqlite3.Connection,
        after: Position,
        stops: Sequence[Position],
        schema: int | None,
        stopped: Callable[[], bool],
    ) -> tuple[int, list[Transaction]]:
        """What the log holds after a position, in one read transaction; the triggers too, if the schema changed."""
        with self._gate.look(after, stopped) as snapshots:
            connection.execute("BEGIN")
            end = end_of_log(connection).order[0]
        try:
            self._anchored(connection, after)
            (version,) = connection.execute("PRAGMA schema_version").fetchone()
            state = self._prepared(connection)
            if version != schema:
                self._intact(connection, state)
            ends = {s.order[0] for s in stops} | snapshots | {end}
            return version, self._groups(connection, state, after, ends, end)
        finally:
            connection.execute("ROLLBACK")

    def _groups(
        self, connection: sqlite3.Connection, state: Prepared, after: Position, ends: set[int], end: int
    ) -> list[Transaction]:
        start = after.order[0]
        ends |= {w.since for w in state.watched}  # from there on a relation has other columns
        groups = []
        try:
            for through in sorted(e for e in ends if start < e <= end):
                groups.append(self._group(connection, state, start, through))
                start = through
        except BaseException:
            for group in groups:
                remove_files(group.changes, group.gone)
            raise
        return groups

    def _group(self, connection: sqlite3.Connection, state: Prepared, start: int, through: int) -> Transaction:
        group = Group(self._place, connection, state, self._focus, self.spill)
        cursor = connection.execute(f"SELECT * FROM {LOG} WHERE seq > ? AND seq <= ? ORDER BY seq", (start, through))
        seq = mark = at = None
        try:
            while rows := cursor.fetchmany(1000):
                for seq, mark, at, watch, sign, *values in rows:  # noqa: B007  # the last ones are used below
                    group.add(watch, sign, values)
        except BaseException:
            group.forget()
            raise
        if seq != through or mark is None or at is None:
            raise self._place.lost(f"the log has no row {through} any more")
        return Transaction(
            self.name, position_at(through, mark), group.changes(), datetime.fromtimestamp(at, timezone.utc)
        )

    def reader(self, *, at_a_position: bool = False) -> Reader:
        return SqliteReader(self._place, self._gate)

    @contextmanager
    def elsewhere(self) -> Iterator[Callable[[Seen], None]]:
        with self._gate.snapshot() as taken:
            yield lambda seen: taken(seen.through)

    def discard(self, through: Position) -> None:
        """Take away log before the position, and notes, in small steps that give way to every writer."""
        try:
            with closing(self._place.connect("rw", timeout=0.05)) as connection:
                state = prepared(connection)
                if state is None:
                    return
                doomed = [(LOG, "seq", f"WHERE seq < {through.order[0]}")]
                doomed += [(note_name(w.id), "r0", "") for w in state.current]
                until = time.monotonic() + DISCARD_SECONDS
                for table, column, where in doomed:
                    some = f"SELECT {column} FROM {table} {where} ORDER BY {column} LIMIT {DISCARD_BATCH}"
                    delete = f"DELETE FROM {table} WHERE {column} IN ({some})"
                    while time.monotonic() < until and connection.execute(delete).rowcount >= DISCARD_BATCH:
                        time.sleep(0.002)
        except (sqlite3.Error, SourceUnavailable):
            return  # another time

    def _prepared(self, connection: sqlite3.Connection) -> Prepared:
        state = prepared(connection)
        if state is None:
            raise self._place.not_prepared()
        return state

    def _anchored(self, connection: sqlite3.Connection, position: Position) -> None:
        """The log passed through this position and still has its row."""
        seq, mark = map(int, position.text.split(":"))
        row = connection.execute(f"SELECT mark FROM {LOG} WHERE seq = ?", (seq,)).fetchone()
        if row is None or row[0] != mark:
            raise self._place.lost(
                f"the log in {self._place.path} does not pass through position {position.text}:"
                " the database was restored or replaced, or its log was taken away"
            )

    def _intact(self, connection: sqlite3.Connection, state: Prepared) -> None:
        for fault in state.faults(connection):
            error = self._place.lost if fault.gap else self._mend
            raise error(f"table {fault.relation}: {fault.what}")

    def _mend(self, message: str) -> UserError:
        return UserError(message, where=f"source {self.name}", fix=f"Run `strobe prepare {self.name}`.")


class Group:
    """Net changes of a stretch of the log, by relation, over the columns that somebody uses."""

    def __init__(
        self,
        place: Place,
        connection: sqlite3.Connection,
        state: Prepared,
        focus: Mapping[str, Collection[str]] | None,
        spill: Path | None,
    ) -> None:
        self._place = place
        self._connection = connection
        self._watched = state.by_id
        self._focus = focus
        self._nets = NetChanges(spill)
        self._decoders: dict[int, tuple[list[int], dict[str, str], Rows]] = {}

    def add(self, watch: int, sign: int, values: Sequence[Any]) -> None:
        watched = self._watched[watch]
        if not sign:
            raise self._place.lost(f"the triggers of table {watched.relation} were missing or altered for some time")
        if watch not in self._decoders:
            self._decoders[watch] = self._decoder(watched)
        places, types, rows = self._decoders[watch]
        if places:
            row = rows.decode([values[i] for i in places])
            net = self._nets.of(watched.relation, types)
            net.change(*((None, row) if sign > 0 else (row, None)))
            self._nets.grew(sum([len(value) for value in row if isinstance(value, (str, bytes))]))

    def _decoder(self, watched: Watched) -> tuple[list[int], dict[str, str], Rows]:
        used = watched.columns if self._focus is None else self._focus.get(watched.relation, ())
        places = [i for i, column in enumerate(watched.columns) if column in used]
        types = {watched.columns[i]: watched.types[watched.columns[i]] for i in places}
        key = read_table(self._connection, watched.relation).primary_key
        return places, types, Rows(self._place, watched.relation, types, key)

    def changes(self) -> dict[str, Relation]:
        return self._nets.take()[0]

    def forget(self) -> None:
        """It could not be read to its end."""
        self._nets.forget()
