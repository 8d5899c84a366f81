"""Wakes a coordinator when a request has been posted, so that it does not have to look for requests all the time.

A datagram to a Unix socket in this user's folder for temporary files; what it says is in the request. It may not get
through (another machine or user, a folder with a name that is too long for a socket): the coordinator also looks for
requests now and then.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from strobe.data.scratch import user_folder
from strobe.warehouse.control.store import ControlStore


def wake(store: ControlStore) -> None:
    """Wake the coordinator of this warehouse, if there is one within reach."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(b"", str(_address(store)))


def _address(store: ControlStore) -> Path:
    return socket_path(store, "wake")


def socket_path(store: ControlStore, purpose: str) -> Path:
    """Where the coordinator of this warehouse listens for a purpose, in this user's own folder."""
    return user_folder() / f"{purpose}-{hashlib.sha256(os.fsencode(store.folder.resolve())).hexdigest()[:16]}"


class Wakeups(threading.Thread):
    """Waits to be woken, and calls `woken` each time, until it is closed."""

    def __init__(self, store: ControlStore, woken: Callable[[], None]) -> None:
        super().__init__(name="wakeups", daemon=True)
        self._store, self._woken = store, woken
        self._ended = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def __enter__(self) -> Wakeups:
        try:
            address = _address(self._store)
            address.unlink(missing_ok=True)  # of one that was killed
            self._socket.bind(str(address))
        except OSError:  # nobody can wake it
            self._ended = True
        else:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            self._ended = True
            self._socket.shutdown(socket.SHUT_RD)
            self.join()
            with suppress(OSError):
                _address(self._store).unlink(missing_ok=True)
        self._socket.close()

    def run(self) -> None:
        while True:
            self._socket.recv(1)
            if self._ended:
                return
            self._woken()
