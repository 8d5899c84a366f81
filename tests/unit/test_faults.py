"""Faults of networks, servers and operators, one after the other, while the real coordinator keeps a view.

Each either passes by itself, with every commit a state of the databases and nothing lost or doubled, or it stops with
what to do. See docs/faults.md for all of them; tests/live/test_warehouse_faults.py has what concerns the warehouse.
"""

from __future__ import annotations

import pickle
import random
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import postgres_server
import psycopg
import pytest
from faults import SLOT, Crash, Past, World, end_connections, kill, paused
from mariadb_server import Server, running
from memory_live import contents
from postgres_server import PostgresServer

import strobe.runtime.committer as committer_module
import strobe.runtime.coordinator as coordinator_module
import strobe.sources.mariadb_binlog as binlog_module
import strobe.sources.mariadb_place as mariadb_place
import strobe.sources.postgres_place as postgres_place
import strobe.sources.postgres_stream as stream_module
from strobe.errors import AccessRefused, LostGuarantee, SourceUnavailable
from strobe.runtime.service import _verify_source

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """Of this module's own: it is killed, and its folder is put back."""
    with postgres_server.running() as server:
        yield server


@pytest.fixture(scope="module")
def own_mariadb(mariadb_template: Path) -> Iterator[Server]:
    with running(mariadb_template) as server:
        yield server


