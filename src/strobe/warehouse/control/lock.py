"""One coordinator at a time: an OS lock that a process holds while it lives, beside a heartbeat that says who holds it.

The lock refuses a second coordinator on the same machine at once. On a file system shared by several machines the
lock may not reach the others, so there a fresh heartbeat refuses too. Neither is what makes two coordinators safe: that
is the fence (see `claim`); they only keep two supervisors from fencing each other for ever.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import suppress

from strobe.errors import NotNow
from strobe.warehouse.control.heartbeat import ALIVE, heartbeat_age, read_heartbeat
from strobe.warehouse.control.store import ControlStore, Document

_NAME = "lock"


class CoordinatorLock:
    """The lock of a warehouse, in its control folder."""

    def __init__(self, store: ControlStore) -> None:
        self._store = store
        self._handle: int | None = None

    @property
    def held(self) -> bool:
        return self._handle is not None

    @property
    def lost(self) -> bool:
        """Whether the file that is held is gone, or another one is in its place: the warehouse was deleted."""
        if self._handle is None:
            return False
        try:
            there, held = (self._store.folder / _NAME).stat(), os.fstat(self._handle)
        except FileNotFoundError:
            return True
        return (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino)

    def acquire(self, take_over: bool = False) -> None:
        """Hold the lock from now on. `NotNow` if another coordinator is alive, unless taking over from it."""
        if self.held:
            return
        self._store.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._store.folder / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            if not take_over:
                raise self._refusal(self._store.get(_NAME)) from None
            return
        if not take_over and self._beats_elsewhere():
            os.close(handle)
            raise self._refusal(read_heartbeat(self._store))
        with suppress(OSError):  # a full disk: the lock is held all the same
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        self._handle = handle

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _beats_elsewhere(self) -> bool:
        document = read_heartbeat(self._store)
        age = heartbeat_age(self._store)
        if document is None or age is None or document.get("stopped"):
            return False
        return age < ALIVE and document.get("host") != socket.gethostname()

    def _refusal(self, holder: Document | None) -> NotNow:
        holder = holder or {}
        age = heartbeat_age(self._store)
        heard = f", last heard {age:.0f} s ago" if age is not None else ""
        return NotNow(
            f"another coordinator is at work: process {holder.get('pid', '?')} on {holder.get('host', '?')}{heard}",
            where=str(self._store.folder.parent),
            fix="Stop it first, or take its place with `strobe run --take-over`.",
        )
