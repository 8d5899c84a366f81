"""Databases and servers for one test, or for one module of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mariadb_shop
import postgres_database
import postgres_server
import pytest
from faults import World
from mariadb_server import Server, running
from mariadb_shop import Shop
from postgres_database import Database
from postgres_server import PostgresServer

from strobe.sources.mariadb import limits as mariadb_limits
from strobe.sources.postgres import limits as postgres_limits


@pytest.fixture
def db(postgres: PostgresServer) -> Iterator[Database]:
    """In PostgreSQL."""
    database = Database(postgres)
    yield database
    if database.name:
        database.source.close()
        postgres.drop(database.name)


@pytest.fixture
def shop(mariadb: Server) -> Shop:
    """In MariaDB."""
    return Shop(mariadb)


@pytest.fixture(params=["mariadb", "mysql", pytest.param("mysql8", marks=pytest.mark.slow)])
def either(request: pytest.FixtureRequest) -> Shop:
    """In MariaDB, once more in MySQL, and in an early MySQL 8.0."""
    return Shop(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """Of a module's own: it is killed, and its folder is put back."""
    with postgres_server.running() as server:
        yield server


@pytest.fixture(scope="module")
def own_mariadb(mariadb_template: Path) -> Iterator[Server]:
    with running(mariadb_template) as server:
        yield server


@pytest.fixture
def world(
    own_postgres: PostgresServer, own_mariadb: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    made = World(own_postgres, own_mariadb, tmp_path, monkeypatch)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent server is given up after a moment instead of half a minute."""
    postgres_timing = postgres_limits.Timing(connect=2, answer=0.2, silence=1.5, feedback=0.5)
    postgres_database.use_timing(monkeypatch, postgres_timing)
    mariadb_timing = mariadb_limits.Timing(connect=2, answer=0.2, silence=1.5, heartbeat=0.5)
    mariadb_shop.use_timing(monkeypatch, mariadb_timing)
