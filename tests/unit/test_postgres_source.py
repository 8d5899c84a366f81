"""What is special to PostgreSQL: visibility by transaction id, replica identities, the slot, DDL, and privileges."""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from postgres_server import PostgresServer

from strobe.algebra.bag import Bag
from strobe.errors import LostGuarantee, RelationLost, SourceUnavailable, UserError
from strobe.messages import Lookup, Position, Query, SeenByXid, Transaction
from strobe.sources import postgres_definitions, postgres_slot
from strobe.sources.base import answer_on_driver
from strobe.sources.postgres import PostgresSource
from strobe.sources.postgres_place import Keep, Place, object_name

ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, note text)"
COLUMNS = ("id", "customer", "note")


class Database:
    """One database of the server, and the source over it."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.name = ""
        self.source: PostgresSource

    def make(self, script: str, *relations: str, timeout: float = 5.0) -> PostgresSource:
        self.name = self.server.database(script)
        self.source = self.open(timeout)
        if relations:
            self.server.publish(self.name, self.source.prepare_script(relations))
            self.source.prepare(relations)
        return self.source

    def open(self, timeout: float = 5.0, keep: Keep | None = None) -> PostgresSource:
        name, dsn = object_name("test", "shop"), self.server.dsn(self.name)
        return PostgresSource(Place("shop", dsn, "public", name, 3, timeout, keep or Keep()))

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.server.admin_dsn(self.name)) as connection:
            for statement in statements:
                connection.execute(statement)

    def slot(self) -> tuple[Any, ...]:
        (found,) = self.server.execute(
            self.name,
            "SELECT confirmed_flush_lsn::text, active FROM pg_replication_slots WHERE slot_name = 'strobe_test_shop'",
        )
        return found


@pytest.fixture
def db(postgres: PostgresServer) -> Iterator[Database]:
    database = Database(postgres)
    yield database
    if database.name:
        database.source.close()
        postgres.drop(database.name)


def read(
    source: PostgresSource, after: Position, through: Position | None = None, seconds: float = 20
) -> list[Transaction]:
    """The transactions with changes between two positions."""
    end = through or source.now()
    deadline = time.monotonic() + seconds
    found: list[Transaction] = []
    for transaction in source.transactions(after, [], lambda: time.monotonic() > deadline):
        found.append(transaction)
        if end <= transaction.position:
            return [t for t in found if t.changes or t.gone]
    raise AssertionError(f"the stream did not come to {end} in time")


@contextlib.contextmanager
def stalled(db: Database, *statements: str) -> Iterator[None]:
    """While a commit that is in the log waits for a synchronous standby that never answers."""
    db.server.execute(db.name, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    db.server.execute(db.name, "SELECT pg_reload_conf()")
    while db.server.execute(db.name, "SHOW synchronous_standby_names") != [("nobody",)]:
        time.sleep(0.01)
    waiting = threading.Thread(target=db.run, args=statements)
    waiting.start()
    try:
        while not db.server.execute(db.name, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"):
            time.sleep(0.01)
        yield
    finally:
        db.server.execute(db.name, "ALTER SYSTEM RESET synchronous_standby_names")
        db.server.execute(db.name, "SELECT pg_reload_conf()")
        waiting.join(20)


LOCAL = "SET LOCAL synchronous_commit = 'local'"


def test_a_snapshot_sees_a_later_commit_without_an_earlier_one(db: Database) -> None:
    """T1 is in the log and waits for its standby, T2 comes after it and is visible: an answer tells them apart by
    transaction id, its position covers both, and the stream reports neither before T1 is visible."""
    source = db.make(ORDERS, "orders")
    start = source.now()
    with stalled(db, "INSERT INTO orders VALUES (1, 1, 'T1')"):
        db.run(LOCAL, "INSERT INTO orders VALUES (2, 1, 'T2')")
        reader = source.reader()
        seen = reader.open()
        assert list(reader.scan("orders", ["note"])) == [("T2",)]
        reader.close()
        until = time.monotonic() + 0.5
        early = source.transactions(start, [], lambda: time.monotonic() > until)
        assert not [t for t in early if t.changes]
        with pytest.raises(SourceUnavailable, match="not visible"):
            source.reader(at_a_position=True).open()
    first, second = read(source, start)
    assert [next(iter(t.changes["orders"].items()))[0][2] for t in (first, second)] == ["T1", "T2"]
    assert isinstance(seen, SeenByXid)
    assert first.position < second.position <= seen.through
    assert seen.saw(second) and not seen.saw(first)


def test_a_load_under_several_writers_is_exactly_a_state_of_the_log(db: Database) -> None:
    """What the log had brought up to the load's position is what the load holds, and nothing else; answers, which may
    miss an early transaction (the test above makes sure of one), are right by transaction id."""
    source = db.make(f"{ORDERS}; ALTER TABLE orders REPLICA IDENTITY FULL", "orders")
    start, stop = source.now(), threading.Event()

    def write(number: int) -> None:
        with psycopg.connect(db.server.admin_dsn(db.name), autocommit=True) as connection:
            n = number
            while not stop.is_set():
                n += 10
                with connection.transaction():
                    connection.execute(f"SET LOCAL synchronous_commit = {'off' if n % 3 else 'on'}")
                    connection.execute("INSERT INTO orders VALUES (%s, %s, '')", (n, number))
                time.sleep(0.002)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(5)]
    for writer in writers:
        writer.start()
    taken = []
    for exact in [True, False] * 20:
        reader = source.reader(at_a_position=exact)
        seen = reader.open()
        taken.append((exact, seen, Bag.of(COLUMNS, reader.scan("orders", COLUMNS))))
        reader.close()
    stop.set()
    for writer in writers:
        writer.join()
    log = read(source, start)
    for exact, seen, rows in taken:
        before = [t.xid for t in log if t.position <= seen.through]
        shown = [t for t in log if seen.saw(t)]
        xids = [t.xid for t in shown]
        assert set(xids) <= set(before) and (not exact or xids == before)
        assert rows == Bag.of(COLUMNS, [row for t in shown for row, _ in t.changes["orders"].items()])


def test_what_was_reported_is_in_every_later_snapshot(db: Database) -> None:
    """Also a snapshot of another process: so nothing has to be remembered across a restart."""
    source = db.make(ORDERS, "orders")
    start = source.now()
    stream = source.transactions(start, [], lambda: False)
    with stalled(db, "INSERT INTO orders VALUES (1, 1, 'T1')"):
        pass
    transaction = next(t for t in stream if t.changes)
    assert pickle.loads(pickle.dumps(source.reader())).open().saw(transaction)
    stream.close()


def test_an_asynchronous_commit_is_before_the_answers_position(db: Database) -> None:
    """It is visible before it is flushed, and a stream sends flushed log only: the answer sees to the flush."""
    source = db.make(ORDERS, "orders")
    start = source.now()
    for n in range(5):
        db.run("SET LOCAL synchronous_commit = off", f"INSERT INTO orders VALUES ({n}, 1, '')")
        reader = source.reader()
        seen = reader.open()
        found = set(reader.scan("orders", ["id"]))
        reader.close()
        assert len(found) == n + 1
        assert len([t for t in read(source, start, seen.through) if seen.saw(t)]) == n + 1


def test_log_of_an_open_transaction_holds_up_nobody(db: Database) -> None:
    """Its records may stay unflushed for ever; positions are reached all the same."""
    source = db.make(ORDERS, "orders")
    start = source.now()
    with psycopg.connect(db.server.admin_dsn(db.name)) as writer:
        writer.execute("INSERT INTO orders VALUES (1, 1, 'not yet')")
        assert read(source, start, source.now()) == []
        writer.commit()
    assert len(read(source, start)) == 1


def test_the_slot_is_confirmed_only_up_to_what_is_durable(db: Database) -> None:
    """What was read stays in the log until it is discarded, and then goes, while the stream has nothing to report."""
    source = db.make(ORDERS, "orders")
    start = source.now()
    before = source.position(db.slot()[0])
    stream = source.transactions(start, [], lambda: False)
    db.run("INSERT INTO orders VALUES (1, 1, 'a')")
    read_to = next(t for t in stream if t.changes).position
    time.sleep(0.4)
    assert source.position(db.slot()[0]) == before
    source.discard(read_to)
    deadline = time.monotonic() + 10
    while source.position(db.slot()[0]) < read_to:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert source.position(db.slot()[0]) == read_to
    stream.close()
    source.verify(read_to)
    with pytest.raises(LostGuarantee, match="begins at"):
        source.verify(start)
    with pytest.raises(LostGuarantee):
        next(db.open().transactions(start, [], lambda: False))


def test_a_second_stream_beside_the_first(db: Database) -> None:
    """Views that are about to join read a copy of the slot; the source goes on with the slot itself afterwards."""
    source = db.make(ORDERS, "orders")
    start = source.now()
    stream = source.transactions(start, [], lambda: False)
    db.run("INSERT INTO orders VALUES (1, 1, 'a')")
    assert next(t for t in stream if t.changes)
    other = db.open()
    other.beside(source)
    (found,) = read(other, start)
    assert found.changes["orders"] == Bag.of(COLUMNS, [(1, 1, "a")])
    stream.close()
    db.run("INSERT INTO orders VALUES (2, 1, 'b')")
    assert len(read(other, found.position)) == 1
    other.close()


def test_the_number_of_rows_is_the_servers_estimate(db: Database) -> None:
    """Unknown before the table was first analysed."""
    reader = db.make(f"{ORDERS}; INSERT INTO orders SELECT n, n FROM generate_series(1, 50) n", "orders").reader()
    reader.open()
    assert reader.rows("orders") is None
    reader.close()
    db.run("ANALYZE orders")
    reader.open()
    assert reader.rows("orders") == 50
    reader.close()


def test_a_quiet_table_on_a_busy_server_moves_on(db: Database) -> None:
    """Changes of tables that nobody watches advance the position, and the slot with it."""
    source = db.make(f"{ORDERS}; CREATE TABLE other (a int)", "orders")
    stream = source.transactions(source.now(), [], lambda: False)
    db.run("INSERT INTO other SELECT generate_series(1, 5000)")
    end = source.now()
    moved = next(t for t in stream if end <= t.position)
    assert not moved.changes
    source.discard(moved.position)
    deadline = time.monotonic() + 10
    while source.position(db.slot()[0]) < end:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stream.close()


def test_the_log_that_is_kept_is_told_with_its_reason(db: Database) -> None:
    """A warning beyond a size: because the views are behind, or because of a transaction that somebody left open."""
    source = db.make(f"{ORDERS}; CREATE TABLE other (a text)", "orders")
    quiet = source.kept()
    assert quiet is not None and not quiet.warning
    warned = db.open(keep=Keep(warn=100_000))
    with psycopg.connect(db.server.admin_dsn(db.name)) as left_open:
        left_open.execute("INSERT INTO orders VALUES (1, 1, NULL)")
        db.run("INSERT INTO other SELECT repeat('x', 100) FROM generate_series(1, 5000)")
        behind = warned.kept()
        assert behind is not None and behind.bytes > 500_000 and "views are behind" in behind.warning
        db.source.discard(source.now())
        db.run("CHECKPOINT")
        stuck = warned.kept()
        assert stuck is not None and stuck.bytes > 500_000 and "has been open for long" in stuck.warning
    warned.close()


@pytest.mark.parametrize("drop", [False, True])
def test_beyond_its_limit_a_slot_is_given_up(db: Database, drop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream ends with the way out; where it is asked for, the slot is dropped, so that the log can go."""
    monkeypatch.setattr(postgres_slot, "LOOK_SECONDS", 0.1)
    db.make(f"{ORDERS}; CREATE TABLE other (a text)", "orders")
    source = db.open(keep=Keep(limit=2_000_000, drop=drop))
    stream = source.transactions(source.now(), [], lambda: False)
    db.run("INSERT INTO orders VALUES (1, 1, NULL)")
    assert next(t for t in stream if t.changes)
    db.run("INSERT INTO other SELECT repeat('x', 100) FROM generate_series(1, 20000)")
    with pytest.raises(LostGuarantee, match=r"more than slot.limit \(1.907 MB\)") as error:
        deadline = time.monotonic() + 20
        for _ in stream:
            assert time.monotonic() < deadline
    assert ("dropped" in error.value.message) is drop and "strobe rebuild" in error.value.fix
    slots = db.server.execute(db.name, "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    assert len(slots) == (0 if drop else 1)
    source.close()


def test_a_stream_survives_a_consumer_that_takes_its_time(db: Database) -> None:
    """Keep-alives are answered while nobody takes transactions."""
    source = db.make(ORDERS, "orders")
    db.server.execute("postgres", f"ALTER ROLE {db.server.role} SET wal_sender_timeout = '1s'")
    try:
        stream = source.transactions(source.now(), [], lambda: False)
        db.run("INSERT INTO orders VALUES (0, 1, '')")
        next(t for t in stream if t.changes)
        for n in range(1, 400):
            db.server.execute(db.name, "INSERT INTO orders VALUES (%s, 1, '')", n)
        time.sleep(2)
        assert [next(t for t in stream if t.changes).changes["orders"].keys(["id"]) for _ in range(1, 400)]
        stream.close()
    finally:
        db.server.execute("postgres", f"ALTER ROLE {db.server.role} RESET wal_sender_timeout")


def test_a_terminated_walsender_is_another_try(db: Database) -> None:
    source = db.make(ORDERS, "orders")
    start = source.now()
    stream = source.transactions(start, [], lambda: False)
    db.run("INSERT INTO orders VALUES (1, 1, '')")
    last = next(t for t in stream if t.changes).position
    db.server.execute("postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
    db.run("INSERT INTO orders VALUES (2, 1, '')")
    with pytest.raises(SourceUnavailable):
        list(stream)
    (again,) = read(source, last)
    assert again.changes["orders"] == Bag.of(COLUMNS, [(2, 1, "")])


def test_a_slot_that_is_gone_or_made_anew_is_noticed(db: Database) -> None:
    source = db.make(ORDERS, "orders")
    db.run("INSERT INTO orders VALUES (1, 1, '')")
    position = source.now()
    db.server.execute(db.name, "SELECT pg_drop_replication_slot('strobe_test_shop')")
    with pytest.raises(LostGuarantee, match="slot is missing"):
        source.verify(position)
    with pytest.raises(LostGuarantee, match="is gone"):
        next(source.transactions(position, [], lambda: False))
    source.prepare(["orders"])
    with pytest.raises(LostGuarantee, match="made anew"):
        source.verify(position)


def test_a_log_that_ends_before_the_position_is_noticed(db: Database) -> None:
    source = db.make(ORDERS, "orders")
    beyond = source.position("FFFF/0")
    with pytest.raises(LostGuarantee, match="restored"):
        source.verify(beyond)


def test_every_position_passes_for_one_of_its_log(db: Database) -> None:
    """Also a stop between transactions that nobody needs, which are in the log all the same; and not for another's."""
    source = db.make(ORDERS, "orders")
    start, stops = source.now(), []
    for n in range(8):
        db.run(f"INSERT INTO orders VALUES ({n}, 1, '')")
        for _ in range(n % 3):
            db.run("SELECT pg_logical_emit_message(true, 'nobody', '')")
        stops.append(source.now())
        db.run("SELECT pg_logical_emit_message(true, 'nobody', '')")
    found, end = [], source.now()
    for transaction in source.transactions(start, stops, lambda: False):
        found.append(transaction.position)
        if end <= transaction.position:
            break
    assert {stop.order for stop in stops} <= {position.order for position in found}
    for position in found:
        source.verify(position)
    source.discard(found[len(found) // 2])
    for position in found[len(found) // 2 :]:
        source.verify(position)
    place, _, mark = found[-1].text.partition("@")
    for other in (found[-3].text.partition("@")[2], f"{mark[:-1]}{(int(mark[-1]) + 1) % 10}"):
        with pytest.raises(LostGuarantee, match="other transactions"):
            source.verify(source.position(f"{place}@{other}"))


# Replica identities.


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


# Schema changes and TRUNCATE.


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


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("ALTER TABLE orders DROP COLUMN note", "note was dropped or renamed"),
        ("ALTER TABLE orders RENAME COLUMN note TO remark", "note was dropped or renamed"),
        ("ALTER TABLE orders ALTER note TYPE bigint USING 1", "note has another type"),
        ("TRUNCATE orders", "TRUNCATE"),
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


# Types.


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE orders",
        "ALTER TABLE orders RENAME TO old_orders",
        "ALTER TABLE orders SET SCHEMA aside",
        'ALTER PUBLICATION "strobe_test_shop" DROP TABLE orders',
        "ALTER TABLE orders DROP COLUMN customer",
        "ALTER TABLE orders RENAME COLUMN customer TO client",
        "ALTER TABLE orders ALTER COLUMN customer TYPE text",
    ],
)
def test_what_the_log_does_not_tell_is_noticed(db: Database, statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of which no further change comes: its views stand still, after all that was committed before."""
    monkeypatch.setattr(postgres_definitions, "LOOK_SECONDS", 0.2)
    db.make(f"{ORDERS}; CREATE SCHEMA aside; CREATE TABLE people (id int PRIMARY KEY)", "orders", "people")
    source = db.open()
    source.focus({"orders": ["id", "customer"], "people": ["id"]})
    until = time.monotonic() + 20
    stream = source.transactions(source.now(), [], lambda: time.monotonic() > until)
    db.run("INSERT INTO orders VALUES (1, 1, NULL)")
    assert next(t for t in stream if t.changes)
    db.run("INSERT INTO orders VALUES (2, 1, NULL)")
    db.run(statement)
    told = []
    with pytest.raises(RelationLost) as lost:
        told.extend(transaction.changes for transaction in stream)
    assert [list(changes) for changes in told if changes] == [["orders"]]
    assert (lost.value.source, lost.value.relations) == ("shop", {"orders"})
    assert "strobe rebuild" in lost.value.fix
    source.focus({"people": ["id"]})
    end = db.source.now()
    db.run("INSERT INTO people VALUES (1)")
    (transaction,) = read(source, end)
    assert list(transaction.changes) == ["people"]
    source.close()


def test_a_renamed_table_is_not_taken_for_another(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log names tables; whose changes they are is decided by the tables' own ids."""
    monkeypatch.setattr(postgres_definitions, "LOOK_SECONDS", 100)
    source = db.make(ORDERS, "orders")
    source.focus({"orders": ["id"]})
    until = time.monotonic() + 20
    stream = source.transactions(source.now(), [], lambda: time.monotonic() > until)
    db.run("INSERT INTO orders VALUES (1, 1, NULL)")
    assert next(t for t in stream if t.changes)
    db.run("ALTER TABLE orders RENAME TO old_orders", ORDERS, "INSERT INTO old_orders VALUES (2, 1, NULL)")
    with pytest.raises(RelationLost, match="renamed"):
        list(stream)


def test_types_that_are_read_as_text(db: Database) -> None:
    """As the server writes them, from the stream and from answers; never looked up by. Arrays of domains and enums."""
    values = {
        "time": "12:30:00.5",
        "interval": "1 day 02:00:00",
        "bit(3)": "101",
        "varbit": "01",
        "inet": "10.0.0.1/8",
        "macaddr": "08:00:2b:01:02:03",
        "xml": "<a/>",
    }
    columns = ", ".join(f"c{n} {declared}" for n, declared in enumerate(values))
    source = db.make(
        "CREATE TYPE mood AS ENUM ('sad', 'so so'); CREATE DOMAIN cents AS numeric(8,2);"
        f"CREATE TABLE t (id int PRIMARY KEY, {columns}, m mood[], d cents[])",
        "t",
    )
    (schema,) = source.schemas()
    assert [c.type for c in schema.columns[-2:]] == ["array<string>", "array<decimal(8,2)>"]
    assert [c.name for c in schema.columns if c.searchable] == ["id"]
    start = source.now()
    text = ", ".join(f"'{value}'" for value in values.values())
    db.run(f"""INSERT INTO t VALUES (1, {text}, '{{sad,"so so"}}', '{{1.5,NULL}}')""")
    expected = Bag.of(
        [c.name for c in schema.columns], [(1, *values.values(), ("sad", "so so"), (Decimal("1.50"), None))]
    )
    (transaction,) = read(source, start)
    assert transaction.changes["t"] == expected
    reader = source.reader()
    reader.open()
    assert Bag.of([c.name for c in schema.columns], reader.scan("t", [c.name for c in schema.columns])) == expected
    reader.close()


def test_what_changed_before_the_stream_began_is_noticed(db: Database) -> None:
    """Views are made from what the tables were when the source was first asked."""
    source = db.make(ORDERS, "orders")
    source.schemas()
    source.focus({"orders": ["id", "customer"]})
    db.run("ALTER TABLE orders ALTER COLUMN customer TYPE text")
    until = time.monotonic() + 20
    with pytest.raises(RelationLost, match="another type"):
        list(source.transactions(source.now(), [], lambda: time.monotonic() > until))


def test_types_of_users(db: Database) -> None:
    """Enums, domains, uuids and json are text; what is stored is what is searched for, label or not."""
    source = db.make(
        "CREATE TYPE mood AS ENUM ('sad', 'it''s ok'); CREATE DOMAIN cents AS numeric(8,2) CHECK (VALUE > 0);"
        "CREATE TABLE t (id uuid PRIMARY KEY, m mood, c cents, j jsonb, k json, f char(4), p point, r int4range[])",
        "t",
    )
    (schema,) = source.schemas()
    types = {c.name: c.type for c in schema.columns}
    assert types == {"id": "string", "m": "string", "c": "decimal(8,2)", "j": "string", "k": "string", "f": "string"}
    assert [c.name for c in schema.columns if not c.searchable] == ["j", "k"]
    start = source.now()
    one = "11111111-1111-1111-1111-111111111111"
    db.run(f"INSERT INTO t VALUES ('{one}', 'it''s ok', 1.5, '{{\"a\":  1}}', '{{\"a\":  1}}', 'x', '(1,2)', NULL)")
    row = (one, "it's ok", Decimal("1.50"), '{"a": 1}', '{"a":  1}', "x   ")
    (transaction,) = read(source, start)
    assert transaction.changes["t"] == Bag.of(tuple(types), [row])
    for on, keys in (
        (("m",), [("it's ok",), ("no label",)]),
        (("id",), [(one,), ("no uuid",)]),
        (("id", "m"), [(one, "it's ok"), (one, "no label")]),
        (("c", "f"), [(Decimal("1.5"), "x   "), (Decimal("1.5"), "x   y")]),
    ):
        lookup = Lookup(0, "t", tuple(types), on, Bag.of(on, keys))
        (found,), _ = answer_on_driver(source.reader(), Query("v", 1, "shop", (lookup,)), 100)
        assert found == Bag.of(tuple(types), [row])
    assert any("p (point), r (int4range[])" in f.message for f in source.check(["t"]))


@pytest.mark.parametrize(
    ("declared", "value", "reason"),
    [
        ("numeric", "'NaN'", "finite"),
        ("numeric", "1e-30", "digits after the point"),
        ("numeric", "1e30", "digits before the point"),
        ("date", "'infinity'", "years 1 and 9999"),
        ("date", "'0044-03-15 BC'", "years 1 and 9999"),
        ("timestamp", "'-infinity'", "years 1 and 9999"),
        ("timestamptz", "'10000-01-01'", "years 1 and 9999"),
        ("int[]", "'{{1,2},{3,4}}'", "several dimensions"),
        ("int[]", "'[2:3]={1,2}'", "first element"),
        ("date[]", "'{2024-01-01,infinity}'", "years 1 and 9999"),
    ],
)
def test_values_that_spark_cannot_hold_are_refused(db: Database, declared: str, value: str, reason: str) -> None:
    """From the stream and from an answer alike, naming the column; and ignored where nobody uses it."""
    source = db.make(f"CREATE TABLE t (id int PRIMARY KEY, v {declared})", "t")
    start = source.now()
    db.run(f"INSERT INTO t VALUES (1, {value})")
    with pytest.raises(UserError, match=reason) as caught:
        read(source, start)
    assert "column v" in caught.value.where
    reader = source.reader()
    reader.open()
    with pytest.raises(UserError, match=reason):
        list(reader.scan("t", ["v"]))
    reader.close()
    source.focus({"t": ["id"]})
    (transaction,) = read(source, start)
    assert transaction.changes["t"] == Bag.of(("id",), [(1,)])


def test_collations_where_equality_is_wider(db: Database) -> None:
    """A column whose collation calls different texts equal is no key and is not searched by."""
    source = db.make(
        "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        "CREATE TABLE t (id text COLLATE loose PRIMARY KEY, a int); ALTER TABLE t REPLICA IDENTITY FULL",
        "t",
    )
    (schema,) = source.schemas()
    assert schema.key == () and not schema.column("id").searchable


def test_the_servers_settings_do_not_change_values(db: Database) -> None:
    """Date style, time zone and float digits of the role are overruled in the stream and in answers."""
    source = db.make("CREATE TABLE t (id date PRIMARY KEY, f float8, z timestamptz, b bytea)", "t")
    role = db.server.role
    for setting in ("datestyle = 'SQL, DMY'", "timezone = 'Asia/Kathmandu'", "bytea_output = 'escape'"):
        db.server.execute(db.name, f"ALTER ROLE {role} IN DATABASE {db.name} SET {setting}")
    db.server.execute(db.name, f"ALTER ROLE {role} IN DATABASE {db.name} SET extra_float_digits = 0")
    again, start = db.open(), source.now()
    db.run("INSERT INTO t VALUES ('2024-02-29', 0.1::float8 + 0.2, '2024-01-01 00:00:00+00', '\\x00')")
    (transaction,) = read(again, start)
    ((row, _),) = transaction.changes["t"].items()
    reader = again.reader()
    reader.open()
    assert [row] == list(reader.scan("t", ["id", "f", "z", "b"]))
    assert row[:2] == (date(2024, 2, 29), 0.30000000000000004) and row[2].isoformat() == "2024-01-01T00:00:00+00:00"
    reader.close()
    again.close()


# Names, schemas, partitions.


def test_any_name_and_other_schemas(db: Database) -> None:
    """Tables of other schemas are `schema.table`; names hold whatever PostgreSQL allows."""
    source = db.make(
        'CREATE SCHEMA "we ird"; CREATE TABLE "we ird"."o""rd;er\'s %s" ("i d" int PRIMARY KEY, "%s" text);'
        f'GRANT USAGE ON SCHEMA "we ird" TO {db.server.role}; GRANT SELECT ON ALL TABLES IN SCHEMA "we ird" '
        f"TO {db.server.role}"
    )
    name = "we ird.o\"rd;er's %s"
    db.server.publish(db.name, source.prepare_script([name]))
    source.prepare([name])
    assert source.check([name])[0].severity == "warning" and source.schemas()[0].id == f"shop.{name}"
    start = source.now()
    db.server.execute(db.name, """INSERT INTO "we ird"."o""rd;er's %%s" VALUES (%s, 'x')""", 1)
    (transaction,) = read(source, start)
    assert transaction.changes[name] == Bag.of(("i d", "%s"), [(1, "x")])
    lookup = Lookup(0, name, ("%s",), ("i d",), Bag.of(("i d",), [(1,)]))
    (found,), _ = answer_on_driver(source.reader(), Query("v", 1, "shop", (lookup,)), 100)
    assert found == Bag.of(("%s",), [("x",)])


def test_partitions_come_as_their_table(db: Database) -> None:
    """Also a row that moves from one partition to another, which is one event."""
    source = db.make(
        "CREATE TABLE p (id int, at int, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "p",
    )
    assert [s.name for s in source.schemas()] == ["p"]
    start = source.now()
    db.run("INSERT INTO p VALUES (1, 1)")
    db.run("UPDATE p SET at = 11")
    first, second = read(source, start)
    assert first.changes["p"] == Bag.of(("id", "at"), [(1, 1)])
    assert second.gone["p"] == Bag.of(("id", "at"), [(1, 1)])
    assert second.changes["p"] == Bag.of(("id", "at"), [(1, 11)])


# Transactions of every kind.


def test_subtransactions_savepoints_and_two_phase_commits(db: Database) -> None:
    """What was rolled back is not there; a prepared transaction comes when it is committed."""
    source = db.make(ORDERS, "orders")
    start = source.now()
    db.run(
        "INSERT INTO orders VALUES (1, 1, '')",
        "SAVEPOINT a",
        "INSERT INTO orders VALUES (2, 1, '')",
        "ROLLBACK TO a",
        "SAVEPOINT b",
        "INSERT INTO orders VALUES (3, 1, '')",
        "RELEASE b",
    )
    with psycopg.connect(db.server.admin_dsn(db.name), autocommit=True) as connection:
        for statement in ("BEGIN", "INSERT INTO orders VALUES (4, 1, '')", "PREPARE TRANSACTION 'x'"):
            connection.execute(statement)
        reader = source.reader()
        seen = reader.open()
        reader.close()
        db.run("INSERT INTO orders VALUES (5, 1, '')")
        connection.execute("COMMIT PREPARED 'x'")
    found = read(source, start)
    ids = [sorted(row[0] for row, _ in t.changes["orders"].items()) for t in found]
    assert ids == [[1, 3], [5], [4]]
    assert [seen.saw(t) for t in found] == [True, False, False]


# Being gentle, and least privileges.


def test_connections_are_bounded_and_kept(db: Database) -> None:
    """Many readers at a time share a few connections, which stay open for the next ones."""
    source = db.make(ORDERS, "orders")
    most = []

    def ask() -> None:
        for _ in range(10):
            reader = source.reader()
            reader.open()
            count = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND backend_type = 'client backend'"
            most.append(db.server.execute(db.name, count, db.server.role)[0][0])
            reader.close()

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 60 and max(most) <= 3


def test_a_statement_that_takes_too_long_is_ended(db: Database) -> None:
    """Also one that waits for somebody's lock; the snapshot goes with it."""
    db.make(ORDERS, "orders")
    source = db.open(timeout=0.5)
    with psycopg.connect(db.server.admin_dsn(db.name)) as other:
        other.execute("LOCK TABLE orders")
        reader = source.reader()
        reader.open()
        with pytest.raises(SourceUnavailable, match=r"longer than 0\.5 s"):
            list(reader.scan("orders", ["id"]))
        reader.close()
    source.close()


def test_preflight_says_the_statement_that_mends(db: Database) -> None:
    """Each thing that is missing is found, and gone once its statement has been run."""
    source = db.make(
        f"{ORDERS}; REVOKE SELECT ON orders FROM {db.server.role}; ALTER TABLE orders ENABLE ROW LEVEL SECURITY"
    )
    role = db.server.role
    db.server.execute("postgres", f"ALTER ROLE {role} NOREPLICATION")
    try:
        found = {f.message: f.fix for f in source.check(["orders"]) if f.severity == "error"}
        for fix in (
            f'Run: ALTER ROLE "{role}" REPLICATION;',
            f'Run: GRANT SELECT ON "public"."orders" TO "{role}";',
            f'Run: ALTER ROLE "{role}" BYPASSRLS;',
            "Run `strobe prepare shop`.",
        ):
            assert fix in found.values()
            if fix.startswith("Run: "):
                db.run(fix.removeprefix("Run: "))
        with pytest.raises(UserError, match="may not do this") as caught:
            source.prepare(["orders"])
        assert "CREATE PUBLICATION" in caught.value.fix
        db.server.publish(db.name, source.prepare_script(["orders"]))
        source.prepare(["orders"])
        again = db.open()
        assert [f for f in again.check(["orders"]) if f.severity == "error"] == []
        db.run('ALTER PUBLICATION strobe_test_shop DROP TABLE "orders"')
        assert ["publication" in f.message for f in again.check(["orders"]) if f.severity == "error"] == [True]
        again.focus({"orders": ["id"]})
        with pytest.raises(RelationLost, match="publication"):
            read(again, again.now())
    finally:
        db.server.execute("postgres", f"ALTER ROLE {role} REPLICATION NOBYPASSRLS")


def test_a_row_policy_stops_answers_instead_of_filtering_them(db: Database) -> None:
    source = db.make(ORDERS, "orders")
    db.run("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    reader = source.reader()
    reader.open()
    with pytest.raises(UserError, match="row-level security"):
        list(reader.scan("orders", ["id"]))
    reader.close()


def test_a_table_is_published_before_it_is_read(db: Database) -> None:
    """`prepare` waits for transactions that wrote to a table before it was published: their changes are not in the
    stream, even if they commit later."""
    source = db.make(f"{ORDERS}; CREATE TABLE late (id int PRIMARY KEY)", "orders")
    writer = psycopg.connect(db.server.admin_dsn(db.name))
    writer.execute("INSERT INTO late VALUES (1)")
    owner = PostgresSource(Place("shop", db.server.admin_dsn(db.name), "public", object_name("test", "shop")))
    preparing = threading.Thread(target=owner.prepare, args=(["orders", "late"],))
    preparing.start()
    preparing.join(0.5)
    assert preparing.is_alive()
    writer.commit()
    preparing.join(10)
    assert not preparing.is_alive()
    reader = source.reader(at_a_position=True)
    seen = reader.open()
    assert list(reader.scan("late", ["id"])) == [(1,)]
    reader.close()
    db.run("INSERT INTO orders VALUES (1, 1, NULL)")  # the log goes on
    assert [list(t.changes) for t in read(source, seen.through)] == [["orders"]]
    writer.close()
    owner.close()


def test_no_secret_is_shown(db: Database) -> None:
    """Not in errors, not in what is printed of a source."""
    source = db.make(ORDERS, "orders")
    password = db.server.password
    wrong = PostgresSource(Place("shop", db.server.dsn(db.name).replace(password, "wr0ng-pass"), "public", "x"))
    with pytest.raises(SourceUnavailable) as caught:
        wrong.schemas()
    shown = f"{caught.value} {caught.value.document()} {source._place!r} {wrong.check(['orders'])}"
    assert "wr0ng-pass" not in shown and password not in shown
    with pytest.raises(UserError, match="cannot be read") as refused:
        PostgresSource(Place("shop", "postgresql://u:s3cret@[", "public", "x")).schemas()
    assert "s3cret" not in str(refused.value)


def emit(text: str, prefix: str = "strobe") -> str:
    return f"SELECT pg_logical_emit_message(true, '{prefix}', '{text}')"


def test_a_message_in_a_transaction_names_the_global_one(db: Database) -> None:
    """It is told with the transaction's changes, and without any where none is watched; other messages are not ours,
    and what is rolled back, wholly or to a savepoint, never happened."""
    source = db.make(ORDERS, "orders")
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
    source = db.make(ORDERS, "orders")
    db.run("INSERT INTO orders VALUES (1, 1, NULL)", emit("T1 shop,billing"))
    between = source.now()
    db.run("INSERT INTO orders VALUES (2, 1, NULL)", emit("T2 shop,billing"))
    assert source.parts(between) == {"T1"}
    assert source.parts(source.now()) == {"T1", "T2"}


def test_a_name_that_cannot_be_used_stops_the_source(db: Database) -> None:
    """Rather than show a part of what belongs together."""
    source = db.make(ORDERS, "orders")
    start = source.now()
    db.run("INSERT INTO orders VALUES (1, 1, NULL)", emit("T1"))
    with pytest.raises(LostGuarantee, match=r"global transaction.*'T1'"):
        read(source, start)
    assert source.parts(source.now()) == frozenset()