@pytest.fixture
def world(
    own_postgres: PostgresServer, own_mariadb: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    made = World(own_postgres, own_mariadb, tmp_path, monkeypatch)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent server is given up after a moment instead of half a minute."""
    for module in (postgres_place, mariadb_place):
        monkeypatch.setattr(module, "CONNECT_SECONDS", 2)
    monkeypatch.setattr(postgres_place, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(mariadb_place, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(stream_module, "SILENCE_SECONDS", 1.5)
    monkeypatch.setattr(stream_module, "FEEDBACK_SECONDS", 0.5)
    monkeypatch.setattr(binlog_module, "SILENCE_SECONDS", 1.5)
    monkeypatch.setattr(binlog_module, "HEARTBEAT_SECONDS", 0.5)


def eventually(condition: Callable[[], Any], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


# The network.


@pytest.mark.parametrize("reset", [False, True])
def test_connections_that_are_cut(world: World, reset: bool) -> None:
    """Every connection to both servers ends, again and again: in order, and by a reset."""

    def fault() -> None:
        for _ in range(5):
            time.sleep(0.4)
            for proxy in world.proxies.values():
                proxy.cut(reset=reset)

    world.keep(world.coordinator(), 2.5, fault)
    world.judge()


def test_a_reset_in_the_middle_of_an_answer(world: World) -> None:
    """After any number of bytes of what the servers send: of a stream, of an answer, of a greeting."""
    rng = random.Random(7)

    def fault() -> None:
        for _ in range(25):
            for proxy in world.proxies.values():
                proxy.break_after(rng.randint(1, 4000))
            time.sleep(0.1)

    world.keep(world.coordinator(), 3, fault)
    assert all(proxy.broken > 3 for proxy in world.proxies.values())
    world.judge()


def test_connections_that_stall(impatient: None, world: World) -> None:
    """They stay open and carry nothing: they are given up, and made anew until one is of use."""

    def fault() -> None:
        time.sleep(0.5)
        for proxy in world.proxies.values():
            proxy.stall()
        eventually(lambda: all(isinstance(coordinator.problem(name), SourceUnavailable) for name in world.proxies))
        for proxy in world.proxies.values():
            proxy.go_on()

    coordinator = world.coordinator()
    world.keep(coordinator, 3, fault)
    world.judge()


# A load.


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *product(["sales", "billing"], ["cut", "stalled", "killed"]),
        ("sales", "ended"),  # MariaDB has sent all of so small a table before it can be told to end a connection
        *(pytest.param(name, "reset", marks=pytest.mark.slow) for name in ("sales", "billing")),
    ],
)
def test_a_half_done_snapshot_is_repeated(impatient: None, world: World, name: str, how: str) -> None:
    """A load that is interrupted in the middle fails as a whole; another one is exactly the state at its position."""
    world.sql("INSERT INTO orders SELECT n, 1, repeat('x', 100) FROM generate_series(100, 6000) n")
    world.mariadb.run("INSERT INTO payments SELECT seq, seq, 1 FROM seq_100_to_20000", database=world.billing)
    proxy, source = world.proxies[name], world.assembly.sources[name]
    relation, columns = ("orders", ("id", "state")) if name == "sales" else ("payments", ("id", "order_id"))
    reader = source.reader(at_a_position=True)
    reader.open()
    proxy.break_after(50_000, stall=True)

    def fault() -> None:
        eventually(lambda: proxy.stalled)
        if how == "killed" and name == "sales":
            kill(world.postgres)
        elif how == "killed":
            world.mariadb.stop(kill=True)
        if how == "ended":
            world.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", SLOT)
            proxy.go_on()
        elif how != "stalled":
            proxy.cut(reset=how == "reset")

    disturbing = threading.Thread(target=fault)
    disturbing.start()
    with pytest.raises(SourceUnavailable):
        list(reader.scan(relation, columns))
    disturbing.join()
    reader.close()
    proxy.go_on()
    if how == "killed":
        (world.postgres if name == "sales" else world.mariadb).start()
    writer = threading.Thread(target=world.write, args=(name, 1.0))
    writer.start()
    time.sleep(0.3)
    loaded = {}

    def load() -> bool:
        try:
            loaded[name] = contents(world.assembly, name)
        except SourceUnavailable:
            return False
        return True

    eventually(load)
    writer.join()
    past = Past(world.assembly, {name: world.start[name]})
    text, state = loaded[name]
    assert past.state(world.assembly, name, text) == state
    assert len(state[relation]) > 5000


# Servers.


def test_servers_that_are_killed_and_restarted(world: World) -> None:
    """Both, with -9, in the middle of everything."""

    def fault() -> None:
        time.sleep(1)
        kill(world.postgres)
        world.mariadb.stop(kill=True)
        time.sleep(0.3)
        world.mariadb.start()
        world.postgres.start()

    world.keep(world.coordinator(), 4, fault)
    world.judge()


def test_servers_that_are_paused(impatient: None, world: World) -> None:
    """Their processes stand still for longer than anybody waits, and go on."""

    def fault() -> None:
        time.sleep(0.5)
        with paused(world.postgres, world.mariadb):
            time.sleep(4)

    world.keep(world.coordinator(), 6, fault)
    world.judge()


def test_streams_that_the_server_ends(world: World) -> None:
    """`pg_terminate_backend` and `KILL`, of streams and of whoever asks questions."""

    def fault() -> None:
        for _ in range(6):
            time.sleep(0.3)
            world.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", SLOT)
            end_connections(world.mariadb)

    world.keep(world.coordinator(), 2.5, fault)
    world.judge()


def test_a_password_that_is_changed(world: World) -> None:
    """The view stands still and the problem says what to do, without the secret; with the old password back it goes
    on."""
    role, user = world.postgres.role, "strobe@'127.0.0.1'"
    ((kept,),) = world.mariadb.rows("SELECT authentication_string FROM mysql.user WHERE user = 'strobe'")
    coordinator = world.coordinator()

    def fault() -> None:
        time.sleep(0.5)
        try:
            world.sql(f"ALTER ROLE {role} PASSWORD 'another'")
            world.mariadb.run(f"ALTER USER {user} IDENTIFIED BY 'another'")
            for proxy in world.proxies.values():
                proxy.cut()
            for name in world.proxies:
                eventually(lambda name=name: isinstance(coordinator.problem(name), AccessRefused))  # type: ignore[misc]
                problem = str(coordinator.problem(name))
                assert f"source {name}" in problem and "right user and password" in problem
                assert "least-privilege" not in problem and "s3cret" not in problem
                with pytest.raises(AccessRefused):  # a load would say the same, and end
                    contents(world.assembly, name)
        finally:
            world.sql(f"ALTER ROLE {role} PASSWORD '{world.postgres.password}'")
            world.mariadb.run(f"ALTER USER {user} IDENTIFIED VIA mysql_native_password USING '{kept}'")

    world.keep(coordinator, 3, fault)
    world.judge()


def test_a_slot_that_is_dropped(world: World) -> None:
    """Under a running stream: it stops, and says what to rebuild. So does another start, also with a new slot."""

    def fault() -> None:
        time.sleep(0.5)
        world.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", SLOT)
        eventually(lambda: dropped(world))

    with pytest.raises(LostGuarantee, match=f"slot {SLOT} is gone") as caught:
        world.keep(world.coordinator(), 2, fault)
    assert "strobe rebuild" in caught.value.fix
    with pytest.raises(LostGuarantee, match="slot is missing"):
        world.assembly.sources["sales"].verify(world.assembly.sources["sales"].position("0/0"))
    world.write("sales", 0.2)
    world.open().sources["sales"].prepare(["customers", "orders"])
    with pytest.raises(LostGuarantee, match="made anew"):
        world.restarted()


def dropped(world: World) -> bool:
    try:
        world.sql("SELECT pg_drop_replication_slot(%s)", SLOT)
    except psycopg.errors.ObjectInUse:
        world.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", SLOT)
        return False
    return True


def test_a_slot_that_is_made_anew_between_two_attempts(world: World) -> None:
    """The coordinator only sees its connection end: what was committed in between is missed for good."""

    def fault() -> None:
        time.sleep(0.5)
        world.proxies["sales"].stall()
        world.proxies["sales"].cut()
        eventually(lambda: dropped(world))
        world.write("sales", 0.2)
        world.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", SLOT)
        world.proxies["sales"].cut()
        world.proxies["sales"].go_on()

    with pytest.raises(LostGuarantee, match="made anew"):
        world.keep(world.coordinator(), 2, fault)


def purge(world: World) -> None:
    """Everything in the binlog goes, after something more was written."""
    world.write("billing", 0.3)
    world.mariadb.run("FLUSH BINARY LOGS")
    ((file, *_),) = world.mariadb.rows("SHOW MASTER STATUS")

    def purged() -> bool:
        world.mariadb.run(f"PURGE BINARY LOGS TO '{file}'")
        return bool(world.mariadb.rows("SHOW BINARY LOGS")[0][0] == file)

    eventually(purged)


def test_a_binlog_that_is_purged(world: World) -> None:
    """While nobody reads it; and under a running coordinator whose connection is down."""
    world.keep(world.coordinator(), 0.3)

    def fault() -> None:
        time.sleep(0.3)
        world.proxies["billing"].stall()
        world.proxies["billing"].cut()
        end_connections(world.mariadb)
        purge(world)
        world.proxies["billing"].cut()
        world.proxies["billing"].go_on()

    with pytest.raises(LostGuarantee, match="purged") as caught:
        world.keep(world.coordinator(), 1, fault)
    assert "strobe rebuild" in caught.value.fix
    with pytest.raises(LostGuarantee, match="purged"):
        world.restarted()


@pytest.mark.parametrize("name", ["sales", "billing"])
def test_a_log_that_goes_during_a_load(world: World, name: str) -> None:
    """A slot that is dropped, a binlog that is purged, after the load has begun: it is noticed before anything is read
    after it."""
    source = world.assembly.sources[name]
    relation, columns = ("orders", ("id", "state")) if name == "sales" else ("payments", ("id", "order_id"))
    reader = source.reader(at_a_position=True)
    seen = reader.open()
    rows = reader.scan(relation, columns)
    next(rows)
    world.write(name, 0.2)
    if name == "sales":
        eventually(lambda: dropped(world))
    else:
        purge(world)
    list(rows)
    reader.close()
    with pytest.raises(LostGuarantee, match="slot" if name == "sales" else "purged"):
        source.verify(seen.through)


# Another past.


def cold_copy(world: World, name: str, restore: bool) -> None:
    """Copy the server's folder, or put the copy back."""
    server: Any = world.postgres if name == "sales" else world.mariadb
    copy = server.folder / "copy"
    server.stop()
    if restore:
        shutil.rmtree(server.data)
        copy.rename(server.data)
    else:
        shutil.copytree(server.data, copy, copy_function=shutil.copy2)
    if name == "sales":
        chowned(server.folder)
    server.start()


def chowned(folder: Path) -> None:
    import os

    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, "postgres", "postgres")


