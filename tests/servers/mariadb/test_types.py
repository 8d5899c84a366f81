"""MariaDB and MySQL: types, collations and names."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from mariadb_shop import Shop, find, read, rows_of

from strobe.algebra.bag import Bag
from strobe.errors import LostGuarantee, UserError

UTC = timezone.utc
ONLY_MARIADB = ("JSON", "VARCHAR(50) COLLATE utf8mb4_uca1400_ai_ci", "VARCHAR(50) COLLATE utf8mb4_nopad_bin")


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
    ("INT UNSIGNED", "bigint", [("4294967295", 4294967295)]),
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
    ("SET('a', 'ü', 'c d')", "string", [("'c d,a'", "a,c d"), ("''", ""), ("7", "a,ü,c d"), ("2", "ü")]),
    ("SET('ä', 'b') CHARACTER SET latin1", "string", [("'b,ä'", "ä,b")]),
    ("TIME", "string", [("'-838:59:59'", "-838:59:59"), ("'0:0:1'", "00:00:01"), ("'-0:0:1'", "-00:00:01")]),
    *((f"TIME({n})", "string", [("'-1:02:03.987654'", None), ("'100:00:00.09'", None)]) for n in range(1, 7)),
    ("BINARY(4)", "binary", [("'ab'", b"ab\0\0"), ("X'00010000'", b"\0\1\0\0"), ("''", b"\0\0\0\0")]),
    ("VARBINARY(300)", "binary", [("X'ab00'", b"\xab\0"), ("''", b"")]),
    ("TINYBLOB", "binary", [("X'ff'", b"\xff")]),
    ("BLOB", "binary", [("repeat(X'00', 70)", b"\0" * 70)]),
    ("LONGBLOB", "binary", [("repeat(X'fe', 70000)", b"\xfe" * 70000)]),
    ("INT AS (id * 2) STORED", "int", [("DEFAULT", 0), ("DEFAULT", 2)]),
]


def test_a_type_s_values_are_the_same_from_everywhere(either: Shop) -> None:
    """The stream, a scan and a look-up by the value itself agree with each other and with what was written."""
    others = set(ONLY_MARIADB) if either.mysql else set()
    if either.early:
        others.add("YEAR")  # which it leaves out when it logs signs: the unsigned column behind it would stop the view
    types = {f"c{n}": t for n, t in enumerate(TYPES) if t[0] not in others}
    columns = ", ".join(f"{name} {declared}" for name, (declared, _, _) in types.items())
    unsupported = "a POINT, c VECTOR(2)" if either.vectors else "a POINT"
    either.run(f"CREATE TABLE t ({unsupported}, id INT PRIMARY KEY, {columns}, z DECIMAL(50) DEFAULT 7)")
    source = either.source()
    (schema,) = source.schemas()
    assert {c.name: c.type for c in schema.columns} == {"id": "int", **{name: t[1] for name, t in types.items()}}
    start = source.now()
    with either.session() as do:
        do("SET time_zone = '+00:00', sql_mode = ''")
        do("BEGIN")
        for n in range(max(len(values) for _, _, values in types.values()) + 1):  # the last row is all NULLs
            given = {name: values[n][0] for name, (_, _, values) in types.items() if n < len(values)}
            do(f"INSERT INTO t (id, {', '.join(given) or 'z'}) VALUES ({n}, {', '.join(given.values()) or 'NULL'})")
        do("COMMIT")
    (transaction,) = read(source, start)
    names = ["id", *types]
    streamed = {row[0]: dict(zip(names, row, strict=True)) for row, _ in transaction.changes["t"].items()}
    scanned = {row[0]: dict(zip(names, row, strict=True)) for row, _ in rows_of(source, "t", names).items()}
    assert repr(sorted(streamed.items())) == repr(sorted(scanned.items()))
    for name, (declared, _, values) in types.items():
        for n, (_, expected) in enumerate(values):
            value = streamed[n][name]
            assert value is not None and (expected is None or repr(value) == repr(expected)), declared
            found = find(source, "t", ["id", name], [name], [(value,)])
            assert repr((n, value)) in map(repr, found), declared
            assert len(found) == len({row[0] for row in found}), declared


def test_types_that_are_not_supported_are_left_out(either: Shop) -> None:
    """A table may have columns of other types, as long as no view uses them; their rows are read all the same."""
    others = {
        "p": "POINT",
        "u": "UUID",
        "i": "INET6",
        "d": "DECIMAL(65,30)",
        "c": "TEXT COMPRESSED",
        "vc": "VARCHAR(2000) COMPRESSED",
        "k": "VARCHAR(10) CHARACTER SET koi8r",
        "g": "INT AS (id + 1) VIRTUAL",
    }
    if either.mysql:
        others = {n: t for n, t in others.items() if n not in ("u", "i", "c", "vc")}
        others |= {"v": "VECTOR(3)"} if either.vectors else {}
    columns = ", ".join(f"{name} {type_}" for name, type_ in others.items())
    either.run(f"CREATE TABLE t (w VARCHAR(9), {columns}, n INT UNSIGNED, e ENUM('q','r'), id INT PRIMARY KEY)")
    source = either.source()
    assert [c.name for c in source.schemas()[0].columns] == ["w", "n", "e", "id"]
    (finding,) = source.check(["t"])
    assert finding.severity == "warning" and all(f"{name} (" in finding.message for name in others)
    start = source.now()
    values = {"p": "POINT(1,2)", "d": "1.5", "k": "'я'"}
    if either.vectors:
        values |= {"v": "STRING_TO_VECTOR('[1,2,3]')"}
    if not either.mysql:
        values |= {"u": "UUID()", "i": "'::1'", "c": "'compressed'", "vc": "repeat('x', 1500)"}
    names, given = ", ".join(values), ", ".join(values.values())
    either.run(f"INSERT INTO t ({names}, w, n, e, id) VALUES ({given}, 'w', 4000000000, 'r', 1)")
    either.run("INSERT INTO t (w, n, e, id) VALUES ('x', 1, 'q', 2)")
    found = read(source, start)
    assert [list(t.changes["t"].items()) for t in found] == [[(("w", 4000000000, "r", 1), 1)], [(("x", 1, "q", 2), 1)]]


def test_zero_dates_are_refused_by_name(either: Shop) -> None:
    """A date that does not exist stops the stream and the answer with its column, and never turns into another."""
    for declared in ("DATE", "DATETIME(3)", "TIMESTAMP DEFAULT '2020-01-01'"):
        with either.session() as do:
            do("SET sql_mode = ''")
            do("DROP TABLE IF EXISTS t")
            do(f"CREATE TABLE t (id INT PRIMARY KEY, d {declared}, n INT)")
        source = either.source()
        start = source.now()
        with either.session() as do:
            do("SET sql_mode = ''")
            do("INSERT INTO t VALUES (1, '0000-00-00', 1)")
        with pytest.raises(LostGuarantee, match=r"column d.*0000-00-00"):
            read(source, start)
        with pytest.raises(UserError, match=r"column d.*0000-00-00"):
            rows_of(source, "t", ["id", "d"])
        source.focus({"t": {"id", "n"}})
        assert read(source, start)[0].changes["t"] == Bag.of(("id", "n"), [(1, 1)])


def test_look_ups_mean_bytes_whatever_the_collation(either: Shop) -> None:
    """Letter case, accents and trailing blanks make different keys, and an index on the column is used."""
    either.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20) COLLATE utf8mb4_unicode_ci, KEY (v))")
    values = ["a", "A", "á", "a ", "b", "ß", "ss"]
    for n, value in enumerate(values):
        either.run(f"INSERT INTO t VALUES ({n}, '{value}')")
    source = either.source()
    for n, value in enumerate(values):
        assert find(source, "t", ["id"], ["v"], [(value,)]) == [(n,)]
    everything = find(source, "t", ["id"], ["v"], [(v,) for v in [*values, "B", "\ud800", "🦆"]])
    assert sorted(everything) == [(n,) for n in range(len(values))]
    many = [(f"{v}{'!' * n}",) for n in range(700) for v in ("a", "A")] + [("b",)]
    assert sorted(find(source, "t", ["id"], ["v"], many)) == [(0,), (1,), (4,)]


def test_keys_of_any_number_are_found_exactly(either: Shop) -> None:
    """A key of a number type finds equal numbers of another, and one that the column cannot hold finds nothing."""
    either.run(
        "CREATE TABLE t (i TINYINT UNSIGNED, d DECIMAL(6,2), b BIT(3), PRIMARY KEY (i), KEY (d))",
        "INSERT INTO t VALUES (1, 1.00, b'1'), (2, 2.50, b'10'), (255, 9999.99, b'111')",
    )
    source = either.source()
    keys = [(1,), (Decimal("255"),), (Decimal("2.5"),), (-1,), (256,), (10**30,)]
    assert sorted(find(source, "t", ["i"], ["i"], keys)) == [(1,), (255,)]
    keys = [(1,), (Decimal("2.5"),), (Decimal("2.501"),), (Decimal("1E+3"),), (10**30,), (Decimal("9999.990"),)]
    assert sorted(find(source, "t", ["i"], ["d"], keys)) == [(1,), (2,), (255,)]
    assert sorted(find(source, "t", ["i"], ["b", "d"], [(2, Decimal("2.5")), (7, 1), (9, 1)])) == [(2,)]


def test_names_of_any_kind(either: Shop) -> None:
    """Tables and columns with quotes, blanks, percent signs and long names are read and watched."""
    long = "列" * 60
    either.run(f'CREATE TABLE `it\'s ``a`` 100% "t"` (`i``d` INT PRIMARY KEY, `{long}` INT, `%s` INT)')
    source = either.source()
    start = source.now()
    table = 'it\'s `a` 100% "t"'
    either.run('INSERT INTO `it\'s ``a`` 100% "t"` VALUES (1, 2, 3)')
    assert list(read(source, start)[0].changes[table].items()) == [((1, 2, 3), 1)]
    assert find(source, table, ["i`d", long, "%s"], ["%s"], [(3,)]) == [(1, 2, 3)]
    assert source.check([table]) == []
