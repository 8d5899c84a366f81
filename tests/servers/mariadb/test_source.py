"""MariaDB: transactions, definitions that change, answers and their limits."""

from __future__ import annotations

import pickle
import threading
import time
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from mariadb_server import running
from mariadb_shop import Shop, find, read, rows_of
from patience import PATIENCE, eventually

from strobe.algebra.bag import Bag
from strobe.errors import LostGuarantee, RelationLost, SourceUnavailable
from strobe.messages import Lookup, Position
from strobe.sources.mariadb.connection import rows
from strobe.sources.mariadb.reader import TableSearch


def test_what_is_rolled_back_never_shows(shop: Shop) -> None:
    """Savepoints too, also when a table without transactions makes the server log them."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE other (id INT) ENGINE = MyISAM")
    source = shop.source()
    start = source.now()
    with shop.session() as do:
        for end in ("COMMIT", "ROLLBACK"):
            first = 0 if end == "COMMIT" else 10
            do("BEGIN")
            do(f"INSERT INTO t VALUES ({first + 1})")
            do("SAVEPOINT `a b`")
            do(f"INSERT INTO t VALUES ({first + 2})")
            do("INSERT INTO other VALUES (1)")
            do("ROLLBACK TO `a b`")
            do(f"INSERT INTO t VALUES ({first + 3})")
            do(end)
    found = read(source, start)
    total = Bag(("id",))
    for transaction in found:
        total = total.add(transaction.changes.get("t", total.negate().add(total)))  # type: ignore[arg-type]
    assert total == rows_of(source, "t", ["id"]) == Bag.of(("id",), [(1,), (3,)])


def test_xa_transactions_count_from_their_commit(either: Shop) -> None:
    """The rows of a prepared transaction are reported, and seen by snapshots, when it is committed."""
    either.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source = either.source()
    start = source.now()
    with either.session() as do:
        do("XA START 'one', 'x', 7")
        do("INSERT INTO t VALUES (1)")
        do("XA END 'one', 'x', 7")
        do("XA PREPARE 'one', 'x', 7")
    between = source.now()
    either.run("FLUSH BINARY LOGS")
    assert read(source, start) == [] and not len(rows_of(source, "t", ["id"]))
    either.run("INSERT INTO t VALUES (2)", "XA COMMIT 'one', 'x', 7")
    assert [list(t.changes["t"].items()) for t in read(source, start)] == [[((2,), 1)], [((1,), 1)]]
    assert rows_of(source, "t", ["id"]) == Bag.of(("id",), [(1,), (2,)])
    assert read(source, between) == read(source, start), "the first phase is looked for in the log before"
    with either.session() as do:
        for step in ("XA START 'two'", "DELETE FROM t", "XA END 'two'", "XA PREPARE 'two'", "XA ROLLBACK 'two'"):
            do(step)
        for step in ("XA START 'three'", "INSERT INTO t VALUES (3)", "XA END 'three'", "XA COMMIT 'three' ONE PHASE"):
            do(step)
    assert list(read(source, start)[-1].changes["t"].items()) == [((3,), 1)]


def test_the_last_first_phase_of_a_name_is_the_one(either: Shop) -> None:
    """Names are used again, in one file of the log and in several; the second phase may be in the file of the first."""
    either.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source = either.source()

    def prepare(number: int) -> None:
        with either.session() as do:
            for step in ("XA START 'a'", f"INSERT INTO t VALUES ({number})", "XA END 'a'", "XA PREPARE 'a'"):
                do(step)

    for number in (1, 2):
        prepare(number)
        between = source.now()
        either.run("XA COMMIT 'a'")
        assert [list(t.changes["t"].items()) for t in read(source, between)] == [[((number,), 1)]]
    prepare(3)
    either.run("FLUSH BINARY LOGS", "XA COMMIT 'a'")
    prepare(4)
    between = source.now()
    either.run("XA COMMIT 'a'")
    assert [list(t.changes["t"].items()) for t in read(source, between)] == [[((4,), 1)]]


def test_an_xa_transaction_whose_first_phase_is_gone_stops(shop: Shop) -> None:
    """Its rows were in a file that has been purged: nobody can know them."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
    with shop.session() as do:
        for step in ("XA START 'gone'", "INSERT INTO t VALUES (1)", "XA END 'gone'", "XA PREPARE 'gone'"):
            do(step)
    shop.run("FLUSH BINARY LOGS")
    source = shop.source()
    start = source.now()
    newest = shop.server.rows("SHOW BINARY LOGS")[-1][0]
    shop.run(f"PURGE BINARY LOGS TO '{newest}'")
    eventually(lambda: len(shop.server.rows("SHOW BINARY LOGS")) == 1 or shop.run(f"PURGE BINARY LOGS TO '{newest}'"))
    shop.run("XA COMMIT 'gone'")
    with pytest.raises(LostGuarantee, match="XA transaction"):
        read(source, start)


