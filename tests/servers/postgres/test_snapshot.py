"""One snapshot of PostgreSQL for several readers, in portions: no row missing, none twice, all of one state."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import psycopg
import pytest
from postgres_database import Database, read

from strobe.algebra.bag import Bag
from strobe.errors import AccessRefused, SourceUnavailable
from strobe.messages import Position
from strobe.sources.base import Reader, Shared
from strobe.sources.postgres.limits import Limits

TABLES = """
    CREATE TABLE plain (id bigint, amount bigint, filler text);
    CREATE TABLE parted (id bigint, amount bigint, filler text) PARTITION BY LIST (amount);
    CREATE TABLE parted_0 PARTITION OF parted FOR VALUES IN (0);
    CREATE TABLE parted_rest PARTITION OF parted DEFAULT;
    CREATE TABLE empty (id bigint, amount bigint, filler text);
    ALTER TABLE plain REPLICA IDENTITY FULL;
    ALTER TABLE parted REPLICA IDENTITY FULL;
    ALTER TABLE parted_0 REPLICA IDENTITY FULL;
    ALTER TABLE parted_rest REPLICA IDENTITY FULL;
    ALTER TABLE empty REPLICA IDENTITY FULL;
    INSERT INTO plain SELECT n, n % 7, repeat('x', 300) FROM generate_series(1, 2000) n;
    INSERT INTO parted SELECT n, n % 3, repeat('y', 300) FROM generate_series(1, 1500) n;
"""
NAMES = ("plain", "parted", "empty")
COLUMNS = ("id", "amount")


@pytest.fixture
def made(db: Database) -> Database:
    db.make(TABLES, *NAMES, limits=Limits(pages=1))
    return db


def portions(shared: Shared, relation: str) -> Bag:
    """Each portion on a connection of its own, and through a pickle, as an executor would."""
    found = Bag(COLUMNS)
    for number in range(shared.portions[relation]):
        reader: Reader = pickle.loads(pickle.dumps(shared.reader))
        assert reader.open() == shared.seen
        try:
            found = found.add(Bag.of(COLUMNS, reader.scan_portion(relation, COLUMNS, number)))
        finally:
            reader.close()
    return found


@contextmanager
def busy(db: Database) -> Iterator[None]:
    """Somebody changes, moves, adds and removes rows meanwhile."""
    stop = threading.Event()

    def write() -> None:
        n = 0
        with psycopg.connect(db.server.admin_dsn(db.name), autocommit=True) as connection:
            while not stop.is_set():
                n += 1
                with connection.transaction():
                    connection.execute("UPDATE plain SET amount = amount + 1 WHERE id %% 50 = %s", (n % 50,))
                    connection.execute("DELETE FROM plain WHERE id = %s", (n,))
                    connection.execute("INSERT INTO plain VALUES (%s, 0, 'new')", (-n,))
                    connection.execute("UPDATE parted SET amount = (amount + 1) %% 3 WHERE id %% 40 = %s", (n % 40,))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def test_portions_are_one_state_under_writers(made: Database) -> None:
    """Each load is the one before it and what the stream brought between their positions: with partitions, without a
    key, while rows move from page to page and from partition to partition."""
    loads: list[tuple[Position, dict[str, Bag]]] = []
    with busy(made):
        for _ in range(4):
            with made.source.reader(at_a_position=True).shared(NAMES, 3) as shared:
                assert shared is not None and shared.tasks == 3
                assert shared.portions["plain"] == shared.portions["parted"] == 3 and shared.portions["empty"] == 1
                found = {name: portions(shared, name) for name in NAMES}
                loads.append((shared.seen.through, found))
    made.source.focus(dict.fromkeys(NAMES, COLUMNS))
    for (start, before), (end, after) in pairwise(loads):
        for transaction in read(made.source, start, end):
            if end < transaction.position:
                break
            before = {n: rows.add(transaction.changes.get(n, Bag(COLUMNS)).collect()) for n, rows in before.items()}
        assert before == after and len(after["plain"]) > 1000


def test_a_snapshot_that_ended_is_not_read(made: Database) -> None:
    """Neither by those who come late, nor, as far as it counts, by those who were there."""
    with pytest.raises(SourceUnavailable), made.source.reader().shared(NAMES, 2) as shared:
        assert shared is not None
        made.server.execute(
            made.name,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_export_snapshot%'"
            " AND pid <> pg_backend_pid()",
        )
        with pytest.raises(SourceUnavailable, match="gone"):
            shared.reader.open()


def test_a_password_that_is_changed_in_the_middle(made: Database) -> None:
    """Whoever comes after that is not let in, and is told so: the load fails as a whole."""
    role, password = made.server.role, made.server.password
    with made.source.reader().shared(NAMES, 2) as shared:
        assert shared is not None and len(portions(shared, "plain")) == 2000
        made.server.execute(made.name, f"ALTER ROLE {role} PASSWORD 'another'")
        try:
            with pytest.raises(AccessRefused, match="password") as error:
                portions(shared, "parted")
        finally:
            made.server.execute(made.name, f"ALTER ROLE {role} PASSWORD '{password}'")
    assert password not in str(error.value) and "right user and password" in error.value.fix


def test_nobody_writes_a_table_anew_meanwhile(made: Database) -> None:
    """VACUUM FULL moves rows to other pages: it has to wait."""
    with made.source.reader().shared(NAMES, 2) as shared:
        assert shared is not None
        with psycopg.connect(made.server.admin_dsn(made.name), autocommit=True) as connection:
            connection.execute("SET lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                connection.execute("VACUUM FULL plain")


def test_connections_are_few(made: Database) -> None:
    """One snapshot is shared at a time, by as many as the limit says; with a single connection none is."""
    with made.source.reader().shared(NAMES, 100) as shared, made.source.reader().shared(NAMES, 100) as second:
        assert shared is not None and shared.tasks == 3 and second is None
    with made.source.reader().shared(NAMES, 1) as alone:
        assert alone is None
    with made.source.reader().shared(NAMES, 100) as again:
        assert again is not None
