"""A database of each server, for one test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mariadb_server import Server
from mariadb_shop import Shop
from postgres_database import Database
from postgres_server import PostgresServer


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


@pytest.fixture(params=["mariadb", "mysql"])
def either(request: pytest.FixtureRequest) -> Shop:
    """In MariaDB, and once more in MySQL."""
    return Shop(request.getfixturevalue(request.param))
