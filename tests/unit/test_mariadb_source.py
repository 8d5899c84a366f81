"""MariaDB: what the conformance suite does not ask of every source."""

from __future__ import annotations

import contextlib
import pickle
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mariadb_server import running

from strobe.algebra.bag import Bag, Row
from strobe.config import Limits
from strobe.config import MariadbSource as Config
from strobe.errors import AccessRefused, LostGuarantee, SourceUnavailable, UserError
from strobe.messages import Lookup, Position, Transaction
from strobe.sources.mariadb import MariadbSource
from strobe.sources.mariadb_place import rows
from strobe.sources.mariadb_reader import Search

if TYPE_CHECKING:
    from mariadb_server import Server

_numbers = count(1)


class Shop:
    """A database of its own, written to as root and read as `strobe`."""

    def __init__(self, server: Server) -> None:
        self.server, self.name = server, f"shop{next(_numbers)}"
        self.dsn = server.database(self.name)

    def run(self, *statements: str) -> None:
        self.server.run(*statements, database=self.name)

    def source(self, **limits: Any) -> MariadbSource:
        return MariadbSource("billing", Config(type="mariadb", dsn=self.dsn, limits=Limits(**limits)))

    @contextlib.contextmanager
    def session(self) -> Iterator[Callable[[str], None]]:
        """One connection, with `BEGIN` and `COMMIT` as one says them."""
        with contextlib.closing(self.server.connect(self.name, autocommit=True)) as connection:
            with connection.cursor() as cursor:
                yield lambda sql: cursor.execute(sql)


@pytest.fixture
def shop(mariadb: Server) -> Shop:
    return Shop(mariadb)


def read(
    source: MariadbSource, after: Position, through: Position | None = None, stops: Sequence[Position] = ()
) -> list[Transaction]:
    """The transactions between two positions, those without changes left out."""
    end, deadline = through or source.now(), time.monotonic() + 30
    found: list[Transaction] = []
    position = after
    stream = source.transactions(after, stops, lambda: end <= position or time.monotonic() > deadline)
    for transaction in stream:
        position = transaction.position
        found.append(transaction)
    assert end <= position, "the stream did not come to its end in time"
    return [t for t in found if t.changes]


def rows_of(source: MariadbSource, relation: str, columns: Sequence[str]) -> Bag:
    reader = source.reader()
    reader.open()
    try:
        return Bag.of(tuple(columns), reader.scan(relation, columns))
    finally:
        reader.close()


def find(source: MariadbSource, relation: str, columns: Sequence[str], on: Sequence[str], keys: list[Row]) -> list[Row]:
    reader = source.reader()
    reader.open()
    try:
        return list(reader.lookup(Lookup(0, relation, tuple(columns), tuple(on)), keys))
    finally:
        reader.close()


# Types

