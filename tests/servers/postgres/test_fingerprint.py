"""PostgreSQL: what each kind of statement does to a fingerprint, alone and when it is taken back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from postgres_database import Database, stalled
from postgres_server import PostgresServer

from strobe.errors import UserError

SCRIPT = """
CREATE TYPE mood AS ENUM ('calm', 'glad');
CREATE DOMAIN state AS mood;
CREATE SCHEMA aside;
CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, price numeric(10,2), how state, spare text, other text);
CREATE TABLE whole (id bigint NOT NULL UNIQUE, note text, spare text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE lines (id bigint, day date, price numeric(10,2) DEFAULT 0, spare text, PRIMARY KEY (id, day))
    PARTITION BY RANGE (day);
CREATE TABLE lines_1 PARTITION OF lines FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE lines_2 PARTITION OF lines FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
CREATE TABLE loose (LIKE lines INCLUDING ALL);
INSERT INTO orders SELECT n, n, n, 'calm', 'x', 'y' FROM generate_series(1, 5) n;
INSERT INTO whole SELECT n, 'x', 'y' FROM generate_series(1, 5) n;
INSERT INTO lines SELECT n, '2024-01-15', 1 FROM generate_series(1, 5) n;
INSERT INTO loose VALUES (9, '2024-03-15', 1);
"""
USED = {
    "orders": ("id", "customer", "price", "how"),
    "whole": ("id", "note"),
    "lines": ("id", "day", "price"),
}
PUBLICATION = "strobe_test_shop"
PUBLISH = f"ALTER PUBLICATION {PUBLICATION}"


@dataclass
class Looks:
    """Two looks at the tables, and what they come to."""

    db: Database

    def look(self) -> dict[str, str]:
        return dict(self.db.source.fingerprints(list(USED)))

    def judged(self, before: dict[str, str]) -> dict[str, str]:
        after = self.look()
        found = {r: self.db.source.changed(r, USED[r], before[r], after[r]) for r in USED}
        return {relation: what for relation, what in found.items() if what}


@pytest.fixture
def looks(postgres: PostgresServer) -> Iterator[Looks]:
    db = Database(postgres)
    db.make(SCRIPT, *USED)
    yield Looks(db)
    db.source.close()
    postgres.drop(db.name)


HARMLESS = [
    "INSERT INTO orders VALUES (9, 9, 9, 'glad')",
    "UPDATE orders SET price = 0",
    "ANALYZE",
    "VACUUM",
    "VACUUM FULL orders",
    "VACUUM FREEZE",
    "CLUSTER orders USING orders_pkey",
    "REINDEX TABLE orders",
    "REINDEX TABLE CONCURRENTLY orders",
    "CREATE INDEX ON orders (customer)",
    "CREATE INDEX CONCURRENTLY ON orders (customer)",
    "CREATE UNIQUE INDEX once ON orders (id); DROP INDEX once",
    "COMMENT ON COLUMN orders.price IS 'net'",
    "COMMENT ON TABLE lines_1 IS 'January'",
    "GRANT SELECT ON orders TO public",
    "GRANT SELECT ON lines_1 TO public",
    "ALTER TABLE orders OWNER TO strobe_reader",
    "ALTER TABLE orders ADD COLUMN more int",
    "ALTER TABLE orders ADD COLUMN more int DEFAULT 7 NOT NULL",
    "ALTER TABLE orders ADD COLUMN more double precision DEFAULT random()",
    "ALTER TABLE lines ADD COLUMN more int DEFAULT 7",
    "ALTER TABLE orders DROP COLUMN spare",
    "ALTER TABLE lines DROP COLUMN spare",
    "ALTER TABLE orders RENAME COLUMN spare TO remark",
    "ALTER TABLE orders ALTER spare TYPE bytea USING spare::bytea",
    "ALTER TABLE orders RENAME COLUMN spare TO s; ALTER TABLE orders RENAME COLUMN other TO spare",
    "ALTER TABLE orders ALTER price SET DEFAULT 1",
    "ALTER TABLE orders ALTER price SET NOT NULL",
    "ALTER TABLE orders ALTER price SET STATISTICS 7",
    "ALTER TABLE orders ALTER price SET (n_distinct = 5)",
    "ALTER TABLE whole ALTER note SET STORAGE EXTERNAL",
    "ALTER TABLE whole ALTER note SET COMPRESSION pglz",
    "ALTER TABLE orders ADD CHECK (price >= 0)",
    "ALTER TABLE orders ADD CONSTRAINT later CHECK (price >= 0) NOT VALID;ALTER TABLE orders VALIDATE CONSTRAINT later",
    "ALTER TABLE orders ADD UNIQUE (customer)",
    "ALTER TABLE orders SET (autovacuum_enabled = off, fillfactor = 70)",
    "ALTER TABLE orders CLUSTER ON orders_pkey",
    "CREATE TABLE refers (id bigint REFERENCES orders)",
    "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
    "CREATE TRIGGER nothing BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION nothing()",
    "CREATE RULE nothing AS ON INSERT TO orders DO ALSO NOTHING",
    "CREATE POLICY nothing ON orders USING (false)",
    "CREATE VIEW shown AS SELECT * FROM orders",
    "CREATE STATISTICS pair ON customer, price FROM orders",
    "ALTER TYPE mood ADD VALUE 'sad' BEFORE 'glad'",
    "ALTER TYPE mood OWNER TO strobe_reader",
    "ALTER DOMAIN state ADD CHECK (VALUE <> 'glad') NOT VALID",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "CREATE TABLE lines_3 PARTITION OF lines FOR VALUES FROM ('2024-03-01') TO ('2024-04-01')",
    "CREATE TABLE lines_3 PARTITION OF lines FOR VALUES FROM ('2024-03-01') TO ('2024-04-01');"
    "INSERT INTO lines VALUES (3, '2024-03-01', 3)",
    "CREATE TABLE lines_3 PARTITION OF lines (price DEFAULT 3 CHECK (price > 0)) DEFAULT",
    "CREATE TABLE lines_3 PARTITION OF lines FOR VALUES FROM ('2024-03-01') TO ('2025-01-01') PARTITION BY RANGE (day);"
    "CREATE TABLE lines_31 PARTITION OF lines_3 FOR VALUES FROM ('2024-03-01') TO ('2024-04-01')",
    "ALTER TABLE lines_1 RENAME TO lines_january",
    "ALTER TABLE lines_1 SET SCHEMA aside",
    "CREATE INDEX ON lines (price)",
    f"CREATE TABLE more (id int PRIMARY KEY); {PUBLISH} ADD TABLE more",
    f"{PUBLISH} ADD TABLES IN SCHEMA aside",
    "CREATE PUBLICATION another FOR ALL TABLES; DROP PUBLICATION another",
    f"{PUBLISH} SET TABLE orders, whole, lines",
    "BEGIN; DROP TABLE lines_1; DROP TABLE orders; ROLLBACK",
    f"BEGIN; {PUBLISH} SET TABLE whole; ALTER TYPE mood RENAME VALUE 'calm' TO 'bored'; ROLLBACK",
]
PRICE = "ALTER TABLE orders ALTER price TYPE numeric(10,2)"
HARMFUL = [
    ("orders", "DROP TABLE orders", "dropped"),
    ("orders", "ALTER TABLE orders RENAME TO old_orders", "dropped, renamed"),
    ("orders", "ALTER TABLE orders SET SCHEMA aside", "another schema"),
    ("orders", "ALTER TABLE orders RENAME TO o; CREATE TABLE orders (LIKE o INCLUDING ALL)",
     "replaced by another table"),
    ("orders", "ALTER TABLE orders RENAME TO o; CREATE VIEW orders AS SELECT * FROM o", "replaced"),
    ("orders", f"{PRICE} USING price + 1", "column price was rewritten"),
    ("orders", f"{PRICE} USING price + 1; VACUUM FULL orders", "column price was rewritten"),
    ("orders", "ALTER TABLE orders ALTER price TYPE numeric(12,2)", "price has another type"),
    ("orders", "ALTER TABLE orders ALTER price TYPE float; ALTER TABLE orders ALTER price TYPE numeric(10,2)",
     "price was"),
    ("orders", "ALTER TABLE orders DROP COLUMN price", "price was dropped or renamed"),
    ("orders", "ALTER TABLE orders DROP COLUMN price; ALTER TABLE orders ADD COLUMN price numeric(10,2)",
     "another one"),
    ("orders", "ALTER TABLE orders RENAME COLUMN price TO amount", "price was dropped or renamed"),
    ("orders", "ALTER TABLE orders RENAME COLUMN customer TO c; ALTER TABLE orders RENAME COLUMN id TO customer;"
     "ALTER TABLE orders RENAME COLUMN c TO id", "is another one now"),
    ("whole", "ALTER TABLE whole ALTER note TYPE text COLLATE \"C\"", "another type or collation"),
    ("orders", "ALTER TYPE mood RENAME VALUE 'calm' TO 'bored'", "'calm' of type public.mood was renamed"),
    ("orders", "ALTER TYPE mood RENAME VALUE 'calm' TO 'bored'; ALTER TYPE mood RENAME VALUE 'bored' TO 'calm'",
     "'calm'"),
    ("orders", "ALTER TYPE mood RENAME TO temper", "type public.mood was altered"),
    ("orders", "ALTER TABLE orders DROP CONSTRAINT orders_pkey", "primary key"),
    ("orders", "ALTER TABLE orders DROP CONSTRAINT orders_pkey; ALTER TABLE orders ADD PRIMARY KEY (id)",
     "primary key"),
    ("orders", "ALTER TABLE orders REPLICA IDENTITY NOTHING", "REPLICA IDENTITY was changed to NOTHING"),
    ("whole", "ALTER TABLE whole REPLICA IDENTITY DEFAULT", "REPLICA IDENTITY was changed to DEFAULT"),
    ("whole", "ALTER TABLE whole REPLICA IDENTITY USING INDEX whole_id_key",
     "REPLICA IDENTITY was changed to USING INDEX"),
    ("orders", f"{PUBLISH} DROP TABLE orders", "taken out of the publication"),
    ("orders", f"{PUBLISH} DROP TABLE orders; {PUBLISH} ADD TABLE orders",
     "put back"),
    ("orders", f"{PUBLISH} SET TABLE orders WHERE (id > 0), whole, lines", "row filter"),
    ("orders", f"{PUBLISH} SET TABLE orders (id, customer, price, how), whole, lines", "column list"),
    ("orders", f"{PUBLISH} SET TABLE orders WHERE (id > 0), whole, lines;"
     f"{PUBLISH} SET TABLE orders, whole, lines", "put back"),
    ("orders", f"{PUBLISH} SET (publish = 'insert')", "all kinds of changes"),
    ("orders", f"{PUBLISH} SET (publish = 'insert');"
     f"{PUBLISH} SET (publish = 'insert, update, delete, truncate')", "for a while"),
    ("lines", f"{PUBLISH} SET (publish_via_partition_root = false)", "own names"),
    ("orders", f"DROP PUBLICATION {PUBLICATION}", "publication was dropped"),
    ("orders", f"DROP PUBLICATION {PUBLICATION}; CREATE PUBLICATION {PUBLICATION} FOR TABLE orders, whole, lines"
     " WITH (publish_via_partition_root = true)", "dropped and created again"),
    ("orders", f"{PUBLISH} DROP TABLE orders; ALTER TABLE orders SET UNLOGGED", "UNLOGGED|taken out"),
    ("orders", "CREATE TABLE child () INHERITS (orders)", "table child was made to inherit"),
    ("orders", "CREATE TABLE child (LIKE orders); ALTER TABLE child INHERIT orders", "table child was made to inherit"),
    ("orders", "CREATE TABLE above (LIKE orders); ALTER TABLE orders INHERIT above", "a child of another"),
    ("orders",
     "CREATE TABLE above (LIKE orders) PARTITION BY LIST (id); ALTER TABLE above ATTACH PARTITION orders DEFAULT",
     "a partition or a child of another"),
    ("orders", "ALTER TABLE orders ENABLE ROW LEVEL SECURITY", "row security was enabled"),
    ("lines", "DROP TABLE lines_1", "partition lines_1 was dropped or detached"),
    ("lines", "TRUNCATE lines_1", "partition lines_1 was truncated or rewritten"),
    ("lines", "TRUNCATE lines", "was truncated or rewritten"),
    ("lines", "VACUUM FULL lines_1", "partition lines_1 was truncated or rewritten"),
    ("lines", "ALTER TABLE lines_1 SET UNLOGGED", "lines_1 was truncated|UNLOGGED"),
    ("lines", "ALTER TABLE lines_1 SET UNLOGGED; ALTER TABLE lines_1 SET LOGGED", "truncated or rewritten"),
    ("lines", "ALTER TABLE lines_1 REPLICA IDENTITY NOTHING", "lines_1 has REPLICA IDENTITY NOTHING"),
    ("lines", "ALTER TABLE lines DETACH PARTITION lines_1", "partition lines_1 was dropped or detached"),
    ("lines", "ALTER TABLE lines DETACH PARTITION lines_1 CONCURRENTLY", "partition lines_1 was dropped or detached"),
    ("lines", "ALTER TABLE lines DETACH PARTITION lines_1; ALTER TABLE lines ATTACH PARTITION lines_1"
     " FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')", "detached and attached again"),
    ("lines", "ALTER TABLE lines ATTACH PARTITION loose DEFAULT", "partition loose was attached"),
    ("lines", "BEGIN; CREATE TABLE lines_3 (LIKE lines INCLUDING ALL); INSERT INTO lines_3 VALUES (3, '2024-03-01', 3);"
     "ALTER TABLE lines ATTACH PARTITION lines_3 FOR VALUES FROM ('2024-03-01') TO ('2024-04-01'); COMMIT",
     "lines_3 was attached"),
    ("lines", "CREATE TABLE lines_3 PARTITION OF lines DEFAULT; ALTER TABLE lines DETACH PARTITION lines_3;"
     "INSERT INTO lines_3 VALUES (3, '2024-03-01', 3); ALTER TABLE lines ATTACH PARTITION lines_3 DEFAULT",
     "lines_3 was attached"),
    ("lines", "BEGIN; CREATE TABLE lines_3 PARTITION OF lines DEFAULT; ALTER TABLE lines DETACH PARTITION lines_3;"
     "INSERT INTO lines_3 VALUES (3, '2024-03-01', 3); ALTER TABLE lines ATTACH PARTITION lines_3 DEFAULT; COMMIT",
     "lines_3 was attached"),
    ("lines", "BEGIN; CREATE TABLE lines_3 (LIKE lines INCLUDING ALL); INSERT INTO lines_3 VALUES (3, '2024-03-01', 3);"
     "ALTER TABLE lines ATTACH PARTITION lines_3 DEFAULT; ALTER TABLE lines_3 ALTER price SET DEFAULT 4; COMMIT;"
     "BEGIN; ALTER TABLE lines_3 ALTER id SET STATISTICS 3; ROLLBACK; VACUUM FREEZE pg_attribute",
     "lines_3 was attached"),
    ("lines", "CREATE UNLOGGED TABLE lines_3 PARTITION OF lines DEFAULT", "partition lines_3 is UNLOGGED"),
    ("lines", "ALTER TABLE lines ALTER price TYPE numeric(10,2) USING price + 1", "truncated or rewritten"),
    ("lines",
     "DROP TABLE lines_1; CREATE TABLE lines_1 PARTITION OF lines FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')",
     "partition lines_1 was dropped or detached"),
]  # fmt: skip


def run(db: Database, statements: str) -> None:
    """One after another, each on its own unless the text says BEGIN."""
    with psycopg.connect(db.server.admin_dsn(db.name), autocommit=True) as connection:
        for statement in filter(None, (part.strip() for part in _split(statements))):
            connection.execute(statement)


def _split(text: str) -> list[str]:
    """At the semicolons that are outside quotes."""
    parts = text.split("'")
    marked = "'".join(part if place % 2 else part.replace(";", "\0") for place, part in enumerate(parts))
    return marked.split("\0")


@pytest.mark.parametrize("statements", HARMLESS)
def test_what_leaves_a_table_as_it_was_is_harmless(looks: Looks, statements: str) -> None:
    """To every table, whether the statement was about it or not."""
    before = looks.look()
    run(looks.db, statements)
    assert looks.judged(before) == {}


@pytest.mark.parametrize(("relation", "statements", "what"), HARMFUL)
def test_what_the_log_does_not_report_is_named(looks: Looks, relation: str, statements: str, what: str) -> None:
    """In words that say what happened, and to which partition, column or value."""
    before = looks.look()
    run(looks.db, statements)
    assert re.search(what, looks.judged(before).get(relation, ""))


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE lines_1",
        "TRUNCATE lines_1",
        "ALTER TABLE lines ATTACH PARTITION loose DEFAULT",
        "CREATE TABLE lines_3 PARTITION OF lines DEFAULT",
        f"{PUBLISH} DROP TABLE lines",
        "ALTER TABLE lines ALTER price TYPE numeric(10,2) USING 1",
    ],
)
def test_while_a_change_is_under_way_nothing_is_told(looks: Looks, statement: str) -> None:
    """Neither before it is committed, nor while its commit is in the log and not yet visible; other tables are told."""
    with psycopg.connect(looks.db.server.admin_dsn(looks.db.name)) as other:
        other.execute(statement)
        assert set(looks.look()) == {"orders", "whole"}
        other.rollback()
    assert set(looks.look()) == set(USED)
    with stalled(looks.db, statement):
        assert set(looks.look()) == {"orders", "whole"}
    assert set(looks.look()) == set(USED)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO lines VALUES (7, '2024-01-20', 1)",
        "LOCK TABLE lines, lines_1 IN ACCESS EXCLUSIVE MODE; UPDATE lines SET price = 5",
        "ANALYZE",
        "CREATE INDEX ON orders (price)",
        "SELECT FROM lines FOR UPDATE",
    ],
)
def test_whoever_writes_or_locks_rows_holds_nothing_up(looks: Looks, statement: str) -> None:
    """However long a transaction is open that changes no definition."""
    with psycopg.connect(looks.db.server.admin_dsn(looks.db.name)) as other:
        other.execute(statement)
        assert set(looks.look()) == set(USED)
        other.rollback()


def test_a_change_that_waits_for_its_lock_holds_nothing_up(looks: Looks) -> None:
    """It has not changed anything yet."""
    dsn = looks.db.server.admin_dsn(looks.db.name)
    with psycopg.connect(dsn) as reading, psycopg.connect(dsn) as changing:
        reading.execute("SELECT FROM lines")
        changing.execute("SET lock_timeout = '100 ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            changing.execute("DROP TABLE lines_1")
        assert set(looks.look()) == set(USED)


def test_a_relation_that_is_not_there_is_empty(looks: Looks) -> None:
    """Also one of a schema that is not there."""
    found = looks.db.source.fingerprints(["nothing", "aside.nothing", "nowhere.at.all", "public.orders"])
    assert [bool(found[name]) for name in sorted(found)] == [False, False, False, True]


def test_a_question_does_not_grow_with_the_table(looks: Looks) -> None:
    """The fingerprint of a table with partitions says only what the catalog has."""
    before = looks.look()
    run(looks.db, "INSERT INTO lines SELECT n, '2024-01-20' FROM generate_series(100, 20000) n")
    assert looks.look() == before


def test_settings_of_roles_databases_and_servers_change_no_answer(looks: Looks) -> None:
    """Every session sets them itself, those of the stream too."""
    settings = {"DateStyle": "SQL, DMY", "TimeZone": "Asia/Tokyo", "bytea_output": "escape", "extra_float_digits": "-3"}
    settings |= {
        "search_path": "aside",
        "gin_fuzzy_search_limit": "1",
        "IntervalStyle": "iso_8601",
        "row_security": "on",
    }
    for name, value in settings.items():
        looks.db.run(f"ALTER ROLE strobe_reader IN DATABASE {looks.db.name} SET {name} = '{value}'")
    other = looks.db.open()
    assert other.fingerprints(list(USED)) == looks.look()
    for replication in (False, True):
        with other.settings.connect(replication=replication) as connection:
            shown = {name: (connection.run(f"SHOW {name}").get_value(0, 0) or b"").decode() for name in settings}
            assert not set(settings.items()) & set(shown.items())
    other.close()


def test_a_server_that_hides_damage_is_refused(looks: Looks) -> None:
    """Its answers may lack rows; which of its settings is to be changed is said."""
    looks.db.run(f"ALTER DATABASE {looks.db.name} SET zero_damaged_pages = on")
    other = looks.db.open()
    with pytest.raises(UserError, match="zero_damaged_pages is 'on'"):
        other.fingerprints(list(USED))
    other.close()
