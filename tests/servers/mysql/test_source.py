"""MySQL: where a snapshot is in the binlog, and what the binlog has that MariaDB's has not."""

from __future__ import annotations

import contextlib
import json
import random
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest
from mariadb_shop import Shop, read, rows_of
from mysql_server import MysqlServer

from strobe.algebra.bag import Bag
from strobe.config.model import MariadbSource as Config
from strobe.errors import LostGuarantee, SourceUnavailable
from strobe.messages import Position, Transaction
from strobe.retry import MYSQL_SETTLE
from strobe.sources.mariadb import snapshot
from strobe.sources.mariadb.binlog.events import payload
from strobe.sources.mariadb.binlog.protocol import Event
from strobe.sources.mariadb.limits import Limits, Timing
from strobe.sources.mariadb.snapshot import Keyed, owners, placed
from strobe.sources.mariadb.source import MariadbSource

if TYPE_CHECKING:
    from pathlib import Path

    from mariadb_server import Server

COLUMNS = ("id", "n", "at")


@pytest.fixture(params=["mysql", "mysql8"])
def shop(request: pytest.FixtureRequest) -> Shop:
    """In a new MySQL, and in an early 8.0."""
    server: Server = request.getfixturevalue(request.param)
    return Shop(server)


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
    original = snapshot.placed

    def spy(low: Position, transactions: list[Transaction], *rest: Any) -> Position | None:
        found = original(low, transactions, *rest)
        if found is not None and any(t.changes for t in transactions):
            told_by_rows.append(found)
        return found

    monkeypatch.setattr(snapshot, "placed", spy)
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
    source = shop.source(timing=Timing(settle=replace(MYSQL_SETTLE, seconds=0.2)))
    with shop.session() as do:
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


def test_a_table_without_a_key_is_warned_of(shop: Shop) -> None:
    """Its rows cannot tell what a snapshot has seen; a pause between commits can, and is waited for."""
    shop.run("CREATE TABLE t (n INT)", "CREATE TABLE u (id INT PRIMARY KEY)")
    source = shop.source()
    (finding,) = source.check(["t", "u"])
    assert finding.severity == "warning" and "ADD COLUMN id" in finding.fix and "table t" in finding.where
    stop = threading.Event()

    def write() -> None:
        with shop.session() as do:
            while not stop.is_set():
                do("INSERT INTO t VALUES (1)")
                time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        reader, until = source.reader(), time.monotonic() + 100
        while time.monotonic() < until:
            with contextlib.suppress(SourceUnavailable):
                start = reader.open().through
                break
        held = len(list(reader.scan("t", ["n"])))
        reader.close()
    finally:
        stop.set()
        writer.join()
    more = sum(count for t in read(source, start) for _, count in t.changes["t"].items())
    assert held + more == len(list(shop.server.rows("SELECT n FROM t", database=shop.name)))


def test_placing_by_rows() -> None:
    """The number of transactions that explains the rows is found, whatever keys moved; no number where none does."""
    table = {"t": Keyed(("id", "n"), ("id",))}

    def transaction(end: int, **rows: dict[tuple[int, int], int]) -> Transaction:
        changes = {name: Bag(("id", "n"), counts) for name, counts in rows.items()}
        return Transaction("s", Position(str(end), (end,)), changes=changes)

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
    for right in ("REPLICATION CLIENT", "REPLICATION SLAVE", "PROCESS"):
        finding, *_ = source.check(["t"])
        assert finding.fix == f"GRANT {right} ON *.* TO '{user}'@'127.0.0.1';"
        shop.run(finding.fix)
    assert source.check(["t"]) == []


def test_json_is_what_the_server_writes(shop: Shop) -> None:
    """The log has it in a form of its own: nested, large, with numbers, moments and bytes that JSON itself has not;
    beside it stand floats, which early servers cannot CAST."""
    rng = random.Random(11)

    def some(depth: int) -> Any:
        kind = rng.randrange(9 if depth else 7)
        if kind < 7:
            number = rng.uniform(-1, 1) * 10.0 ** rng.randint(-25, 25)
            texts = ("", "é🦆", 'a"\\\b\f\n\r\t\x01/', "x" * rng.choice((127, 128, 20000)))
            integers = (0, -1, 32768, -32769, 2**31, -(2**31) - 1, 2**63, 2**64 - 1, -(2**63))
            return (None, True, False, number, float(round(number)), rng.choice(texts), rng.choice(integers))[kind]
        if kind == 7:
            return [some(depth - 1) for _ in range(rng.randrange(6))]
        return {rng.choice(("k", "", "é", "long" * 50)) + str(n): some(depth - 1) for n in range(rng.randrange(6))}

    documents = [json.dumps(some(4)) for _ in range(150)] + [json.dumps([["y" * 30000] * 3, {"z": 2**40}])]
    moments = "CAST('2024-02-29 01:02:03.5' AS DATETIME(6)), DATE'0001-01-01', TIME'-838:59:59'"
    odd = f"JSON_ARRAY(1.50, -0.000, {moments}, CAST(X'00ff' AS BINARY), b'101', 12345678901234567890.123456789)"
    shop.run("CREATE TABLE t (id INT PRIMARY KEY, j JSON, f FLOAT DEFAULT 0.1, d DOUBLE(10,2) DEFAULT 0.305)")
    source = shop.source()
    start = source.now()
    with contextlib.closing(shop.server.connect(shop.name)) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t (id, j) VALUES (%s, %s)", list(enumerate(documents)))
        cursor.execute(f"INSERT INTO t (id, j) VALUES (-1, {odd}), (-2, NULL), (-3, 'null')")
        connection.commit()
    (transaction,) = read(source, start)
    assert transaction.changes["t"] == rows_of(source, "t", ["id", "j", "f", "d"])
    assert len(rows_of(source, "t", ["id", "j"])) == len(documents) + 3
    (schema,) = source.schemas()
    assert schema.column("j").type == "string" and not schema.column("j").searchable


