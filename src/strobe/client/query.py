"""Queries for people: answered by the running coordinator's Spark, or by one that is started here.

Either way the result comes in Arrow batches, as they are computed.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlglot

from strobe.client.local import spark_starter
from strobe.config.model import Project
from strobe.errors import NotNow, UserError, raised
from strobe.events import Listener, NobodyAnswersQueries
from strobe.warehouse import inspect, storage
from strobe.warehouse.control import query_socket
from strobe.warehouse.control.query_socket import BATCH, ERROR, HEAD, QUERY
from strobe.warehouse.layout import Layout
from strobe.warehouse.statement import Column, tables_of

if TYPE_CHECKING:
    from strobe.spark.session import SparkSession


@dataclass(frozen=True)
class Result:
    commit: int
    columns: tuple[Column, ...]
    batches: Iterator[pa.RecordBatch]
    """In the order of the rows. To be read before the next query is asked."""


class Queries:
    """Where queries are asked, one after another. Closing it lets go of the connection, and of a query under way."""

    def __init__(self, project: Project, tell: Listener) -> None:
        self._layout = Layout(project.warehouse)
        self._tell = tell
        self._connection = query_socket.connect(self._layout.control)
        self._start = spark_starter(project, lambda _: None)
        self._own: SparkSession | None = None

    def ask(self, text: str, at: int | datetime | None = None, limit: int | None = None) -> Result:
        tables_of(text)  # before anything takes long
        if not storage.exists(self._layout.log):
            where = str(self._layout.root)
            raise UserError("nothing has been committed yet", where=where, fix="Start `strobe run` first.")
        if self._own is None and self._connection is not None:
            try:
                return self._asked(self._connection, text, at, limit)
            except (OSError, NotNow):  # it has just ended, or has no Spark at the moment
                self._let_go()
        return self._computed(text, at, limit)

    def _asked(self, connection: socket.socket, text: str, at: int | datetime | None, limit: int | None) -> Result:
        moment = at.isoformat() if isinstance(at, datetime) else at
        query_socket.send(connection, QUERY, {"query": text, "at": moment, "limit": limit})
        kind, head = _frame(connection)
        if kind != HEAD:
            raise ConnectionError("the coordinator went away")
        document: dict[str, Any] = json.loads(head)
        columns = tuple(Column(**column) for column in document["columns"])
        return Result(document["commit"], columns, _received(connection))

    def _computed(self, text: str, at: int | datetime | None, limit: int | None) -> Result:
        from strobe.warehouse import query, reader

        if self._own is None:
            self._tell(NobodyAnswersQueries())
            self._own = self._start().newSession()
            for name, value in query.SETTINGS.items():
                self._own.conf.set(name, value)
        commit = reader.commit_at(self._layout, at) if isinstance(at, datetime) else at
        views = reader.snapshot(self._own, self._layout, commit)
        frame = query.prepare(self._own, views, text)
        frame = frame if limit is None else frame.limit(limit)
        return Result(views.commit, tuple(query.columns(frame)), query.batches(frame))

    def views(self) -> dict[str, tuple[Column, ...]]:
        """The views at the last commit, with their columns."""
        header = inspect.last_header(self._layout) if storage.exists(self._layout.log) else None
        found = inspect.definitions(self._layout) if header is not None else []
        current = [d for d in found if header is not None and header.generations.get(d.view) == d.generation]
        return {d.view: _columns(d.schema) for d in current}

    def cancel(self) -> None:
        """Give up the query that is being answered."""
        if self._own is not None:
            self._own.sparkContext.cancelAllJobs()
        else:
            self._let_go()
            self._connection = query_socket.connect(self._layout.control)

    def __enter__(self) -> Queries:
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _columns(schema: str) -> tuple[Column, ...]:
    """The columns of a definition's schema."""
    table = sqlglot.parse_one(f"CREATE TABLE t ({schema})", read="spark")
    return tuple(Column(c.name, c.args["kind"].sql("spark").lower()) for c in table.this.expressions)


def _frame(connection: socket.socket) -> tuple[bytes, bytes]:
    frame = query_socket.receive(connection)
    if frame is None:
        raise ConnectionError("the coordinator went away")
    if frame[0] == ERROR:
        raise raised(json.loads(frame[1]))
    return frame


def _received(connection: socket.socket) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            kind, content = _frame(connection)
        except OSError:
            raise NotNow("the coordinator ended before the result was complete", fix="Ask again.") from None
        if kind != BATCH:
            return
        yield pa.ipc.open_stream(content).read_next_batch()
