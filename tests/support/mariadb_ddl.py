"""Random statements that define, rebuild or replace tables, as the grammars of MariaDB and MySQL have them.

Each case is a table of its own with rows, and a script of statements on it, alone or in pairs, with changes of rows
before, between and after. All statements of a case are logged, or none is: what the log does not have is hidden behind
what it has about the same table between the same two looks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

USED = ("id", "v", "w")
COLUMNS = "id INT PRIMARY KEY, v INT, w VARCHAR(10), note VARCHAR(20), n DECIMAL(6,2) DEFAULT 1.50, KEY by_v (v)"
PARTED = " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (1000))"
TYPES = {
    "v": ("INT", "BIGINT", "TINYINT", "INT UNSIGNED", "DECIMAL(5,1)", "VARCHAR(20)"),
    "w": ("VARCHAR(10)", "VARCHAR(5)", "VARCHAR(300)", "CHAR(10)", "TEXT", "VARCHAR(10) CHARACTER SET latin1"),
    "note": ("VARCHAR(20)", "LONGTEXT", "VARCHAR(40) CHARACTER SET latin1", "BLOB"),
    "n": ("DECIMAL(6,2)", "DOUBLE", "DECIMAL(12,4)", "BIGINT"),
}
CLAUSES = (
    *("ADD COLUMN {new} INT", "ADD {new} VARCHAR(9) DEFAULT 'drop column v' FIRST", "ADD COLUMN ({new} INT, x TEXT)"),
    *("DROP COLUMN {c}", "DROP {c}", "MODIFY {c} {type}", "MODIFY COLUMN {c} {type} AFTER id", "CHANGE {c} {c} {type}"),
    *("CHANGE COLUMN {c} {new} {type}", "RENAME COLUMN {c} TO {new}", "ALTER {c} SET DEFAULT NULL"),
    *(
        "ALTER COLUMN {c} DROP DEFAULT",
        "ADD INDEX ({c}(3))",
        "ADD UNIQUE u (id, v)",
        "DROP INDEX by_v",
        "DROP KEY by_v",
    ),
    *("RENAME INDEX by_v TO w", "DROP PRIMARY KEY", "DROP PRIMARY KEY, ADD PRIMARY KEY (id)", "ADD CHECK (id > -5)"),
    *("ENGINE = InnoDB", "ENGINE = MyISAM", "ENGINE=innodb ROW_FORMAT=COMPACT", "COMMENT = 'ENGINE=MyISAM'", "FORCE"),
    *("AUTO_INCREMENT = 77", "DEFAULT CHARSET = latin1", "CONVERT TO CHARACTER SET latin1", "COLLATE utf8mb4_bin"),
    *("CONVERT TO CHARACTER SET utf8mb4", "ORDER BY id", "DISABLE KEYS", "STATS_PERSISTENT = 1", "RENAME TO {t}_b"),
    *("RENAME AS {t}_b", "DISCARD TABLESPACE", "PARTITION BY HASH (id) PARTITIONS 2"),
)
PARTITION_CLAUSES = (
    *("DROP PARTITION {p}", "TRUNCATE PARTITION {p}", "REBUILD PARTITION p0, p1", "OPTIMIZE PARTITION ALL"),
    *("ADD PARTITION (PARTITION p2 VALUES LESS THAN (2000))", "REMOVE PARTITIONING", "ANALYZE PARTITION {p}"),
    *("REORGANIZE PARTITION p0, p1 INTO (PARTITION p VALUES LESS THAN (1000))", "CHECK PARTITION {p}"),
    *("EXCHANGE PARTITION {p} WITH TABLE {t}_e", "PARTITION BY HASH (id) PARTITIONS 3"),
)
WHOLE = (
    *("TRUNCATE {t}", "TRUNCATE TABLE {t}", "OPTIMIZE TABLE {t}", "ANALYZE TABLE {t}", "CHECK TABLE {t}"),
    *("DROP TABLE {t}", "DROP TABLE IF EXISTS {t}_x, {t}", "CREATE INDEX i ON {t} (w)", "DROP INDEX by_v ON {t}"),
    *("RENAME TABLE {t} TO {t}_b", "RENAME TABLE {t} TO {t}_b, {t}_o TO {t}", "RENAME TABLE {t}_b TO {t}"),
    *("RENAME TABLE {t} TO {t}_b; RENAME TABLE {t}_b TO {t}", "FLUSH TABLES {t}", "FLUSH TABLES"),
    *("DROP TABLE {t}; CREATE TABLE {t} LIKE {t}_o", "CREATE TABLE IF NOT EXISTS {t} (a INT)"),
    *(
        "DROP TABLE {t}; CREATE TABLE {t} LIKE {t}_o; INSERT INTO {t} SELECT * FROM {t}_o",
        "CREATE TABLE {t}_n LIKE {t}",
    ),
    *("CREATE TRIGGER {t}_r BEFORE INSERT ON {t} FOR EACH ROW SET NEW.v = 5", "DROP TRIGGER IF EXISTS {t}_r"),
    *("CREATE OR REPLACE VIEW v{n} AS SELECT * FROM {t}", "GRANT SELECT ON {t} TO CURRENT_USER()", "SELECT 1"),
    *("ALTER DATABASE CHARACTER SET utf8mb4", "CREATE TEMPORARY TABLE {t}_t LIKE {t}", "DROP VIEW IF EXISTS v{n}"),
)
MARIADB = (
    *("CREATE OR REPLACE TABLE {t} LIKE {t}_o", "ALTER IGNORE TABLE {t} ADD UNIQUE ({c}(1))"),
    *("SET STATEMENT max_statement_time = 9 FOR ALTER TABLE {t} DROP COLUMN {c}", "ALTER TABLE {t} WAIT 5 FORCE"),
    *("SET STATEMENT max_statement_time = 9 FOR TRUNCATE {t}", "ALTER TABLE IF EXISTS {t} DROP COLUMN IF EXISTS {c}"),
    *("ALTER ONLINE TABLE {t} ADD COLUMN IF NOT EXISTS note INT", "DROP INDEX IF EXISTS by_v ON {t}"),
    *("ALTER TABLE {t} CONVERT PARTITION {p} TO TABLE {t}_c", "RENAME TABLE {t} WAIT 3 TO {t}_b"),
    *("ALTER TABLE {t} ADD SYSTEM VERSIONING", "ALTER TABLE {t} DROP CONSTRAINT IF EXISTS by_v"),
)
MYSQL = (
    *("ALTER TABLE {t} ALTER COLUMN {c} SET INVISIBLE", "ALTER TABLE {t} ALTER INDEX by_v INVISIBLE"),
    *(
        "ALTER TABLE {t} ADD COLUMN {new} INT, ALGORITHM = INSTANT",
        "ALTER TABLE {t} DROP COLUMN {c}, ALGORITHM=INSTANT",
    ),
    *("ALTER TABLE {t} /*!80000 DROP COLUMN {c} */", "ALTER TABLE {t} /*!99999 DROP COLUMN {c}, */ FORCE"),
)
TRADES_PLACES = ("EXCHANGE", "RENAME")


@dataclass(frozen=True)
class Case:
    """A table, and what happens to it."""

    table: str
    create: tuple[str, ...]
    script: tuple[str, ...]
    """Statements, of which any may fail."""

    @property
    def shown(self) -> str:
        return "; ".join(self.script)


def case(rng: random.Random, number: int, mysql: bool) -> Case:
    table = f"t{number}"
    parted = rng.random() < 0.4
    others = (f"{table}_o", f"{table}_e")
    create = [f"CREATE TABLE {table} ({COLUMNS}){PARTED if parted else ''}"]
    create += [f"CREATE TABLE {other} ({COLUMNS})" for other in others]
    create += [f"INSERT INTO {name} (id, v, w) VALUES {_rows(rng, (1, 8, 15, 40))}" for name in (table, others[0])]
    create.append(f"INSERT INTO {others[1]} (id, v, w) VALUES {_rows(rng, (2, 5))}")
    script = list(_changes(rng, table))
    silent, traded = rng.random() < 0.4, False
    for _ in range(rng.choice((1, 1, 2))):
        mode = rng.choice(("", "", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES"))
        statement = _statement(rng, number, parted, mysql)
        trading = silent and any(word in statement for word in TRADES_PLACES)
        if trading and traded:
            continue  # back again with the log switched off: no fingerprint shows that
        traded = traded or trading
        script += [f"SET SESSION sql_log_bin = {int(not silent)}", f"SET SESSION sql_mode = '{mode}'"]
        script += [_spelled(rng, part, table, mode) for part in statement.split("; ")]
        script += ["SET SESSION sql_log_bin = 1, sql_mode = ''", *_changes(rng, table)]
    return Case(table, tuple(create), tuple(script))


def _statement(rng: random.Random, number: int, parted: bool, mysql: bool) -> str:
    chosen = rng.random()
    if chosen < 0.25:
        text = rng.choice(WHOLE)
    elif chosen < 0.4:
        text = rng.choice(MYSQL if mysql else MARIADB)
    elif parted and chosen < 0.75:
        text = f"ALTER TABLE {{t}} {rng.choice(PARTITION_CLAUSES)}"
    else:
        text = f"ALTER TABLE {{t}} {', '.join(rng.choice(CLAUSES) for _ in range(rng.choice((1, 1, 1, 2, 3))))}"
    column = rng.choice(list(TYPES))
    values = {"c": column, "type": rng.choice(TYPES[column]), "new": rng.choice(("extra", "comment", "`order`", "v2"))}
    values["p"] = rng.choice(("p0", "p1"))
    text = text.replace("{c}(3)", "{c}" if column in ("v", "n") else "{c}(3)")
    text = text.replace("{c}(1)", "{c}" if column in ("v", "n") else "{c}(1)")
    return text.format(t=f"t{number}", n=number, **values)


def _spelled(rng: random.Random, statement: str, table: str, mode: str) -> str:
    """The same statement, written in another way."""
    words = statement.split(" ")
    for place, word in enumerate(words):
        if word == table:
            quoted = f'"{word}"' if mode == "ANSI_QUOTES" else f"`{word}`"
            words[place] = rng.choice((word, word, f"`{word}`", quoted, f"{{db}}.{word}", f"{{db}} . `{word}`"))
        elif word.isupper() and word.isalpha() and rng.random() < 0.3:
            words[place] = rng.choice((word.lower(), word.title()))
    gaps = [rng.choice((" ",) * 8 + ("  ", "\n", "\t", " /* drop */ ", " -- x\n", " # y\n")) for _ in words[1:]]
    text = words[0] + "".join(gap + word for gap, word in zip(gaps, words[1:], strict=True))
    return rng.choice((text,) * 8 + (f"/* truncate */ {text}", f"/*!50003 {text} */", f"/*!40000 {text}*/"))


def _changes(rng: random.Random, table: str) -> Sequence[str]:
    """Of rows, each of which may fail where its column is gone."""
    found = []
    for _ in range(rng.choice((0, 1, 1, 2))):
        key, value = rng.randrange(60), rng.randrange(100)
        found.append(
            rng.choice(
                (
                    f"INSERT INTO {table} (id, v, w) VALUES ({key}, {value}, 'w{value}')",
                    f"UPDATE {table} SET v = {value} WHERE id > {key}",
                    f"UPDATE {table} SET w = '{value}'",
                    f"DELETE FROM {table} WHERE id < {key // 2}",
                )
            )
        )
    return found


def _rows(rng: random.Random, keys: Sequence[int]) -> str:
    return ", ".join(f"({key}, {rng.randrange(-300, 300)}, '{rng.choice(('a', 'long text', 'é'))}')" for key in keys)
