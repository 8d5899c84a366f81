"""Another past: logs that are gone, servers and warehouses that were restored, copied or failed over.

Each is recognised by identity and position, and stops with the views to rebuild: never a silent gap.
"""

from __future__ import annotations

import pickle
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from faults import SLOT, World, end_connections
from patience import PATIENCE, eventually
from postgres_database import use_timing

from strobe.coordinator.verify import verify_source
from strobe.errors import LostGuarantee, SourceUnavailable
from strobe.retry import PG_SLOT_IN_USE
from strobe.sources.postgres.limits import Timing


def test_a_slot_that_is_dropped(world: World) -> None:
    """Under a running stream: it stops, and says what to rebuild. So does another start, also with a new slot."""

    def fault() -> None:
        world.more()
        world.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", SLOT)
        eventually(lambda: dropped(world))

    with pytest.raises(LostGuarantee, match=f"slot {SLOT} is gone") as caught:
        world.keep(world.pipeline(), 2, fault)
    assert "strobe rebuild" in caught.value.fix
    with pytest.raises(LostGuarantee, match="slot is missing"):
        world.topology.sources["sales"].verify(world.topology.sources["sales"].position("0/0"))
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
        world.more()
        world.proxies["sales"].stall()
        world.proxies["sales"].cut()
        eventually(lambda: dropped(world))
        world.write("sales", 0.2)
        world.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", SLOT)
        world.proxies["sales"].cut()
        world.proxies["sales"].go_on()

    with pytest.raises(LostGuarantee, match="made anew"):
        world.keep(world.pipeline(), 2, fault)


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
    world.keep(world.pipeline(), 0.3)

    def fault() -> None:
        world.more()
        world.proxies["billing"].stall()
        world.proxies["billing"].cut()
        end_connections(world, "billing")
        purge(world)
        world.proxies["billing"].cut()
        world.proxies["billing"].go_on()

    with pytest.raises(LostGuarantee, match="purged") as caught:
        world.keep(world.pipeline(), 1, fault)
    assert "strobe rebuild" in caught.value.fix
    with pytest.raises(LostGuarantee, match="purged"):
        world.restarted()


@pytest.mark.parametrize("name", ["sales", "billing"])
def test_a_log_that_goes_during_a_load(world: World, name: str) -> None:
    """A slot that is dropped, a binlog that is purged, after the load has begun: it is noticed before anything is read
    after it."""
    source = world.topology.sources[name]
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
    eventually(lambda: server_end(world, name) > position.order or world.write(name, 0.3, 0.001, seed=99))


def server_end(world: World, name: str) -> tuple[int, ...]:
    if name == "sales":
        ((text,),) = world.sql("SELECT pg_current_wal_lsn()::text")
        return world.topology.sources[name].position(text).order
    ((file, offset, *_),) = world.mariadb.rows("SHOW MASTER STATUS")
    return (int(file.rpartition(".")[2]), int(offset))


@pytest.mark.parametrize("name", ["sales", "billing"])
def test_a_server_restored_from_a_cold_copy(world: World, name: str) -> None:
    """Its identity and its timeline are the same, and its log has grown past the position again: the transactions
    before it are others."""
    world.keep(world.pipeline(), 0.5)
    world.topology.sources.close()
    cold_copy(world, name, restore=False)
    world.keep(world.restarted(), 1)
    world.confirm()
    world.topology.sources.close()
    stood = world.topology.sources[name].position(world.last.positions["v"][name])
    cold_copy(world, name, restore=True)
    world.topology = world.open()
    if name == "sales":
        with pytest.raises(LostGuarantee, match="restored"):
            verify_source(world.topology.sources[name], world.last, ["v"])
    grown_past(world, name, stood)
    with pytest.raises(LostGuarantee, match="restored") as caught:
        verify_source(world.topology.sources[name], world.last, ["v"])
    assert "strobe rebuild" in caught.value.fix
    with pytest.raises(LostGuarantee, match="restored"):
        next(world.topology.sources[name].transactions(stood, [], lambda: False))


@pytest.mark.parametrize("name", ["sales", "billing"])
def test_a_server_restored_under_a_running_coordinator(world: World, name: str) -> None:
    """It comes back with another past, grown beyond where the stream was: nothing of it is committed, also not by way
    of an answer."""
    cold_copy(world, name, restore=False)
    world.topology = world.open()
    asked: list[Any] = []

    def fault() -> None:
        world.more()
        world.proxies[name].stall()
        world.proxies[name].cut()
        world.write(name, 0.3)
        stood = world.topology.sources[name].position(world.last.positions["v"][name])
        cold_copy(world, name, restore=True)
        grown_past(world, name, pipeline.monitors[name].position)
        asked.append(stood)
        world.proxies[name].cut()
        world.proxies[name].go_on()

    pipeline = world.pipeline()
    with pytest.raises(LostGuarantee, match="restored"):
        world.keep(pipeline, 2, fault)
    assert asked
    reader = world.topology.sources[name].reader()
    for asking in (reader, pickle.loads(pickle.dumps(reader))):
        with pytest.raises((SourceUnavailable, LostGuarantee), match=r"restarted|restored"):
            asking.open()


def test_a_server_that_failed_over(world: World) -> None:
    """A promoted server has a new timeline. At a start, and under a running coordinator."""
    world.keep(world.pipeline(), 0.3)

    def promote() -> None:
        world.postgres.stop()
        (world.postgres.data / "recovery.signal").touch()
        with (world.postgres.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("restore_command = 'false'\n")
        chowned(world.postgres.data)
        world.postgres.start()
        eventually(lambda: world.sql("SELECT NOT pg_is_in_recovery()")[0][0])

    with pytest.raises(LostGuarantee, match="another server or another timeline"):
        world.keep(world.pipeline(), 1.5, promote)
    with pytest.raises(LostGuarantee, match="another database than before") as caught:
        world.restarted()
    assert "rebuild the views that use it: v" in caught.value.fix


# Another warehouse.


def test_a_warehouse_restored_behind_its_slot(world: World) -> None:
    """The slot has been confirmed further than the view of the backup stands: there is a gap, and it is not skipped."""
    world.keep(world.pipeline(), 0.5)
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
    use_timing(monkeypatch, Timing(slot_in_use=replace(PG_SLOT_IN_USE, seconds=2 * PATIENCE)))
    world.keep(world.pipeline(), 0.3)
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
    durable = world.topology.sources["sales"].position(world.last.positions["v"]["sales"])
    eventually(lambda: durable <= world.confirmed() or world.confirm())


def test_the_original_stops_if_its_copy_went_on(world: World) -> None:
    """The other way round: the copy read the slot and confirmed, and the original is started again."""
    world.keep(world.pipeline(), 0.3)
    left, commits = world.last, list(world.warehouse.commits)
    world.keep(world.restarted(), 0.5)
    stood = world.topology.sources["sales"].position(left.positions["v"]["sales"])
    eventually(lambda: world.confirm() or world.confirmed() > stood)  # once the server has seen the stream end
    world.topology.sources.close()
    world.warehouse.commits = commits
    with pytest.raises(LostGuarantee, match="somebody else has read it"):
        world.restarted()
