"""The owner of all temporary files: whoever needs some leases a folder, and only here are they removed.

A lease ends when it is released, and at the latest when the scratch it is of is closed: a set of sources has one for
rows of large transactions, a coordinator one for what Spark reads. What a process that was killed has left is swept
away when the next one starts, before anything is leased.

No file here is ever needed after a crash.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

from strobe.data.private import own_folder

STAGING = "staging"
"""The folder of a warehouse for what is needed for a while only, and for what sources keep there."""

SPILLED = "spilled"
"""Rows of transactions that are too large for memory."""
READS = "reads"
"""What was read of sources through Spark."""
JOINING = "joining"
"""New views that catch up: their own log."""


def user_folder() -> Path:
    """This user's folder for what belongs to no warehouse, or cannot be in its folder: logs, locks, sockets, and what
    Spark needs for a while. `UserError` if another user was there first."""
    folder = Path(tempfile.gettempdir()) / f"strobe-{os.geteuid()}"
    return own_folder(folder, "Remove it, or set TMPDIR to a folder of your own.")


class Scratch:
    """May be used from any thread."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._lock = threading.Lock()
        self._leases: set[Lease] = set()

    def lease(self, kind: str) -> Lease:
        """A folder for one purpose, which is not there before its first file is written."""
        lease = Lease(self._root / kind / uuid.uuid4().hex, self)
        with self._lock:
            self._leases.add(lease)
        return lease

    def release(self, lease: Lease) -> None:
        """The files are no longer needed; what is yet to be computed from them no longer can be."""
        with self._lock:
            self._leases.discard(lease)
        shutil.rmtree(lease.folder, ignore_errors=True)

    def close(self) -> None:
        """Release everything."""
        with self._lock:
            left = tuple(self._leases)
        for lease in left:
            self.release(lease)

    def sweep(self) -> None:
        """Remove what earlier processes have left. Nobody else may have anything leased here."""
        for kind in (SPILLED, READS, JOINING):
            shutil.rmtree(self._root / kind, ignore_errors=True)


@dataclass(frozen=True)
class Lease:
    folder: Path
    scratch: Scratch

    def release(self) -> None:
        self.scratch.release(self)