UTC = timezone.utc
TYPES: list[tuple[str, str, list[tuple[str, Any]]]] = [
    ("TINYINT(1)", "tinyint", [("-1", -1), ("5", 5)]),
    ("TINYINT UNSIGNED", "smallint", [("0", 0), ("255", 255)]),
    ("SMALLINT UNSIGNED", "int", [("65535", 65535)]),
    ("MEDIUMINT", "int", [("-8388608", -8388608), ("8388607", 8388607)]),
    ("MEDIUMINT UNSIGNED ZEROFILL", "int", [("5", 5), ("16777215", 16777215)]),
    ("INT UNSIGNED", "bigint", [("4294967295", 4294967295)]),
    ("BIGINT UNSIGNED", "decimal(20,0)", [("18446744073709551615", Decimal(2**64 - 1)), ("0", Decimal(0))]),
    ("DECIMAL(5,5)", "decimal(5,5)", [("-0.00001", Decimal("-0.00001")), ("0", Decimal("0.00000"))]),
    ("DECIMAL(38,0)", "decimal(38,0)", [("9" * 38, Decimal("9" * 38)), ("-" + "1" * 38, Decimal("-" + "1" * 38))]),
    ("DECIMAL(9,0) UNSIGNED", "decimal(9,0)", [("999999999", Decimal(999999999))]),
    ("DECIMAL(19,10)", "decimal(19,10)", [("-123456789.0123456789", Decimal("-123456789.0123456789"))]),
    ("FLOAT", "float", [("0.1", 0.10000000149011612), ("16777217", 16777216.0), ("1.17549e-38", None)]),
    ("FLOAT(7,2)", "float", [("1234.567", 1234.5699462890625)]),
    ("DOUBLE(10,2)", "double", [("0.305", None), ("12345678.91", 12345678.91)]),
    ("DOUBLE", "double", [("-0e0", 0.0), ("0.1+0.2", None), ("1.7976931348623157e308", 1.7976931348623157e308)]),
    ("BIT(1)", "boolean", [("b'1'", True), ("b'0'", False)]),
    ("BIT(9)", "bigint", [("b'100000001'", 257)]),
    ("BIT(63)", "bigint", [(str(2**63 - 1), 2**63 - 1)]),
    ("BIT(64)", "decimal(20,0)", [(str(2**64 - 1), Decimal(2**64 - 1))]),
    ("YEAR", "smallint", [("2024", 2024), ("1901", 1901), ("0000", 0)]),
    ("DATE", "date", [("'0001-01-01'", date(1, 1, 1)), ("'9999-12-31'", date(9999, 12, 31))]),
    ("DATETIME", "timestamp_ntz", [("'2024-02-29 23:59:59'", datetime(2024, 2, 29, 23, 59, 59))]),
    *(
        (
            f"DATETIME({n})",
            "timestamp_ntz",
            [("'1969-12-31 01:02:03.987654'", None), ("'2024-01-01 00:00:00.09'", None)],
        )
        for n in range(1, 7)
    ),
    ("TIMESTAMP NULL", "timestamp", [("'1970-01-01 00:00:01'", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))]),
    *((f"TIMESTAMP({n}) NULL", "timestamp", [("'2001-02-03 04:05:06.987654'", None)]) for n in range(1, 7)),
    ("CHAR(5)", "string", [("'ab  '", "ab"), ("''", ""), ("'ü🦆'", "ü🦆"), ("' x'", " x")]),
    ("CHAR(200)", "string", [("repeat('🦆', 200)", "🦆" * 200)]),
    ("CHAR(3) CHARACTER SET latin1", "string", [("'é€'", "é€"), ("X'8190'", "\x81\x90")]),
    ("VARCHAR(300) CHARACTER SET latin1", "string", [("'ÿ x '", "ÿ x ")]),
    ("VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin", "string", [("'x '", "x ")]),
    ("VARCHAR(50) CHARACTER SET utf8mb3", "string", [("'日本'", "日本")]),
    ("VARCHAR(50) COLLATE utf8mb4_uca1400_ai_ci", "string", [("'É'", "É")]),
    ("VARCHAR(50) COLLATE utf8mb4_nopad_bin", "string", [("'é '", "é ")]),
    ("TINYTEXT", "string", [("'t'", "t")]),
    ("TEXT", "string", [("repeat('x', 60000)", "x" * 60000)]),
    ("MEDIUMTEXT", "string", [("repeat('é', 70000)", "é" * 70000)]),
    ("LONGTEXT", "string", [("''", "")]),
    ("JSON", "string", [("'{\"a\":  1}'", '{"a":  1}')]),
    ("ENUM('small', 'grün', '')", "string", [("'grün'", "grün"), ("1", "small"), ("''", "")]),
    ("ENUM('ä', 'b') CHARACTER SET latin1", "string", [("'ä'", "ä"), ("2", "b")]),
    ("BINARY(4)", "binary", [("'ab'", b"ab\0\0"), ("X'00010000'", b"\0\1\0\0"), ("''", b"\0\0\0\0")]),
    ("VARBINARY(300)", "binary", [("X'ab00'", b"\xab\0"), ("''", b"")]),
    ("TINYBLOB", "binary", [("X'ff'", b"\xff")]),
    ("BLOB", "binary", [("repeat(X'00', 70)", b"\0" * 70)]),
    ("LONGBLOB", "binary", [("repeat(X'fe', 70000)", b"\xfe" * 70000)]),
    ("INT AS (id * 2) STORED", "int", [("DEFAULT", 0), ("DEFAULT", 2)]),
]


