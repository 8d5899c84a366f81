"""Which SQLite database: connections to it, and its errors in Strobe's words."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote as quote_url

from strobe.errors import RelationLost, SourceLost, SourceUnavailable, UserError
from strobe.sources.sqlite.limits import Limits, Timing
from strobe.sources.sqlite.values import text

DISTRUSTFUL = ("trusted_schema = OFF", "cell_size_check = ON")
"""Others may write the file: what its schema calls does not reach beyond it, and a damaged page is an error."""
READ_ONLY = "query_only = ON"


@dataclass(frozen=True)
class ConnectionSettings:
    """Which database, for opening it and for messages about it."""

    source: str
    path: Path
    timing: Timing = field(default_factory=Timing)
    limits: Limits = field(default_factory=Limits)

    @property
    def where(self) -> str:
        return f"source {self.source}"

    def connect(self, mode: str = "ro", timeout: float | None = None) -> sqlite3.Connection:
        if not self.path.is_file():
            raise SourceUnavailable(f"there is no file {self.path}", where=self.where)
        uri = f"file:{quote_url(str(self.path.absolute()))}?mode={mode}"
        timeout = self.timing.busy if timeout is None else timeout
        connection = sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False)
        connection.text_factory = text
        for pragma in (*DISTRUSTFUL, *((READ_ONLY,) if mode == "ro" else ())):
            connection.execute(f"PRAGMA {pragma}")
        if sys.version_info >= (3, 12):
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        return connection

    @contextmanager
    def session(self, mode: str = "ro") -> Iterator[sqlite3.Connection]:
        """A connection for one task, rolled back and closed after it, whose errors are Strobe's."""
        with self.errors(), closing(self.connect(mode)) as connection:
            yield connection

    def file(self) -> tuple[int, int]:
        """The file under the path: a database that was put in another's place is another file."""
        try:
            found = self.path.stat()
        except OSError as error:
            raise SourceUnavailable(str(error), where=self.where) from error
        return found.st_dev, found.st_ino

    @contextmanager
    def errors(self) -> Iterator[None]:
        where = self.where
        try:
            yield
        except sqlite3.OperationalError as error:
            reason = str(error)
            if reason.startswith(("no such table", "no such column", "no such collation")):
                fix = f"See `strobe check`, then `strobe prepare {self.source}`."
                raise UserError(reason, where=where, fix=fix) from error
            raise SourceUnavailable(reason, where=where) from error
        except sqlite3.DatabaseError as error:
            fix = "Check that this is a sound SQLite database."
            raise UserError(f"{self.path}: {error}", where=where, fix=fix) from error

    def not_prepared(self) -> UserError:
        return UserError("the database is not prepared", where=self.where, fix=f"Run `strobe prepare {self.source}`.")

    def lost(self, message: str) -> SourceLost:
        fix = "Rebuild the views that use this source: `strobe rebuild VIEW`."
        return SourceLost(message, source=self.source, where=self.where, fix=fix)

    def table_lost(self, relation: str, message: str) -> RelationLost:
        """Views that use this table can no longer be kept."""
        fix = f"Run `strobe prepare {self.source}`; then rebuild the views that use the table: `strobe rebuild VIEW`."
        where = f"{self.where}, table {relation}"
        return RelationLost(message, source=self.source, relations=[relation], where=where, fix=fix)


class KeptConnection:
    """A connection that stays open between short tasks: opening one means reading the whole schema again."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._kept: tuple[tuple[int, int], sqlite3.Connection] | None = None

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A read transaction of one task, whose errors are Strobe's."""
        with self._lock, self._settings.errors():
            file = self._settings.file()
            if self._kept is None or self._kept[0] != file:
                self._close()
                self._kept = file, self._settings.connect()
            connection = self._kept[1]
            try:
                connection.execute("BEGIN")
                yield connection
                connection.execute("ROLLBACK")
            except BaseException:
                self._close()
                raise

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._kept is not None:
            self._kept[1].close()
            self._kept = None
