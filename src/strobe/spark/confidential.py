"""Hands to tasks what Spark must not hold: a reader knows the password of its source.

Spark keeps what a task consists of: in broadcasts, which go over the network and to disk, and in what it logs. So a
task is given two things that say nothing without each other. The bytes of what is confidential, each combined with
a random one, are in a file of this user's in the staging folder, where tasks write what they read, for as long as the
tasks run. The random bytes go with the task.
"""

from __future__ import annotations

import os
import pickle
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from strobe.data import private


@dataclass(frozen=True)
class Confidential:
    """A reference: `resolve` gives the value itself, in any process of this user that reaches the staging folder."""

    file: Path
    pad: bytes = field(repr=False)

    def resolve(self) -> Any:
        with os.fdopen(private.open_own(self.file), "rb") as file:
            return pickle.loads(_combined(file.read(), self.pad))


@contextmanager
def handed(value: Any, folder: Path) -> Iterator[Confidential]:
    """A reference to a value, good for as long as this lasts."""
    plain: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    reference = Confidential(folder / secrets.token_hex(16), secrets.token_bytes(len(plain)))
    with os.fdopen(private.create(reference.file), "wb") as file:
        file.write(_combined(plain, reference.pad))
    try:
        yield reference
    finally:
        reference.file.unlink()


def _combined(one: bytes, other: bytes) -> bytes:
    number = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    return number.to_bytes(len(other), "big")