@pytest.mark.parametrize(("declared", "type_", "values"), TYPES, ids=[t[0] for t in TYPES])
def test_a_type_s_values_are_the_same_from_everywhere(
    shop: Shop, declared: str, type_: str, values: list[tuple[str, Any]]
) -> None:
    """The stream, a scan and a look-up by the value itself agree with each other and with what was written."""
    shop.run(
        f"CREATE TABLE t (a SET('x','y') DEFAULT 'x', id INT PRIMARY KEY, v {declared}, z TIME(3) DEFAULT '1:2:3')"
    )
    source = shop.source()
    (schema,) = source.schemas()
    assert {c.name: c.type for c in schema.columns} == {"id": "int", "v": type_}
    start = source.now()
    with shop.session() as do:
        do("SET time_zone = '+00:00', sql_mode = ''")
        do("BEGIN")
        for n, (literal, _) in enumerate(values):
            do(f"INSERT INTO t (id, v) VALUES ({n}, {literal})")
        if "STORED" not in declared:
            do("INSERT INTO t (id, v) VALUES (1000, NULL)")
        do("COMMIT")
    (transaction,) = read(source, start)
    streamed = dict(row for row, _ in transaction.changes["t"].items())
    scanned = dict(rows_of(source, "t", ["id", "v"]).items())
    assert {repr(row) for row in scanned} == {repr(row) for row in streamed.items()}
    for n, (_, expected) in enumerate(values):
        assert expected is None or (type(streamed[n]), streamed[n]) == (type(expected), expected)
        found = find(source, "t", ["id", "v"], ["v"], [(streamed[n],)])
        assert repr((n, streamed[n])) in map(repr, found)
        assert len(found) == len({row[0] for row in found})


def test_types_that_are_not_supported_are_left_out(shop: Shop) -> None:
    """A table may have columns of other types, as long as no view uses them; their rows are read all the same."""
    others = {
        "t": "TIME(6)",
        "s": "SET('a','b')",
        "p": "POINT",
        "u": "UUID",
        "i": "INET6",
        "d": "DECIMAL(65,30)",
        "c": "TEXT COMPRESSED",
        "vc": "VARCHAR(2000) COMPRESSED",
        "k": "VARCHAR(10) CHARACTER SET koi8r",
        "g": "INT AS (id + 1) VIRTUAL",
    }
    columns = ", ".join(f"{name} {type_}" for name, type_ in others.items())
    shop.run(f"CREATE TABLE t (w VARCHAR(9), {columns}, n INT UNSIGNED, e ENUM('q','r'), id INT PRIMARY KEY)")
    source = shop.source()
    assert [c.name for c in source.schemas()[0].columns] == ["w", "n", "e", "id"]
    (finding,) = source.check(["t"])
    assert finding.severity == "warning" and all(f"{name} (" in finding.message for name in others)
    start = source.now()
    values = "'w', '-1:02:03.5', 'a,b', POINT(1,2), UUID(), '::1', 1.5, 'compressed', repeat('x', 1500), 'я'"
    shop.run(f"INSERT INTO t (w,t,s,p,u,i,d,c,vc,k,n,e,id) VALUES ({values}, 4000000000, 'r', 1)")
    shop.run("INSERT INTO t (w, n, e, id) VALUES ('x', 1, 'q', 2)")
    found = read(source, start)
    assert [list(t.changes["t"].items()) for t in found] == [[(("w", 4000000000, "r", 1), 1)], [(("x", 1, "q", 2), 1)]]


def test_zero_dates_are_refused_by_name(shop: Shop) -> None:
    """A date that does not exist stops the stream and the answer with its column, and never turns into another."""
    for declared in ("DATE", "DATETIME(3)", "TIMESTAMP DEFAULT '2020-01-01'"):
        shop.run(f"CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, d {declared}, n INT)")
        source = shop.source()
        start = source.now()
        with shop.session() as do:
            do("SET sql_mode = ''")
            do("INSERT INTO t VALUES (1, '0000-00-00', 1)")
        with pytest.raises(LostGuarantee, match=r"column d.*0000-00-00"):
            read(source, start)
        with pytest.raises(UserError, match=r"column d.*0000-00-00"):
            rows_of(source, "t", ["id", "d"])
        source.focus({"t": {"id", "n"}})
        assert read(source, start)[0].changes["t"] == Bag.of(("id", "n"), [(1, 1)])


