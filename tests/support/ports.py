"""Ports for servers that tests start, stop and start again, while other tests do the same.

A port that the kernel gives away may be given to somebody else while its server is down. These lie below the range of
such ports, and each is claimed by a lock that lasts as long as the process.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

LOWEST, HIGHEST = 15_000, 30_000
_claimed = []


def claim() -> int:
    """A port on loopback that nobody else uses, and no other test will."""
    folder = Path(tempfile.gettempdir()) / f"strobe-tests-{os.getuid()}" / "ports"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for port in random.SystemRandom().sample(range(LOWEST, HIGHEST), 1000):
        lock = (folder / str(port)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            lock.close()
        else:
            _claimed.append(lock)
            return port
    raise RuntimeError("there is no free port")
