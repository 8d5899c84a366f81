"""What is particular to SQLite: preparing and undoing, refusals, values and their stored forms, indexes, discarding."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from strobe.algebra.bag import Bag, Row
from strobe.errors import LostGuarantee, RelationLost, Unfit, UserError
from strobe.messages import Lookup, Position, Transaction
from strobe.redaction import show_values
from strobe.sources.sqlite.catalog import quote, read_table
from strobe.sources.sqlite.reader import TableSearch
from strobe.sources.sqlite.source import SqliteSource
from strobe.sources.sqlite.triggers import LOG
from strobe.sources.sqlite.values import decoder, encoder, spark_type


class Database:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = SqliteSource("depot", path)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            rows: list[tuple[Any, ...]] = []
            for sql in statements:
                rows = connection.execute(sql).fetchall()
            return rows
        finally:
            connection.close()

    def schema(self) -> list[tuple[Any, ...]]:
        return self.run("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY rowid")

    def read(self, after: Position) -> list[Transaction]:
        """Everything up to now."""
        until, found = self.source.now(), list[Transaction]()
        for transaction in self.source.transactions(after, [], lambda: bool(found) and found[-1].position == until):
            found.append(transaction)
            if transaction.position == until:
                break
        return found

    def lookup(self, relation: str, columns: Sequence[str], on: Sequence[str], keys: Sequence[Row]) -> list[Row]:
        reader = self.source.reader()
        reader.open()
        try:
            return list(reader.lookup(Lookup(0, relation, tuple(columns), tuple(on)), keys))
        finally:
            reader.close()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    yield Database(tmp_path / "depot.db")


def test_undo_leaves_no_trace(db: Database) -> None:
    """Schema, journal mode and files are as before; the rows are untouched."""
    db.run(
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE)",
        "CREATE TRIGGER x AFTER INSERT ON t BEGIN SELECT 1; END",
    )
    db.run("INSERT INTO t VALUES (1, 'x')")
    before = db.schema()
    db.source.prepare(["t"])
    assert db.run("PRAGMA journal_mode") == [("wal",)]
    db.run("REPLACE INTO t VALUES (1, 'y')")
    taken = db.source.undo()
    assert {"WAL mode", "table __strobe_log", "trigger __strobe_t_after_insert"} <= set(taken)
    assert db.schema() == before and db.run("PRAGMA journal_mode") == [("delete",)]
    assert db.run("SELECT * FROM t") == [(1, "y")]
    assert [p.name for p in db.path.parent.iterdir()] == ["depot.db"]


def test_undo_keeps_wal_mode_that_was_there(db: Database) -> None:
    """A database that was in WAL mode before stays in it."""
    db.run("PRAGMA journal_mode = WAL", "CREATE TABLE t (a INTEGER PRIMARY KEY)")
    db.source.prepare(["t"])
    db.source.undo()
    assert db.run("PRAGMA journal_mode") == [("wal",)]


def test_the_script_is_what_prepare_executes(db: Database, tmp_path: Path) -> None:
    """A DBA who runs the printed statements gets the same schema, and `prepare` finds nothing left to do."""
    table = "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE)"
    other = Database(tmp_path / "other.db")
    for database in (db, other):
        database.run(table)
    other.run(*other.source.prepare_script(["t"]))
    db.source.prepare(["t"])
    assert db.schema() == other.schema()
    assert other.source.prepare_script(["t"]) == [] and other.source.check(["t"]) == []


def test_names_of_any_characters(db: Database) -> None:
    """Table and column names with quotes, spaces, keywords and other scripts work throughout."""
    table, column = "se\"lect 'x'; --", "où [est] `it`"
    db.run(f"CREATE TABLE {quote(table)} (id INTEGER PRIMARY KEY, {quote(column)} TEXT UNIQUE)")
    db.source.prepare([table])
    start = db.source.now()
    db.run(f"INSERT INTO {quote(table)} VALUES (1, 'x')", f"REPLACE INTO {quote(table)} VALUES (2, 'x')")
    (transaction,) = db.read(start)
    assert transaction.changes[table] == Bag.of(("id", column), [(2, "x")])
    assert db.lookup(table, ["id"], [column], [("x",)]) == [(2,)]
    assert db.source.check([table]) == []
    db.source.undo()


def test_a_table_added_later(db: Database) -> None:
    """Preparing again adds the new table and leaves identity, positions and the rest as they are."""
    db.run("CREATE TABLE t (a INTEGER PRIMARY KEY)", "CREATE TABLE u (a INTEGER, b TEXT, c TEXT)")
    db.source.prepare(["t"])
    identity, start = db.source.identity(), db.source.now()
    db.run("INSERT INTO t VALUES (1)")
    assert "not watched" in db.source.check(["u"])[0].message
    db.source.prepare(["u"])
    db.run("INSERT INTO u VALUES (1, 'x', NULL)")
    db.source.verify(start)
    assert db.source.identity() == identity
    changes = [t.changes for t in db.read(start)]
    assert changes == [{"t": Bag.of(("a",), [(1,)]), "u": Bag.of(("a", "b", "c"), [(1, "x", None)])}]


def test_a_column_added_later(db: Database) -> None:
    """The log knows the new column from the next preparation on; a position from before it does not verify."""
    db.run("CREATE TABLE t (a INTEGER PRIMARY KEY)")
    db.source.prepare(["t"])
    start = db.source.now()
    db.run("INSERT INTO t VALUES (1)", "ALTER TABLE t ADD COLUMN b TEXT DEFAULT 'x'", "INSERT INTO t VALUES (2, 'y')")
    assert "columns have changed" in db.source.check(["t"])[0].message
    middle = db.source.now()
    db.source.prepare(["t"])
    db.run("INSERT INTO t VALUES (3, 'z')")
    db.source.verify(middle)
    with pytest.raises(LostGuarantee, match="prepared anew"):
        db.source.verify(start)
    assert [t.changes["t"].attributes for t in db.read(start)] == [("a",), ("a", "b")]
    (transaction,) = db.read(middle)
    assert transaction.changes["t"] == Bag.of(("a", "b"), [(3, "z")])
    assert db.source.check(["t"]) == []


@pytest.mark.parametrize(
    "harm",
    [
        "DROP TRIGGER __strobe_t_after_insert",
        "CREATE UNIQUE INDEX later ON t(b)",
        "ALTER TABLE t RENAME COLUMN b TO c",
        "ALTER TABLE t RENAME TO u",
        "DROP TABLE t",
    ],
)
def test_a_gap_in_the_log_is_noticed(db: Database, harm: str) -> None:
    """Where changes may have gone unlogged nothing goes on as if they had not, even after preparing again."""
    db.run("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
    db.source.prepare(["t"])
    start = db.source.now()
    stream = db.source.transactions(start, [], lambda: False)
    db.run("INSERT INTO t VALUES (1, 'x')")
    assert next(stream).changes
    db.run(harm)
    assert [f.severity for f in db.source.check(["t"])] == ["error"]
    with pytest.raises(RelationLost):
        next(stream)
    db.run("CREATE TABLE IF NOT EXISTS t (a INTEGER PRIMARY KEY, b TEXT)")
    db.source.prepare(["t"])
    assert db.source.check(["t"]) == []
    with pytest.raises(LostGuarantee):
        db.source.verify(start)
    with pytest.raises(LostGuarantee):
        db.read(start)
    db.source.verify(db.source.now())


def test_a_younger_trigger_is_noticed(db: Database) -> None:
    """Strobe's triggers must run first: one that is younger and fails with FAIL keeps a change and skips the others.
    So it stops the stream, and there is a gap even after Strobe's triggers have been made anew."""
    db.run("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
    db.source.prepare(["t"])
    start = db.source.now()
    db.run("CREATE TRIGGER mine AFTER INSERT ON t BEGIN SELECT RAISE(FAIL, 'no') WHERE NEW.a = 1; END")
    assert "youngest" in db.source.check(["t"])[0].message
    with pytest.raises(RelationLost, match="youngest"):
        next(db.source.transactions(start, [], lambda: False))
    with pytest.raises(sqlite3.IntegrityError):
        db.run("INSERT INTO t VALUES (1, NULL)")
    assert db.run("SELECT a FROM t") == [(1,)]
    db.source.prepare(["t"])
    with pytest.raises(LostGuarantee):
        db.source.verify(start)
    start = db.source.now()
    db.run("INSERT INTO t VALUES (2, NULL)")
    assert db.read(start)[0].changes["t"] == Bag.of(("a", "b"), [(2, None)])


def test_a_change_kept_by_or_fail_is_logged(db: Database) -> None:
    """A trigger of the user's that fails with FAIL keeps the row that fired it."""
    db.run(
        "CREATE TABLE t (a INTEGER PRIMARY KEY)",
        "CREATE TRIGGER mine AFTER INSERT ON t BEGIN SELECT RAISE(FAIL, 'no'); END",
    )
    db.source.prepare(["t"])
    start = db.source.now()
    with pytest.raises(sqlite3.IntegrityError):
        db.run("INSERT INTO t VALUES (1)")
    assert db.run("SELECT * FROM t") == [(1,)]
    assert db.read(start)[0].changes["t"] == Bag.of(("a",), [(1,)])


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        (["CREATE VIEW t AS SELECT 1 AS a"], "view"),
        (["CREATE VIRTUAL TABLE t USING fts5(a)"], "virtual table"),
        (["CREATE TABLE t (a, b NUMERIC, c JSON)"], "declared type"),
        (["CREATE TABLE t (a TEXT)", "CREATE UNIQUE INDEX i ON t(lower(a))"], "expression"),
        (["CREATE TABLE t (a TEXT, b TEXT AS (lower(a)) UNIQUE)"], "generated"),
        (["CREATE TABLE t (rowid TEXT, _rowid_ TEXT, oid TEXT)"], "rowid"),
        ([], "no such table"),
    ],
)
def test_what_cannot_be_watched_is_refused(db: Database, ddl: list[str], message: str) -> None:
    """`check` and `prepare` say why, and nothing is changed."""
    db.run("CREATE TABLE other (a INTEGER)", *ddl)
    before = db.schema()
    assert any(message in f.message for f in db.source.check(["t"]))
    with pytest.raises(UserError, match=message):
        db.source.prepare(["t"])
    assert db.schema() == before and db.run("PRAGMA journal_mode") == [("delete",)]


