"""Who tells what `strobe run` is doing: a live table on a terminal, lines with their time anywhere else, as text or as
JSON."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from strobe.cli import render
from strobe.cli.terminal import Terminal
from strobe.coordinator.status import MaintainedView, Reporter, SourceStatus, Status, ViewStatus, WatchedSource
from strobe.events import (
    BacklogMeasured,
    Committed,
    Event,
    RowsRead,
    SourceAnswers,
    SourceRetried,
    ViewsWritten,
    ViewWaits,
)
from strobe.redaction import printable_json, redacted, said

_LOADING_EVERY = 2.0
_STATUS_EVERY = 10.0
_LONG = timedelta(seconds=5)


class Log(str, Enum):
    """How log lines are written."""

    text = "text"
    json = "json"


class Loads:
    """How fast the sources are read that are being loaded: rows a second, since each was first heard of."""

    def __init__(self) -> None:
        self._began: dict[str, tuple[float, int]] = {}

    def rate(self, event: RowsRead) -> float | None:
        """None before there is enough to say."""
        now = time.monotonic()
        began, rows = self._began.get(event.source, (now, event.rows))
        if event.rows < rows or event.source not in self._began:  # it is read again
            self._began[event.source] = now, event.rows
            return None
        return (event.rows - rows) / (now - began) if now - began >= 1.0 else None


class LogReporter:
    """One line for each thing worth telling."""

    def __init__(self, console: Console, style: Log = Log.text) -> None:
        self._console = console
        self._style = style
        self._loads = Loads()
        self._next_loading = 0.0
        self._next_status = 0.0
        self._next_backlog = 0.0
        self._commit: int | None = None
        self._problems: dict[str, str] = {}
        self._waits: dict[str, str] = {}

    def tell(self, event: Event) -> None:
        if isinstance(event, (RowsRead, ViewsWritten)):
            if time.monotonic() < self._next_loading:
                return
            self._next_loading = time.monotonic() + _LOADING_EVERY
        now = datetime.now(timezone.utc)
        at, rate = f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z", None
        if isinstance(event, RowsRead):
            rate = self._loads.rate(event)
        text = str(event) if rate is None else f"{event}, {rate:,.0f} a second"
        if self._style is Log.json:
            name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
            document = {**asdict(event), "at": at, "level": event.severity, "event": name, "text": text}  # type: ignore[call-overload]
            line = printable_json(json.dumps(redacted(document), ensure_ascii=False))
        else:
            line = f"{at} {said(text)}"
        self._console.print(Text(line), soft_wrap=True)
        self._console.file.flush()

    def status(self, status: Status) -> None:
        tried = {name: source for name, source in status.sources.items() if source.state != "lost"}
        problems = {name: source.problem for name, source in tried.items() if source.problem}
        for name, problem in problems.items():
            if self._problems.get(name) != problem:
                self.tell(SourceRetried(name, problem))
        for name in self._problems.keys() - problems.keys():
            self.tell(SourceAnswers(name))
        self._problems = problems
        self._tell_who_waits(status)
        if time.monotonic() >= self._next_backlog and (backlogs := _backlogs(status)):
            self._next_backlog = time.monotonic() + _STATUS_EVERY
            for name, backlog in backlogs.items():
                if backlog is not None:
                    self.tell(BacklogMeasured(name, render.backlog_text(backlog)))
        if status.commit != self._commit and time.monotonic() >= self._next_status:
            self._next_status = time.monotonic() + _STATUS_EVERY
            self._commit = status.commit
            self.tell(Committed(self._commit))

    def _tell_who_waits(self, status: Status) -> None:
        """Views whose sources are well; once they have waited for a while."""
        waits = {
            name: view.waits.why
            for name, view in status.views.items()
            if isinstance(view, MaintainedView) and view.waits is not None and status.at - view.waits.since > _LONG
            if not any(source in self._problems for source in view.behind)
        }
        for name, why in waits.items():
            if self._waits.get(name) != why:
                self.tell(ViewWaits(name, why))
        self._waits = waits


class LiveReporter:
    """A table that is redrawn in place; what is told scrolls by above it."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._loads = Loads()
        self._loaded: dict[str, list[RenderableType]] = {}

    def tell(self, event: Event) -> None:
        if isinstance(event, RowsRead):
            self._loaded[said(event.source)] = _loading(event, self._loads.rate(event))
            self._draw(_loads_table(self._loaded))
        elif isinstance(event, ViewsWritten):
            bar = ProgressBar(total=event.views, completed=event.written, width=40)
            self._draw(Group(Text(str(event)), bar))
        else:
            self._live.console.print(Text(said(str(event)), style="dim"))

    def status(self, status: Status) -> None:
        self._draw(_running(status))

    def _draw(self, shown: RenderableType) -> None:
        self._live.update(shown, refresh=True)