def test_parts_of_global_transactions_are_named(either: Shop) -> None:
    """By a new value in a column that the application chose, or by the identifier of an XA transaction."""
    either.run(
        "CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE `out.box` (id INT PRIMARY KEY, `na me` TEXT, n INT)"
    )
    source = either.source("out.box.na me", "strobe:")
    assert source.check(["t"]) == []
    source.focus({"t": {"id"}})
    start = source.now()
    with either.session() as do:
        do("BEGIN")
        do("INSERT INTO t VALUES (1)")
        do("INSERT INTO `out.box` VALUES (1, 'one billing,shop', 0), (2, NULL, 0), (3, '', 0)")
        do("COMMIT")
        do("UPDATE `out.box` SET n = 1")  # names nothing anew
        do("UPDATE `out.box` SET `na me` = 'two shop,billing' WHERE id = 2")
        do("DELETE FROM `out.box`")
        for n, phases in ((3, ["XA PREPARE {}", "XA COMMIT {}"]), (4, ["XA PREPARE {}", "XA ROLLBACK {}"])):
            name = f"'strobe:x{n} billing,shop', 'b'"
            for step in ("XA START {}", f"INSERT INTO t VALUES ({n})", "XA END {}", *phases):
                do(step.format(name))
        do("INSERT INTO t VALUES (5)")
    found = [(p.id for p in t.part_of) for t in read(source, start, relevant=lambda t: bool(t.changes or t.part_of))]
    assert [list(names) for names in found] == [["one"], ["two"], ["x3"], []]
    known = source.parts(source.now())
    assert {"one", "two", "x3"} <= known.ids and "one" not in source.parts(start).ids
    assert known.since is not None and known.since <= min(known.committed.values())
    assert either.source(xa_prefix="strobe:").parts(source.now()).ids == {"x3"}
    assert either.source().parts(source.now()).ids == set()
    with either.session() as do:
        do("INSERT INTO `out.box` VALUES (9, 'nobody elsewhere', 0)")
    assert len(read(source, start)) == 3 and "billing is not among" in source.warning
    (finding,) = either.source(global_transactions="t.id").check(["t"])
    assert finding.severity == "error" and "CREATE TABLE" in finding.fix