def grown_past(world: World, name: str, position: Any) -> None:
    """Let others write until the log has the place again."""
    end = time.monotonic() + 30
    while server_end(world, name) <= position.order:
        assert time.monotonic() < end
        world.write(name, 0.3, 0.001, seed=99)


def server_end(world: World, name: str) -> tuple[int, ...]:
    if name == "sales":
        ((text,),) = world.sql("SELECT pg_current_wal_lsn()::text")
        return world.assembly.sources[name].position(text).order
    ((file, offset, *_),) = world.mariadb.rows("SHOW MASTER STATUS")
    return (int(file.rpartition(".")[2]), int(offset))


@pytest.mark.parametrize("name", ["sales", "billing"])
def test_a_server_restored_from_a_cold_copy(world: World, name: str) -> None:
    """Its identity and its timeline are the same, and its log has grown past the position again: the transactions
    before it are others."""
    world.keep(world.coordinator(), 0.5)
    world.assembly.close()
    cold_copy(world, name, restore=False)
    world.keep(world.restarted(), 1)
    world.confirm()
    world.assembly.close()
    stood = world.assembly.sources[name].position(world.last.positions["v"][name])
    cold_copy(world, name, restore=True)
    world.assembly = world.open()
    if name == "sales":
        with pytest.raises(LostGuarantee, match="restored"):
            _verify_source(world.assembly.sources[name], world.last, ["v"])
    grown_past(world, name, stood)
    with pytest.raises(LostGuarantee, match="restored") as caught:
        _verify_source(world.assembly.sources[name], world.last, ["v"])
    assert "strobe rebuild" in caught.value.fix
    with pytest.raises(LostGuarantee, match="restored"):
        next(world.assembly.sources[name].transactions(stood, [], lambda: False))


