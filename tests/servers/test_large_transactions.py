"""Transactions of database servers that are too large to hold: read into files, in the memory of a small one."""

from __future__ import annotations

from pathlib import Path

import pytest
from large import check_source, compare_memory
from mariadb_shop import Shop
from mariadb_shop import read as read_mariadb
from postgres_database import Database, read

from strobe.data.scratch import SPILLED, Scratch
from strobe.errors import SourceUnavailable
from strobe.messages import Position, Transaction
from strobe.sources.base import Source, Spill
from strobe.sources.postgres.stream import Visible


@pytest.mark.parametrize("identity", ["FULL", "DEFAULT"])
def test_postgres(db: Database, tmp_path: Path, identity: str) -> None:
    db.make(
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, note text);"
        f"ALTER TABLE orders REPLICA IDENTITY {identity};"
        "INSERT INTO orders SELECT n, n % 10, 'n' || n FROM generate_series(1, 3000) n",
        "orders",
    )
    check_source(db.open, read, db.run, tmp_path)


def test_files_go_if_the_server_does_not_show_the_transaction(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read, and the server that is to show it was restarted meanwhile: it will be read again."""
    source = db.make("CREATE TABLE orders (id bigint PRIMARY KEY)", "orders")
    source.spill = Spill(Scratch(tmp_path), rows=500)
    start = source.now()
    db.run("INSERT INTO orders SELECT generate_series(1, 3000)")
    written: list[Path] = []

    def gone(_: Visible, xid: int, stopped: object) -> bool:
        written.extend((tmp_path / SPILLED).iterdir())
        raise SourceUnavailable("the server was restarted")

    monkeypatch.setattr(Visible, "wait", gone)
    with pytest.raises(SourceUnavailable, match="restarted"):
        list(source.transactions(start, [], lambda: False))
    assert written and list((tmp_path / SPILLED).iterdir()) == []


def test_mariadb(shop: Shop, tmp_path: Path) -> None:
    """With a savepoint, which the server logs since a table without transactions takes part."""
    shop.run(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT, note VARCHAR(40))",
        "CREATE TABLE other (id INT) ENGINE = MyISAM",
        "INSERT INTO orders SELECT seq, seq % 10, CONCAT('n', seq) FROM seq_1_to_3000",
    )
    undone = ["SAVEPOINT here", "DELETE FROM orders", "INSERT INTO other VALUES (1)", "ROLLBACK TO here"]

    def write(*statements: str) -> None:
        with shop.session() as do:
            for statement in ("BEGIN", *statements[:2], *undone, *statements[2:], "COMMIT"):
                do(statement.replace("'x' || id", "CONCAT('x', id)"))

    def reading(source: Source, after: Position) -> list[Transaction]:
        source.focus({"orders": ("id", "customer", "note")})
        return read_mariadb(source, after)  # type: ignore[arg-type]

    check_source(shop.source, reading, write, tmp_path)


@pytest.mark.slow
def test_a_million_rows_of_postgres_in_bounded_memory(db: Database, tmp_path: Path) -> None:
    source = db.make("CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, note text)", "orders", timeout=60)

    def write(first: int, last: int) -> None:
        db.run(f"INSERT INTO orders SELECT n, n % 1000, 'note ' || n FROM generate_series({first}, {last}) n")

    compare_memory("postgres", db.server.dsn(db.name), source, write, tmp_path)


@pytest.mark.slow
def test_a_million_rows_of_mariadb_in_bounded_memory(either: Shop, tmp_path: Path) -> None:
    either.run("CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT, note VARCHAR(40))")

    def write(first: int, last: int) -> None:
        numbers = f"(SELECT seq + {first - 1} AS n FROM {either.numbers(last - first + 1)}) wanted"
        compressed = either.mysql and either.version >= (8, 0, 20)  # one event with everything
        either.run(
            *(["SET binlog_transaction_compression = ON"] if compressed else []),
            f"INSERT INTO orders SELECT n, n % 1000, CONCAT('note ', n) FROM {numbers}",
        )

    compare_memory("mariadb", either.dsn, either.source(), write, tmp_path)
