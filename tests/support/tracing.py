"""Which functions a piece of work passes, in which order: for the paths that docs/architecture.md describes."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from paths import ROOT

PAGE = ROOT / "docs" / "architecture.md"


def steps(heading: str) -> list[str]:
    """The functions that the page names under a heading, in their order: the first name of every numbered line."""
    page = PAGE.read_text(encoding="utf-8")
    section = page.partition(f"### {heading}\n")[2].partition("\n#")[0]
    found = re.findall(r"^\d+\. `([\w.]+)`", section, re.MULTILINE)
    assert found, f"docs/architecture.md has no steps under {heading!r}"
    return found


def code_of(name: str) -> CodeType:
    """The code of a function that the page names: `pipeline.monitor.Monitor.run`."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(("strobe", *parts[:length])))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = inspect.getattr_static(found, part)
        function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        return inspect.unwrap(function).__code__
    raise ModuleNotFoundError(name)


class Trace:
    """The named functions in the order in which each was first called, in whatever thread."""

    def __init__(self, names: list[str]) -> None:
        self._names = {code_of(name): name for name in names}
        self.passed: list[str] = []

    def begin(self) -> None:
        """Count from here."""
        self.passed.clear()

    @contextmanager
    def watching(self) -> Iterator[Trace]:
        """In this thread and all that it and others start meanwhile."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            name = self._names.get(frame.f_code)
            if name is not None and name not in self.passed:
                self.passed.append(name)
