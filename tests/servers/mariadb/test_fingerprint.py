"""MariaDB and MySQL: what a fingerprint shows of each kind of statement, announced by the log or not."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import pytest
from mariadb_shop import Shop, rows_of
from patience import eventually

from strobe.config.model import MariadbSource as Config
from strobe.errors import UserError
from strobe.sources.mariadb.source import MariadbSource

if TYPE_CHECKING:
    from mariadb_server import Server

USED = ["id", "v", "w", "g"]
PLAIN = (
    "CREATE TABLE {t} (id INT PRIMARY KEY, v INT, w VARCHAR(10), base INT DEFAULT 1, g INT AS (base * 2) STORED,"
    " note VARCHAR(20), KEY by_v (v))"
)
PARTED = PLAIN + " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (100))"
SILENT = "SET SESSION sql_log_bin = 0"
HARMLESS = [
    "OPTIMIZE TABLE {t}",
    "ALTER TABLE {t} FORCE",
    "ALTER TABLE {t} ENGINE = InnoDB, COMMENT = 'v and w', AUTO_INCREMENT = 500 STATS_PERSISTENT=1",
    "ALTER TABLE {t} DEFAULT CHARACTER SET latin1",
    "ALTER TABLE {t} ADD INDEX (w), ADD UNIQUE KEY (id, v)",
    "CREATE INDEX added ON {t} (w)",
    "DROP INDEX by_v ON {t}",
    "ALTER TABLE {t} RENAME INDEX by_v TO v",
    "ALTER TABLE {t} ADD COLUMN x INT DEFAULT 5 FIRST",
    "ALTER TABLE {t} ADD (x INT, y TEXT)",
    "ALTER TABLE {t} DROP COLUMN note",
    "ALTER TABLE {t} MODIFY note LONGTEXT",
    "ALTER TABLE {t} RENAME COLUMN note TO remark",
    "ALTER TABLE {t} ALTER COLUMN v SET DEFAULT 7, ALTER w DROP DEFAULT",
    "ALTER TABLE {t} ADD CONSTRAINT f{t} FOREIGN KEY (v) REFERENCES parent (id)",
    "ALTER TABLE {t} PARTITION BY HASH (id) PARTITIONS 3",
    "ALTER TABLE {t} /*!80000 COMMENT = 'rename to x' */",
    "ANALYZE TABLE {t}",
    "CREATE TRIGGER tr{t} BEFORE INSERT ON {t} FOR EACH ROW SET NEW.v = 1",
    "FLUSH TABLES {t}",
    "SET sql_mode = 'ANSI_QUOTES'; alter /* x */ table \"{t}\" add column \"drop column v\" int; SET sql_mode = ''",
    "SET sql_mode = 'NO_BACKSLASH_ESCAPES'; ALTER TABLE {t} COMMENT 'a\\', ADD COLUMN x INT; SET sql_mode = ''",
    "INSERT INTO {t} (id) VALUES (7)",
]
HARMLESS_PARTED = [
    "ALTER TABLE {t} ADD PARTITION (PARTITION p2 VALUES LESS THAN (200), PARTITION p3 VALUES LESS THAN (300))",
    "ALTER TABLE {t} REORGANIZE PARTITION p0, p1 INTO (PARTITION p VALUES LESS THAN (100))",
    "ALTER TABLE {t} REBUILD PARTITION p0, p1",
    "ALTER TABLE {t} OPTIMIZE PARTITION p0",
    "ALTER TABLE {t} REMOVE PARTITIONING",
]
HARMFUL = [
    "TRUNCATE {t}",
    "DROP TABLE {t}",
    "RENAME TABLE {t} TO {t}_away",
    "CREATE TABLE {t}_n LIKE {t}; RENAME TABLE {t} TO {t}_o, {t}_n TO {t}",
    "DROP TABLE {t}; " + PLAIN,
    "ALTER TABLE {t} DROP COLUMN w",
    "ALTER TABLE {t} DROP COLUMN w; ALTER TABLE {t} ADD COLUMN w VARCHAR(10) AFTER v",
    "ALTER TABLE {t} RENAME COLUMN note TO x, RENAME COLUMN w TO note; ALTER TABLE {t} RENAME COLUMN x TO w",
    "ALTER TABLE {t} MODIFY v TINYINT; ALTER TABLE {t} MODIFY v INT",
    "ALTER TABLE {t} MODIFY base TINYINT; ALTER TABLE {t} MODIFY base INT DEFAULT 1",
    "ALTER TABLE {t} CONVERT TO CHARACTER SET latin1; ALTER TABLE {t} CONVERT TO CHARACTER SET utf8mb4",
    "ALTER TABLE {t} DROP PRIMARY KEY",
    "ALTER TABLE {t} ENGINE = MyISAM; ALTER TABLE {t} ENGINE = InnoDB",
    "ALTER TABLE {t} DISCARD TABLESPACE",
]
UNLOGGED_COUNTS_TOO = [
    "OPTIMIZE TABLE {t}",
    "ALTER TABLE {t} ADD INDEX (w)",
    "ALTER TABLE {t} RENAME COLUMN w TO x; ALTER TABLE {t} RENAME COLUMN x TO w",
    "ALTER TABLE {t} DROP COLUMN note",
]
"""Without the log nothing tells these from a change of rows."""
HARMFUL_PARTED = [
    "ALTER TABLE {t} TRUNCATE PARTITION p0",
    "ALTER TABLE {t} DROP PARTITION p1",
    "CREATE TABLE {t}_e LIKE {t}; ALTER TABLE {t}_e REMOVE PARTITIONING;"
    " ALTER TABLE {t} EXCHANGE PARTITION p0 WITH TABLE {t}_e",
]
UNLOGGED_HARMLESS = ["ANALYZE TABLE {t}", "FLUSH TABLES {t}", "CREATE TABLE {t}_other LIKE {t}", "SELECT 1"]


def fingerprints(source: MariadbSource, tables: Collection[str]) -> Mapping[str, str]:
    """Of all these tables, as soon as all of them can be told."""
    found: dict[str, str] = {}

    def told() -> bool:
        found.update(source.fingerprints([table for table in tables if table not in found]))
        return len(found) == len(tables)

    eventually(told)
    return found


def judged(shop: Shop, cases: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """What the source says happened to tables, each made by the one text and changed by the other."""
    shop.run("CREATE TABLE parent (id INT PRIMARY KEY)")
    for table, (made, _) in cases.items():
        shop.run(made.format(t=table), f"INSERT INTO {table} (id, v, w) VALUES (1, NULL, 'a'), (12, NULL, 'b')")
    source = shop.source()
    before = fingerprints(source, cases)
    assert source.fingerprints(list(cases)) == before, "nothing happened"
    with shop.session() as do:
        for table, (_, script) in cases.items():
            do("SET SESSION sql_log_bin = 1")
            for statement in script.format(t=table).split("; "):
                do(statement)
    after = fingerprints(source, cases)
    source.close()
    return {script: source.changed(table, USED, before[table], after[table]) for table, (_, script) in cases.items()}


def test_what_is_harmless_is_told_from_what_is_not(either: Shop) -> None:
    """Every kind of statement, on a table of its own; also what is put back at once, and what the log does not have."""
    known = HARMLESS + ([] if either.mysql else ["SET STATEMENT max_statement_time = 9 FOR ALTER TABLE {t} FORCE"])
    harmless = [(PLAIN, s) for s in known] + [(PARTED, s) for s in HARMLESS_PARTED]
    harmless += [(PLAIN, f"{SILENT}; {s}") for s in UNLOGGED_HARMLESS]
    harmful = [(PLAIN, s) for s in HARMFUL] + [(PARTED, s) for s in HARMFUL_PARTED]
    harmful += [(made, f"{SILENT}; {s}") for made, s in harmful]
    harmful += [(PLAIN, f"{SILENT}; {s}") for s in UNLOGGED_COUNTS_TOO]
    if not either.mysql:
        harmful.append((PLAIN, f"{SILENT}; RENAME TABLE {{t}} TO {{t}}_x; RENAME TABLE {{t}}_x TO {{t}}"))
        harmful.append((PLAIN, "CREATE OR REPLACE TABLE {t} (id INT PRIMARY KEY, v INT, w VARCHAR(10))"))
    cases = {f"t{n}": case for n, case in enumerate((*harmless, *harmful))}
    found = judged(either, cases)
    stopped = {script: what for _, script in harmless if (what := found[script])}
    overlooked = [script for _, script in harmful if not found[script]]
    assert (stopped, overlooked) == ({}, [])


def test_only_what_the_log_announced_since_the_last_look_explains_a_change(either: Shop) -> None:
    """A rebuild that it announced does not excuse a later one that it did not, whatever the stored fingerprint is."""
    either.run(PLAIN.format(t="t"))
    source = either.source()
    first = fingerprints(source, ["t"])["t"]
    either.run("OPTIMIZE TABLE t")
    second = fingerprints(source, ["t"])["t"]
    either.run(SILENT, "TRUNCATE TABLE t")
    third = fingerprints(source, ["t"])["t"]
    assert source.changed("t", USED, first, second) == ""
    for before in (first, second):
        assert "binlog does not report" in source.changed("t", USED, before, third)


def test_a_new_process_reads_what_was_announced_meanwhile(either: Shop) -> None:
    """From where its stream begins; what was not announced counts as harmful after a restart too."""
    for table in ("a", "b"):
        either.run(PLAIN.format(t=table))
    source = either.source()
    before = fingerprints(source, "ab")
    start = source.now()
    source.close()
    either.run("FLUSH BINARY LOGS", "ALTER TABLE a DROP COLUMN note", SILENT, "ALTER TABLE b DROP COLUMN note")
    source = either.source()
    next(source.transactions(start, [], lambda: False))
    after = fingerprints(source, "ab")
    assert source.changed("a", USED, before["a"], after["a"]) == ""
    assert "DROP COLUMN note" in source.changed("a", [*USED, "note"], before["a"], after["a"])
    assert "binlog does not report" in source.changed("b", USED, before["b"], after["b"])
    source.close()


def test_a_change_within_the_second_of_another_is_waited_for(shop: Shop) -> None:
    """The same definition made twice in one second would look the same: until it is over, nothing is said."""
    shop.run(PLAIN.format(t="t"))
    source = shop.source()
    began = time.time()
    found = source.fingerprints(["t"])
    assert found == {} or time.time() - began > 1


def test_a_table_that_is_not_there_or_of_another_name(either: Shop) -> None:
    """It has an empty fingerprint; names of any letters, and like those of other tables, are found."""
    names = ["order", "o d``d.é 日本", "a_b", "axb", "T", "t"]
    for name in names:
        either.run(f"CREATE TABLE `{name}` (id INT PRIMARY KEY, v INT)")
    source = either.source()
    names = [name.replace("``", "`") for name in names]
    before = fingerprints(source, names)
    assert source.fingerprints(["nowhere"]) == {"nowhere": ""}
    either.run("TRUNCATE a_b", "TRUNCATE T", "TRUNCATE `o d``d.é 日本`")
    after = fingerprints(source, names)
    assert [name for name in names if source.changed(name, ["v"], before[name], after[name])] == [names[1], "a_b", "T"]
    assert source.changed("t", ["v"], before["t"], "") and source.changed("t", ["v"], "", after["t"])


def test_without_its_right_nothing_counts_as_proven(mariadb: Server) -> None:
    """The error and preflight both name the statement that gives it."""
    shop = Shop(mariadb)
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
    user = f"p{shop.name}"
    mariadb.run(
        f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'x'",
        f"GRANT SELECT ON {shop.name}.* TO {user}@'127.0.0.1'",
        f"GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO {user}@'127.0.0.1'",
    )
    dsn = f"mysql://{user}:x@127.0.0.1:{mariadb.port}/{shop.name}"
    source = MariadbSource("billing", Config(type="mariadb", dsn=dsn))
    grant = f"GRANT PROCESS ON *.* TO '{user}'@'127.0.0.1';"
    with pytest.raises(UserError) as caught:
        source.fingerprints(["t"])
    assert caught.value.fix == grant and [finding.fix for finding in source.check(["t"])] == [grant]
    mariadb.run(grant)
    source = MariadbSource("billing", Config(type="mariadb", dsn=dsn))
    assert source.check(["t"]) == [] and fingerprints(source, ["t"])["t"]


@pytest.mark.parametrize("name", ["sql_select_limit = 1", "div_precision_increment = 0", "init_connect"])
def test_what_is_set_for_all_sessions_changes_no_answer(either: Shop, name: str) -> None:
    """Limits and modes that a DBA sets globally, or that `init_connect` sets in each session."""
    either.run("CREATE TABLE t (id INT PRIMARY KEY, c CHAR(3))", "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    variable, _, value = name.partition(" = ")
    commands = "SET SESSION sql_select_limit = 1, sql_mode = 'PAD_CHAR_TO_FULL_LENGTH', completion_type = 1"
    ((old,),) = either.server.rows(f"SELECT @@GLOBAL.{variable}")
    either.server.run(f"SET GLOBAL {variable} = {value or repr(commands)}")
    try:
        rows = rows_of(either.source(), "t", ["id", "c"])
    finally:
        either.server.run(f"SET GLOBAL {variable} = {old!r}")
    assert sorted(row for row, _ in rows.items()) == [(1, "a"), (2, "b"), (3, "c")]


def test_a_session_that_is_led_elsewhere_is_refused(shop: Shop) -> None:
    """`init_connect` may choose another database, which no variable shows."""
    shop.run("CREATE DATABASE IF NOT EXISTS elsewhere", "GRANT SELECT ON elsewhere.* TO strobe@'127.0.0.1'")
    shop.server.run("SET GLOBAL init_connect = 'USE elsewhere'")
    try:
        with pytest.raises(UserError, match="database is elsewhere"):
            shop.source().now()
    finally:
        shop.server.run("SET GLOBAL init_connect = ''")