def test_bad_files_are_found(db: Database) -> None:
    """A missing file, and a file that is no database."""
    assert "no file" in db.source.check([])[0].message
    db.path.write_text("this is no database, however long it may be" * 100)
    assert "not a database" in db.source.check([])[0].message
    with pytest.raises(UserError, match="not a database"):
        db.source.schemas()


def test_wal_mode_turned_off_is_found(db: Database) -> None:
    """Outside WAL mode readers would block writers."""
    db.run("CREATE TABLE t (a INTEGER)")
    db.source.prepare(["t"])
    db.run("PRAGMA journal_mode = DELETE")
    assert "WAL" in db.source.check(["t"])[0].message
    assert db.source.prepare_script(["t"]) == ["PRAGMA journal_mode = WAL"]
    db.source.prepare(["t"])
    assert db.source.check(["t"]) == []


def test_columns_without_a_type_are_left_out(db: Database) -> None:
    """They are not offered, and `check` says so as a warning."""
    db.run("CREATE TABLE t (a INTEGER PRIMARY KEY, b, c JSON, d TEXT)")
    db.source.prepare(["t"])
    assert [c.name for c in db.source.schemas()[0].columns] == ["a", "d"]
    (finding,) = db.source.check(["t"])
    assert finding.severity == "warning" and "b (no type), c (JSON)" in finding.message


