"""Random statements for PostgreSQL, made from its grammar: changes of definitions and of rows, alone, in pairs, taken
back, in one transaction or rolled back. A statement may fail; then it has changed nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass

PUBLICATION = "strobe_test_shop"
TABLES = ("orders", "whole", "lines")
SCRIPT = """
CREATE SCHEMA aside;
CREATE TYPE mood AS ENUM ('calm', 'glad', 'sad');
CREATE DOMAIN state AS mood;
CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, price numeric(10,2), how state, spare bigint,
    other bigint);
CREATE TABLE whole (id bigint NOT NULL UNIQUE, note text, spare text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE lines (id bigint, day int, price numeric(10,2) DEFAULT 0, spare text, PRIMARY KEY (id, day))
    PARTITION BY RANGE (day);
CREATE TABLE lines_1 PARTITION OF lines FOR VALUES FROM (0) TO (10);
CREATE TABLE lines_2 PARTITION OF lines FOR VALUES FROM (10) TO (20);
CREATE TABLE loose (LIKE lines INCLUDING ALL);
INSERT INTO orders SELECT n, n * 10, n, 'calm', n + 1, n + 2 FROM generate_series(1, 4) n;
INSERT INTO whole SELECT n, 'n' || n, 's' FROM generate_series(1, 4) n;
INSERT INTO lines SELECT n, n * 4, n FROM generate_series(1, 4) n;
INSERT INTO loose VALUES (9, 35, 1);
"""
USED = {"orders": ("id", "customer", "price", "how"), "whole": ("id", "note"), "lines": ("id", "day", "price")}
BEGINNING = f"""
CREATE PUBLICATION {PUBLICATION} FOR TABLE orders, whole, lines WITH (publish_via_partition_root = true)
"""


@dataclass(frozen=True)
class Case:
    """Statements in order. `transactions` are run whole; in one that does not commit everything is rolled back."""

    transactions: tuple[tuple[tuple[str, ...], bool], ...]

    def __str__(self) -> str:
        lines = [f"{'; '.join(each)}{'' if commits else '  -- rolled back'}" for each, commits in self.transactions]
        return "\n".join(lines)


class Grammar:
    """Makes cases of one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def case(self) -> Case:
        """Row changes, with one or two changes of definitions among them."""
        pick = self._random
        forward, back = self._definition()
        changes = [forward]
        if back and pick.random() < 0.4:
            changes.append(back)
        elif pick.random() < 0.5:
            changes += [statement for statement in self._definition() if statement][: pick.randint(1, 2)]
        steps = [self._row()]
        for change in changes:
            steps += [self._spelt(change), *[self._row() for _ in range(pick.randint(0, 3))]]
        if pick.random() < 0.35:
            return Case(((tuple(steps), pick.random() < 0.8),))
        return Case(tuple(((step,), True) for step in steps))

    def _definition(self) -> tuple[str, str]:
        """A change of a definition, and what takes it back if that can be."""
        often = (self._column, self._partition, self._publication, self._harmless)
        return self._random.choice((*often, *often, self._table, self._identity, self._type))()

    def _column(self) -> tuple[str, str]:
        pick = self._random
        table = pick.choice(TABLES)
        used = pick.choice(USED[table])
        column = pick.choice((used, used, "spare", "other"))
        alter = f"ALTER TABLE {pick.choice(('', 'IF EXISTS '))}{table}"
        word = pick.choice(("COLUMN ", ""))
        type_ = pick.choice(("numeric(10,2)", "numeric(12,2)", "text", "bigint", "varchar(20)"))
        using = pick.choice(("", f" USING {column}", f" USING ({column} * 2)", f" USING upper({column}::text)"))
        return pick.choice(
            (
                (f"{alter} RENAME {word}{column} TO moved", f"ALTER TABLE {table} RENAME moved TO {column}"),
                (self._swap(table, column), self._swap(table, column)),
                (f"{alter} DROP {word}{column} {pick.choice(('', 'CASCADE', 'RESTRICT'))}",
                 f"{alter} ADD {word}{column} {type_}"),
                (f"{alter} DROP {word}{column}, ADD {word}{column} {type_}", ""),
                (f"{alter} ADD {word}more{pick.randint(1, 9)} {type_} {pick.choice(('', 'UNIQUE'))}", ""),
                (f"{alter} ADD {word}more bigint DEFAULT {pick.choice(('7', 'random() * 9'))}", f"{alter} DROP more"),
                (f"{alter} ALTER {word}{column} {pick.choice(('', 'SET DATA '))}TYPE {type_}{using}", ""),
                (f"{alter} ALTER {word}{column} SET DEFAULT NULL", f"{alter} ALTER {word}{column} DROP DEFAULT"),
                (f"{alter} ALTER {word}{column} SET NOT NULL", f"{alter} ALTER {word}{column} DROP NOT NULL"),
                (f"{alter} ALTER {word}{column} SET STATISTICS {pick.randint(1, 99)}", ""),
                (f"{alter} ALTER {word}{column} SET STORAGE {pick.choice(('EXTERNAL', 'MAIN', 'PLAIN'))}", ""),
            )
        )  # fmt: skip

    @staticmethod
    def _swap(table: str, column: str) -> str:
        partner = {"id": "customer", "customer": "spare", "spare": "other", "note": "spare", "price": "spare"}.get(
            column
        )
        other = partner or "id"
        return (
            f"ALTER TABLE {table} RENAME {column} TO held; ALTER TABLE {table} RENAME {other} TO {column};"
            f"ALTER TABLE {table} RENAME held TO {other}"
        )

    def _table(self) -> tuple[str, str]:
        pick = self._random
        table = pick.choice(TABLES)
        return pick.choice(
            (
                (f"ALTER TABLE {table} RENAME TO moved", f"ALTER TABLE moved RENAME TO {table}"),
                (f"ALTER TABLE {table} SET SCHEMA aside", f"ALTER TABLE aside.{table} SET SCHEMA public"),
                (f"DROP TABLE {table} CASCADE", f"CREATE TABLE {table} (id bigint, note text)"),
                (f"TRUNCATE {pick.choice(('', 'TABLE '))}{table} {pick.choice(('', 'CASCADE'))}", ""),
                (f"ALTER TABLE {table} RENAME TO old; CREATE TABLE {table} AS SELECT * FROM old", ""),
                (f"CREATE TABLE child (LIKE {table}); ALTER TABLE child INHERIT {table}", "DROP TABLE child"),
                (f"CREATE TABLE child () INHERITS ({table}); INSERT INTO child SELECT * FROM {table} LIMIT 1",
                 f"ALTER TABLE child NO INHERIT {table}"),
                (f"ALTER TABLE {table} SET UNLOGGED", f"ALTER TABLE {table} SET LOGGED"),
                (f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY", f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY"),
                (f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey", f"ALTER TABLE {table} ADD PRIMARY KEY (id)"),
            )
        )  # fmt: skip

    def _partition(self) -> tuple[str, str]:
        pick = self._random
        old = pick.choice(("lines_1", "lines_2"))
        bound = "FOR VALUES FROM (0) TO (10)" if old == "lines_1" else "FOR VALUES FROM (10) TO (20)"
        new = pick.choice(("DEFAULT", "FOR VALUES FROM (30) TO (40)", "FOR VALUES FROM (20) TO (MAXVALUE)"))
        create = f"CREATE {pick.choice(('', '', 'UNLOGGED '))}TABLE lines_3 PARTITION OF lines {new}"
        fill = "INSERT INTO lines VALUES (33, 35, 3)"
        return pick.choice(
            (
                (f"DROP TABLE {old}", f"CREATE TABLE {old} PARTITION OF lines {bound}"),
                (f"TRUNCATE {old}", ""),
                (f"VACUUM FULL {old}", ""),
                (f"ALTER TABLE lines DETACH PARTITION {old}", f"ALTER TABLE lines ATTACH PARTITION {old} {bound}"),
                (f"ALTER TABLE lines DETACH PARTITION {old} CONCURRENTLY", f"DROP TABLE {old}"),
                (f"ALTER TABLE lines DETACH PARTITION {old}; UPDATE {old} SET price = 77;"
                 f"ALTER TABLE lines ATTACH PARTITION {old} {bound}", ""),
                (f"ALTER TABLE lines ATTACH PARTITION loose {new}", "ALTER TABLE lines DETACH PARTITION loose"),
                (create, "DROP TABLE lines_3"),
                (f"{create}; {fill}", "DROP TABLE lines_3"),
                (create, f"{fill}; ALTER TABLE lines DETACH PARTITION lines_3"),
                (f"CREATE TABLE lines_3 (LIKE lines INCLUDING ALL); INSERT INTO lines_3 VALUES (33, 35, 3);"
                 f"ALTER TABLE lines ATTACH PARTITION lines_3 {new}", ""),
                (f"{create}; ALTER TABLE lines DETACH PARTITION lines_3; INSERT INTO lines_3 VALUES (33, 35, 3);"
                 f"ALTER TABLE lines ATTACH PARTITION lines_3 {new}", ""),
                (f"ALTER TABLE {old} SET UNLOGGED", f"ALTER TABLE {old} SET LOGGED"),
                (f"ALTER TABLE {old} RENAME TO renamed", f"ALTER TABLE renamed RENAME TO {old}"),
                (f"ALTER TABLE {old} REPLICA IDENTITY {pick.choice(('NOTHING', 'FULL'))}",
                 f"ALTER TABLE {old} REPLICA IDENTITY DEFAULT"),
            )
        )  # fmt: skip

    def _publication(self) -> tuple[str, str]:
        pick = self._random
        alter, table = f"ALTER PUBLICATION {PUBLICATION}", pick.choice(TABLES)
        rest = ", ".join(other for other in TABLES if other != table)
        narrowed = pick.choice((f"{table} WHERE (id > 2)", f"{table} ({', '.join(USED[table])})", f"{table} (id)"))
        kinds = pick.choice(("insert", "update, delete", "insert, update", "truncate"))
        every = "insert, update, delete, truncate"
        return pick.choice(
            (
                (f"{alter} DROP TABLE {table}", f"{alter} ADD TABLE {table}"),
                (f"{alter} SET TABLE {narrowed}, {rest}", f"{alter} SET TABLE {', '.join(TABLES)}"),
                (f"{alter} SET TABLE {', '.join(pick.sample(TABLES, 3))}", ""),
                (f"{alter} SET (publish = '{kinds}')", f"{alter} SET (publish = '{every}')"),
                (f"{alter} SET (publish_via_partition_root = false)", f"{alter} SET (publish_via_partition_root)"),
                (f"DROP PUBLICATION {PUBLICATION}", BEGINNING.strip()),
                (f"{alter} ADD TABLE loose", f"{alter} DROP TABLE loose"),
                (f"{alter} ADD TABLES IN SCHEMA public", f"{alter} DROP TABLES IN SCHEMA public"),
                (f"{alter} RENAME TO held", f"ALTER PUBLICATION held RENAME TO {PUBLICATION}"),
            )
        )

    def _identity(self) -> tuple[str, str]:
        table = self._random.choice(TABLES)
        usual = "FULL" if table == "whole" else "DEFAULT"
        index = {"whole": "whole_id_key"}.get(table, f"{table}_pkey")
        how = self._random.choice(("FULL", "DEFAULT", "NOTHING", f"USING INDEX {index}"))
        return f"ALTER TABLE {table} REPLICA IDENTITY {how}", f"ALTER TABLE {table} REPLICA IDENTITY {usual}"

    def _type(self) -> tuple[str, str]:
        pick = self._random
        value = pick.choice(("calm", "glad"))
        return pick.choice(
            (
                (f"ALTER TYPE mood RENAME VALUE '{value}' TO 'bored'",
                 f"ALTER TYPE mood RENAME VALUE 'bored' TO '{value}'"),
                (f"ALTER TYPE mood ADD VALUE 'odd' {pick.choice(('BEFORE', 'AFTER'))} 'glad'", ""),
                ("ALTER TYPE mood RENAME TO temper", "ALTER TYPE temper RENAME TO mood"),
                ("ALTER DOMAIN state RENAME TO condition", "ALTER DOMAIN condition RENAME TO state"),
                ("ALTER DOMAIN state SET NOT NULL", "ALTER DOMAIN state DROP NOT NULL"),
            )
        )  # fmt: skip

    def _harmless(self) -> tuple[str, str]:
        pick = self._random
        table = pick.choice(TABLES)
        return pick.choice(
            (
                (f"CREATE INDEX made ON {table} ({pick.choice(USED[table])})", "DROP INDEX made"),
                (f"ANALYZE {table}", ""),
                (f"VACUUM ({pick.choice(('FULL', 'FREEZE', 'ANALYZE'))}) orders, whole", ""),
                (f"CLUSTER {pick.choice(('orders USING orders_pkey', 'whole USING whole_id_key'))}", ""),
                (f"REINDEX {pick.choice(('', '(VERBOSE) '))}TABLE {table}", ""),
                (f"COMMENT ON TABLE {table} IS 'x'", f"COMMENT ON TABLE {table} IS NULL"),
                (f"GRANT {pick.choice(('ALL', 'SELECT', 'SELECT (id)'))} ON {table} TO PUBLIC", ""),
                (f"ALTER TABLE {table} ADD CONSTRAINT sane CHECK (id < 1000)",
                 f"ALTER TABLE {table} DROP CONSTRAINT sane"),
                ("ALTER TABLE orders SET (fillfactor = 60)", "ALTER TABLE orders RESET (fillfactor)"),
                (f"CREATE POLICY nobody ON {table} USING (false)", f"DROP POLICY nobody ON {table}"),
                (f"CREATE RULE aside AS ON INSERT TO {table} DO ALSO NOTHING", f"DROP RULE aside ON {table}"),
            )
        )  # fmt: skip

    def _row(self) -> str:
        pick = self._random
        number = pick.randint(1, 12)
        return pick.choice(
            (
                f"INSERT INTO orders (id, price, how) VALUES ({number + 10}, {number}, 'glad') ON CONFLICT DO NOTHING",
                f"UPDATE orders SET price = coalesce(price, 0) + 1 WHERE id <= {number}",
                f"DELETE FROM orders WHERE id = {number}",
                f"INSERT INTO whole (id, note) VALUES ({number + 10}, 'new') ON CONFLICT DO NOTHING",
                f"UPDATE whole SET note = note || '!' WHERE id <= {number}",
                f"DELETE FROM whole WHERE id = {number}",
                f"INSERT INTO lines (id, day) VALUES ({number}, {pick.randint(0, 39)}) ON CONFLICT DO NOTHING",
                f"UPDATE lines SET price = coalesce(price, 0) + 1 WHERE day <= {pick.randint(0, 39)}",
                f"UPDATE lines SET day = {pick.randint(0, 39)} WHERE id = {number}",
                f"DELETE FROM lines WHERE id = {number}",
            )
        )

    def _spelt(self, statement: str) -> str:
        """The same in other letters and with other spaces, outside quotes."""
        style = self._random.choice((str, str.lower, str.upper, lambda text: text.replace(" ", "\n  /* x */ ", 1)))
        parts = statement.split("'")
        return "'".join(part if place % 2 else style(part) for place, part in enumerate(parts))
