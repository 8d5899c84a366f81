"""MySQL: where a snapshot is in the binlog, and what the binlog has that MariaDB's has not."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from mariadb_shop import Shop, read, rows_of

from strobe.algebra.bag import Bag
from strobe.errors import SourceUnavailable
from strobe.messages import Position, Transaction
from strobe.sources import mysql_snapshot
from strobe.sources.mysql_snapshot import Keyed, owners, placed

if TYPE_CHECKING:
    from mariadb_server import Server

COLUMNS = ("id", "n", "at")


@pytest.fixture
def shop(mysql: Server) -> Shop:
    return Shop(mysql)


@contextlib.contextmanager
def writers(shop: Shop, count: int) -> Iterator[None]:
    """So many connections that change the same few rows without a pause, and now and then begin a new file."""
    stop = threading.Event()

    def write(seed: int) -> None:
        rng, n = random.Random(seed), 0
        with contextlib.closing(shop.server.connect(shop.name, autocommit=True)) as connection:
            with connection.cursor() as cursor:
                while not stop.is_set():
                    n += 1
                    one, other = rng.sample(range(12), 2)
                    sql = f"REPLACE INTO t VALUES ({one}, {n}, {seed})"
                    if rng.random() < 0.3:
                        sql = f"DELETE FROM t WHERE id = {other}"
                    if rng.random() < 0.2:
                        sql = f"UPDATE t SET n = n + 1 WHERE id <= {one}"
                    with contextlib.suppress(Exception):  # a deadlock
                        cursor.execute(sql)
                    if seed == 0 and n % 40 == 0:
                        cursor.execute("FLUSH BINARY LOGS")

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_snapshot_under_many_writers_is_placed_exactly(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the log has up to where a snapshot says it is sums to what the snapshot holds; commits never pause."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY, n INT, at INT)")
    source = shop.source()
    start = source.now()
    outcomes: list[tuple[int, Position | None]] = []
    original = mysql_snapshot.placed

    def spy(low: Position, transactions: list[Transaction], *rest: Any) -> Position | None:
        found = original(low, transactions, *rest)
        outcomes.append((len([t for t in transactions if t.changes]), found))
        return found

    monkeypatch.setattr(mysql_snapshot, "placed", spy)
    snapshots = []
    with writers(shop, 6):
        for _ in range(60):
            reader = source.reader()
            seen = reader.open()
            snapshots.append((seen.through, Bag.of(COLUMNS, reader.scan("t", COLUMNS))))
            reader.close()
    transactions = read(source, start, stops=[place for place, _ in snapshots])
    for place, held in snapshots:
        state = Bag(COLUMNS)
        for transaction in transactions:
            if transaction.position <= place:
                change = transaction.changes["t"]
                assert isinstance(change, Bag)
                state = state.add(change)
        assert state == held
    assert sum(count > 0 and found is not None for count, found in outcomes) > 5, "the writers never came in between"


def test_commits_that_are_on_their_way_are_waited_for(shop: Shop) -> None:
    """A commit that is in the log and not visible yet is neither missed nor waited for without end."""
    text = "0a-1:5#12:6#13,\n0b-2:t1:7#3:8#3"
    assert owners(text) == {("0a-1", "", "5"), ("0a-1", "", "6"), ("0b-2", "t1", "7"), ("0b-2", "t1", "8")}
    assert owners("") == frozenset()
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source = shop.source()
    with shop.session() as do, pytest.MonkeyPatch.context() as patch:
        patch.setattr(mysql_snapshot, "SETTLE_SECONDS", 0.2)
        ((server,),) = shop.server.rows("SELECT UUID()")
        do(f"SET gtid_next = '{server}:1'")
        do("BEGIN")
        do("INSERT INTO t VALUES (1)")
        for attempt in (source.now, source.reader().open):
            with pytest.raises(SourceUnavailable, match=f"{server}.*takes long to commit"):
                attempt()
        do("COMMIT")
        do("SET gtid_next = AUTOMATIC")
    assert rows_of(source, "t", ["id"]) == Bag.of(("id",), [(1,)])


def test_placing_by_rows() -> None:
    """The number of transactions that explains the rows is found, whatever keys moved; no number where none does."""
    table = {"t": Keyed(("id", "n"), ("id",))}

    def transaction(end: int, **rows: dict[tuple[int, int], int]) -> Transaction:
        changes = {name: Bag(("id", "n"), counts) for name, counts in rows.items()}
        return Transaction("s", Position(str(end), (end,)), changes)

    steps = [
        transaction(1, t={(1, 0): -1, (1, 1): 1}),
        transaction(2),
        transaction(3, t={(1, 1): -1, (2, 1): 1}),
        transaction(4, t={(2, 1): -1, (2, 2): 1, (3, 3): 1}),
    ]
    states = {0: [(1, 0)], 2: [(1, 1)], 3: [(2, 1)], 4: [(2, 2), (3, 3)]}
    low = Position("0", (0,))
    for end, state in states.items():
        assert placed(low, steps, table, lambda _, keys, state=state: [r for r in state if r[:1] in keys]) == Position(
            "", (end,)
        )
    for wrong in ([(1, 0), (3, 3)], [(2, 1), (3, 3)], []):
        assert placed(low, steps, table, lambda _, keys, state=wrong: [r for r in state if r[:1] in keys]) is None
    assert placed(low, steps, {}, lambda _, keys: []) is None
    assert placed(low, [transaction(7)], {}, lambda _, keys: []) == Position("", (7,))