def test_look_ups_mean_bytes_whatever_the_collation(shop: Shop) -> None:
    """Letter case, accents and trailing blanks make different keys, and an index on the column is used."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20) COLLATE utf8mb4_unicode_ci, KEY (v))")
    values = ["a", "A", "á", "a ", "b", "ß", "ss"]
    for n, value in enumerate(values):
        shop.run(f"INSERT INTO t VALUES ({n}, '{value}')")
    source = shop.source()
    for n, value in enumerate(values):
        assert find(source, "t", ["id"], ["v"], [(value,)]) == [(n,)]
    everything = find(source, "t", ["id"], ["v"], [(v,) for v in [*values, "B", "\ud800", "🦆"]])
    assert sorted(everything) == [(n,) for n in range(len(values))]
    many = [(f"{v}{'!' * n}",) for n in range(700) for v in ("a", "A")] + [("b",)]
    assert sorted(find(source, "t", ["id"], ["v"], many)) == [(0,), (1,), (4,)]


def test_keys_of_any_number_are_found_exactly(shop: Shop) -> None:
    """A key of a number type finds equal numbers of another, and one that the column cannot hold finds nothing."""
    shop.run(
        "CREATE TABLE t (i TINYINT UNSIGNED, d DECIMAL(6,2), b BIT(3), PRIMARY KEY (i), KEY (d))",
        "INSERT INTO t VALUES (1, 1.00, b'1'), (2, 2.50, b'10'), (255, 9999.99, b'111')",
    )
    source = shop.source()
    keys = [(1,), (Decimal("255"),), (Decimal("2.5"),), (-1,), (256,), (10**30,)]
    assert sorted(find(source, "t", ["i"], ["i"], keys)) == [(1,), (255,)]
    keys = [(1,), (Decimal("2.5"),), (Decimal("2.501"),), (Decimal("1E+3"),), (10**30,), (Decimal("9999.990"),)]
    assert sorted(find(source, "t", ["i"], ["d"], keys)) == [(1,), (2,), (255,)]
    assert sorted(find(source, "t", ["i"], ["b", "d"], [(2, Decimal("2.5")), (7, 1), (9, 1)])) == [(2,)]


def test_names_of_any_kind(shop: Shop) -> None:
    """Tables and columns with quotes, blanks, percent signs and long names are read and watched."""
    long = "列" * 60
    shop.run(f'CREATE TABLE `it\'s ``a`` 100% "t"` (`i``d` INT PRIMARY KEY, `{long}` INT, `%s` INT)')
    source = shop.source()
    start = source.now()
    table = 'it\'s `a` 100% "t"'
    shop.run('INSERT INTO `it\'s ``a`` 100% "t"` VALUES (1, 2, 3)')
    assert list(read(source, start)[0].changes[table].items()) == [((1, 2, 3), 1)]
    assert find(source, table, ["i`d", long, "%s"], ["%s"], [(3,)]) == [(1, 2, 3)]
    assert source.check([table]) == []


# Transactions


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


def test_xa_transactions_count_from_their_commit(shop: Shop) -> None:
    """The rows of a prepared transaction are reported, and seen by snapshots, when it is committed."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source = shop.source()
    start = source.now()
    with shop.session() as do:
        do("XA START 'one', 'x', 7")
        do("INSERT INTO t VALUES (1)")
        do("XA END 'one', 'x', 7")
        do("XA PREPARE 'one', 'x', 7")
    between = source.now()
    assert read(source, start) == [] and not len(rows_of(source, "t", ["id"]))
    shop.run("INSERT INTO t VALUES (2)", "XA COMMIT 'one', 'x', 7")
    assert [list(t.changes["t"].items()) for t in read(source, start)] == [[((2,), 1)], [((1,), 1)]]
    assert rows_of(source, "t", ["id"]) == Bag.of(("id",), [(1,), (2,)])
    with pytest.raises(LostGuarantee, match="XA transaction"):
        read(source, between)
    with shop.session() as do:
        for step in ("XA START 'two'", "DELETE FROM t", "XA END 'two'", "XA PREPARE 'two'", "XA ROLLBACK 'two'"):
            do(step)
        for step in ("XA START 'three'", "INSERT INTO t VALUES (3)", "XA END 'three'", "XA COMMIT 'three' ONE PHASE"):
            do(step)
    assert list(read(source, start)[-1].changes["t"].items()) == [((3,), 1)]


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