@pytest.mark.parametrize(
    ("ddl", "key"),
    [
        ("CREATE TABLE t (a INTEGER PRIMARY KEY)", ("a",)),
        ("CREATE TABLE t (a TEXT PRIMARY KEY)", ()),
        ("CREATE TABLE t (a TEXT NOT NULL PRIMARY KEY)", ("a",)),
        ("CREATE TABLE t (a INTEGER PRIMARY KEY DESC)", ()),
        ("CREATE TABLE t (a INT, b TEXT, PRIMARY KEY (b, a)) WITHOUT ROWID", ("b", "a")),
        ("CREATE TABLE t (a TIMESTAMP NOT NULL PRIMARY KEY)", ()),
        ("CREATE TABLE t (a JSON NOT NULL PRIMARY KEY, b TEXT)", ()),
    ],
)
def test_a_key_is_never_null(db: Database, ddl: str, key: tuple[str, ...]) -> None:
    """Only a primary key that cannot be NULL, and stays a key once decoded, is a key."""
    db.run(ddl)
    assert db.source.schemas()[0].key == key


def test_indexes(db: Database) -> None:
    """Indexes that a look-up can use are listed; partial ones and those on expressions are not."""
    db.run(
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT COLLATE NOCASE, c INTEGER, d REAL)",
        "CREATE INDEX i ON t(b, c)",
        "CREATE INDEX j ON t(c) WHERE d > 0",
        "CREATE INDEX k ON t(d + 1)",
        "CREATE UNIQUE INDEX l ON t(d)",
    )
    assert set(db.source.schemas()[0].indexes) == {("a",), ("b", "c"), ("d",)}