def _loading(event: RowsRead, rate: float | None) -> list[RenderableType]:
    """The row of a source that is being loaded; how many rows there are is an estimate."""
    bar: RenderableType = Text("")
    total, left = "", ""
    if event.total is not None:
        bar = ProgressBar(total=max(event.total, event.rows, 1), completed=event.rows, width=30)
        total = f"of about {event.total:,}"
        if rate:
            left = f"{render.about(max(0, event.total - event.rows) / rate)} left"
    return [bar, Text(f"{event.rows:,}"), Text(total), Text("" if rate is None else f"{rate:,.0f}/s"), Text(left)]


def _loads_table(loads: Mapping[str, Sequence[RenderableType]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(6):
        table.add_column(no_wrap=True)
    for source, row in loads.items():
        table.add_row(Text(f"loading {source}"), *row)
    return table


def _running(status: Status) -> Group:
    """The live table of `strobe run`."""
    sources = render.table(
        ["source", "position", "read up to", "state", "asked", "problem"],
        [[name, *_source(source), source.problem and said(source.problem)] for name, source in status.sources.items()],
    )
    views = render.table(
        ["view", "level", "commit", "freshness", "lag", "queue", "waits for"],
        [[name, *_view(status, view), view.waits_for] for name, view in status.views.items()],
        right=["commit", "freshness", "lag", "queue"],
    )
    head = f"commit {status.commit} of {render.moment(status.committed_at)}"
    return Group(Text(head), sources, *render.backlogs(_backlogs(status)), views)


def _backlogs(status: Status) -> dict[str, dict[str, Any] | None]:
    """By source, as in the public document."""
    found = {name: source.backlog for name, source in status.sources.items() if isinstance(source, WatchedSource)}
    return {name: asdict(backlog) if backlog else None for name, backlog in found.items()}


def _source(source: SourceStatus) -> list[str]:
    if not isinstance(source, WatchedSource):
        return [render.place(None), render.place(None), source.state, render.counts(None)]
    read = [render.place(source.position), render.place(source.read)]
    return [*read, source.state, render.counts(asdict(source.asked))]


def _view(status: Status, view: ViewStatus) -> list[str | int | None]:
    lag = render.seconds(max(view.behind.values(), default=None))
    if not isinstance(view, MaintainedView):
        return [None, "stale", render.seconds(None), lag, None]
    return ["stale" if view.stale else view.level, str(status.commit), render.seconds(view.freshness), lag, view.queue]


@contextmanager
def waiting(terminal: Terminal) -> Iterator[Reporter]:
    """For a command that waits for a load: bars on a terminal, which are gone afterwards, and lines anywhere else."""
    if terminal.as_json or not terminal.err.is_terminal:
        yield LogReporter(terminal.err)
        return
    with Live(console=terminal.err, auto_refresh=False, transient=True) as live:
        yield LiveReporter(live)


@contextmanager
def reporter(terminal: Terminal, log: Log | None = None) -> Iterator[Reporter]:
    """The reporter that fits where the output goes, or that is asked for."""
    if terminal.as_json:
        yield LogReporter(terminal.err, log or Log.text)
    elif log or not (terminal.out.is_terminal and sys.stdout.isatty()):
        yield LogReporter(terminal.out, log or Log.text)
    else:
        with Live(console=terminal.out, auto_refresh=False, transient=False) as live:
            yield LiveReporter(live)
