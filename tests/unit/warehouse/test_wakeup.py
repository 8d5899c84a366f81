"""How whoever posts a request wakes the coordinator."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import pytest
from patience import PATIENCE

from strobe.warehouse.control import requests
from strobe.warehouse.control.store import ControlStore
from strobe.warehouse.control.wakeup import Wakeups, wake


def test_a_request_wakes_the_coordinator_of_its_warehouse(tmp_path: Path) -> None:
    """At once, each time, and no other coordinator; nobody need be listening."""
    here, there = ControlStore(tmp_path / "here"), ControlStore(tmp_path / "there")
    requests.post(here, {"kind": "fold"})
    woken, other = threading.Event(), threading.Event()
    with Wakeups(here, woken.set), Wakeups(there, other.set):
        for _ in range(2):
            requests.post(here, {"kind": "fold"})
            assert woken.wait(PATIENCE)
            woken.clear()
    assert not other.is_set()
    requests.post(here, {"kind": "fold"})
    assert not woken.is_set()


def test_the_socket_of_a_coordinator_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    store, woken = ControlStore(tmp_path), threading.Event()
    killed = Wakeups(store, lambda: None).__enter__()
    with Wakeups(store, woken.set):
        wake(store)
        assert woken.wait(PATIENCE)
    killed.__exit__()


def test_where_there_can_be_no_socket_the_coordinator_works_all_the_same(
    own_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As here, where its name would be too long."""
    long = own_tmp / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    store = ControlStore(own_tmp)
    with Wakeups(store, lambda: None) as wakeups:
        wake(store)
        assert not wakeups.is_alive()
