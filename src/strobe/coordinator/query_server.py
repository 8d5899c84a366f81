"""Answers `strobe sql` with the Spark that the coordinator has running anyway.

A thread for each connection, and a session of its own: what it names or sets concerns nobody else. Jobs run in the pool
for background work, so that a large query holds up no commit. A reader that goes away, at whatever point, takes its
jobs with it.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strobe.errors import NotNow, StrobeError, UserError
from strobe.warehouse.control import query_socket
from strobe.warehouse.control.query_socket import BATCH, END, ERROR, HEAD, LONGEST_QUERY, QUERY
from strobe.warehouse.layout import Layout

if TYPE_CHECKING:
    from strobe.spark.session import SparkSession

MOST = 8
"""Readers at a time; further ones have to start a Spark of their own."""

AGAIN = 0.2
"""Seconds between two attempts to cancel the jobs of a reader that has gone."""


class QueryServer(threading.Thread):
    def __init__(self, layout: Layout, spark: Callable[[], SparkSession | None]) -> None:
        """`spark` is the coordinator's, if it is running at the moment."""
        super().__init__(name="queries", daemon=True)
        self._layout, self._spark = layout, spark
        self._listener: socket.socket | None = None
        self._room = threading.Semaphore(MOST)

    def __enter__(self) -> QueryServer:
        self._listener = query_socket.listen(self._layout.control)
        if self._listener is not None:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._listener is None:
            return
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()
        self.join()
        query_socket.address(self._layout.control).unlink(missing_ok=True)

    def run(self) -> None:
        listener = self._listener
        while listener is not None:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._serve, args=[connection], name="query", daemon=True).start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError, ValueError):
                if query_socket.is_ours(connection):
                    self._answer_all(connection)
        finally:
            self._room.release()

    def _answer_all(self, connection: socket.socket) -> None:
        session: SparkSession | None = None
        while (frame := query_socket.receive(connection, LONGEST_QUERY)) is not None:
            kind, content = frame
            if kind != QUERY:
                return
            try:
                session = session or self._session()
                self._answer(connection, session, Asked.read(content))
            except StrobeError as error:
                query_socket.send(connection, ERROR, error.document()["error"])
            except OSError:
                raise
            except Exception as error:  # Spark may end in the middle
                lines = str(error).splitlines() or [type(error).__name__]
                failed = NotNow(f"the coordinator could not answer: {lines[0]}", fix="Try again.")
                query_socket.send(connection, ERROR, failed.document()["error"])

    def _session(self) -> SparkSession:
        spark = self._spark()
        if spark is None:
            raise NotNow("the coordinator has no Spark at the moment", fix="Try again.")
        session = spark.newSession()
        from strobe.warehouse.query import SETTINGS

        for name, value in SETTINGS.items():
            session.conf.set(name, value)
        return session

    def _answer(self, connection: socket.socket, session: SparkSession, asked: Asked) -> None:
        from strobe.spark.session import in_background
        from strobe.warehouse import query, reader

        commit = reader.commit_at(self._layout, asked.at) if isinstance(asked.at, datetime) else asked.at
        views = reader.snapshot(session, self._layout, commit)
        group = f"strobe sql {uuid.uuid4().hex}"
        context = session.sparkContext
        with in_background(session), _Watched(connection, lambda: context.cancelJobGroup(group)):
            context.setJobGroup(group, "strobe sql", interruptOnCancel=True)
            frame = query.prepare(session, views, asked.text)
            frame = frame if asked.limit is None else frame.limit(asked.limit)
            found = [asdict(column) for column in query.columns(frame)]
            query_socket.send(connection, HEAD, {"commit": views.commit, "columns": found})
            for batch in query.batches(frame):
                query_socket.send(connection, BATCH, _serialized(batch))
        query_socket.send(connection, END)


class Asked:
    """A query as it came over the socket."""

    def __init__(self, text: str, at: int | datetime | None, limit: int | None) -> None:
        self.text, self.at, self.limit = text, at, limit

    @classmethod
    def read(cls, content: bytes) -> Asked:
        refused = UserError("this is not a query as `strobe sql` sends it", fix="Use the same Strobe at both ends.")
        try:
            document: Any = json.loads(content)
            text, at, limit = document["query"], document["at"], document["limit"]
            at = datetime.fromisoformat(at) if isinstance(at, str) else at
        except (ValueError, TypeError, KeyError, RecursionError):
            raise refused from None
        if not isinstance(text, str) or not isinstance(at, (int, datetime, type(None))):
            raise refused
        if not isinstance(limit, (int, type(None))) or (limit is not None and limit < 0):
            raise refused
        return cls(text, at, limit)


class _Watched:
    """While the body runs: `gone` is called once the reader has closed its end, and again and again, since the body may
    be between two jobs, or before its first."""

    def __init__(self, connection: socket.socket, gone: Callable[[], None]) -> None:
        self._connection, self._gone = connection, gone
        self._done, self._wake = socket.socketpair()

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._watch, name="query reader", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._wake.close()
        self._thread.join()
        self._done.close()

    def _watch(self) -> None:
        ready, _, _ = select.select([self._connection, self._done], [], [])
        if self._done in ready or self._says_more():
            return
        while not select.select([self._done], [], [], 0.0)[0]:
            self._gone()
            select.select([self._done], [], [], AGAIN)

    def _says_more(self) -> bool:
        """Whether there is another query, and not the end."""
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except OSError:  # closed before all was read that had been sent
            return False


def _serialized(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
