"""What a coordinator says of itself twice a second, and what others make of it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import Any

from strobe.warehouse.control.documents import HEARTBEAT
from strobe.warehouse.control.store import ControlStore, Document

ALIVE = 10.0
"""Seconds after which a heartbeat from another machine counts no more."""

_NAME = "heartbeat.json"


@dataclass(frozen=True)
class Heard:
    """What was last heard of a coordinator."""

    document: dict[str, Any] = field(default_factory=dict)
    age: float | None = None
    """Seconds ago; None if nothing ever was."""
    alive: bool = False

    @property
    def summary(self) -> dict[str, Any]:
        """The coordinator as `strobe status` tells it."""
        known = {name: self.document.get(name) for name in ("pid", "host", "epoch")}
        seconds = None if self.age is None else round(self.age, 1)
        return {"alive": self.alive, **known, "last_heard_seconds": seconds}


def write_heartbeat(store: ControlStore, document: Document) -> None:
    """Say that the coordinator lives: pid, host, epoch and whatever else."""
    store.put(_NAME, {"pid": os.getpid(), "host": socket.gethostname(), **document})


def read_heartbeat(store: ControlStore) -> Document | None:
    return store.get(_NAME, HEARTBEAT)


def heartbeat_age(store: ControlStore) -> float | None:
    """Seconds since the last heartbeat; None if there never was one."""
    return store.age(_NAME)


def hear(store: ControlStore) -> Heard:
    """What the coordinator last said, and whether it still lives."""
    document, age = read_heartbeat(store), heartbeat_age(store)
    if document is None or age is None:
        return Heard()
    here = document.get("host") == socket.gethostname()
    gone = document.get("stopped") or age > ALIVE or (here and not _exists(document.get("pid")))
    return Heard(document, age, alive=not gone)


def _exists(pid: object) -> bool:
    try:
        os.kill(int(str(pid)), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True
