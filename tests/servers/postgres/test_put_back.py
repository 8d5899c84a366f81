"""PostgreSQL: what is changed and put back between two looks is noticed by the log's descriptions and by answers."""

from __future__ import annotations

import time

import pytest
from patience import PATIENCE
from postgres_database import COLUMNS, ORDERS, Database, read

from strobe.algebra.bag import Bag
from strobe.errors import RelationLost, SourceUnavailable, UserError
from strobe.messages import Position, Transaction
from strobe.sources.postgres.source import PostgresSource

LINES = """
CREATE TABLE lines (id bigint, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE lines_1 PARTITION OF lines FOR VALUES FROM (0) TO (10);
"""
WHOLE = "ALTER TABLE {} REPLICA IDENTITY FULL"


def raised(source: PostgresSource, after: Position) -> tuple[list[Transaction], RelationLost]:
    """What the stream reports before it finds that a relation is lost."""
    until, found = time.monotonic() + PATIENCE, list[Transaction]()
    with pytest.raises(RelationLost) as lost:
        found.extend(source.transactions(after, [], lambda: time.monotonic() > until))
    return [t for t in found if t.changes or t.gone], lost.value


@pytest.mark.parametrize(
    ("there", "back", "what"),
    [
        ("RENAME TO away", "ALTER TABLE away RENAME TO orders", "renamed"),
        ("SET SCHEMA aside", "ALTER TABLE aside.orders SET SCHEMA public", "renamed"),
        ("RENAME COLUMN note TO n", "ALTER TABLE orders RENAME COLUMN n TO note", "note was dropped or renamed"),
        ("REPLICA IDENTITY DEFAULT", "ALTER TABLE orders REPLICA IDENTITY FULL", "no longer FULL"),
        ("INHERIT above", "ALTER TABLE orders NO INHERIT above", ""),
    ],
)
def test_the_log_describes_a_table_as_it_was(db: Database, there: str, back: str, what: str) -> None:
    """The stream stops at the first row that was written meanwhile, or goes on where nothing was lost."""
    above = "CREATE TABLE above (LIKE orders)"
    source = db.make(f"{ORDERS}; {WHOLE.format('orders')}; CREATE SCHEMA aside; {above}", "orders")
    source.schemas()
    start = source.now()
    db.run("INSERT INTO orders VALUES (1, 1, 'a')")
    db.run(f"ALTER TABLE orders {there}")
    name = {"RENAME TO away": "away", "SET SCHEMA aside": "aside.orders"}.get(there, "orders")
    db.run(f"INSERT INTO {name} VALUES (2, 1)")
    db.run(back, "INSERT INTO orders VALUES (3, 1)")
    if not what:
        assert len(read(source, start)) == 3
        return
    found, lost = raised(source, start)
    assert [t.changes["orders"] for t in found] == [Bag.of(COLUMNS, [(1, 1, "a")])]
    assert lost.relations == {"orders"} and what in lost.message


def test_columns_that_trade_names_for_a_while(db: Database) -> None:
    """Of the same type: neither rows of the log nor answers are taken for what they are not."""
    table = "CREATE TABLE orders (id bigint PRIMARY KEY, gone int, net int, spare int, gross int)"
    source = db.make(f"{table}; ALTER TABLE orders DROP COLUMN gone; INSERT INTO orders VALUES (1, 2, 3, 4)", "orders")
    source.schemas()
    source.focus({"orders": ["id", "net"]})
    swap = (
        "ALTER TABLE orders RENAME net TO held",
        "ALTER TABLE orders RENAME gross TO net",
        "ALTER TABLE orders RENAME held TO gross",
    )
    start = source.now()
    db.run(*swap)
    reader = source.reader()
    reader.open()
    with pytest.raises(RelationLost, match="net is another one now"):
        list(reader.scan("orders", ["id", "net"]))
    reader.close()
    db.run("INSERT INTO orders VALUES (2, 2, 3, 4)")
    db.run(*swap)
    _, lost = raised(source, start)
    assert "column net was another one" in lost.message


