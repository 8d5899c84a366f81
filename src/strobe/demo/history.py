"""What the sources really went through, recorded beside Strobe and not by it.

An `Archive` copies the change log of SQLite databases while it grows, before Strobe discards it, and knows the initial
contents from the same read transaction as the log's end at that moment. For PostgreSQL it keeps a journal of its own.
For a source of files the versions of its staged Delta table are the history. So the sources can be had back as they
were at any position that a commit names.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from strobe.algebra.bag import Bag
from strobe.demo.history_postgres import PostgresRecorder
from strobe.demo.recorder import Change, Recorder, Tables
from strobe.errors import BrokenInvariant


class History(Protocol):
    """The past of one source."""

    def state_at(self, position: str) -> Tables: ...

    def order(self, position: str) -> int:
        """A number that grows with positions."""
        ...


class Archive:
    """The histories of all sources. Start it when the sources are prepared, before Strobe runs."""

    def __init__(
        self,
        sqlite: Mapping[str, Path],
        files: Mapping[str, tuple[str, Path]] | None = None,
        postgres: Mapping[str, str] | None = None,
    ) -> None:
        """By source: SQLite databases, for files the relation's name and the staged Delta table, the owner's dsns."""
        self.recorders: dict[str, Recorder] = {name: SqliteRecorder(name, path) for name, path in sqlite.items()}
        self.recorders |= {name: PostgresRecorder(name, dsn) for name, dsn in (postgres or {}).items()}
        self.drops = {source: Drops(relation, path) for source, (relation, path) in (files or {}).items()}

    def start(self) -> None:
        for recorder in self.recorders.values():
            recorder.start()

    def stop(self) -> None:
        """Take a last look at every log and end; raises what went wrong on the way."""
        for recorder in self.recorders.values():
            recorder.stop()

    def __enter__(self) -> Archive:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def sources(self) -> tuple[str, ...]:
        return (*self.recorders, *self.drops)

    def state_at(self, source: str, position: str) -> Tables:
        return self._history(source).state_at(position)

    def order(self, source: str, position: str) -> int:
        return self._history(source).order(position)

    def _history(self, source: str) -> History:
        return self.recorders[source] if source in self.recorders else self.drops[source]


class SqliteRecorder(Recorder):
    """Copies one SQLite database's log while it grows."""

    kind = "SQLite"

    def __init__(self, source: str, path: Path) -> None:
        super().__init__(source)
        self._uri = f"file:{path.absolute()}?mode=ro"

    def _begin(self) -> None:
        """The contents and the log's end, from one read transaction."""
        self._connection = sqlite3.connect(
            self._uri, uri=True, timeout=5, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("BEGIN")
        last = self._connection.execute("SELECT * FROM __strobe_log ORDER BY seq DESC LIMIT 1").fetchone()
        watched = self._watched()
        self.changes.append(_change(last, watched))
        for table, columns in watched.values():
            chosen = ", ".join(f'"{column}"' for column in columns)
            self._initial[table] = Bag.of(columns, self._connection.execute(f'SELECT {chosen} FROM "{table}"'))
        self._connection.execute("COMMIT")

    def _close(self) -> None:
        self._connection.close()

    def _watched(self) -> dict[int, tuple[str, list[str]]]:
        rows = self._connection.execute("SELECT id, relation, columns FROM __strobe_watched WHERE NOT retired")
        return {number: (relation, json.loads(columns)) for number, relation, columns in rows}

    def _look(self, *, last: bool) -> None:
        after = (self.changes[-1].seq,)
        rows = self._connection.execute("SELECT * FROM __strobe_log WHERE seq > ? ORDER BY seq", after).fetchall()
        if not rows:
            return
        watched = self._watched()
        for row in rows:
            change = _change(row, watched)
            if change.seq != self.changes[-1].seq + 1 or not change.sign:
                raise BrokenInvariant(
                    f"the log goes from {self.changes[-1].seq} to {change.seq} with a gap: the archive missed changes",
                    where=f"source {self.source}",
                )
            self.changes.append(change)

    def order(self, position: str) -> int:
        return int(position.split(":")[0])

    def _place(self, position: str) -> int:
        return self.order(position) - self.changes[0].seq

    def _verify(self, position: str) -> None:
        seq, mark = map(int, position.split(":"))
        index = seq - self.changes[0].seq
        if not 0 <= index < len(self.changes) or self.changes[index].mark != mark:
            raise BrokenInvariant(f"the log never passed through {position}", where=f"source {self.source}")


def _change(row: tuple[Any, ...], watched: Mapping[int, tuple[str, list[str]]]) -> Change:
    seq, mark, at, watch, sign, *values = row
    table, columns = watched[watch] if watch is not None else (None, [])
    return Change(seq, at, table, sign, tuple(values[: len(columns)]), mark)


class Drops:
    """The past of a source of files: versions of its staged table, whose properties hold the columns' names."""

    def __init__(self, relation: str, path: Path) -> None:
        self._relation, self._path = relation, path
        self._known: dict[str, Bag] = {}

    def order(self, position: str) -> int:
        return int(position.split("@")[0])

    def state_at(self, position: str) -> Tables:
        if position not in self._known:
            table = DeltaTable(str(self._path), version=self.order(position))
            names = json.loads(table.metadata().configuration["strobe.columns"])
            stored = ", ".join(f"c{i}" for i in range(len(names)))
            found = pa.table(QueryBuilder().register("t", table).execute(f"SELECT {stored} FROM t"))
            self._known[position] = Bag.of(names, zip(*(column.to_pylist() for column in found.columns), strict=True))
        return {self._relation: self._known[position]}
