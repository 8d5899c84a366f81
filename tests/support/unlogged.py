"""Changes of a SQLite database that leave no trace in Strobe's log: by a connection whose triggers are switched off."""

from __future__ import annotations

import ctypes
import ctypes.util
from pathlib import Path

import pytest

_ENABLE_TRIGGER = 1003


def write_unlogged(database: Path, statement: str) -> None:
    """Python's own module can switch triggers off from 3.12 on only."""
    if (name := ctypes.util.find_library("sqlite3")) is None:
        pytest.skip("SQLite's library is not there on its own")
    library, handle = ctypes.CDLL(name), ctypes.c_void_p()
    assert library.sqlite3_open(str(database).encode(), ctypes.byref(handle)) == 0
    try:
        assert library.sqlite3_busy_timeout(handle, 20_000) == 0
        assert library.sqlite3_db_config(handle, _ENABLE_TRIGGER, 0, None) == 0
        assert library.sqlite3_exec(handle, statement.encode(), None, None, None) == 0, statement
    finally:
        library.sqlite3_close(handle)