def test_irrelevant_transactions_move_the_position_on(shop: Shop) -> None:
    """They are reported without changes, many as one, and at every stop."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE u (id INT AUTO_INCREMENT PRIMARY KEY)")
    source = shop.source()
    source.focus({"t": {"id"}})
    start = source.now()
    stops = []
    for n in range(50):
        shop.run("INSERT INTO u VALUES ()")
        if n in (10, 20):
            stops.append(source.now())
    end, found = source.now(), [start]
    for transaction in source.transactions(start, stops, lambda: end <= found[-1]):
        found.append(transaction.position)
        assert not transaction.changes
    assert set(stops) <= set(found) and found[-1] == end
    assert len(found) < 20


def test_a_stream_goes_on_across_files_and_connections(either: Shop) -> None:
    """New binlog files, and connections that the server ends, lose and double nothing."""
    either.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source = either.source()
    start = source.now()
    found: list[int] = []
    stop = threading.Event()

    def listen() -> None:
        for transaction in source.transactions(start, [], stop.is_set):
            found.extend(row[0] for row, _ in transaction.changes.get("t", Bag(("id",))).items())

    listener = threading.Thread(target=listen)
    listener.start()
    for n in range(30):
        either.run(f"INSERT INTO t VALUES ({n})")
        if n % 7 == 0:
            either.run("FLUSH BINARY LOGS")
        if n % 10 == 5:
            for (number,) in either.server.rows(
                "SELECT id FROM information_schema.processlist WHERE user = 'strobe' AND command = 'Binlog Dump'"
            ):
                either.run(f"KILL {number}")
    try:
        eventually(lambda: len(found) >= 30)
    finally:
        stop.set()
        listener.join()
    assert found == list(range(30))
    assert [row[0] for t in read(source, start) for row, _ in t.changes["t"].items()] == found


@pytest.mark.parametrize(
    "setting",
    ["log_bin_compress = ON", "binlog_checksum = NONE", "binlog_annotate_row_events = OFF"],
)
def test_other_ways_to_write_the_log(shop: Shop, setting: str) -> None:
    """Compressed events and logs without checksums are read too."""
    name, _, value = setting.partition(" = ")
    before = shop.server.rows(f"SELECT @@global.{name}")[0][0]
    minimum = shop.server.rows("SELECT @@global.log_bin_compress_min_len")[0][0]
    shop.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(1000))")
    source = shop.source()
    source.focus({"t": {"id", "v"}})
    start = source.now()
    shop.run(f"SET GLOBAL {name} = {value}", "SET GLOBAL log_bin_compress_min_len = 10")
    try:
        shop.run("INSERT INTO t VALUES (1, repeat('x', 900)), (2, 'y')", "UPDATE t SET v = repeat('z', 500)")
        shop.run("ALTER TABLE t ADD COLUMN something_with_a_long_name INT", "DELETE FROM t WHERE id = 1")
        found = read(source, start)
    finally:
        shop.run(f"SET GLOBAL {name} = {before}", f"SET GLOBAL log_bin_compress_min_len = {minimum}")
    assert [len(t.changes["t"]) for t in found] == [2, 4, 1]  # type: ignore[arg-type]
    total = Bag(("id", "v"))
    for transaction in found:
        total = total.add(transaction.changes["t"])  # type: ignore[arg-type]
    assert total == rows_of(source, "t", ["id", "v"])


def test_a_large_transaction_comes_whole(either: Shop) -> None:
    """Rows and values beyond the protocol's packet of 16 MiB, in one transaction."""
    either.server.run("SET GLOBAL max_allowed_packet = 67108864")
    either.run("CREATE TABLE t (id INT PRIMARY KEY, v LONGBLOB)")
    source = either.source()
    start = source.now()
    with either.session() as do:
        do("BEGIN")
        do("INSERT INTO t VALUES (0, repeat('x', 20000000))")
        do(f"INSERT INTO t SELECT seq, seq FROM {either.numbers(50000)}")
        do("COMMIT")
    (transaction,) = read(source, start)
    rows = dict(row for row, _ in transaction.changes["t"].items())
    assert len(rows) == 50001 and rows[0] == b"x" * 20000000 and rows[777] == b"777"


