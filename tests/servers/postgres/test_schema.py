"""PostgreSQL: replica identities, schema changes and TRUNCATE."""

from __future__ import annotations

import time

import pytest
from patience import PATIENCE
from postgres_database import COLUMNS, ORDERS, Database, read

from strobe.algebra.bag import Bag
from strobe.errors import LostGuarantee, RelationLost, UserError


def test_the_default_identity_reports_keys_of_what_goes(db: Database) -> None:
    """Insertions are whole rows; of deletions and modifications the key goes, net over the transaction."""
    source = db.make(ORDERS, "orders")
    (schema,) = source.schemas()
    assert not schema.images and schema.key == ("id",)
    start = source.now()
    db.run("INSERT INTO orders VALUES (1, 7, 'a'), (2, 7, 'b'), (3, 7, 'c')")
    db.run(
        "UPDATE orders SET note = NULL, customer = NULL WHERE id = 1",
        "DELETE FROM orders WHERE id = 2",
        "UPDATE orders SET id = 9 WHERE id = 3",
        "INSERT INTO orders VALUES (4, 1, 'comes and goes')",
        "DELETE FROM orders WHERE id = 4",
        "UPDATE orders SET note = 'twice' WHERE id = 9",
    )
    first, second = read(source, start)
    assert first.changes["orders"] == Bag.of(COLUMNS, [(1, 7, "a"), (2, 7, "b"), (3, 7, "c")]) and not first.gone
    assert second.gone["orders"] == Bag.of(("id",), [(1,), (2,), (3,)])
    assert second.changes["orders"] == Bag.of(COLUMNS, [(1, None, None), (9, 7, "twice")])


