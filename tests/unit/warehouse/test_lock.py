"""One coordinator at a time: lock and heartbeat, without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from strobe.errors import NotNow
from strobe.warehouse.control.heartbeat import heartbeat_age, read_heartbeat, write_heartbeat
from strobe.warehouse.control.lock import CoordinatorLock
from strobe.warehouse.control.store import ControlStore

HOLD = """
import sys, pathlib
from strobe.warehouse.control.lock import CoordinatorLock
from strobe.warehouse.control.store import ControlStore
CoordinatorLock(ControlStore(pathlib.Path(sys.argv[1]))).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_coordinator_is_refused_until_the_first_dies(tmp_path: Path) -> None:
    """The refusal names the process; `kill -9` frees the lock at once; taking over ignores it."""
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        second = CoordinatorLock(ControlStore(tmp_path))
        with pytest.raises(NotNow, match=f"process {first.pid} on"):
            second.acquire()
        second.acquire(take_over=True)
        assert not second.held, "the lock itself is still the other's"
    finally:
        first.kill()
        first.wait()
    second.acquire()
    assert second.held
    second.release()


def test_a_heartbeat_from_another_machine_refuses_while_it_is_fresh(tmp_path: Path) -> None:
    """Where the lock does not reach, the heartbeat does; an old one, or one that says it stopped, counts no more."""
    write_heartbeat(ControlStore(tmp_path), {"host": "elsewhere", "pid": 77, "epoch": 3})
    lock = CoordinatorLock(ControlStore(tmp_path))
    with pytest.raises(NotNow, match="process 77 on elsewhere, last heard 0 s ago"):
        lock.acquire()
    long_ago = time.time() - 60
    os.utime(tmp_path / "heartbeat.json", (long_ago, long_ago))
    lock.acquire()
    lock.release()
    write_heartbeat(ControlStore(tmp_path), {"host": "elsewhere", "stopped": True})
    lock.acquire()
    lock.release()


def test_heartbeats_are_written_whole(tmp_path: Path) -> None:
    """A reader finds the last document or none, never half of one."""
    assert read_heartbeat(ControlStore(tmp_path)) is None and heartbeat_age(ControlStore(tmp_path)) is None
    write_heartbeat(ControlStore(tmp_path / "new"), {"epoch": 4})
    document = read_heartbeat(ControlStore(tmp_path / "new"))
    assert document is not None and document["epoch"] == 4 and document["pid"] == os.getpid()
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["heartbeat.json"]
    (tmp_path / "heartbeat.json").write_text(json.dumps([]))
    assert read_heartbeat(ControlStore(tmp_path)) is None


def test_a_lock_whose_folder_was_deleted_is_lost(tmp_path: Path) -> None:
    """Also if there is another one in its place by then; one that is not held cannot be lost."""
    lock = CoordinatorLock(ControlStore(tmp_path / "w"))
    assert not lock.lost
    lock.acquire()
    assert not lock.lost
    (tmp_path / "w").rename(tmp_path / "away")
    assert lock.lost
    other = CoordinatorLock(ControlStore(tmp_path / "w"))
    other.acquire()
    assert lock.lost and not other.lost
    other.release()
    lock.release()
    assert not lock.lost
