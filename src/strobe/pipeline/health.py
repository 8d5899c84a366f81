"""What is wrong with the sources at the moment: one report for each, whoever saw it."""

from __future__ import annotations

import threading
from enum import Enum

from strobe.errors import StrobeError


class Failing(Enum):
    """In what a source fails."""

    STREAM = "its transactions are read"
    QUERIES = "questions are answered"
    PROOFS = "its definitions are proven"


class Health:
    """A source that fails in one way is failing until it succeeds in the same way: one whose log cannot be read does
    not recover by answering questions. May be told and asked from any thread."""

    def __init__(self) -> None:
        self._problems: dict[str, dict[Failing, StrobeError]] = {}
        self._lock = threading.Lock()

    def failed(self, source: str, what: Failing, error: StrobeError) -> None:
        with self._lock:
            self._problems.setdefault(source, {})[what] = error

    def succeeded(self, source: str, what: Failing) -> None:
        with self._lock:
            self._problems.get(source, {}).pop(what, None)

    def problem(self, source: str) -> StrobeError | None:
        """Why it cannot be read, or if it can why it cannot be asked."""
        with self._lock:
            found = self._problems.get(source, {})
            return next((found[what] for what in Failing if what in found), None)
