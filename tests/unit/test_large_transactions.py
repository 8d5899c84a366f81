"""Transactions that are too large to hold: read into files, in the memory of a small one, and right all the same."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mariadb_shop import Shop
from mariadb_shop import read as read_mariadb
from memory_live import MemoryWarehouse, compare, opened, run
from postgres_database import Database, read
from test_coordinator import PROJECT

from strobe.algebra.bag import Bag, Row, canonical
from strobe.data.spilled import Spilled
from strobe.engine.recording import decode, encode
from strobe.errors import UserError
from strobe.messages import Position, Transaction
from strobe.pipeline import pipeline as coordinator_module
from strobe.pipeline.in_flight import InFlight
from strobe.sources import net_changes as nets_module
from strobe.sources.base import Source
from strobe.sources.net_changes import NetChanges
from strobe.sources.sqlite.source import SqliteSource

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
    held, spilling = NetChanges(None), NetChanges(tmp_path_factory.mktemp("spilled"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nets_module, "ROWS", 3)
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


def test_many_changes_of_few_rows_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is what they come to; a table with few rows beside a large one stays in memory too."""
    monkeypatch.setattr(nets_module, "ROWS", 100)
    nets = NetChanges(tmp_path)
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


def test_a_transaction_over_many_relations_is_written_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them has a large share of the rows."""
    monkeypatch.setattr(nets_module, "ROWS", 1000)
    nets = NetChanges(tmp_path)
    for number in range(20_000):
        nets.of(f"r{number % 30}", {"id": "int"}).change(None, (number,))
        nets.grew(8)
    pieces = len(list(tmp_path.rglob("*.parquet")))
    assert 15 <= pieces <= 1000
    changes, _ = nets.take()
    assert sum(len(change.collect()) for change in changes.values()) == 20_000


def test_long_values_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows may be as large as many."""
    monkeypatch.setattr(nets_module, "BYTES", 1000)
    nets = NetChanges(tmp_path)
    for n in range(5):
        nets.of("t", {"text": "string"}).change(None, (str(n) * 500,))
        nets.grew(500)
    assert isinstance(nets.take()[0]["t"], Spilled)


def test_without_room_it_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full is told, with what to do; nothing is reported."""
    monkeypatch.setattr(nets_module, "ROWS", 1)
    (tmp_path / "file").write_text("in the way")
    nets = NetChanges(tmp_path / "file")
    with pytest.raises(UserError, match="could not be written") as told:
        for n in range(3):
            nets.of("t", {"n": "int"}).change(None, (n,))
            nets.grew(1)
    assert "Make room" in told.value.fix


# Sources.

STATEMENTS = [
    "UPDATE orders SET note = 'x' || id WHERE id % 3 = 0",
    "DELETE FROM orders WHERE id % 7 = 0",
    "INSERT INTO orders SELECT id + 100000, customer, note FROM orders WHERE id % 2 = 0",
    "UPDATE orders SET id = id + 1000000 WHERE id % 11 = 0",
    "DELETE FROM orders WHERE id > 1000000 AND id % 5 = 0",
]
"""All in one transaction, over some thousand rows."""


def spilled(transaction: Transaction) -> list[Spilled]:
    relations = (*transaction.changes.values(), *transaction.gone.values())
    return [relation for relation in relations if isinstance(relation, Spilled)]


def check_source(
    open_: Callable[[], Source],
    reading: Callable[[Source, Position], list[Transaction]],
    write: Callable[..., None],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transaction reads the same through files as in memory, and can be recorded; files of one that nobody takes are
    removed."""
    source = open_()
    start = source.now()
    write(*STATEMENTS)
    (plain,) = reading(source, start)
    source.spill = folder
    monkeypatch.setattr(nets_module, "ROWS", 500)
    (found,) = reading(source, start)
    assert spilled(found) and not spilled(plain)
    for name in ("changes", "gone"):
        wanted, got = getattr(plain, name), getattr(found, name)
        assert {r: rows.collect() for r, rows in got.items()} == wanted
    assert decode(encode(found)) == plain
    for handle in spilled(found):
        handle.remove()
    assert list(folder.iterdir()) == []
    between = source.now()
    write("UPDATE orders SET customer = customer + 1")
    with contextlib.closing(source.transactions(start, [between], lambda: False)) as stream:  # type: ignore[type-var]
        taken = next(transaction for transaction in stream if transaction.changes)
        time.sleep(0.2)  # the next one is on its way, or here already: it is not taken
    assert list(folder.iterdir()) == [spilled(taken)[0].folder]
    source.close()


@pytest.mark.parametrize("identity", ["FULL", "DEFAULT"])
def test_postgres(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: str) -> None:
    db.make(
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, note text);"
        f"ALTER TABLE orders REPLICA IDENTITY {identity};"
        "INSERT INTO orders SELECT n, n % 10, 'n' || n FROM generate_series(1, 3000) n",
        "orders",
    )
    check_source(db.open, read, db.run, tmp_path, monkeypatch)