def test_long_values_that_an_update_left_alone(db: Database) -> None:
    """Under FULL they are taken from the old row; by default they are not in the log, which stops with the way out,
    unless nobody uses the column."""
    long = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 400) n)"
    script = f"{ORDERS}; ALTER TABLE orders ALTER note SET STORAGE EXTERNAL; INSERT INTO orders VALUES (1, 1, {long})"
    source = db.make(f"{script}; ALTER TABLE orders REPLICA IDENTITY FULL", "orders")
    start = source.now()
    db.run("UPDATE orders SET customer = 2")
    (transaction,) = read(source, start)
    rows = {n: row for row, n in transaction.changes["orders"].items()}
    assert rows[1][:2] == (1, 2) and rows[-1][:2] == (1, 1) and rows[1][2] == rows[-1][2] and len(rows[1][2]) == 12800
    db.run("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    again, position = db.open(), source.now()
    db.run("UPDATE orders SET customer = 3")
    with pytest.raises(LostGuarantee, match="note") as caught:
        read(again, position)
    assert 'ALTER TABLE "public"."orders" REPLICA IDENTITY FULL' in caught.value.fix
    again.focus({"orders": ["id", "customer"]})
    (transaction,) = read(again, position)
    assert transaction.changes["orders"] == Bag.of(("id", "customer"), [(1, 3)])
    assert any("long values of note" in f.message for f in again.check(["orders"]))


def test_a_table_whose_old_rows_have_no_name_is_refused(db: Database) -> None:
    """A publication would make the application's updates fail: so it is not made."""
    source = db.make("CREATE TABLE heap (a int)")
    finding = next(f for f in source.check(["heap"]) if "heap" in f.where)
    assert finding.severity == "error" and 'ALTER TABLE "public"."heap" REPLICA IDENTITY FULL' in finding.fix
    with pytest.raises(UserError, match="old rows"):
        source.prepare(["heap"])
    db.run("ALTER TABLE heap REPLICA IDENTITY FULL")
    assert source.prepare_script(["heap"])


def test_an_identity_that_was_changed_stops_the_stream(db: Database) -> None:
    source = db.make(f"{ORDERS}; ALTER TABLE orders REPLICA IDENTITY FULL", "orders")
    source.schemas()
    position = source.now()
    db.run("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    db.run("INSERT INTO orders VALUES (1, 1, '')")
    with pytest.raises(LostGuarantee, match="no longer FULL"):
        read(source, position)


@pytest.mark.parametrize(
    "statement",
    ["ALTER TABLE orders ADD COLUMN more int", "ALTER TABLE orders DROP COLUMN note", "CREATE INDEX ON orders (note)"],
)
def test_changes_of_what_nobody_uses_do_nothing(db: Database, statement: str) -> None:
    source = db.make(ORDERS, "orders")
    source.schemas()
    source.focus({"orders": ["id", "customer"]})
    start = source.now()
    db.run("INSERT INTO orders (id, customer) VALUES (1, 1)")
    db.run(statement)
    db.run("INSERT INTO orders (id, customer) VALUES (2, 1)")
    assert [t.changes["orders"] for t in read(source, start)] == [Bag.of(("id", "customer"), [(n, 1)]) for n in (1, 2)]
    reader = source.reader()
    reader.open()
    assert set(reader.scan("orders", ["id"])) == {(1,), (2,)}
    reader.close()


VARCHARS = "CREATE TABLE orders (id int PRIMARY KEY, code varchar(5)); INSERT INTO orders VALUES (1, 'ab')"


def test_a_varchar_that_takes_longer_texts_goes_on(db: Database) -> None:
    """In the log, in answers of readers that were made before, and by its fingerprint; with USING it was rewritten."""
    source = db.make(VARCHARS, "orders")
    source.schemas()
    start, reader = source.now(), source.reader()
    before = source.fingerprints(["orders"])["orders"]
    for longer in ("varchar(50)", "varchar"):
        db.run(f"ALTER TABLE orders ALTER code TYPE {longer}")
    db.run("INSERT INTO orders VALUES (2, repeat('x', 60))")
    (transaction,) = read(source, start)
    assert transaction.changes["orders"] == Bag.of(("id", "code"), [(2, "x" * 60)])
    reader.open()
    assert set(reader.scan("orders", ["id", "code"])) == {(1, "ab"), (2, "x" * 60)}
    reader.close()
    after = source.fingerprints(["orders"])["orders"]
    assert before != after and source.changed("orders", ["id", "code"], before, after) == ""
    db.run(
        "ALTER TABLE orders ALTER code TYPE varchar(70) USING upper(code)", "ALTER TABLE orders ALTER code TYPE varchar"
    )
    rewritten = source.fingerprints(["orders"])["orders"]
    assert "rewritten" in source.changed("orders", ["id", "code"], after, rewritten)
    assert source.changed("orders", ["id"], after, rewritten) == ""


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("ALTER TABLE orders DROP COLUMN note", "note was dropped or renamed"),
        ("ALTER TABLE orders RENAME COLUMN note TO remark", "note was dropped or renamed"),
        ("ALTER TABLE orders ALTER note TYPE bigint USING 1", "note has another type"),
    ],
)
def test_changes_of_what_is_used_stop_with_the_way_out(db: Database, statement: str, what: str) -> None:
    source = db.make(ORDERS, "orders")
    source.schemas()
    start = source.now()
    db.run("INSERT INTO orders VALUES (1, 1)")
    db.run(statement)
    db.run("INSERT INTO orders (id) VALUES (2)")
    stream = source.transactions(start, [], lambda: False)
    assert next(t for t in stream if t.changes).changes["orders"] == Bag.of(COLUMNS, [(1, 1, None)])
    with pytest.raises(LostGuarantee, match=what) as caught:
        list(stream)
    assert "rebuild" in caught.value.fix


def test_a_renamed_table_is_not_taken_for_another(db: Database) -> None:
    """The log names tables; whose changes they are is decided by the tables' own ids."""
    source = db.make(ORDERS, "orders")
    source.focus({"orders": ["id"]})
    until = time.monotonic() + PATIENCE
    stream = source.transactions(source.now(), [], lambda: time.monotonic() > until)
    db.run("INSERT INTO orders VALUES (1, 1, NULL)")
    assert next(t for t in stream if t.changes)
    db.run("ALTER TABLE orders RENAME TO old_orders", ORDERS, "INSERT INTO old_orders VALUES (2, 1, NULL)")
    with pytest.raises(RelationLost, match="renamed"):
        list(stream)