def test_a_stream_goes_on_across_files_and_connections(shop: Shop) -> None:
    """New binlog files, and connections that the server ends, lose and double nothing."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source = shop.source()
    start = source.now()
    found: list[int] = []
    stop = threading.Event()

    def listen() -> None:
        for transaction in source.transactions(start, [], stop.is_set):
            found.extend(row[0] for row, _ in transaction.changes.get("t", Bag(("id",))).items())

    listener = threading.Thread(target=listen)
    listener.start()
    for n in range(30):
        shop.run(f"INSERT INTO t VALUES ({n})")
        if n % 7 == 0:
            shop.run("FLUSH BINARY LOGS")
        if n % 10 == 5:
            for (number,) in shop.server.rows(
                "SELECT id FROM information_schema.processlist WHERE user = 'strobe' AND command = 'Binlog Dump'"
            ):
                shop.run(f"KILL {number}")
    deadline = time.monotonic() + 20
    while len(found) < 30 and time.monotonic() < deadline:
        time.sleep(0.05)
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


def test_a_large_transaction_comes_whole(shop: Shop) -> None:
    """Rows and values beyond the protocol's packet of 16 MiB, in one transaction."""
    shop.server.run("SET GLOBAL max_allowed_packet = 67108864")
    shop.run("CREATE TABLE t (id INT PRIMARY KEY, v LONGBLOB)")
    source = shop.source()
    start = source.now()
    with shop.session() as do:
        do("BEGIN")
        do("INSERT INTO t VALUES (0, repeat('x', 20000000))")
        do("INSERT INTO t SELECT seq, seq FROM seq_1_to_50000")
        do("COMMIT")
    (transaction,) = read(source, start)
    rows = dict(row for row, _ in transaction.changes["t"].items())
    assert len(rows) == 50001 and rows[0] == b"x" * 20000000 and rows[777] == b"777"


# When definitions change


def test_unused_columns_come_and_go(shop: Shop) -> None:
    """Columns that nobody uses may be added, moved, dropped and changed: used ones are read by name."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)")
    source = shop.source()
    source.focus({"t": {"id", "v"}})
    start = source.now()
    shop.run(
        "INSERT INTO t VALUES (1, 10, 100)", "ALTER TABLE t ADD COLUMN first TEXT DEFAULT 'x' FIRST, DROP COLUMN w"
    )
    shop.run("INSERT INTO t VALUES ('y', 2, 20)", "ALTER TABLE t MODIFY first BLOB NULL DEFAULT NULL")
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
def test_a_change_of_what_is_used_stops_the_stream(shop: Shop, statement: str, what: str) -> None:
    """Everything before it is reported; then it stops and says what to rebuild. `what` is empty for harmless ones."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source = shop.source()
    source.focus({"t": {"id", "v"}})
    start = source.now()
    shop.run("INSERT INTO t VALUES (1, 10)")
    stream = source.transactions(start, [], lambda: False)
    assert next(stream).changes["t"] == Bag.of(("id", "v"), [(1, 10)])
    shop.run(statement)
    if not what:
        shop.run("INSERT INTO t (id, v) VALUES (2, 20)")
        while not (transaction := next(stream)).changes:
            pass
        assert transaction.changes["t"] == Bag.of(("id", "v"), [(2, 20)])
        return
    with pytest.raises(LostGuarantee, match=what) as caught:
        for _ in stream:
            pass
    assert "rebuild" in caught.value.fix and "t" in caught.value.message
    with pytest.raises(LostGuarantee):
        read(shop.source() if "TRUNCATE" in statement else source, start)


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


# Answers and limits


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