@pytest.mark.parametrize("on", [("a",), ("b",), ("b", "c"), ("c", "b"), ("d",), ("e",), ("f",), ("d", "c")])
def test_a_lookup_uses_the_index(db: Database, on: tuple[str, ...]) -> None:
    """Whatever the column's type and collation, and also for NULL, rows are searched for, never scanned for."""
    db.run(
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT COLLATE NOCASE, c BIGINT, d DECIMAL(10, 2), e DATE, f TEXT)",
        "CREATE INDEX i ON t(b, c)",
        "CREATE INDEX j ON t(d)",
        "CREATE INDEX k ON t(e)",
        "CREATE INDEX l ON t(f COLLATE NOCASE)",
    )
    connection = sqlite3.connect(db.path)
    table = read_table(connection, "t")
    for nulls in range(len(on) + (on != ("a",))):  # the last is all of them; a rowid is never NULL
        search = TableSearch(table, on[nulls:], on[:nulls])
        values = ["1"] * 2 * len(on[nulls:])
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {search.sql(['a'], 2)}", values)]
        assert any(s.startswith("SEARCH t") for s in plan) and not any(s.startswith("SCAN t") for s in plan), plan
    connection.close()


def steps(connection: sqlite3.Connection, sql: str) -> int:
    """How many steps SQLite's machine takes for a statement, triggers included."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    connection.execute("BEGIN")
    connection.set_progress_handler(tick, 1)
    connection.execute(sql)
    connection.set_progress_handler(None, 0)
    connection.execute("ROLLBACK")
    return count


def test_a_write_costs_the_same_in_a_large_table(db: Database) -> None:
    """Triggers search for conflicts and notes by indexes, whatever the keys' types and collations."""
    db.run(
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT COLLATE NOCASE UNIQUE, c INTEGER, d REAL, UNIQUE (c, d))",
        "CREATE UNIQUE INDEX i ON t(d) WHERE c > 5",
        "CREATE TABLE w (a TEXT COLLATE NOCASE, b INTEGER, c DECIMAL(9, 1) UNIQUE, PRIMARY KEY (b, a)) WITHOUT ROWID",
    )
    db.source.prepare(["t", "w"])
    writes = [
        "REPLACE INTO t VALUES (1, 'k2', 3, 3)",
        "UPDATE OR REPLACE t SET a = 2, b = 'k3', c = 4, d = 5 WHERE a = 1",
        "DELETE FROM t WHERE a = 1",
        "REPLACE INTO w VALUES ('k1', 1, 2)",
        "UPDATE OR REPLACE w SET a = 'k2', b = 2, c = 3 WHERE a = 'k1' AND b = 1",
    ]
    connection = sqlite3.connect(db.path, isolation_level=None)
    costs = []
    for size in (10, 2000):
        rows = f"WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {size}) INSERT OR IGNORE INTO"
        for _ in range(2):  # the second time everything is ignored, and noted
            connection.execute(f"{rows} t SELECT i, 'k' || i, i, i FROM n")
            connection.execute(f"{rows} w SELECT 'k' || i, i, i FROM n")
        costs.append([steps(connection, sql) for sql in writes])
    assert connection.execute("SELECT count(*) FROM __strobe_note_1").fetchone() == (2000,)
    connection.close()
    for sql, small, large in zip(writes, *costs, strict=True):
        assert large < 1.5 * small, sql


def test_collations_find_exactly(db: Database) -> None:
    """Keys that a collation calls equal find their own rows, each once."""
    db.run("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT COLLATE NOCASE)", "CREATE INDEX i ON t(b)")
    db.source.prepare(["t"])
    db.run("INSERT INTO t VALUES (1, 'x'), (2, 'X'), (3, 'x'), (4, 'x ')")
    assert sorted(db.lookup("t", ["a"], ["b"], [("x",), ("X",)])) == [(1,), (2,), (3,)]
    assert db.lookup("t", ["a"], ["b"], [("X",)]) == [(2,)]