def test_unused_columns_come_and_go(either: Shop) -> None:
    """Columns that nobody uses may be added, moved, dropped and changed: used ones are read by name."""
    either.run("CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)")
    source = either.source()
    source.focus({"t": {"id", "v"}})
    start = source.now()
    either.run(
        "INSERT INTO t VALUES (1, 10, 100)",
        "ALTER TABLE t ADD COLUMN first VARCHAR(9) DEFAULT 'x' FIRST, DROP COLUMN w",
    )
    either.run("INSERT INTO t VALUES ('y', 2, 20)", "ALTER TABLE t MODIFY first BLOB NULL DEFAULT NULL")
    found = [row for t in read(source, start) for row, _ in t.changes["t"].items()]
    assert found == [(1, 10), (2, 20)]


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("ALTER TABLE t DROP COLUMN v", "column"),
        ("ALTER TABLE t MODIFY v BIGINT", "column"),
        ("ALTER TABLE t RENAME COLUMN v TO vv", "column"),
        ("TRUNCATE TABLE t", "truncated"),
        ("DROP TABLE t", "dropped"),
        ("RENAME TABLE t TO tt", "renamed"),
        ("ALTER TABLE t ADD COLUMN q INT FIRST PARTITION BY HASH (id) PARTITIONS 2", ""),
    ],
)
def test_a_change_of_what_is_used_stops_the_stream(either: Shop, statement: str, what: str) -> None:
    """Everything before it is reported; then it stops for the views of this table, with what to rebuild; what uses
    other tables is read on. `what` is empty for harmless ones."""
    either.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "CREATE TABLE u (id INT PRIMARY KEY)")
    source = either.source()
    source.focus({"t": {"id", "v"}})
    start = source.now()
    either.run("INSERT INTO t VALUES (1, 10)")
    stream = source.transactions(start, [], lambda: False)
    assert next(stream).changes["t"] == Bag.of(("id", "v"), [(1, 10)])
    either.run(statement)
    if not what:
        either.run("INSERT INTO t (id, v) VALUES (2, 20)")
        while not (transaction := next(stream)).changes:
            pass
        assert transaction.changes["t"] == Bag.of(("id", "v"), [(2, 20)])
        return
    with pytest.raises(RelationLost, match=what) as caught:
        for _ in stream:
            pass
    assert "rebuild" in caught.value.fix and caught.value.relations == {"t"} and "table t" in caught.value.where
    with pytest.raises(RelationLost):
        read(either.source() if "TRUNCATE" in statement else source, start)
    source.focus({"u": {"id"}})
    either.run("INSERT INTO u VALUES (1)")
    assert [t.changes["u"] for t in read(source, start)] == [Bag.of(("id",), [(1,)])]


def test_rows_that_are_logged_in_part_or_as_text_stop_the_stream(shop: Shop) -> None:
    """A session may have settings of its own, which preflight cannot see."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    for setting, what in (("binlog_row_image = MINIMAL", "part of a row"), ("binlog_format = STATEMENT", "statement")):
        source = shop.source()
        start = source.now()
        with shop.session() as do:
            do(f"SET SESSION {setting}")
            do("UPDATE t SET v = v + 1")
        with pytest.raises(LostGuarantee, match=what):
            read(source, start)
    shop.server.run("SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        start = source.now()
        shop.run("UPDATE t SET v = v + 1")
        with pytest.raises(LostGuarantee, match="binlog_row_metadata") as caught:
            read(source, start)
        assert "SET GLOBAL binlog_row_metadata = FULL" in caught.value.fix
    finally:
        shop.server.run("SET GLOBAL binlog_row_metadata = FULL")


def test_a_snapshot_stays_while_others_write(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    source = shop.source()
    reader = source.reader()
    seen = reader.open()
    shop.run("UPDATE t SET v = 2", "INSERT INTO t VALUES (2, 2)")
    assert list(reader.scan("t", ["id", "v"])) == [(1, 1)]
    assert list(reader.lookup(Lookup(0, "t", ("v",), ("id",)), [(1,), (2,)])) == [(1,)]
    reader.close()
    (first, second) = read(source, seen.through)
    assert first.changes["t"] == Bag(("id", "v"), {(1, 1): -1, (1, 2): 1}) and not seen.saw(first)
    assert second.changes["t"] == Bag.of(("id", "v"), [(2, 2)])


def test_a_slow_question_is_given_up(either: Shop) -> None:
    """By key, after the statement timeout; a scan of a whole table takes as long as it takes."""
    numbers = f"SELECT seq, seq FROM {either.numbers(3000)}"
    either.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", f"INSERT INTO t {numbers}")
    source = either.source(statement_timeout="500ms")
    with (
        pytest.raises(SourceUnavailable, match=r"longer than 0\.5 s"),
        source.server.connections.session() as connection,
    ):
        rows(connection, "SELECT count(*) FROM t a, t b, t c WHERE a.v + b.v = c.v")
    assert len(rows_of(source, "t", ["id"])) == 3000


def test_connections_are_few_and_used_again(shop: Shop) -> None:
    """A hundred questions go over one connection, and beyond the limit a question waits."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source = shop.source(connections=2)
    made = "SHOW GLOBAL STATUS LIKE 'Connections'"
    source.now()
    before = int(shop.server.rows(made)[0][1])
    for _ in range(50):
        source.now()
        find(source, "t", ["id"], ["id"], [(1,)])
    assert int(shop.server.rows(made)[0][1]) - before <= 2
    readers = [source.reader() for _ in range(2)]
    for reader in readers:
        reader.open()
    waiting = threading.Thread(target=source.now)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    readers[0].close()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    readers[1].close()


