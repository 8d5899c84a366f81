"""What the sources really went through, recorded beside Strobe and not by it.

An `Archive` copies the change log of SQLite databases while it grows, before Strobe discards it, and knows the initial
contents from the same read transaction as the log's end at that moment. For a source of files the versions of its
staged Delta table are the history. So the sources can be had back as they were at any position that a commit names.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from strobe.algebra.bag import Bag, Row
from strobe.errors import BrokenInvariant

LOOK_EVERY = 0.03

Tables = Mapping[str, Bag]
"""The contents of a source, by table."""


class History(Protocol):
    """The past of one source."""

    def state_at(self, position: str) -> Tables: ...

    def order(self, position: str) -> int:
        """A number that grows with positions."""
        ...


class Archive:
    """The histories of all sources. Start it when the sources are prepared, before Strobe runs."""

    def __init__(self, sqlite: Mapping[str, Path], files: Mapping[str, tuple[str, Path]] | None = None) -> None:
        """SQLite databases by source, and for sources of files the relation's name and the staged Delta table."""
        self.recorders = {source: Recorder(source, path) for source, path in sqlite.items()}
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


@dataclass(frozen=True)
class Change:
    """A row of the trigger log; `table` is None for the row that only anchors the log's beginning."""

    seq: int
    mark: int
    at: float
    table: str | None
    sign: int
    values: Row


class Recorder:
    """Copies one SQLite database's log while it grows."""

    def __init__(self, source: str, path: Path) -> None:
        self.source = source
        self.changes: list[Change] = []
        """Without gaps, from the row that ended the log at the start; only ever appended to."""
        self._uri = f"file:{path.absolute()}?mode=ro"
        self._initial: dict[str, Bag] = {}
        self._index, self._state = 0, self._initial
        """A place in `changes` and the contents after it: states are mostly asked for in order."""
        self._problem: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._record, name=f"archive-{source}", daemon=True)

    def start(self) -> None:
        with closing(self._connect()) as connection:
            connection.execute("BEGIN")
            self._begin(connection)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    # Recording.

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._uri, uri=True, timeout=5, isolation_level=None, check_same_thread=False)

    def _begin(self, connection: sqlite3.Connection) -> None:
        """The contents and the log's end, from one read transaction."""
        last = connection.execute("SELECT * FROM __strobe_log ORDER BY seq DESC LIMIT 1").fetchone()
        watched = self._watched(connection)
        self.changes.append(_change(last, watched))
        for table, columns in watched.values():
            chosen = ", ".join(f'"{column}"' for column in columns)
            self._initial[table] = Bag.of(columns, connection.execute(f'SELECT {chosen} FROM "{table}"'))

    @staticmethod
    def _watched(connection: sqlite3.Connection) -> dict[int, tuple[str, list[str]]]:
        rows = connection.execute("SELECT id, relation, columns FROM __strobe_watched WHERE NOT retired")
        return {number: (relation, json.loads(columns)) for number, relation, columns in rows}

    def _record(self) -> None:
        try:
            with closing(self._connect()) as connection:
                last_look = False
                while not last_look:
                    last_look = self._stopping.wait(LOOK_EVERY)
                    self._look(connection)
        except BaseException as error:  # told to whoever stops the archive
            self._problem = error

    def _look(self, connection: sqlite3.Connection) -> None:
        last = self.changes[-1].seq
        rows = connection.execute("SELECT * FROM __strobe_log WHERE seq > ? ORDER BY seq", (last,)).fetchall()
        if not rows:
            return
        watched = self._watched(connection)
        for row in rows:
            change = _change(row, watched)
            if change.seq != self.changes[-1].seq + 1 or not change.sign:
                raise BrokenInvariant(
                    f"the log goes from {self.changes[-1].seq} to {change.seq} with a gap: the archive missed changes",
                    where=f"source {self.source}",
                )
            self.changes.append(change)

    # Looking back.

    def order(self, position: str) -> int:
        return int(position.split(":")[0])

    def age(self, position: str) -> float:
        """How old the oldest change after a position is; 0 if there is none."""
        index = self.order(position) - self.changes[0].seq + 1
        return max(0.0, time.time() - self.changes[index].at) if 0 <= index < len(self.changes) else 0.0

    def state_at(self, position: str) -> Tables:
        index = self._find(position)
        if index < self._index:
            self._index, self._state = 0, self._initial
        counts: dict[str, dict[Row, int]] = {}
        for change in self.changes[self._index + 1 : index + 1]:
            of_table = counts.setdefault(str(change.table), {})
            of_table[change.values] = of_table.get(change.values, 0) + change.sign
        moved = {t: self._state[t].add(Bag(self._state[t].attributes, of)) for t, of in counts.items()}
        self._index, self._state = index, {**self._state, **moved}
        return self._state

    def _find(self, position: str) -> int:
        seq, mark = map(int, position.split(":"))
        index = seq - self.changes[0].seq
        if not 0 <= index < len(self.changes) or self.changes[index].mark != mark:
            raise BrokenInvariant(f"the log never passed through {position}", where=f"source {self.source}")
        return index


def _change(row: tuple[Any, ...], watched: Mapping[int, tuple[str, list[str]]]) -> Change:
    seq, mark, at, watch, sign, *values = row
    table, columns = watched[watch] if watch is not None else (None, [])
    return Change(seq, mark, at, table, sign, tuple(values[: len(columns)]))


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