def test_an_instant_is_found_under_any_spelling(db: Database) -> None:
    """Timestamps are not searchable: a look-up by one fetches everything, and with another column narrows by that."""
    db.run("CREATE TABLE t (a INTEGER PRIMARY KEY, at TIMESTAMP)")
    db.source.prepare(["t"])
    db.run(
        "INSERT INTO t VALUES (1, '2024-01-01 12:00:00'), (2, '2024-01-01T13:00+01:00'), (3, '2024-01-01 12:00:00.0Z')"
    )
    noon = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
    assert not db.source.schemas()[0].column("at").searchable
    assert db.lookup("t", ["a", "at"], ["at"], [(noon,)]) == [(1, noon), (2, noon), (3, noon)]
    assert db.lookup("t", ["a", "at"], ["at", "a"], [(noon, 2)]) == [(2, noon)]


def test_keys_of_another_number_type(db: Database) -> None:
    """Integers and decimals are joined by value; keys that a column cannot hold find nothing and do no harm."""
    db.run("CREATE TABLE t (a BIGINT, d DECIMAL(20, 2))")
    db.source.prepare(["t"])
    db.run("INSERT INTO t VALUES (5, '5.00'), (6, 0.1), (9223372036854775807, 123456789012345678)")
    assert db.lookup("t", ["a"], ["a"], [(Decimal("5.00"),), (Decimal("5.5"),), (2**70,)]) == [(5,)]
    assert db.lookup("t", ["a"], ["d"], [(5,), (Decimal("0.10"),), (Decimal("0.1000000000000000055"),)]) == [(5,), (6,)]
    assert db.lookup("t", ["d"], ["d"], [(123456789012345678,)]) == [(Decimal("123456789012345678.00"),)]


@pytest.mark.parametrize(
    ("declared", "type_"),
    [
        ("INTEGER", "bigint"),
        ("unsigned big int", "bigint"),
        ("INT8", "bigint"),
        ("POINT", None),
        ("DECIMAL(10,2)", "decimal(10,2)"),
        ("numeric ( 5 )", "decimal(5,0)"),
        ("DECIMAL(40,2)", None),
        ("DECIMAL(2,5)", None),
        ("NUMERIC", None),
        ("VARCHAR(20)", "string"),
        ("DOUBLE PRECISION", "double"),
        ("BLOB", "binary"),
        ("BOOLEAN", "boolean"),
        ("DATE", "date"),
        ("DATETIME", "timestamp"),
        ("TIMESTAMP", "timestamp"),
        ("", None),
        ("JSON", None),
    ],
)
def test_declared_types(declared: str, type_: str | None) -> None:
    """What a declared type promises in Spark's terms."""
    assert spark_type(declared) == type_


@pytest.mark.parametrize(
    ("type_", "stored", "value"),
    [
        ("decimal(10,2)", 7, Decimal("7.00")),
        ("decimal(10,2)", 0.1, Decimal("0.10")),
        ("decimal(10,2)", "-1.5e1", Decimal("-15.00")),
        ("decimal(10,2)", 0.0, Decimal("0.00")),
        ("decimal(10,2)", 0.125, None),
        ("decimal(10,2)", 99999999.99, Decimal("99999999.99")),
        ("decimal(10,2)", "100000000.001", None),
        ("decimal(10,2)", -0.0, Decimal("0.00")),
        ("decimal(10,2)", 100000000, None),
        ("decimal(10,2)", 0.1 + 0.2, None),
        ("decimal(10,2)", "1_0", None),
        ("decimal(10,2)", float("inf"), None),
        ("decimal(38,0)", 1e40, None),
        ("decimal(38,0)", 1e30, Decimal(10**30)),
        ("bigint", 1.5, None),
        ("bigint", "x", None),
        ("double", 3, 3.0),
        ("double", 2**53 + 1, None),
        ("boolean", 2, None),
        ("boolean", 1, True),
        ("string", b"x", None),
        ("binary", "x", None),
        ("date", "2024-02-30", None),
        ("date", "2024-1-1", None),
        ("date", 20240101, None),
        ("date", "2024-02-29", date(2024, 2, 29)),
        ("timestamp", "2024-01-01", None),
        ("timestamp", 1700000000, None),
        ("timestamp", "2024-01-01 00:00:00.1234567", None),
        ("timestamp", "2024-01-01T00:30:00.5-01:30", datetime(2024, 1, 1, 2, 0, 0, 500000, tzinfo=timezone.utc)),
        ("timestamp", "0001-01-01 00:00+05:00", None),
    ],
)
def test_stored_values(type_: str, stored: Any, value: Any) -> None:
    """A stored value is read as exactly one value of the column's type, or refused (None here)."""
    if value is None:
        with pytest.raises(Unfit):
            decoder(type_)(stored)
        return
    decoded = decoder(type_)(stored)
    assert (type(decoded), repr(decoded)) == (type(value), repr(value))
    if type_ != "timestamp":
        assert encoder(type_)(decoded) in (stored, float(stored) if type_.startswith("decimal") else stored)