def test_a_slow_question_is_given_up(shop: Shop) -> None:
    """By key, after the statement timeout; a scan of a whole table takes as long as it takes."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t SELECT seq, seq FROM seq_1_to_3000")
    source = shop.source(statement_timeout="50ms")
    with pytest.raises(SourceUnavailable, match=r"longer than 0\.05 s"):
        reader = source.reader()
        reader.open()
        reader._shared.catalog.table("t")  # type: ignore[attr-defined]
        with reader._shared.place.errors():  # type: ignore[attr-defined]
            reader._connection.query("SELECT count(*) FROM t a, t b, t c WHERE a.v + b.v = c.v")  # type: ignore[attr-defined]
    reader.close()
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
    waiting.join(10)
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


# Preflight

IMAGES = ("binlog_row_image", "binlog_row_metadata")


def test_what_is_missing_is_found_with_what_mends_it(shop: Shop) -> None:
    """Each setting, right and kind of table."""
    shop.run(
        "CREATE TABLE good (id INT PRIMARY KEY)",
        "CREATE TABLE old (id INT PRIMARY KEY) ENGINE = MyISAM",
        "CREATE VIEW seen AS SELECT * FROM good",
        "CREATE TABLE versioned (id INT PRIMARY KEY) WITH SYSTEM VERSIONING",
        "CREATE TABLE child (id INT PRIMARY KEY, g INT COMMENT 'FOREIGN KEY ON DELETE CASCADE',"
        " CONSTRAINT `c``1` FOREIGN KEY (g) REFERENCES good (id) ON UPDATE CASCADE,"
        " CONSTRAINT c2 FOREIGN KEY (g) REFERENCES good (id))",
        "CREATE TABLE sound (id INT PRIMARY KEY, g INT COMMENT 'FOREIGN KEY ON DELETE CASCADE',"
        " FOREIGN KEY (g) REFERENCES good (id))",
    )
    source = shop.source()
    assert source.check(["good", "sound"]) == []

    def one(relation: str) -> tuple[str, str]:
        (finding,) = source.check([relation])
        assert finding.severity == "error" and relation in finding.where
        return finding.message, finding.fix

    assert "MyISAM" in one("old")[0] and "ENGINE = InnoDB" in one("old")[1]
    assert "view" in one("seen")[0] and "versioned" in one("versioned")[0].lower()
    message, fix = one("child")
    assert "c`1" in message and "not in the binlog" in message and "DROP FOREIGN KEY `c``1`" in fix
    assert "GRANT SELECT ON" in one("nowhere")[1]
    assert {s.name for s in source.schemas()} == {"good", "child", "sound"}


@pytest.mark.parametrize(
    ("setting", "bad", "good"),
    [
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "NO_LOG", "FULL"),
        ("binlog_expire_logs_seconds", "3600", "604800"),
        ("sync_binlog", "0", "1"),
        ("innodb_flush_log_at_trx_commit", "2", "1"),
    ],
)
def test_settings_are_checked(shop: Shop, setting: str, bad: str, good: str) -> None:
    source = shop.source()
    shop.run(f"SET GLOBAL {setting} = {bad}")
    try:
        (finding,) = source.check([])
        assert f"SET GLOBAL {setting} = " in finding.fix
        assert finding.severity == ("error" if setting in ("binlog_format", *IMAGES) else "warning")
    finally:
        shop.run(f"SET GLOBAL {setting} = {good}")
    assert source.check([]) == []


def test_a_replica_that_keeps_changes_to_itself_is_refused(mariadb_template: Path) -> None:
    """What a server takes in from another is in its own binlog only with log_slave_updates."""
    with running(mariadb_template, {"log-slave-updates": "OFF"}) as server:
        source = Shop(server).source()
        assert source.check([]) == []
        server.run("SET GLOBAL gtid_slave_pos = '0-99-1'")
        (finding,) = source.check([])
        assert finding.severity == "error" and "log_slave_updates = ON" in finding.fix


def test_a_server_without_a_binlog_is_refused(mariadb_template: Path) -> None:
    """`check` says so, and nothing else goes on as if there were one."""
    with running(mariadb_template, {"skip-log-bin": "ON"}, without=["log-bin"]) as server:
        source = Shop(server).source()
        (finding,) = source.check([])
        assert finding.severity == "error" and "log_bin" in finding.fix
        with pytest.raises(UserError, match="binlog"):
            source.now()


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


def test_each_right_is_needed_and_named(mariadb: Server) -> None:
    """Without one of the documented rights, preflight names the statement that gives it."""
    shop = Shop(mariadb)
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
    user = f"u{shop.name}"
    mariadb.run(
        f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'x'", f"GRANT SELECT ON {shop.name}.* TO {user}@'127.0.0.1'"
    )
    dsn = f"mysql://{user}:x@127.0.0.1:{mariadb.port}/{shop.name}"
    source = MariadbSource("billing", Config(type="mariadb", dsn=dsn))
    (finding,) = source.check(["t"])
    assert finding.fix == f"GRANT BINLOG MONITOR ON *.* TO '{user}'@'127.0.0.1';"
    mariadb.run(finding.fix)
    (finding,) = source.check(["t"])
    assert finding.fix == f"GRANT REPLICATION SLAVE ON *.* TO '{user}'@'127.0.0.1';"
    mariadb.run(finding.fix)
    assert source.check(["t"]) == []
    mariadb.run(f"REVOKE SELECT ON {shop.name}.* FROM {user}@'127.0.0.1'")
    mariadb.run(f"GRANT SELECT (id) ON {shop.name}.t TO {user}@'127.0.0.1'")
    (finding,) = source.check(["t"])
    assert finding.fix == f"GRANT SELECT ON `{shop.name}`.`t` TO '{user}'@'127.0.0.1';"


def test_a_wrong_password_is_not_shown(shop: Shop) -> None:
    """Neither in the error nor in what objects print of themselves."""
    config = Config(type="mariadb", dsn=shop.dsn.replace("s3cret", "wr0ng"))
    source = MariadbSource("billing", config)
    with pytest.raises(AccessRefused) as caught:
        source.now()
    shown = [str(caught.value), repr(config), repr(source._place), str(source.check(["t"]))]
    assert not any("wr0ng" in text or "pass:word" in text for text in shown)


def test_addresses(shop: Shop) -> None:
    """What is not an address is refused, without showing it; TLS that is asked for is not left out silently."""
    for dsn in (
        "x",
        "postgres://u:p@h/d",
        "mysql://h/d",
        "mysql://u:p4ss@h",
        "mysql://u:p4ss@h/d?what=1",
        "mysql://u@h:x/d",
    ):
        with pytest.raises(UserError) as caught:
            MariadbSource("billing", Config(type="mariadb", dsn=dsn))
        assert "p4ss" not in str(caught.value)
    tls = MariadbSource("billing", Config(type="mariadb", dsn=f"{shop.dsn}?ssl=true"))
    with pytest.raises((UserError, SourceUnavailable), match=r"(?i)tls|ssl"):
        tls.now()
    missing = MariadbSource("billing", Config(type="mariadb", dsn=f"{shop.dsn}?ssl_ca=/nowhere.pem"))
    with pytest.raises(UserError, match="TLS files"):
        missing.now()


def test_the_stream_waits_no_longer_than_a_moment(shop: Shop) -> None:
    """While nothing happens, being told to stop ends it soon."""
    source = shop.source()
    until = time.monotonic() + timedelta(seconds=0.3).total_seconds()
    list(source.transactions(source.now(), [], lambda: time.monotonic() > until))
    assert time.monotonic() < until + 1


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
    seen = []
    for _ in range(60):
        reader = source.reader()
        through = reader.open().through
        time.sleep(0.01)
        seen.append((through, Bag.of(("id", "v"), reader.scan("t", ["id", "v"]))))
        reader.close()
    stop.set()
    for writer in writers:
        writer.join()
    assert len({p for p, _ in seen}) > 30
    log = read(source, start, stops=[p for p, _ in seen])
    for position, found in seen:
        while log and log[0].position <= position:
            state = state.add(log.pop(0).changes["t"])  # type: ignore[arg-type]
        assert state == found


@pytest.mark.parametrize(
    ("declared", "value", "keys"),
    [
        ("INT UNSIGNED", "seq", [7, Decimal(8)]),
        ("BIGINT UNSIGNED", "seq", [Decimal(7), 8]),
        ("DECIMAL(12,3)", "seq / 8", [Decimal("0.875"), 1]),
        ("DOUBLE", "seq / 8", [0.875]),
        ("FLOAT", "seq / 8", [0.875]),
        ("DATE", "'2000-01-01' + INTERVAL seq DAY", [date(2000, 1, 8)]),
        ("DATETIME(6)", "'2000-01-01' + INTERVAL seq SECOND", [datetime(2000, 1, 1, 0, 0, 7)]),
        ("TIMESTAMP(3)", "'2000-01-01' + INTERVAL seq SECOND", [datetime(2000, 1, 1, 0, 0, 7, tzinfo=UTC)]),
        ("VARCHAR(20) COLLATE utf8mb4_unicode_ci", "concat('É', seq)", ["É7", "é8"]),
        ("VARCHAR(20) CHARACTER SET latin1", "concat('É', seq)", ["É7"]),
        ("VARCHAR(20) CHARACTER SET utf8mb3", "concat('É', seq)", ["É7"]),
        ("CHAR(20) CHARACTER SET ascii", "concat('x', seq)", ["x7"]),
        ("VARBINARY(20)", "concat('x', seq)", [b"x7"]),
        ("BINARY(8)", "concat('x', seq)", [b"x7\0\0\0\0\0\0"]),
    ],
)
def test_an_index_serves_look_ups(shop: Shop, declared: str, value: str, keys: list[Any]) -> None:
    """By one column and by two, whatever their types: the server never reads the whole table."""
    shop.run(
        f"CREATE TABLE t (id INT PRIMARY KEY, v {declared}, w INT, KEY (v, w))",
        f"INSERT INTO t SELECT seq, {value}, seq FROM seq_1_to_2000",
        "ANALYZE TABLE t",
    )
    source = shop.source()
    with source._shared.connections.session() as connection:
        for on, chosen in ((["v"], [(k,) for k in keys]), (["v", "w"], [(k, 7) for k in keys])):
            search = Search(source._shared.catalog.table("t"), on, connection.escape)
            condition = search.condition([e for k in chosen if (e := search.encode(k))])
            (plan,) = rows(connection, f"EXPLAIN SELECT id, v FROM t WHERE {condition}")
            assert plan[3] in ("range", "ref", "const") and plan[5] == "v", plan
            assert find(source, "t", ["id"], on, chosen)[:1] == [(7,)]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make certificates with")
def test_tls_is_verified_when_asked_for(mariadb_template: Path) -> None:
    """Stream and answers go over it; another authority, or a certificate for another name, is refused."""
    with running(mariadb_template) as server:
        keys = server.folder / "keys"
        keys.mkdir()

        def certify(name: str, address: str) -> None:
            subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{address}"]
            files = ["-keyout", str(keys / f"{name}.key"), "-out", str(keys / f"{name}.pem")]
            command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
            subprocess.run(command, check=True, capture_output=True)

        certify("good", "127.0.0.1")
        certify("other", "127.0.0.1")
        certify("elsewhere", "10.0.0.1")
        shop = Shop(server)
        shop.run("CREATE TABLE t (id INT PRIMARY KEY)")

        def source(**options: str) -> MariadbSource:
            query = "&".join(f"{name}={value}" for name, value in options.items())
            return MariadbSource("billing", Config(type="mariadb", dsn=f"{shop.dsn}?{query}"))

        with pytest.raises((UserError, SourceUnavailable), match=r"(?i)tls|ssl"):
            source(ssl_ca=str(keys / "good.pem")).now()
        for name in ("good", "elsewhere"):
            server.stop()
            server.settings |= {"ssl-cert": str(keys / f"{name}.pem"), "ssl-key": str(keys / f"{name}.key")}
            server.start()
            ca = str(keys / f"{name}.pem")
            if name == "elsewhere":
                with pytest.raises(SourceUnavailable, match=r"(?i)certificate"):
                    source(ssl_ca=ca).now()
                source(ssl_ca=ca, ssl_verify_identity="off").now()
                continue
            for bad in (source(ssl_ca=str(keys / "other.pem")), source(ssl="on")):
                with pytest.raises(SourceUnavailable, match=r"(?i)certificate"):
                    bad.now()
            good = source(ssl_ca=ca)
            start = good.now()
            server.run("ALTER USER strobe@'127.0.0.1' REQUIRE SSL")
            shop.run("INSERT INTO t SELECT seq FROM seq_1_to_30000")
            (transaction,) = read(good, start)
            assert transaction.changes["t"] == rows_of(good, "t", ["id"]) and len(rows_of(good, "t", ["id"])) == 30000
            with pytest.raises(AccessRefused, match="denied"):
                shop.source().now()
