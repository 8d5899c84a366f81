"""Everything a command says goes through here: as text or as one JSON document, without secrets, and as text without
control characters."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from time import sleep
from typing import Any, TextIO

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from strobe.config.load import load_project
from strobe.config.model import Project
from strobe.data.private import create
from strobe.data.scratch import user_folder
from strobe.errors import StrobeError, UserError
from strobe.events import Event, Listener, ignore
from strobe.redaction import printable, printable_json, redact, redacted, said
from strobe.report.document import FORMAT, Document

Render = Callable[[Document], Iterable[RenderableType]]

_WIDE = 200
"""Columns to assume where there is no terminal that says how many it has."""


class Terminal:
    """Where a command reports. Reports go to standard output, progress and errors to standard error."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.project: Project | None = None
        self._umask: int | None = None
        self.out = _console(stderr=False)
        self.err = _console(stderr=True)

    @staticmethod
    def of(context: typer.Context) -> Terminal:
        found = context.find_object(Terminal)
        return found or Terminal()

    def open(self, directory: Path, as_json: bool = False, *, offline: bool = False) -> Project:
        """Read the project; from now on nothing that came in through `${…}` is shown."""
        self.as_json = as_json
        if not directory.is_dir():
            raise UserError(f"there is no folder {directory}", fix="Name a project's folder with --project.")
        return self._opened(load_project(directory, offline=offline))

    def open_to_read(self, directory: Path, warehouse: Path | None, as_json: bool = False) -> Project:
        """The project, or with `warehouse` only what that knows of it."""
        from strobe.client.reading import project_to_read

        if warehouse is None:
            return self.open(directory, as_json)
        self.as_json = as_json
        return self._opened(project_to_read(directory, warehouse))

    def _opened(self, project: Project) -> Project:
        self.project = project
        self._umask = os.umask(project.umask)
        return project

    def close(self) -> None:
        """The process writes files as it did before a project was opened."""
        if self._umask is not None:
            os.umask(self._umask)
            self._umask = None

    def show(self, document: Document, render: Render, *, exact: bool = False) -> None:
        """The command's report. `exact` is for rows that a user asked for: they are shown as they are."""
        found = document if exact else redacted(document)
        if self.as_json:
            self._print_json(found)
            return
        for part in render(_printable(found)):
            self.out.print(part, soft_wrap=isinstance(part, Text))

    def watch(self, report: Callable[[], Document], render: Render, seconds: float) -> None:
        """The report again and again, in place on a terminal, until Ctrl-C."""
        with suppress(KeyboardInterrupt):
            if not self.out.is_terminal:
                while True:
                    self.show(report(), render)
                    sys.stdout.flush()
                    sleep(seconds)
            with Live(console=self.out, auto_refresh=False) as live:
                while True:
                    live.update(Group(*render(_printable(redacted(report())))), refresh=True)
                    sleep(seconds)

    def tell(self, event: Event) -> None:
        """Progress, for a person who waits."""
        if not self.as_json:
            self.err.print(Text(said(str(event)), style="dim"))

    def quieted(self, tell: Listener) -> Listener:
        """The same, or nothing where only one JSON document is wanted."""
        return ignore if self.as_json else tell

    def fail(self, error: StrobeError) -> None:
        body = {name: said(text) for name, text in error.document()["error"].items()}
        if self.as_json:
            self._print_json({"error": body})
            return
        place = f"{body['where']}: " if body["where"] else ""
        self.err.print(Text.assemble(("error: ", "bold red"), place, body["message"]))
        if body["fix"]:
            self.err.print(Text(f"  {body['fix']}"))

    def fail_unexpectedly(self, error: BaseException) -> None:
        """Something that Strobe did not foresee: one line for the user, the traceback in a file."""
        file = self._write_traceback(error)
        lines = str(error).strip().splitlines()
        what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        bug = StrobeError(f"this is a bug in Strobe: {what}", fix=f"Please report it, with what is in {file}.")
        bug.code = "bug"
        self.fail(bug)

    def _write_traceback(self, error: BaseException) -> Path:
        text = redact("".join(traceback.format_exception(error)))
        name = f"error-{datetime.now(timezone.utc):%Y%m%dT%H%M%S%f}.txt"
        for folder in self._folders():
            try:
                with os.fdopen(create(folder / name), "w", encoding="utf-8") as file:
                    file.write(text)
                return folder / name
            except OSError:
                continue
        return Path("(nowhere: neither the warehouse nor the temporary folder can be written)")

    def _folders(self) -> Iterator[Path]:
        if self.project:
            yield self.project.warehouse / "_strobe"
        with suppress(OSError, UserError):
            yield user_folder()

    def _print_json(self, document: Document) -> None:
        text = json.dumps({"format": FORMAT, **document}, ensure_ascii=False, indent=2, default=_plain)
        print(printable_json(text), file=sys.stdout, flush=True)


class RedactedStream:
    """A stream that hides secrets in whatever is written to it, by whatever library."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(redact(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_WITH_LINES = {"statements", "once", "title", "smallest"}
"""Parts of reports that are texts of several lines."""


def _printable(value: Any, lines: bool = False) -> Any:
    """A report without control characters, in its keys neither: these are names of tables and columns."""
    if isinstance(value, str):
        return printable(value, lines=lines)
    if isinstance(value, dict):
        return {_printable(key): _printable(item, lines or key in _WITH_LINES) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable(item, lines) for item in value]
    return value


def _console(stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    return (
        console
        if console.is_terminal
        else Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=_WIDE)
    )


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
