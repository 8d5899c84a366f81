"""Small documents beside the tables, each under a name: all that lock, heartbeat, requests and notes are made of."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strobe.redaction import redacted

Document = dict[str, Any]


class ControlStore:
    """Files in a folder. They work wherever the warehouse does, need no port, and have its permissions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a document, atomically: whoever reads finds the old one or this one, never half of one."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")
        draft.write_text(json.dumps(redacted(dict(document)), default=lambda value: redacted(str(value))))
        draft.replace(file)

    def get(self, name: str) -> Document | None:
        """None if there is none that can be read."""
        try:
            document = json.loads((self.folder / name).read_text())
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    def list(self, under: str, ending: str) -> list[str]:
        """The names in a part of the store that end like this, in order."""
        folder = self.folder / under
        found = folder.glob(f"*{ending}") if folder.is_dir() else ()
        return sorted(f"{under}/{file.name}" for file in found)

    def age(self, name: str) -> float | None:
        """Seconds since a document was written; None if there is none."""
        try:
            return max(0.0, time.time() - (self.folder / name).stat().st_mtime)
        except FileNotFoundError:
            return None

    def delete(self, name: str) -> bool:
        """Whether it was there."""
        try:
            (self.folder / name).unlink()
        except FileNotFoundError:
            return False
        return True
