"""MySQL: where a snapshot is in the binlog, and what the binlog has that MariaDB's has not."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from mariadb_shop import Shop, read, rows_of

from strobe.algebra.bag import Bag
from strobe.config import MariadbSource as Config
from strobe.errors import LostGuarantee, SourceUnavailable
from strobe.messages import Position, Transaction
from strobe.sources import mysql_snapshot
from strobe.sources.mariadb import MariadbSource
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
    told_by_rows: list[Position] = []
    original = mysql_snapshot.placed

    def spy(low: Position, transactions: list[Transaction], *rest: Any) -> Position | None:
        found = original(low, transactions, *rest)
        if found is not None and any(t.changes for t in transactions):
            told_by_rows.append(found)
        return found

    monkeypatch.setattr(mysql_snapshot, "placed", spy)
    snapshots, until = [], time.monotonic() + 100
    with writers(shop, 6):
        while len(told_by_rows) < 15 and time.monotonic() < until:
            reader = source.reader()
            seen = reader.open()
            snapshots.append((seen.through, Bag.of(COLUMNS, reader.scan("t", COLUMNS))))
            reader.close()
    assert len(told_by_rows) == 15, "the writers never came in between"
    log, state = read(source, start, stops=[place for place, _ in snapshots]), Bag(COLUMNS)
    for place, held in sorted(snapshots, key=lambda snapshot: snapshot[0].order):
        while log and log[0].position <= place:
            state = state.add(log.pop(0).changes["t"])  # type: ignore[arg-type]
        assert state == held


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


@pytest.mark.parametrize(
    ("setting", "bad", "good"),
    [
        ("gtid_mode", "ON_PERMISSIVE", "ON"),
        ("binlog_row_value_options", "PARTIAL_JSON", "''"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "MINIMAL", "FULL"),
        ("sync_binlog", "0", "1"),
    ],
)
def test_settings_are_checked(shop: Shop, setting: str, bad: str, good: str) -> None:
    """What MySQL needs besides, and what it calls otherwise."""
    source = shop.source()
    shop.run(f"SET GLOBAL {setting} = {bad}")
    try:
        (finding,) = source.check([])
        assert setting in finding.message and f"SET GLOBAL {setting} = " in finding.fix
    finally:
        shop.run(f"SET GLOBAL {setting} = {good}")
    assert source.check([]) == []


def test_each_right_is_needed_and_named(shop: Shop) -> None:
    """The documented rights and no more; a password must not go over an open connection."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
    user = f"u{shop.name}"
    shop.run(
        f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'x'", f"GRANT SELECT ON {shop.name}.* TO {user}@'127.0.0.1'"
    )
    dsn = shop.dsn.replace("strobe:s3cret%2Fpass%3Aword", f"{user}:x")
    (finding,) = MariadbSource("billing", Config(type="mariadb", dsn=dsn.partition("?")[0])).check(["t"])
    assert finding.severity == "error" and "?ssl=on" in finding.fix
    source = MariadbSource("billing", Config(type="mariadb", dsn=dsn))
    for right in ("REPLICATION CLIENT", "REPLICATION SLAVE"):
        (finding,) = source.check(["t"])
        assert finding.fix == f"GRANT {right} ON *.* TO '{user}'@'127.0.0.1';"
        shop.run(finding.fix)
    assert source.check(["t"]) == []


def test_what_only_mysql_writes_into_its_log(shop: Shop) -> None:
    """Compressed transactions, tables made from a query, tagged GTIDs, cascades of foreign keys; JSON in part stops."""
    shop.run(
        "CREATE TABLE p (id INT PRIMARY KEY, j JSON)",
        "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
    )
    source = shop.source()
    start = source.now()
    with shop.session() as do:
        do("SET binlog_transaction_compression = ON")
        do("BEGIN")
        do(f"INSERT INTO p (id) SELECT seq FROM {shop.numbers(500)}")
        do("INSERT INTO c SELECT id, id FROM p")
        do("COMMIT")
        do("SET binlog_transaction_compression = OFF, gtid_next = 'AUTOMATIC:tag'")
        do("DELETE FROM p WHERE id <= 100")
        do("SET gtid_next = AUTOMATIC")
        do("CREATE TABLE made (PRIMARY KEY (id)) SELECT id FROM c WHERE id > 450")
    source = shop.source()
    first, second, third = read(source, start)
    assert len(first.changes["p"]) == len(first.changes["c"]) == 500  # type: ignore[arg-type]
    assert second.changes["p"] == Bag(("id",), {(n,): -1 for n in range(1, 101)})
    if shop.server.rows("SELECT count(*) FROM c", database=shop.name)[0][0] == 400 and source.check(["c"]) == []:
        assert second.changes["c"] == Bag(("id", "p"), {(n, n): -1 for n in range(1, 101)})
    assert third.changes["made"] == rows_of(source, "made", ["id"])
    start = source.now()
    with shop.session() as do:
        do("UPDATE p SET j = JSON_OBJECT('a', repeat('x', 1000), 'b', 1) WHERE id = 200")
        do("SET binlog_row_value_options = PARTIAL_JSON")
        do("UPDATE p SET j = JSON_SET(j, '$.b', 2) WHERE id = 200")
    with pytest.raises(LostGuarantee, match=r"table p.*part of a row"):
        read(source, start)
    source.focus({"c": {"id"}})
    assert read(source, start) == []
