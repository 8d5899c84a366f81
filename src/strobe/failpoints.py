"""Named instants at which a test may kill the process: `STROBE_FAILPOINT=name` or `name:3` for the third time.

Crash safety is shown by dying, not by raising: the process gets SIGKILL, as from outside.
"""

from __future__ import annotations

import os
import signal
import threading

NAMES = (
    "received",
    "routed",
    "asked",
    "answered",
    "merged",
    "append.before",
    "append.after",
    "fold.before",
    "fold.view",
    "fold.before_publish",
    "fold.after_publish",
    "load.table",
    "load.definitions",
    "load.joined",
)

APPLYING = ("apply.loaded", "apply.met")
"""Passed only while an edit is applied: the new views are loaded, all stand at one vector."""

_lock = threading.Lock()
_passed: dict[str, int] = {}


def reach(name: str) -> None:
    """Die here if the environment says so."""
    wanted, _, nth = os.environ.get("STROBE_FAILPOINT", "").partition(":")
    if wanted != name:
        return
    with _lock:
        _passed[name] = _passed.get(name, 0) + 1
        if _passed[name] == int(nth or 1):
            os.kill(os.getpid(), signal.SIGKILL)
