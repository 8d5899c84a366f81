"""One coordinator at a time: an OS lock that a process holds while it lives, and a heartbeat that says who holds it.

The lock refuses a second coordinator on the same machine at once. On a file system shared by several machines the
lock may not reach the others, so there a fresh heartbeat refuses too. Neither is what makes two coordinators safe: that
is the fence (see `fence`); they only keep two supervisors from fencing each other for ever.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from strobe.errors import NotNow

ALIVE = 10.0
"""Seconds after which a heartbeat from another machine counts no more."""


class CoordinatorLock:
    """The lock of a warehouse, in its control folder."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._handle: int | None = None

    @property
    def held(self) -> bool:
        return self._handle is not None

    def acquire(self, take_over: bool = False) -> None:
        """Hold the lock from now on. `NotNow` if another coordinator is alive, unless taking over from it."""
        if self.held:
            return
        self._control.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._control / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            if not take_over:
                raise self._refusal(_read(self._control / "lock")) from None
            return
        if not take_over and self._beats_elsewhere():
            os.close(handle)
            raise self._refusal(read_heartbeat(self._control))
        with suppress(OSError):  # a full disk: the lock is held all the same
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        self._handle = handle

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _beats_elsewhere(self) -> bool:
        document = read_heartbeat(self._control)
        age = heartbeat_age(self._control)
        if document is None or age is None or document.get("stopped"):
            return False
        return age < ALIVE and document.get("host") != socket.gethostname()

    def _refusal(self, holder: dict[str, Any] | None) -> NotNow:
        holder = holder or {}
        age = heartbeat_age(self._control)
        heard = f", last heard {age:.0f} s ago" if age is not None else ""
        return NotNow(
            f"another coordinator is at work: process {holder.get('pid', '?')} on {holder.get('host', '?')}{heard}",
            where=str(self._control.parent),
            fix="Stop it first, or take its place with `strobe run --take-over`.",
        )


def write_heartbeat(control: Path, document: dict[str, Any]) -> None:
    """Say that the coordinator lives: pid, host, epoch and whatever else; replaced atomically."""
    control.mkdir(parents=True, exist_ok=True)
    draft = control / f"heartbeat.{os.getpid()}.tmp"
    body = {"pid": os.getpid(), "host": socket.gethostname(), **document}
    draft.write_text(json.dumps(body, default=str))
    draft.replace(control / "heartbeat.json")


def read_heartbeat(control: Path) -> dict[str, Any] | None:
    return _read(control / "heartbeat.json")


def heartbeat_age(control: Path) -> float | None:
    """Seconds since the last heartbeat; None if there never was one."""
    try:
        return max(0.0, time.time() - (control / "heartbeat.json").stat().st_mtime)
    except FileNotFoundError:
        return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
