"""The trigger log against the tables themselves: every transaction's log sums to the change of the contents."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from dataclasses import dataclass

import pytest

from strobe.sources.sqlite.catalog import quote, read_table
from strobe.sources.sqlite.triggers import LOG, Watch, create_log, widen_log

Rows = Counter[tuple[object, ...]]


@dataclass
class Variant:
    """A table `t` with columns a, b, c, d and what else is in its database."""

    name: str
    ddl: str
    before: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("a", "b", "c", "d")
    rowid: str | None = "_rowid_"
    pragmas: tuple[str, ...] = ()
    tables: tuple[str, ...] = ("t",)


TOUCH = "CREATE TRIGGER touch AFTER {} ON t BEGIN UPDATE t SET d = coalesce(d, 0) + 1 WHERE a = NEW.a; END"
ARCHIVE = "CREATE TRIGGER archive AFTER UPDATE ON t WHEN NEW.d > 3 BEGIN DELETE FROM t WHERE a = NEW.a; END"
CHILD = "CREATE TRIGGER child AFTER INSERT ON t WHEN NEW.d = 1 BEGIN INSERT INTO t(b, c, d) VALUES (NEW.b, 'z', 9); END"
BACK = """CREATE TRIGGER back AFTER DELETE ON t WHEN OLD.d = 2
BEGIN INSERT INTO t(a, b, c, d) VALUES (OLD.a, 'q', 'q', 0); END"""
EARLY = """CREATE TRIGGER early BEFORE INSERT ON t WHEN NEW.d > 1
BEGIN UPDATE t SET c = 'w' WHERE a <> 2; DELETE FROM t WHERE d = 4; END"""

VARIANTS = [
    Variant("rowid_alias", "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT, c TEXT, d INTEGER)"),
    Variant(
        "alias_and_unique", "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c TEXT, d INTEGER, UNIQUE (c, d))"
    ),
    Variant("no_key", "CREATE TABLE t (a INTEGER, b TEXT, c TEXT, d INTEGER)"),
    Variant("text_key_with_nulls", "CREATE TABLE t (a TEXT PRIMARY KEY, b TEXT, c TEXT UNIQUE, d INTEGER)"),
    Variant("composite", "CREATE TABLE t (a INTEGER, b TEXT, c TEXT, d INTEGER, PRIMARY KEY (a, b))"),
    Variant(
        "without_rowid",
        "CREATE TABLE t (a INTEGER, b TEXT, c TEXT UNIQUE, d INTEGER, PRIMARY KEY (a, b)) WITHOUT ROWID",
        rowid=None,
    ),
    Variant(
        "nocase_key",
        "CREATE TABLE t (a TEXT COLLATE NOCASE PRIMARY KEY, b TEXT, c TEXT UNIQUE COLLATE RTRIM, d INTEGER)"
        " WITHOUT ROWID",
        rowid=None,
    ),
    Variant(
        "collation_of_the_index",
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT COLLATE NOCASE, c TEXT, d INTEGER)",
        before=("CREATE UNIQUE INDEX i ON t(b COLLATE BINARY)", "CREATE UNIQUE INDEX j ON t(c COLLATE NOCASE)"),
    ),
    Variant(
        "partial",
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT, c TEXT, d INTEGER)",
        before=("CREATE UNIQUE INDEX i ON t(b) WHERE d > 1 AND c <> 'where (y'",),
    ),
    Variant(
        "default_for_null",
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT NOT NULL DEFAULT 'x' UNIQUE, c TEXT, d INTEGER)",
    ),
    Variant("desc_key", "CREATE TABLE t (a INTEGER PRIMARY KEY DESC, b TEXT, c TEXT UNIQUE, d INTEGER)"),
    Variant(
        "conflict_clause",
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE ON CONFLICT REPLACE, c TEXT, d INTEGER)",
    ),
    Variant("real_key", "CREATE TABLE t (a REAL UNIQUE, b TEXT, c NUMERIC UNIQUE, d INTEGER)"),
    Variant("untyped_key", "CREATE TABLE t (a UNIQUE, b, c UNIQUE, d)"),
    Variant(
        "key_not_watched",
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c TEXT UNIQUE, d INTEGER)",
        columns=("d",),
    ),
    Variant(
        "column_named_rowid",
        'CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c TEXT, d INTEGER, "rowid" TEXT, _rowid_ TEXT)',
        columns=("a", "b", "c", "d", "rowid"),
        rowid="oid",
    ),
    Variant(
        "generated",
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c TEXT, d INTEGER,"
        " e TEXT AS (b || c) STORED, f INTEGER AS (d + 1) VIRTUAL)",
        columns=("a", "b", "c", "d", "e", "f"),
    ),
    Variant(
        "recursive_triggers",
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c TEXT, d INTEGER, UNIQUE (c, d))",
        pragmas=("PRAGMA recursive_triggers = ON",),
    ),
    Variant(
        "recursive_without_rowid",
        "CREATE TABLE t (a INTEGER, b TEXT, c TEXT UNIQUE, d INTEGER, PRIMARY KEY (a, b)) WITHOUT ROWID",
        rowid=None,
        pragmas=("PRAGMA recursive_triggers = ON",),
    ),
    Variant(
        "self_reference",
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c TEXT,"
        " d INTEGER REFERENCES t(a) ON DELETE CASCADE ON UPDATE CASCADE)",
        pragmas=("PRAGMA foreign_keys = ON",),
    ),
    Variant(
        "self_reference_set_null",
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c TEXT UNIQUE,"
        " d INTEGER REFERENCES t(a) ON DELETE SET NULL ON UPDATE CASCADE)",
        pragmas=("PRAGMA foreign_keys = ON", "PRAGMA recursive_triggers = ON"),
    ),
    Variant(
        "cascade_to_child",
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c TEXT, d INTEGER)",
        before=(
            "CREATE TABLE u (a INTEGER PRIMARY KEY, b TEXT REFERENCES t(b) ON DELETE CASCADE ON UPDATE CASCADE,"
            " c TEXT, d INTEGER UNIQUE REFERENCES t(a) ON DELETE SET NULL ON UPDATE SET NULL)",
        ),
        pragmas=("PRAGMA foreign_keys = ON",),
        tables=("t", "u"),
    ),
    *(
        Variant(
            f"own_triggers_{n}_{'recursive' if recursive else 'plain'}",
            "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c TEXT, d INTEGER)",
            before=own,
            pragmas=(f"PRAGMA recursive_triggers = {recursive}",),
        )
        for n, own in enumerate(
            [(TOUCH.format("INSERT"), ARCHIVE, CHILD), (BACK, TOUCH.format("UPDATE OF b")), (EARLY,)]
        )
        for recursive in (0, 1)
        if not (recursive and own[0] == BACK)
    ),
]


def connect(variant: Variant) -> tuple[sqlite3.Connection, list[Watch]]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for sql in (*variant.pragmas, variant.ddl, *variant.before):
        connection.execute(sql)
    watches = []
    for sql in (*create_log("delete"), *widen_log(0, 8)):
        connection.execute(sql)
    for number, table in enumerate(variant.tables, 1):
        watch = Watch(read_table(connection, table), variant.columns, number)
        assert watch.table.rowid == variant.rowid and not watch.table.refusal
        for sql in (*watch.create_notes(), *watch.triggers().values()):
            connection.execute(sql)
        watches.append(watch)
    return connection, watches


def exact(row: tuple[object, ...]) -> tuple[object, ...]:
    """Values with their storage class, since 1 and 1.0 are equal in Python."""
    return tuple((type(v).__name__, v) for v in row)


def contents(connection: sqlite3.Connection, watch: Watch) -> Rows:
    columns = ", ".join(map(quote, watch.columns))
    return Counter(map(exact, connection.execute(f"SELECT {columns} FROM {quote(watch.table.name)}")))


def logged(connection: sqlite3.Connection, watch: Watch, after: int) -> Rows:
    total: Rows = Counter()
    columns = ", ".join(f"v{i}" for i in range(len(watch.columns)))
    for sign, *row in connection.execute(
        f"SELECT sign, {columns} FROM {LOG} WHERE relation = ? AND seq > ?", (watch.id, after)
    ):
        total[exact(tuple(row))] += sign
    return total


def same(left: Rows, right: Rows) -> bool:
    return {k: n for k, n in left.items() if n} == {k: n for k, n in right.items() if n}


def statement(rng: random.Random, variant: Variant) -> str:
    """A random write: every verb, every conflict clause, upserts, changes of keys and rowids."""
    table = rng.choice(variant.tables)
    text = lambda: rng.choice(["NULL", "'x'", "'X'", "'x '", "'y'", "'z'", "5", "'5'", "5.0", "1.5"])  # noqa: E731
    number = lambda: rng.choice(["NULL", "1", "2", "3", "4", "5", "'2'", "2.0"])  # noqa: E731
    key = text if "a TEXT" in variant.ddl and table == "t" else number
    values = f"{key()}, {text()}, {text()}, {number()}"
    clause = rng.choice(["", "", " OR REPLACE", " OR REPLACE", " OR IGNORE", " OR ABORT", " OR FAIL"])
    where = rng.choice(["a = {k}", "b = {t}", "c IS {t}", "d > {n}", "1"]).format(k=key(), t=text(), n=number())
    change = rng.choice(
        ["a = {k}", "b = {t}", "c = {t}", "d = {n}", "b = {t}, c = {t}", "a = a + 1", "d = d + 1", "a = {k}, b = {t}"]
    )
    change = change.format(k=key(), t=text(), n=number())
    kind = rng.random()
    if kind < 0.4:
        return f"INSERT{clause} INTO {table} (a, b, c, d) VALUES ({values})"
    if kind < 0.45 and variant.rowid:
        values = f"{rng.randint(1, 5)}, {text()}, {text()}, {number()}"
        return f"INSERT{clause} INTO {table} ({variant.rowid}, b, c, d) VALUES ({values})"
    if kind < 0.5:
        return f"INSERT{clause} INTO {table} (a, b, c, d) SELECT {key()}, b, c, {number()} FROM {table} WHERE {where}"
    if kind < 0.6:
        do = rng.choice(["NOTHING", f"UPDATE SET {change}", f"UPDATE SET d = excluded.d, c = {text()}"])
        return f"INSERT INTO {table} (a, b, c, d) VALUES ({values}) ON CONFLICT DO {do}"
    if kind < 0.85:
        return f"UPDATE{clause} {table} SET {change} WHERE {where}"
    if kind < 0.88 and variant.rowid:
        return f"UPDATE{clause} {table} SET {variant.rowid} = {rng.randint(1, 6)} WHERE {where}"
    if kind < 0.9:
        return f"REPLACE INTO {table} (a, b, c, d) VALUES ({values})"
    return f"DELETE FROM {table} WHERE {where}"


def run(variant: Variant, seed: int, steps: int) -> None:
    rng = random.Random(seed)
    connection, watches = connect(variant)
    try:
        for _ in range(steps):
            before = [contents(connection, w) for w in watches]
            (seq,) = connection.execute(f"SELECT max(seq) FROM {LOG}").fetchone()
            done = transaction(connection, rng, variant)
            for watch, was in zip(watches, before, strict=True):
                now = contents(connection, watch)
                change = logged(connection, watch, seq)
                change.update(was)
                assert same(change, now), (
                    f"{variant.name} seed {seed}: {done}\nbefore {was}\nnow {now}\nlogged {change}"
                )
            if rng.random() < 0.1:
                for watch in watches:
                    connection.execute(f"DELETE FROM {watch.note}")
            if rng.random() < 0.02:
                connection.execute("VACUUM")
    finally:
        connection.close()


def transaction(connection: sqlite3.Connection, rng: random.Random, variant: Variant) -> list[str]:
    done = []
    connection.execute("BEGIN")
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        sql = statement(rng, variant)
        done.append(sql)
        try:
            connection.execute(sql)
        except sqlite3.Error as error:
            done.append(f"-- {error}")
    end = "ROLLBACK" if rng.random() < 0.05 else "COMMIT"
    done.append(end)
    if connection.in_transaction:
        connection.execute(end)
    return done


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_the_log_sums_to_the_change(variant: Variant) -> None:
    """Random statements of every kind against one shape of table: each transaction's log is exactly its change."""
    for seed in range(12):
        run(variant, seed, 40)