@pytest.mark.parametrize("name", ["sales", "billing"])
def test_a_server_restored_under_a_running_coordinator(world: World, name: str) -> None:
    """It comes back with another past, grown beyond where the stream was: nothing of it is committed, also not by way
    of an answer."""
    cold_copy(world, name, restore=False)
    world.assembly = world.open()
    asked: list[Any] = []

    def fault() -> None:
        time.sleep(1.5)
        world.proxies[name].stall()
        world.proxies[name].cut()
        world.write(name, 0.3)
        stood = world.assembly.sources[name].position(world.last.positions["v"][name])
        cold_copy(world, name, restore=True)
        grown_past(world, name, coordinator.monitors[name].position)
        asked.append(stood)
        world.proxies[name].cut()
        world.proxies[name].go_on()

    coordinator = world.coordinator()
    with pytest.raises(LostGuarantee, match="restored"):
        world.keep(coordinator, 2, fault)
    assert asked
    reader = world.assembly.sources[name].reader()
    for asking in (reader, pickle.loads(pickle.dumps(reader))):
        with pytest.raises((SourceUnavailable, LostGuarantee), match=r"restarted|restored"):
            asking.open()


def test_a_server_that_failed_over(world: World) -> None:
    """A promoted server has a new timeline. At a start, and under a running coordinator."""
    world.keep(world.coordinator(), 0.3)

    def promote() -> None:
        world.postgres.stop()
        (world.postgres.data / "recovery.signal").touch()
        with (world.postgres.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("restore_command = 'false'\n")
        chowned(world.postgres.data)
        world.postgres.start()
        eventually(lambda: world.sql("SELECT NOT pg_is_in_recovery()")[0][0])

    with pytest.raises(LostGuarantee, match="another server or another timeline"):
        world.keep(world.coordinator(), 1.5, promote)
    with pytest.raises(LostGuarantee, match="another database than before") as caught:
        world.restarted()
    assert "rebuild the views that use it: v" in caught.value.fix


# Another warehouse.


def test_a_warehouse_restored_behind_its_slot(world: World) -> None:
    """The slot has been confirmed further than the view of the backup stands: there is a gap, and it is not skipped."""
    world.keep(world.coordinator(), 0.5)
    backup = world.last
    world.keep(world.restarted(), 0.5)
    world.confirm()
    world.judge()
    world.warehouse.commits = [c for c in world.warehouse.commits if c.number <= backup.number]
    world.sql("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", SLOT)
    with pytest.raises(LostGuarantee, match="somebody else has read it") as caught:
        world.restarted()
    assert "strobe rebuild" in caught.value.fix


def test_a_warehouse_copied_while_the_original_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read one slot. The copy waits while the original reads; what the original confirms meanwhile is gone for the
    copy, which stops with the view to rebuild, at the moment when it gets the slot."""
    monkeypatch.setattr(stream_module, "BUSY_SECONDS", 30.0)
    world.keep(world.coordinator(), 0.3)
    original, copied = world.restarted(), world.last
    stopped = threading.Thread(target=world.keep, args=(original, 1.5, lambda: confirming(world)))
    second = world.open().sources["sales"]
    stopped.start()
    eventually(lambda: world.sql("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active", SLOT))
    position = second.position(copied.positions["v"]["sales"])
    second.verify(position)
    with pytest.raises(LostGuarantee, match="somebody else has read it"):
        next(second.transactions(position, [], lambda: False))
    stopped.join()
    with pytest.raises(LostGuarantee, match="somebody else has read it"):
        second.verify(position)
    world.judge()


def confirming(world: World) -> None:
    start = world.last.number
    eventually(lambda: world.last.number > start + 3)
    world.confirm()
    durable = world.assembly.sources["sales"].position(world.last.positions["v"]["sales"])
    eventually(lambda: durable <= world.confirmed() or world.confirm())


def test_the_original_stops_if_its_copy_went_on(world: World) -> None:
    """The other way round: the copy read the slot and confirmed, and the original is started again."""
    world.keep(world.coordinator(), 0.3)
    left, commits = world.last, list(world.warehouse.commits)
    world.keep(world.restarted(), 0.5)
    world.confirm()
    world.assembly.close()
    eventually(lambda: world.confirmed() > world.assembly.sources["sales"].position(left.positions["v"]["sales"]))
    world.warehouse.commits = commits
    with pytest.raises(LostGuarantee, match="somebody else has read it"):
        world.restarted()


# Ways to lose or double rows.


def test_restarts_between_the_commit_and_the_confirmation(world: World) -> None:
    """The coordinator is killed again and again, sometimes with the slot confirmed and sometimes not; transactions
    with several changes have one position, and are in one commit or in none."""
    rng = random.Random(3)
    for turn in range(5):
        coordinator = world.restarted()

        def fault(coordinator: Any = coordinator, confirm: bool = turn % 2 == 0) -> None:
            time.sleep(0.3 + rng.random() / 2)
            if confirm:
                world.confirm()
            coordinator.fail(Crash())

        with pytest.raises(Crash):
            world.keep(coordinator, 1.2, fault, pause=0.005)
    world.keep(world.restarted(), 0.3)
    world.judge(commits=10)


def test_a_transaction_that_stays_open_for_long(world: World) -> None:
    """It wrote before the load and everybody else and commits after all of them, across a restart and the confirmation
    of all that came in between; its many changes come with one position, once."""
    with (
        psycopg.connect(world.postgres.admin_dsn(world.database)) as one,
        closing(world.mariadb.connect(world.billing)) as other,
        other.cursor() as cursor,
    ):
        one.execute("INSERT INTO orders SELECT n, 1, 'late' FROM generate_series(500, 699) n")
        cursor.execute("INSERT INTO payments SELECT -seq - 1000000, seq, 1 FROM seq_500_to_699")
        world.load()
        world.keep(world.coordinator(), 1)
        world.confirm()
        world.keep(world.restarted(), 1)
        world.confirm()
        assert not any(row[0] >= 500 for row, _ in contents(world.assembly, "sales")[1]["orders"].items())
        one.commit()
        other.commit()
        world.keep(world.restarted(), 0.5)
    before = len(world.warehouse.commits)
    past = world.judge()
    assert before == len(world.warehouse.commits)
    orders = past.state(world.assembly, "sales", world.last.positions["v"]["sales"])["orders"]
    assert len([row for row, _ in orders.items() if row[0] >= 500]) == 200


def test_a_burst_of_ten_times_the_load(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view-update table stays near its bound, the sources keep what does not fit, and all of it comes in."""
    monkeypatch.setattr(coordinator_module, "TABLE_ROWS", 50)
    coordinator, sizes = world.coordinator(), [0]

    def fault() -> None:
        time.sleep(0.5)
        burst = [
            threading.Thread(target=world.write, args=(name, 1.5, 0.003, seed))
            for name in world.proxies
            for seed in range(10, 13)
        ]
        for thread in burst:
            thread.start()
        while any(thread.is_alive() for thread in burst):
            sizes.append(coordinator.merge.size)
            time.sleep(0.01)

    world.keep(coordinator, 2.5, fault, pause=0.03, limit=90)
    world.judge(commits=50)
    assert max(sizes) < 1500  # 50, what is on its way, and what answers wait for


def test_a_clock_that_is_moved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back by a day, forth by two, at every commit: the times of commits never go back, and the states do not care."""
    rng = random.Random(5)

    class Moved(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(days=rng.choice([-1, 0, 2]))

    monkeypatch.setattr(committer_module, "datetime", Moved)
    world.keep(world.coordinator(), 1)
    world.keep(world.restarted(), 0.5)
    times = [commit.committed_at for commit in world.warehouse.commits]
    assert times == sorted(set(times)) and times[0] > datetime.now(timezone.utc) - timedelta(days=2)
    world.judge()


# The catalogue.


def test_the_catalogue_names_tests_that_exist() -> None:
    """Every test that docs/faults.md names is there, and every test of faults is named."""
    text = (ROOT / "docs" / "faults.md").read_text()
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text))
    assert len(named) > 20
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"
    for file in ("unit/test_faults.py", "live/test_warehouse_faults.py", "live/test_spark_faults.py"):
        there = set(re.findall(r"^def (test_\w+)\(", (ROOT / "tests" / file).read_text(), re.MULTILINE))
        assert there - {"test_the_catalogue_names_tests_that_exist"} <= {
            test for name, test in named if name == f"tests/{file}"
        }