def test_a_value_that_does_not_fit_is_named(db: Database) -> None:
    """The message has source, table, column, the row's key and what to do, from stream and scan alike; the
    value only on request."""
    db.run("CREATE TABLE t (a INTEGER PRIMARY KEY, b BOOLEAN)")
    db.source.prepare(["t"])
    start = db.source.now()
    db.run("INSERT INTO t VALUES (7, 'yes')")
    for attempt in (lambda: db.read(start), lambda: db.lookup("t", ["a", "b"], ["a"], [(7,)])):
        with pytest.raises(RelationLost) as caught:
            attempt()
        assert caught.value.relations == {"t"}
        assert caught.value.where == "source depot, table t, column b" and "depot.t (a=7)" in str(caught.value)
        assert "yes" not in str(caught.value) and caught.value.fix
        show_values(True)
        with pytest.raises(RelationLost, match="'yes' cannot be read as boolean"):
            attempt()
        show_values(False)


def test_text_that_is_not_utf8_is_refused(db: Database) -> None:
    """It is a mistake to mend, not an outage to wait for."""
    db.run("CREATE TABLE t (a TEXT)")
    db.source.prepare(["t"])
    start = db.source.now()
    db.run("INSERT INTO t VALUES (CAST(x'ff' AS TEXT))")
    with pytest.raises(RelationLost, match="UTF-8"):
        db.read(start)


@pytest.mark.parametrize("value", ["'yes'", "CAST(x'ff' AS TEXT)"])
def test_a_value_that_does_not_fit_stops_only_what_uses_its_column(db: Database, value: str) -> None:
    """The stream goes on for other tables, and for the same one if no view uses the column."""
    db.run("CREATE TABLE t (a INTEGER PRIMARY KEY, b BOOLEAN)", "CREATE TABLE u (a INTEGER PRIMARY KEY)")
    db.source.prepare(["t", "u"])
    start = db.source.now()
    db.run(f"INSERT INTO t VALUES (7, {value})", "INSERT INTO u VALUES (1)")
    db.source.focus({"t": ["a", "b"], "u": ["a"]})
    with pytest.raises(RelationLost) as caught:
        db.read(start)
    assert caught.value.relations == {"t"}
    db.source.focus({"t": ["a"], "u": ["a"]})
    assert db.read(start)[-1].changes == {"t": Bag.of(("a",), [(7,)]), "u": Bag.of(("a",), [(1,)])}
    db.source.focus({"u": ["a"]})
    assert db.read(start)[-1].changes == {"u": Bag.of(("a",), [(1,)])}


def test_discard_takes_log_and_notes_and_gives_way(db: Database) -> None:
    """Log before the position and all notes go; while a writer holds the lock nothing happens, at once."""
    db.run("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
    db.source.prepare(["t"])
    for n in range(5):
        db.run(f"REPLACE INTO t VALUES (1, '{n}')")
    position = db.source.now()
    writer = sqlite3.connect(db.path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    db.source.discard(position)
    assert db.run(f"SELECT count(*) FROM {LOG}") == [(position.order[0] + 1,)]
    writer.execute("COMMIT")
    writer.close()
    db.source.discard(position)
    assert db.run(f"SELECT seq FROM {LOG}") == [position.order]
    assert db.run("SELECT count(*) FROM __strobe_note_1") == [(0,)]
    db.run("REPLACE INTO t VALUES (1, 'z')")
    assert db.read(position)[0].changes["t"] == Bag(("a", "b"), {(1, "4"): -1, (1, "z"): 1})


def test_readers_hold_up_no_writer(db: Database) -> None:
    """With a snapshot open, others write and commit without waiting, and the snapshot stays."""
    db.run("CREATE TABLE t (a INTEGER PRIMARY KEY)")
    db.source.prepare(["t"])
    reader = db.source.reader()
    seen = reader.open()
    writer = sqlite3.connect(db.path, timeout=0, isolation_level=None)
    writer.execute("INSERT INTO t VALUES (1)")
    writer.close()
    assert list(reader.scan("t", ["a"])) == [] and seen.through < db.source.now()
    reader.close()
