"""PostgreSQL: what snapshots, stream and slot make sure of, transactions of every kind, being gentle."""

from __future__ import annotations

import pickle
import threading
import time
from functools import partial

import psycopg
import pytest
from patience import PATIENCE, eventually
from postgres_database import COLUMNS, LOCAL, ORDERS, Database, read, stalled
from psycopg.sql import SQL

from strobe.algebra.bag import Bag
from strobe.coordinator.maintenance import end_of
from strobe.errors import Damaged, LostGuarantee, SourceLost, SourceUnavailable
from strobe.messages import SeenByXid
from strobe.sources.postgres.catalog import read_tables
from strobe.sources.postgres.limits import SlotLimits, Timing
from strobe.sources.postgres.reader import RowDecoder, TableSearch
from strobe.sources.postgres.stream import Visible


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


def test_an_index_serves_look_ups_of_null(db: Database) -> None:
    """In one of its columns or in both: the server never reads the whole table."""
    source = db.make(f"{ORDERS}; CREATE INDEX ON orders (customer, note)", "orders")
    db.run("INSERT INTO orders SELECT n, n, n::text FROM generate_series(1, 5000) n", "ANALYZE orders")
    with psycopg.connect(source.settings.dsn) as connection:
        table = read_tables(connection, source.settings)["orders"]
        found = RowDecoder(source.settings, table, ["id"])
        for on, nulls in ((["customer"], ["note"]), (["note"], ["customer"]), ([], ["customer", "note"])):
            search = TableSearch(table, "utf-8", on, nulls)
            statement = search.statement(found.selected, [("7",) * len(on), ("8",) * len(on)])
            plan = "".join(line for (line,) in connection.execute(SQL("EXPLAIN {}").format(statement)))
            assert "Seq Scan" not in plan and "IS NULL" in plan.partition("Index Cond")[2], plan


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
    eventually(lambda: read_to <= source.position(db.slot()[0]))
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
    eventually(lambda: end <= source.position(db.slot()[0]))
    stream.close()


def test_the_log_that_is_kept_is_told_with_its_reason(db: Database) -> None:
    """A warning beyond a size: because the views are behind, or because of a transaction that somebody left open."""
    source = db.make(f"{ORDERS}; CREATE TABLE other (a text)", "orders")
    quiet = source.kept()
    assert quiet is not None and not quiet.warning
    warned = db.open(slot_limits=SlotLimits(warn=100_000))
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


@pytest.mark.parametrize("rebuild", [False, True])
def test_beyond_its_limit_a_slot_is_given_up(db: Database, rebuild: bool) -> None:
    """The stream ends with the way out; where the views are to be rebuilt, a new slot can take the old one's place."""
    db.make(f"{ORDERS}; CREATE TABLE other (a text)", "orders")
    source = db.open(slot_limits=SlotLimits(limit=2_000_000, rebuild=rebuild), timing=Timing(retained=0.1))
    stream = source.transactions(source.now(), [], lambda: False)
    db.run("INSERT INTO orders VALUES (1, 1, NULL)")
    assert next(t for t in stream if t.changes)
    db.run("INSERT INTO other SELECT repeat('x', 100) FROM generate_series(1, 20000)")
    with pytest.raises(LostGuarantee, match=r"more than slot.limit \(1.907 MB\)") as error:
        deadline = time.monotonic() + PATIENCE
        for _ in stream:
            assert time.monotonic() < deadline
    stream.close()
    assert isinstance(error.value, SourceLost) is rebuild
    if rebuild:
        stood = source.now()
        db.run("INSERT INTO orders VALUES (2, 1, NULL)")
        source.renew()
        source.guard()
        with pytest.raises(LostGuarantee, match="made anew"):
            source.verify(stood)
        begun = db.server.execute(db.name, "SELECT confirmed_flush_lsn FROM pg_replication_slots")
        source.renew()
        assert db.server.execute(db.name, "SELECT confirmed_flush_lsn FROM pg_replication_slots") == begun
    else:
        assert "strobe rebuild" in error.value.fix and "slot.limit" in error.value.fix
        begun = db.server.execute(db.name, "SELECT confirmed_flush_lsn FROM pg_replication_slots")
        source.renew()
        assert db.server.execute(db.name, "SELECT confirmed_flush_lsn FROM pg_replication_slots") == begun, "not asked"
    source.close()


