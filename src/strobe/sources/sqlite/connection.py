"""Which SQLite database: connections to it, and its errors in Strobe's words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote as quote_url

from strobe.errors import RelationLost, SourceLost, SourceUnavailable, UserError
from strobe.sources.sqlite.limits import Limits, Timing
from strobe.sources.sqlite.values import text


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
        return connection

    @contextmanager
    def session(self, mode: str = "ro") -> Iterator[sqlite3.Connection]:
        """A connection for one task, rolled back and closed after it, whose errors are Strobe's."""
        with self.errors(), closing(self.connect(mode)) as connection:
            yield connection

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