def test_signs_behind_a_year(shop: Shop) -> None:
    """An early MySQL 8.0 leaves YEAR out where it logs signs: this is noticed, or the view stops; no sign is wrong."""
    large = 2**32 - 1
    for count in (8, 1):
        names = [f"c{n}" for n in range(count)]
        columns = ", ".join(f"{name} INT UNSIGNED" for name in names)
        shop.run("DROP TABLE IF EXISTS t", f"CREATE TABLE t (y YEAR, {columns})")
        source = shop.source()
        start = source.now()
        shop.run(f"INSERT INTO t VALUES (2024, {', '.join([str(large)] * count)})")
        if count == 1 and shop.early:
            with pytest.raises(LostGuarantee, match="column c0 is int number in the binlog"):
                read(source, start)
        else:
            assert read(source, start)[0].changes["t"] == Bag.of(("y", *names), [(2024, *[large] * count)])


def test_a_compressed_transaction_that_is_damaged() -> None:
    """Its events come one by one; where some are missing or cut off, it is no transaction."""
    inner = b"".join(struct.pack("<IBIIIH", 7, 16, 1, 19 + n, 0, 0) + b"x" * n for n in (0, 5, 70_000))
    packed = pyarrow.compress(inner, codec="zstd", asbytes=True)

    def events(data: bytes, size: int) -> list[int]:
        fields = struct.pack("<BBBQBBBB", 1, 9, 254, len(data), 2, 1, 0, 3) + struct.pack("<BBQB", 9, 254, size, 0)
        return [len(event.body) for event in payload(Event(40, 0, 0, 0, 0, fields + data), Limits())]

    assert events(packed, len(inner)) == [0, 5, 70_000]
    shorter = pyarrow.compress(inner[:-1], codec="zstd", asbytes=True)
    for data, size in ((packed, len(inner) + 1), (packed, len(inner) - 1), (shorter, len(inner))):
        with pytest.raises(SourceUnavailable, match="damaged"):
            events(data, size)


def test_what_only_mysql_writes_into_its_log(shop: Shop) -> None:
    """Compressed transactions, tables made from a query, tagged GTIDs, cascades of foreign keys; JSON in part stops."""
    shop.run(
        "CREATE TABLE p (id INT PRIMARY KEY, j JSON)",
        "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
    )
    source = shop.source()
    start = source.now()
    version = shop.version
    with shop.session() as do:
        if version >= (8, 0, 20):
            do("SET binlog_transaction_compression = ON")
        do("BEGIN")
        do(f"INSERT INTO p (id) SELECT seq FROM {shop.numbers(500)}")
        do("INSERT INTO c SELECT id, id FROM p")
        do("COMMIT")
        if version >= (8, 3):
            do("SET binlog_transaction_compression = OFF, gtid_next = 'AUTOMATIC:tag'")
        do("DELETE FROM p WHERE id <= 100")
        do("SET gtid_next = AUTOMATIC")
        if version >= (8, 0, 21):
            do("CREATE TABLE made (PRIMARY KEY (id)) SELECT id FROM c WHERE id > 450")
    source = shop.source()
    first, second, *third = read(source, start)
    assert len(first.changes["p"]) == len(first.changes["c"]) == 500  # type: ignore[arg-type]
    assert second.changes["p"] == Bag(("id", "j"), {(n, None): -1 for n in range(1, 101)})
    logged = second.changes.get("c") == Bag(("id", "p"), {(n, n): -1 for n in range(1, 101)})
    assert logged == (version >= (9, 6)) == (source.check(["c"]) == [])
    made = [rows_of(source, "made", ["id"])] if version >= (8, 0, 21) else []
    assert [t.changes["made"] for t in third] == made
    start = source.now()
    with shop.session() as do:
        do("UPDATE p SET j = JSON_OBJECT('a', repeat('x', 1000), 'b', 1) WHERE id = 200")
        do("SET binlog_row_value_options = PARTIAL_JSON")
        do("UPDATE p SET j = JSON_SET(j, '$.b', 2) WHERE id = 200")
    with pytest.raises(LostGuarantee, match=r"table p.*part of a row"):
        read(source, start)
    source.focus({"c": {"id"}})
    assert read(source, start) == []


def test_foreign_keys_are_judged_by_what_the_server_logs(mysql_template: Path) -> None:
    """A new server that leaves foreign-key actions to its engine does not log them, whatever its version: such a table
    is refused, and one without an action is not."""
    with contextlib.closing(MysqlServer(mysql_template, {"loose-innodb-native-foreign-keys": "ON"})) as server:
        shop = Shop(server)
        if shop.version < (9, 6):
            pytest.skip("this server never logs them")
        shop.run(
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
            "INSERT INTO p VALUES (1)",
            "INSERT INTO c VALUES (1, 1)",
        )
        source = shop.source()
        start = source.now()
        shop.run("DELETE FROM p")
        (deleted,) = read(source, start)
        assert deleted.changes.keys() == {"p"} and not len(rows_of(source, "c", ["id"]))
        (finding,) = source.check(["c"])
        assert finding.severity == "error" and "not in the binlog" in finding.message
        assert source.check(["p"]) == []
