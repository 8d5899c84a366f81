"""Sees when each version of the warehouse's log is there for readers."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

PAUSE = 0.005


class Watch(threading.Thread):
    """Looks for one version after another, from the first on."""

    def __init__(self, log: Path) -> None:
        super().__init__(name="watch", daemon=True)
        self._folder = log / "_delta_log"
        self._over = threading.Event()
        self.versions: list[tuple[float, int]] = []
        """When a version was there, and its last commit."""

    def run(self) -> None:
        number = 0
        while not self._over.wait(PAUSE):
            while (file := self._folder / f"{number:020}.json").exists():
                at = time.time()
                commits = [commit for commit in map(_last_commit, file.read_text().splitlines()) if commit is not None]
                if commits:
                    self.versions.append((at, max(commits)))
                number += 1

    def stop(self) -> list[tuple[float, int]]:
        self._over.set()
        self.join()
        return self.versions


def _last_commit(line: str) -> int | None:
    added = json.loads(line).get("add")
    stats = json.loads(added["stats"]) if added and added.get("stats") else {}
    last = stats.get("maxValues", {}).get("commit")
    return None if last is None or not added["dataChange"] else int(last)
