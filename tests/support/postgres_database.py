"""A database of the tests' PostgreSQL server, with its source, for tests of what is special to PostgreSQL."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from patience import PATIENCE, eventually
from postgres_server import PostgresServer

from strobe.messages import Position, Transaction
from strobe.sources.postgres.connection import ConnectionSettings, object_name
from strobe.sources.postgres.limits import Timing
from strobe.sources.postgres.source import PostgresSource

ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, note text)"
COLUMNS = ("id", "customer", "note")


def use_timing(monkeypatch: pytest.MonkeyPatch, timing: Timing) -> None:
    """For the sources of projects that are opened from now on."""
    monkeypatch.setattr(PostgresSource, "from_config", partial(PostgresSource.from_config, timing=timing))


class Database:
    """One database of the server, and the source over it."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.name = ""
        self.source: PostgresSource

    def make(
        self, script: str, *relations: str, timeout: float = 5.0, encoding: str = "UTF8", **more: Any
    ) -> PostgresSource:
        self.name = self.server.database(script, encoding)
        self.source = self.open(timeout, **more)
        if relations:
            self.server.publish(self.name, self.source.prepare_script(relations))
            self.source.prepare(relations)
        return self.source

    def open(self, timeout: float = 5.0, **more: Any) -> PostgresSource:
        """With `more` of the settings than a test must have."""
        name, dsn = object_name("test", "shop"), self.server.dsn(self.name)
        return PostgresSource(ConnectionSettings("shop", dsn, "public", name, 3, timeout, **more))

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.server.admin_dsn(self.name)) as connection:
            for statement in statements:
                connection.execute(statement)

    def slot(self) -> tuple[Any, ...]:
        (found,) = self.server.execute(
            self.name,
            "SELECT confirmed_flush_lsn::text, active FROM pg_replication_slots WHERE slot_name = 'strobe_test_shop'",
        )
        return found


def read(source: PostgresSource, after: Position, through: Position | None = None) -> list[Transaction]:
    """The transactions with changes between two positions."""
    end = through or source.now()
    deadline = time.monotonic() + PATIENCE
    found: list[Transaction] = []
    for transaction in source.transactions(after, [], lambda: time.monotonic() > deadline):
        found.append(transaction)
        if end <= transaction.position:
            return [t for t in found if t.changes or t.gone or t.departed]
    raise AssertionError(f"the stream did not come to {end} in time")


@contextlib.contextmanager
def stalled(db: Database, *statements: str) -> Iterator[None]:
    """While a commit that is in the log waits for a synchronous standby that never answers."""
    db.server.execute(db.name, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    db.server.execute(db.name, "SELECT pg_reload_conf()")
    eventually(lambda: db.server.execute(db.name, "SHOW synchronous_standby_names") == [("nobody",)])
    db.server.execute(db.name, "CHECKPOINT")  # commits begin to wait when the checkpointer has read the setting
    waiting = threading.Thread(target=db.run, args=statements)
    waiting.start()
    try:
        eventually(lambda: db.server.execute(db.name, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
        yield
    finally:
        db.server.execute(db.name, "ALTER SYSTEM RESET synchronous_standby_names")
        db.server.execute(db.name, "SELECT pg_reload_conf()")
        waiting.join(PATIENCE)


LOCAL = "SET LOCAL synchronous_commit = 'local'"