def test_log_that_the_server_took_away(db: Database) -> None:
    """max_slot_wal_keep_size: it is noticed, and where views are to be rebuilt a new slot takes the old one's place."""
    db.make(ORDERS, "orders")
    source = db.open(slot_limits=SlotLimits(rebuild=True))
    start = source.now()
    admin = partial(db.server.execute, db.name)
    admin("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    try:
        admin("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 120
        while admin("SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'strobe_test_shop'") != [("lost",)]:
            db.run("INSERT INTO orders VALUES (1, 1, NULL)", "DELETE FROM orders", "SELECT pg_switch_wal()")
            admin("CHECKPOINT")
            assert time.monotonic() < deadline
        for noticed in (lambda: source.verify(start), lambda: next(source.transactions(start, [], lambda: False))):
            with pytest.raises(SourceLost) as error:
                noticed()
            assert error.value.rebuild and error.value.source == "shop"
        source.renew()
        source.verify(source.now())
    finally:
        admin("ALTER SYSTEM RESET max_slot_wal_keep_size")
        admin("SELECT pg_reload_conf()")
        source.close()


def test_a_publication_that_is_dropped_is_not_log_that_was_let_go(db: Database) -> None:
    """Views are not rebuilt unasked because of it."""
    db.make(ORDERS, "orders")
    source = db.open(slot_limits=SlotLimits(rebuild=True))
    stream = source.transactions(source.now(), [], lambda: False)
    db.run("INSERT INTO orders VALUES (1, 1, NULL)")
    assert next(t for t in stream if t.changes)
    db.run("DROP PUBLICATION strobe_test_shop", "INSERT INTO orders VALUES (2, 1, NULL)")
    with pytest.raises(SourceLost) as error:
        list(stream)
    assert not error.value.rebuild
    source.close()


def test_log_that_nobody_needs_is_not_let_go_before_it_is_visible(db: Database) -> None:
    """Else a load that comes then would neither find it nor be told of it: a transaction in the log that waits for its
    standby."""
    source = db.make(ORDERS, "orders")
    with stalled(db, "INSERT INTO orders VALUES (1, 1, 'T1')"):
        end = end_of(source)
        assert end is None or end < source.now()
        if end is not None:
            source.discard(end)
        reader = source.reader(at_a_position=True)
        seen = reader.open()
        loaded = list(reader.scan("orders", ["note"]))
        reader.close()
    later = [t for t in read(source, seen.through) if t.changes]
    assert (loaded, len(later)) == ([], 1)


def test_a_stream_survives_a_consumer_that_takes_its_time(db: Database) -> None:
    """Keep-alives are answered while nobody takes transactions."""
    source = db.make(ORDERS, "orders")
    db.server.execute("postgres", f"ALTER ROLE {db.server.role} SET wal_sender_timeout = '4s'")
    try:
        stream = source.transactions(source.now(), [], lambda: False)
        db.run("INSERT INTO orders VALUES (0, 1, '')")
        next(t for t in stream if t.changes)
        for n in range(1, 400):
            db.server.execute(db.name, "INSERT INTO orders VALUES (%s, 1, '')", n)
        ((last,),) = db.server.execute(db.name, "SELECT now() + interval '0.5 s'")
        answered = "SELECT 1 FROM pg_stat_replication WHERE usename = %s AND reply_time > %s"
        eventually(lambda: db.server.execute(db.name, answered, db.server.role, last))
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


def test_an_id_that_was_damaged_on_its_way_is_not_waited_for(db: Database) -> None:
    """No transaction has it yet, or it was taken back; one that is still open is waited for."""
    source = db.make(ORDERS, "orders")
    visible = Visible(source._pool)
    ((xid,),) = db.server.execute(db.name, "SELECT pg_current_xact_id()::text::int8")
    assert visible.wait(xid, lambda: False)
    with pytest.raises(Damaged, match="there is no transaction"):
        visible.wait(xid + 1_000_000, lambda: False)
    with psycopg.connect(db.server.admin_dsn(db.name)) as other:
        ((open_,),) = other.execute("SELECT pg_current_xact_id()::text::int8").fetchall()
        looks = iter(range(30))
        assert not visible.wait(open_, lambda: next(looks, None) is None)
        other.rollback()