def test_a_half_read_answer_leaves_nothing_behind(shop: Shop) -> None:
    """A reader that is closed in the middle of its rows ends its connection; the next question gets a sound one."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t SELECT seq FROM seq_1_to_200000")
    source = shop.source(connections=1)
    for _ in range(3):
        reader = source.reader()
        reader.open()
        rows = reader.scan("t", ["id"])
        assert next(rows) == (1,)
        reader.close()
        del rows
    assert find(source, "t", ["id"], ["id"], [(7,)]) == [(7,)]


def test_a_reader_in_another_process_has_the_address_and_no_connection(shop: Shop) -> None:
    source = shop.source()
    reader = source.reader()
    copy = pickle.loads(pickle.dumps(reader))
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
    assert copy.open() == reader.open()
    with pytest.raises(TypeError):
        pickle.dumps(reader)
    copy.close()
    reader.close()


def test_a_killed_server_loses_and_doubles_nothing(mariadb_template: Path) -> None:
    """While a stream reads: it says that the source is down, and goes on where it was when the server is back."""
    with running(mariadb_template) as server:
        shop = Shop(server)
        shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
        source = shop.source()
        position = source.now()
        found: list[int] = []
        for crash in range(3):
            for n in range(10):
                shop.run(f"INSERT INTO t VALUES ({crash * 10 + n})")
            stream = source.transactions(position, [], lambda: False)
            while len(found) < crash * 10 + 5:
                transaction = next(stream)
                position = transaction.position
                found += [row[0] for row, _ in transaction.changes.get("t", Bag(("id",))).items()]
            server.stop(kill=True)
            with pytest.raises(SourceUnavailable):
                for transaction in stream:
                    position = transaction.position
                    found += [row[0] for row, _ in transaction.changes.get("t", Bag(("id",))).items()]
            with pytest.raises(SourceUnavailable):
                source.now()
            server.start()
            source.verify(position)
        found += [row[0] for t in read(source, position) for row, _ in t.changes["t"].items()]
        assert found == list(range(30))


def test_the_stream_waits_no_longer_than_a_moment(shop: Shop) -> None:
    """While nothing happens, being told to stop ends it soon."""
    source = shop.source()
    until = time.monotonic() + 0.3
    list(source.transactions(source.now(), [], lambda: time.monotonic() > until))
    assert time.monotonic() < until + PATIENCE


def test_snapshots_among_many_writers_are_prefixes_of_the_log(shop: Shop) -> None:
    """Commits of several connections go to disk in groups; each snapshot is what the log says up to its position."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t SELECT seq, 0 FROM seq_1_to_40")
    source = shop.source()
    reader = source.reader()
    start = reader.open().through
    state = Bag.of(("id", "v"), reader.scan("t", ["id", "v"]))
    reader.close()
    stop = threading.Event()

    def write(number: int) -> None:
        with shop.session() as do:
            while not stop.is_set():
                do(f"UPDATE t SET v = v + 1 WHERE id BETWEEN {number * 10 + 1} AND {number * 10 + 3}")

    writers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for writer in writers:
        writer.start()
    seen: list[tuple[Position, Bag]] = []
    while len({p for p, _ in seen}) <= 30:
        reader = source.reader()
        through = reader.open().through
        time.sleep(0.01)
        seen.append((through, Bag.of(("id", "v"), reader.scan("t", ["id", "v"]))))
        reader.close()
    stop.set()
    for writer in writers:
        writer.join()
    log = read(source, start, stops=[p for p, _ in seen])
    for position, found in seen:
        while log and log[0].position <= position:
            state = state.add(log.pop(0).changes["t"])  # type: ignore[arg-type]
        assert state == found


