"""Strobe for Python programs: the views as Spark DataFrames, at one commit.

w = strobe.open("DIR")
w.wait()
w.table("open_orders")
with w.pin() as p:
    p.table("open_orders").join(p.sql("SELECT …"), "id")   # both at commit p.commit, whatever is committed meanwhile
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from strobe.client import wait as waiting
from strobe.client.reading import project_to_read
from strobe.config.model import Project
from strobe.errors import UserError
from strobe.events import Listener, SparkStarting, ignore
from strobe.warehouse import storage
from strobe.warehouse.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import SparkSession as SparkSession

    from strobe.warehouse.reader import ViewsAtCommit

At = int | str | datetime | None
"""A commit's number, a time (without a zone: UTC), or the last commit."""


class Pin:
    """All views at one commit, to read many DataFrames from, also from several threads.

    However late one is asked for or evaluated, and whatever is committed, folded or rebuilt meanwhile, it shows this
    commit, for as long as `retention` keeps it. Nothing has to be given back at the end; `with` only says for how long
    one means it.
    """

    def __init__(self, session: SparkSession, snapshot: ViewsAtCommit, naming: threading.Lock) -> None:
        """`naming` guards the names of the session, which several pins share."""
        self._session = session
        self._snapshot = snapshot
        self._naming = naming

    @property
    def commit(self) -> int:
        return self._snapshot.commit

    @property
    def committed_at(self) -> datetime:
        return self._snapshot.header.committed_at

    @property
    def positions(self) -> Mapping[str, Mapping[str, str]]:
        """For each view the position of each source that it reflects."""
        return self._snapshot.header.positions

    @property
    def views(self) -> tuple[str, ...]:
        return self._snapshot.views

    def table(self, name: str) -> DataFrame:
        """A view's rows."""
        return self._snapshot.table(name)

    def sql(self, text: str) -> DataFrame:
        """A query over the views, which go by their names."""
        from strobe.warehouse import query

        with self._naming:
            return query.prepare(self._session, self._snapshot, text)

    def __enter__(self) -> Pin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Warehouse:
    """A project's views, for reading. Many may be open at a time, whether a coordinator runs or not."""

    def __init__(
        self,
        directory: str | Path,
        spark: SparkSession | None = None,
        *,
        warehouse: str | Path | None = None,
        tell: Listener = ignore,
    ) -> None:
        self.project: Project = project_to_read(Path(directory), None if warehouse is None else Path(warehouse))
        self._given = spark
        self._started: SparkSession | None = None
        self._session: SparkSession | None = None
        self._naming = threading.Lock()
        self._tell = tell

    def sql(self, text: str, at: At = None) -> DataFrame:
        """A query over the views, now or at a commit or time."""
        return self.pin(at).sql(text)

    def table(self, name: str, at: At = None) -> DataFrame:
        """A view's rows, now or at a commit or time."""
        return self.pin(at).table(name)

    def pin(self, at: At = None) -> Pin:
        """All views at one commit: what is read from it together was true together."""
        layout = Layout(self.project.warehouse)
        if not storage.exists(layout.log):
            raise UserError("nothing has been committed yet", where=str(layout.root), fix="Start `strobe run` first.")
        session = self._own_session()
        from strobe.warehouse import reader

        found = parse_at(at)
        commit = reader.commit_at(layout, found) if isinstance(found, datetime) else found
        return Pin(session, reader.snapshot(session, layout, commit), self._naming)

    def wait(self, views: Sequence[str] = (), timeout: float = 60.0) -> None:
        """Return when everything that the sources had committed by now is visible; `NotNow` if that takes longer."""
        waiting.wait(self.project, views, timeout)

    def close(self) -> None:
        """Stop Spark, if it was started here."""
        self._session = None
        if self._started is not None:
            self._started.stop()
            self._started = None

    def __enter__(self) -> Warehouse:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _own_session(self) -> SparkSession:
        """A session of our own, so that neither its names nor its settings get in the way of the caller's."""
        if self._session is None:
            from strobe.warehouse.query import SETTINGS

            self._session = (self._given or self._start()).newSession()
            for name, value in SETTINGS.items():
                self._session.conf.set(name, value)
        return self._session

    def _start(self) -> SparkSession:
        from pyspark.sql import SparkSession

        from strobe.spark.session import start

        self._tell(SparkStarting())
        before = SparkSession.getActiveSession()
        session = start(self.project.spark, umask=self.project.umask)
        self._started = session if before is None else None
        return session


def parse_at(at: At) -> int | datetime | None:
    """A commit's number or a time, as people write them."""
    if isinstance(at, str):
        text = at.strip()
        if re.fullmatch(r"\d+", text, re.ASCII):
            return int(text)
        try:
            at = datetime.fromisoformat(re.sub(r"[Zz]$", "+00:00", text))
        except ValueError:
            fix = "Write a commit's number, or a time as 2026-01-05T10:11:12 (UTC unless it says otherwise)."
            raise UserError(f"{at!r} is neither a commit nor a time", fix=fix) from None
    if isinstance(at, datetime):
        return at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at
    return at
