"""Transactions that are too large to hold: read into files, in the memory of a small one, and right all the same."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from large import check_source, compare_memory

from strobe.algebra.bag import Bag, Row, canonical
from strobe.data.scratch import SPILLED, Scratch
from strobe.data.spilled import Spilled
from strobe.errors import SourceLost, UserError
from strobe.messages import Position, Transaction
from strobe.pipeline.in_flight import InFlight
from strobe.sources.base import Source, Spill
from strobe.sources.net_changes import NetChanges
from strobe.sources.sqlite.source import SqliteSource
from strobe.sources.sqlite.triggers import LOG

COLUMNS = {"id": "int", "x": "double", "d": "decimal(10,2)", "t": "timestamp", "a": "array<string>", "b": "binary"}
VALUES = (
    st.integers(0, 3),
    st.sampled_from([None, 0.0, -0.0, float("nan"), 1.5]),
    st.sampled_from([None, Decimal("0.00"), Decimal("1.50")]),
    st.sampled_from([None, datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=timezone.utc)]),
    st.sampled_from([None, (), ("a", None)]),
    st.sampled_from([b"", b"\x00"]),
)
ROW = st.tuples(*VALUES).map(lambda row: tuple(canonical(v) for v in row))


@given(st.lists(st.tuples(st.none() | ROW, st.none() | ROW), max_size=40))
def test_pieces_come_to_the_same_as_rows_in_memory(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[Row | None, Row | None]]
) -> None:
    """Whatever comes, goes and comes again, in one piece or in many."""
    held, spilling = NetChanges(), NetChanges(Spill(Scratch(tmp_path_factory.mktemp("spilled")), rows=3))
    for old, new in changes:
        for nets in (held, spilling):
            nets.of("signed", COLUMNS).change(old, new)
            nets.of("keyed", COLUMNS, ("id",)).change(old and old[:1], new)
            nets.grew(0)
    (expected, gone), (found, found_gone) = held.take(), spilling.take()
    for wanted, got in ((expected, found), (gone, found_gone)):
        assert {name: rows.collect() for name, rows in wanted.items()} == {
            name: bag for name, rows in got.items() if len(bag := rows.collect())
        }


def test_many_changes_of_few_rows_stay_in_memory(tmp_path: Path) -> None:
    """What counts is what they come to; a table with few rows beside a large one stays in memory too."""
    nets = NetChanges(Spill(Scratch(tmp_path), rows=100))
    for n in range(1000):
        nets.of("one", {"n": "int"}).change((n,) if n else None, (n + 1,))
        nets.grew(1)
    assert nets.take()[0] == {"one": Bag.of(("n",), [(1000,)])}
    for n in range(1000):
        nets.of("large", {"n": "int"}).change(None, (n,))
        nets.grew(1)
        if not n % 500:
            nets.of("small", {"n": "int"}).change(None, (n,))
            nets.grew(1)
    changes, _ = nets.take()
    assert isinstance(changes["large"], Spilled) and isinstance(changes["small"], Bag)


def test_a_transaction_over_many_relations_is_written_too(tmp_path: Path) -> None:
    """None of them has a large share of the rows."""
    nets = NetChanges(Spill(Scratch(tmp_path), rows=1000))
    for number in range(20_000):
        nets.of(f"r{number % 30}", {"id": "int"}).change(None, (number,))
        nets.grew(8)
    pieces = len(list(tmp_path.rglob("*.parquet")))
    assert 15 <= pieces <= 1000
    changes, _ = nets.take()
    assert sum(len(change.collect()) for change in changes.values()) == 20_000


def test_long_values_count(tmp_path: Path) -> None:
    """A few rows may be as large as many."""
    nets = NetChanges(Spill(Scratch(tmp_path), bytes=1000))
    for n in range(5):
        nets.of("t", {"text": "string"}).change(None, (str(n) * 500,))
        nets.grew(500)
    assert isinstance(nets.take()[0]["t"], Spilled)


def test_without_room_it_is_tried_again(tmp_path: Path) -> None:
    """A disk that is full is told, with what to do; nothing is reported."""
    (tmp_path / "file").write_text("in the way")
    nets = NetChanges(Spill(Scratch(tmp_path / "file"), rows=1))
    with pytest.raises(UserError, match="could not be written") as told:
        for n in range(3):
            nets.of("t", {"n": "int"}).change(None, (n,))
            nets.grew(1)
    assert "Make room" in told.value.fix


def read_sqlite(source: Source, after: Position) -> list[Transaction]:
    for transaction in source.transactions(after, [], lambda: False):
        return [transaction]
    raise AssertionError("nothing came")


def test_sqlite(tmp_path: Path) -> None:
    path, folder = tmp_path / "shop.db", tmp_path / "spilled"
    folder.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, note TEXT)")
    SqliteSource("shop", path).prepare(["orders"])
    with connection:
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", [(n, n % 10, f"n{n}") for n in range(1, 3001)])

    def write(*statements: str) -> None:
        with connection:
            for statement in statements:
                connection.execute(statement)

    check_source(lambda: SqliteSource("shop", path), read_sqlite, write, folder)
    connection.close()


def test_files_of_what_could_not_be_read_to_its_end_are_removed(tmp_path: Path) -> None:
    """The log's row at which it was to end is gone."""
    path = tmp_path / "shop.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    source = SqliteSource("shop", path)
    source.prepare(["orders"])
    source.spill = Spill(Scratch(tmp_path), rows=500)
    start = source.now()
    with connection:
        connection.executemany("INSERT INTO orders VALUES (?)", [(n,) for n in range(3000)])
    stop = source.now()
    with connection:
        connection.execute("INSERT INTO orders VALUES (3000)")
        connection.execute(f"DELETE FROM {LOG} WHERE seq = {stop.order[0]}")
    connection.close()
    with pytest.raises(SourceLost, match="no row"):
        list(source.transactions(start, [stop], lambda: False))
    assert list((tmp_path / SPILLED).iterdir()) == []


def test_files_go_when_nothing_can_need_them_any_more(tmp_path: Path) -> None:
    """Not with the commit of their transaction, since what arrived before it may read them too; but after that."""
    lease = Scratch(tmp_path).lease(SPILLED)
    lease.folder.mkdir(parents=True)
    at = [Position(str(n), (n,)) for n in range(10)]
    rows = Spilled(lease, "0", 1, {"n": "int"})
    flight = InFlight()
    flight.arrive(Transaction("a", at[2], changes={"t": rows}))
    flight.arrive(Transaction("a", at[3], changes={"t": Bag.of(("n",), [(1,), (2,)])}))
    flight.arrive(Transaction("b", at[5]))
    flight.committed(lambda source: at[1])
    flight.arrive(Transaction("a", at[4]))
    flight.committed(lambda source: at[2])
    assert lease.folder.exists()
    flight.arrive(Transaction("a", at[9]))
    flight.committed(lambda source: at[4])
    assert lease.folder.exists()
    flight.committed(lambda source: at[5])
    assert not lease.folder.exists()


@pytest.mark.slow
def test_a_million_rows_of_sqlite_in_bounded_memory(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, note TEXT)")
    source = SqliteSource("shop", tmp_path / "shop.db")
    source.prepare(["orders"])

    def write(first: int, last: int) -> None:
        with connection:
            rows = ((n, n % 1000, f"note {n}") for n in range(first, last + 1))
            connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)

    compare_memory("sqlite", str(tmp_path / "shop.db"), source, write, tmp_path)
    connection.close()
