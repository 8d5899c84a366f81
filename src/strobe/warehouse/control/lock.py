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

from strobe.data.private import FOLDER
from strobe.errors import NotNow, UserError
from strobe.warehouse.control.documents import PROCESS
from strobe.warehouse.control.heartbeat import ALIVE, heartbeat_age, read_heartbeat
from strobe.warehouse.control.store import Bad, ControlStore, Document

_NAME = "lock"


class CoordinatorLock:
    """The lock of a warehouse, in its control folder."""

    def __init__(self, store: ControlStore) -> None:
        self._store = store
        self._handle: int | None = None
        self._folder: int | None = None

    @property
    def held(self) -> bool:
        return self._handle is not None

    @property
    def lost(self) -> bool:
        """Whether the folder in which it is held is gone, or another one is in its place: the warehouse was deleted."""
        if self._folder is None:
            return False
        try:
            there, held = os.lstat(self._store.folder), os.fstat(self._folder)
        except FileNotFoundError:
            return True
        return (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino)

    def keep(self) -> None:
        """Put the lock's file back if somebody has removed it alone, so that others are still refused."""
        if self._handle is not None and not os.fstat(self._handle).st_nlink:
            with suppress(OSError):
                handle = self._store.open(_NAME)
                self._handle, removed = handle, self._handle
                os.close(removed)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._sign(handle)

    def acquire(self, take_over: bool = False) -> None:
        """Hold the lock from now on. `NotNow` if another coordinator is alive, unless taking over from it."""
        if self.held:
            return
        try:
            handle = self._store.open(_NAME)
        except Bad as bad:
            where = str(self._store.folder / _NAME)
            raise UserError(f"the lock is no file of Strobe's: {bad}", where=where, fix="Move it away.") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            if not take_over:
                raise self._refusal(self._store.get(_NAME, PROCESS)) from None
            return
        if not take_over and self._beats_elsewhere():
            os.close(handle)
            raise self._refusal(read_heartbeat(self._store))
        self._sign(handle)
        self._handle, self._folder = handle, os.open(self._store.folder, FOLDER)

    def _sign(self, handle: int) -> None:
        with suppress(OSError):  # a full disk: the lock is held all the same
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def release(self) -> None:
        for handle in (self._handle, self._folder):
            if handle is not None:
                os.close(handle)
        self._handle = self._folder = None

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
