"""PostgreSQL: global transactions, named by messages in the log with the prefix that the configuration names."""

from __future__ import annotations

import psycopg
from postgres_database import ORDERS, Database, read


def emit(text: str, prefix: str = "strobe") -> str:
    return f"SELECT pg_logical_emit_message(true, '{prefix}', '{text}')"


def test_a_message_in_a_transaction_names_the_global_one(db: Database) -> None:
    """It is told with the transaction's changes, and without any where none is watched; other messages are not ours,
    and what is rolled back, wholly or to a savepoint, never happened."""
    source = db.make(ORDERS, "orders", global_transactions="strobe")
    start = source.now()
    db.run("INSERT INTO orders VALUES (1, 1, NULL)", emit("T1 shop,billing"), emit("T2 shop,files"))
    db.run(emit("T3 shop,billing"))
    db.run("INSERT INTO orders VALUES (2, 1, NULL)", emit("T4", "other"), emit(""))
    db.run("INSERT INTO orders VALUES (3, 1, NULL)", "SAVEPOINT s", emit("T5 shop,billing"), "ROLLBACK TO s")
    db.run("SELECT pg_logical_emit_message(false, 'strobe', 'T6 shop,billing')")
    end = source.now()
    told = []
    for transaction in source.transactions(start, [], lambda: False):
        if transaction.changes or transaction.part_of:
            told.append((len(transaction.changes), [(p.id, sorted(p.participants)) for p in transaction.part_of]))
        if end <= transaction.position:
            break
    first = (1, [("T1", ["billing", "shop"]), ("T2", ["files", "shop"])])
    assert told == [first, (0, [("T3", ["billing", "shop"])]), (1, []), (1, [])]


def test_which_parts_a_position_is_past(db: Database) -> None:
    """As far back as the slot keeps the log: a load at this position holds these, and they do not come again."""
    source = db.make(ORDERS, "orders", global_transactions="strobe")
    db.run("INSERT INTO orders VALUES (1, 1, NULL)", emit("T1 shop,billing"))
    between = source.now()
    db.run("INSERT INTO orders VALUES (2, 1, NULL)", emit("T2 shop,billing"))
    assert source.parts(between).ids == {"T1"}
    known = source.parts(source.now())
    assert known.ids == {"T1", "T2"} and {part.participants for part in known.committed} == {
        frozenset({"shop", "billing"})
    }
    assert known.since == min(known.committed.values()), "the slot was made before the first one"


def test_a_name_that_cannot_be_used_is_a_warning(db: Database) -> None:
    """Any role that may connect can send such a message: its transaction is an ordinary one, and all go on."""
    source = db.make(ORDERS, "orders", global_transactions="strobe")
    start = source.now()
    db.run("CREATE ROLE somebody LOGIN PASSWORD 'x'")
    try:
        with psycopg.connect(db.server.admin_dsn(db.name)) as connection:
            connection.execute("SET ROLE somebody")
            connection.execute(emit("T1"))
    finally:
        db.run("DROP ROLE somebody")
    db.run("INSERT INTO orders VALUES (1, 1, NULL)", emit("T2"))
    (found,) = read(source, start)
    assert found.part_of == () and "cannot be used: 'T1'" in source.warning
    assert source.parts(source.now()).ids == frozenset()


def test_without_a_prefix_there_are_none(db: Database) -> None:
    """Not by the prefix that Strobe's own messages have either."""
    source = db.make(ORDERS, "orders")
    start = source.now()
    db.run("INSERT INTO orders VALUES (1, 1, NULL)", emit("T1 shop,billing"), emit("T1"))
    (found,) = read(source, start)
    assert found.part_of == () and not source.warning
    assert source.parts(source.now()).ids == frozenset()