def test_unused_columns_come_go_and_are_renamed(db: Database) -> None:
    """Also before the stream began that reads their rows: what the log had then fits the catalog of now."""
    table = "CREATE TABLE orders (id bigint PRIMARY KEY, one int, two int, net int, three int)"
    source = db.make(table, "orders")
    start = source.now()
    insert = "INSERT INTO orders (id, net) VALUES ({}, 7)"
    steps = ("DROP COLUMN one", "ADD COLUMN four int", "DROP COLUMN two", "DROP COLUMN three", "RENAME four TO five")
    for number, step in enumerate(steps):
        db.run(insert.format(number))
        db.run(f"ALTER TABLE orders {step}")
    source.schemas()
    source.focus({"orders": ["id", "net"]})
    assert len(read(source, start)) == len(steps)


def test_a_partition_whose_old_rows_are_not_whole(db: Database) -> None:
    """Its own replica identity counts, for a while too; the statement that gives it the right one is said."""
    source = db.make(f"{LINES}; {WHOLE.format('lines')}; {WHOLE.format('lines_1')}", "lines")
    source.schemas()
    start = source.now()
    db.run("INSERT INTO lines VALUES (1, 1, 'a')")
    db.run("ALTER TABLE lines_1 REPLICA IDENTITY DEFAULT", "DELETE FROM lines", WHOLE.format("lines_1"))
    found, lost = raised(source, start)
    assert len(found) == 1 and "partition lines_1" in lost.message
    assert 'ALTER TABLE "public"."lines_1" REPLICA IDENTITY FULL' in lost.fix


def test_a_partition_that_comes_and_goes(db: Database) -> None:
    """Between two looks: the rows that came by it are in the log, and that they went is not."""
    source = db.make(LINES, "lines")
    source.schemas()
    start, before = source.now(), source.fingerprints(["lines"])["lines"]
    db.run("CREATE TABLE lines_2 PARTITION OF lines FOR VALUES FROM (10) TO (20)")
    db.run("INSERT INTO lines VALUES (1, 11)")
    assert len(read(source, start)) == 1
    between = source.fingerprints(["lines"])["lines"]
    assert source.changed("lines", ["id"], before, between) == ""
    db.run("DROP TABLE lines_2")
    after = source.fingerprints(["lines"])["lines"]
    assert "dropped" in source.changed("lines", ["id"], before, after)
    assert "lines_2 was dropped" in source.changed("lines", ["id"], between, after)
    assert source.changed("lines", ["id"], after, source.fingerprints(["lines"])["lines"]) == ""


@pytest.mark.parametrize("statement", ["TRUNCATE orders", "ALTER TABLE orders ADD more float DEFAULT random()"])
def test_a_snapshot_older_than_the_tables_file_is_taken_again(db: Database, statement: str) -> None:
    """It would find the table empty; once it has been read in a snapshot, nobody can rewrite it."""
    source = db.make(f"{ORDERS}; INSERT INTO orders VALUES (1, 1, 'a')", "orders")
    reader = source.reader()
    reader.open()
    db.run(statement)
    with pytest.raises(SourceUnavailable, match="rewritten"):
        list(reader.scan("orders", COLUMNS))
    reader.open()
    assert len(list(reader.scan("orders", COLUMNS))) == ("TRUNCATE" not in statement)
    reader.close()


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("CREATE TABLE lines_2 () INHERITS (orders)", "inherits from it"),
        ("CREATE UNLOGGED TABLE lines_2 PARTITION OF lines DEFAULT", "UNLOGGED"),
        (WHOLE.format("lines"), "lines_1.* has REPLICA IDENTITY DEFAULT"),
        ("ALTER TABLE lines_1 REPLICA IDENTITY NOTHING", "lines_1.* has REPLICA IDENTITY NOTHING"),
    ],
)
def test_what_cannot_be_followed_is_refused(db: Database, script: str, what: str) -> None:
    """A table with children, and one with a partition whose changes do not come as they should."""
    relation = "orders" if "orders" in script else "lines"
    source = db.make(f"{ORDERS}; {LINES}; {script}")
    with pytest.raises(UserError, match=what) as refused:
        source.prepare([relation])
    assert refused.value.fix
    assert any(finding.severity == "error" for finding in source.check([relation]) if relation in finding.where)
