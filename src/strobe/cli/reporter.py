"""Who tells what `strobe run` is doing: a live table on a terminal, lines with their time anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from strobe.cli import render
from strobe.cli.terminal import Terminal

if TYPE_CHECKING:
    from strobe.events import Reporter

_LOADING_EVERY = 2.0
_STATUS_EVERY = 10.0


class LogReporter:
    """One line for each thing worth telling."""

    def __init__(self, redact: Callable[[str], str], console: Console) -> None:
        self._redact = redact
        self._console = console
        self._next_loading = 0.0
        self._next_status = 0.0
        self._commit: int | None = None
        self._problems: dict[str, str] = {}

    def say(self, text: str) -> None:
        now = datetime.now(timezone.utc)
        line = f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z {self._redact(text)}"
        self._console.print(Text(line), soft_wrap=True)
        self._console.file.flush()

    def loading(self, source: str, rows: int) -> None:
        if time.monotonic() >= self._next_loading:
            self._next_loading = time.monotonic() + _LOADING_EVERY
            self.say(f"loading {source}: {rows:,} rows read")

    def status(self, document: dict[str, Any]) -> None:
        problems = {name: s["problem"] for name, s in document["sources"].items() if s.get("problem")}
        for name, problem in problems.items():
            if self._problems.get(name) != problem:
                self.say(f"source {name}: trying again: {problem}")
        for name in self._problems.keys() - problems.keys():
            self.say(f"source {name}: answers again")
        self._problems = problems
        if document["commit"] != self._commit and time.monotonic() >= self._next_status:
            self._next_status = time.monotonic() + _STATUS_EVERY
            self._commit = document["commit"]
            self.say(f"commit {self._commit}")


class LiveReporter:
    """A table that is redrawn in place; what is said scrolls by above it."""

    def __init__(self, redact: Callable[[str], str], live: Live) -> None:
        self._redact = redact
        self._live = live
        self._loaded: dict[str, int] = {}

    def say(self, text: str) -> None:
        self._live.console.print(Text(self._redact(text), style="dim"))

    def loading(self, source: str, rows: int) -> None:
        self._loaded[source] = rows
        self._draw(render.table(["loading", "rows read"], self._loaded.items(), right=["rows read"]))

    def status(self, document: dict[str, Any]) -> None:
        shown = {**document, "sources": {n: self._without_secrets(s) for n, s in document["sources"].items()}}
        self._draw(render.running(shown))

    def _without_secrets(self, source: dict[str, Any]) -> dict[str, Any]:
        return {name: self._redact(value) if isinstance(value, str) else value for name, value in source.items()}

    def _draw(self, shown: RenderableType) -> None:
        self._live.update(shown, refresh=True)


@contextmanager
def reporter(terminal: Terminal) -> Iterator[Reporter]:
    """The reporter that fits where the output goes."""
    if terminal.as_json:
        yield LogReporter(terminal.redact, terminal.err)
    elif not (terminal.out.is_terminal and sys.stdout.isatty()):
        yield LogReporter(terminal.redact, terminal.out)
    else:
        with Live(console=terminal.out, auto_refresh=False, transient=False) as live:
            yield LiveReporter(terminal.redact, live)