INDEXED: list[tuple[str, str, list[Any]]] = [
    ("INT UNSIGNED", "seq", [7, Decimal(8)]),
    ("BIGINT UNSIGNED", "seq", [Decimal(7), 8]),
    ("DECIMAL(12,3)", "seq / 8", [Decimal("0.875"), 1]),
    ("DOUBLE", "seq / 8", [0.875]),
    ("FLOAT", "seq / 8", [0.875]),
    ("DATE", "'2000-01-01' + INTERVAL seq DAY", [date(2000, 1, 8)]),
    ("DATETIME(6)", "'2000-01-01' + INTERVAL seq SECOND", [datetime(2000, 1, 1, 0, 0, 7)]),
    ("TIMESTAMP(3)", "'2000-01-01' + INTERVAL seq SECOND", [datetime(2000, 1, 1, 0, 0, 7, tzinfo=timezone.utc)]),
    ("VARCHAR(20) COLLATE utf8mb4_unicode_ci", "concat('É', seq)", ["É7", "é8"]),
    ("VARCHAR(20) CHARACTER SET latin1", "concat('É', seq)", ["É7"]),
    ("VARCHAR(20) CHARACTER SET utf8mb3", "concat('É', seq)", ["É7"]),
    ("CHAR(20) CHARACTER SET ascii", "concat('x', seq)", ["x7"]),
    ("VARBINARY(20)", "concat('x', seq)", [b"x7"]),
    ("BINARY(8)", "concat('x', seq)", [b"x7\0\0\0\0\0\0"]),
]


def test_an_index_serves_look_ups(either: Shop) -> None:
    """By one column and by two, whatever their types: the server never reads the whole table."""
    columns = ", ".join(f"v{n} {declared}, KEY k{n} (v{n}, w)" for n, (declared, _, _) in enumerate(INDEXED))
    values = ", ".join(value for _, value, _ in INDEXED)
    either.run(
        f"CREATE TABLE t (id INT PRIMARY KEY, w INT, {columns})",
        f"INSERT INTO t SELECT seq, seq, {values} FROM {either.numbers(2000)}",
        "ANALYZE TABLE t",
    )
    source = either.source()
    with source.server.connections.session() as connection:
        for n, (_, _, keys) in enumerate(INDEXED):
            for on, chosen in (([f"v{n}"], [(k,) for k in keys]), ([f"v{n}", "w"], [(k, 7) for k in keys])):
                search = TableSearch(source.server.catalog.table("t"), connection.escape, on, [])
                condition = search.condition([e for k in chosen if (e := search.encode(k))])
                (plan,) = rows(connection, f"EXPLAIN FORMAT = TRADITIONAL SELECT id, v{n} FROM t WHERE {condition}")
                kind, index = (plan[4], plan[6]) if either.mysql else (plan[3], plan[5])
                assert kind in ("range", "ref", "const") and index == f"k{n}", plan
                assert find(source, "t", ["id"], on, chosen)[:1] == [(7,)]
            for on, nulls in (([], ["v0"]), (["w"], ["v0"]), (["v0"], ["w"]), ([], ["v0", "w"])):
                nothing = TableSearch(source.server.catalog.table("t"), connection.escape, on, nulls)
                condition = nothing.condition([("7",) * len(on), ("8",) * len(on)])
                (plan,) = rows(connection, f"EXPLAIN FORMAT = TRADITIONAL SELECT id FROM t WHERE {condition}")
                kind, index = (plan[4], plan[6]) if either.mysql else (plan[3], plan[5])
                assert kind in ("range", "ref") and index == "k0", plan