def read_sqlite(source: Source, after: Position) -> list[Transaction]:
    for transaction in source.transactions(after, [], lambda: False):
        return [transaction]
    raise AssertionError("nothing came")


def test_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    check_source(lambda: SqliteSource("shop", path), read_sqlite, write, folder, monkeypatch)
    connection.close()


def test_mariadb(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    check_source(shop.source, reading, write, tmp_path, monkeypatch)


# On their way.


def test_files_go_when_nothing_can_need_them_any_more(tmp_path: Path) -> None:
    """Not with the commit of their transaction, since what arrived before it may read them too; but after that."""
    (tmp_path / "one").mkdir()
    at = [Position(str(n), (n,)) for n in range(10)]
    rows = Spilled(tmp_path / "one", "0", 1, {"n": "int"})
    flight = InFlight(None)
    flight.arrive(Transaction("a", at[2], {"t": rows}))
    flight.arrive(Transaction("a", at[3], {"t": Bag.of(("n",), [(1,), (2,)])}))
    assert flight.rows == 2
    flight.arrive(Transaction("b", at[5]))
    flight.committed(lambda source: at[1])
    flight.arrive(Transaction("a", at[4]))
    flight.committed(lambda source: at[2])
    assert (tmp_path / "one").exists() and flight.rows == 2
    flight.arrive(Transaction("a", at[9]))
    flight.committed(lambda source: at[4])
    assert (tmp_path / "one").exists() and flight.rows == 0
    flight.committed(lambda source: at[5])
    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize("level", ["strong", "complete"])
def test_every_commit_is_a_state_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """Nearly everything in files and hardly any row allowed in memory, under concurrent writers: all is right, nothing
    stands still, and no file is left."""
    monkeypatch.setattr(nets_module, "ROWS", 2)
    monkeypatch.setattr(coordinator_module, "HELD_ROWS", 3)
    topology = opened(tmp_path, PROJECT.replace("consistency: complete", f"consistency: {level}"))
    folders = {source.spill for source in topology.sources.values()}
    seen: list[Any] = []

    def enough(warehouse: MemoryWarehouse) -> bool:
        in_files = any(isinstance(m, Transaction) and spilled(m) for m in list(seen))
        return in_files and len(warehouse.commits) > 1

    warehouse, past, states = run(
        topology, tmp_path, seconds=1, commit_seconds=0.02, record=lambda m: seen.append(m) or encode(m), enough=enough
    )
    assert enough(warehouse)
    assert all(folder and list(folder.iterdir()) == [] for folder in folders)
    compare(topology, warehouse, past, states)


# A million rows.

MILLION = 1_000_000
MEGABYTES = 150
"""What reading a million rows may take on top of reading a few; in memory they take several hundred."""

MEASURE = """
import json, sys
from pathlib import Path
from pyarrow.parquet import read_metadata
from strobe.config.model import MariadbSource as Mariadb
from strobe.sources.mariadb.source import MariadbSource
from strobe.sources.postgres.source import PostgresSource
from strobe.sources.postgres.connection import Place, object_name
from strobe.sources.sqlite.source import SqliteSource

kind, where, after, through, folder = sys.argv[1:]
if kind == "sqlite":
    source = SqliteSource("shop", Path(where))
elif kind == "mariadb":
    source = MariadbSource("shop", Mariadb(type="mariadb", dsn=where))
else:
    source = PostgresSource(Place("shop", where, "public", object_name("test", "shop"), 3, 60.0))
source.spill = Path(folder)
end = source.position(through)
for transaction in source.transactions(source.position(after), [], lambda: False):
    changed = transaction.changes
    if changed or end <= transaction.position:
        break
rows = sum(read_metadata(file).num_rows for file in Path(folder).rglob("*.parquet"))
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"rows": rows, "peak": peak / 1024, "spilled": [type(r).__name__ for r in changed.values()]}))
"""


def measure(kind: str, where: str, after: Position, through: Position, folder: Path) -> dict[str, Any]:
    """Read one transaction in a process of its own; the highest memory that it ever had, in MB."""
    folder.mkdir()
    command = [sys.executable, "-c", MEASURE, kind, where, after.text, through.text, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare_memory(kind: str, where: str, source: Source, write: Callable[[int, int], None], folder: Path) -> None:
    """`write` makes rows from one number to another, in one transaction."""
    found = []
    for first, last in ((1, 10), (11, 10 + MILLION)):
        before = source.now()
        write(first, last)
        found.append(measure(kind, where, before, source.now(), folder / str(first)))
    few, many = found
    print(f"{kind}: {few['peak']:.0f} MB for ten rows, {many['peak']:.0f} MB for {MILLION}")
    assert (few["rows"], few["spilled"]) == (0, ["Bag"])
    assert (many["rows"], many["spilled"]) == (MILLION, ["Spilled"])
    assert many["peak"] < few["peak"] + MEGABYTES, (few, many)


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
