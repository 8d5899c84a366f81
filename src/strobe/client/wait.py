"""`strobe wait`: until everything that the sources had committed by now is visible. Starts no JVM.

What readers see of a source is said by two things: the last header in the log, and the heartbeat of a coordinator,
which may be further (updates that changed no view are visible without a commit). Either is enough.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from strobe.config.model import Project
from strobe.errors import NotNow, SourceUnavailable, UserError, suggestion
from strobe.events import CoordinatorAwaited, Listener, ignore
from strobe.messages import CommitHeader, Position
from strobe.planning.source_set import SourceSet
from strobe.planning.topology import known_sources
from strobe.sources.base import Source
from strobe.warehouse import inspect, storage
from strobe.warehouse.control import heartbeat, requests
from strobe.warehouse.control.heartbeat import Heard
from strobe.warehouse.layout import Layout

_LOOK = 0.1
"""Seconds between two looks at the heartbeat; the log is looked at less often."""

_LOOK_AT_LOG = 1.0

GRACE = 15.0
"""Seconds that nobody is at work before a wait gives up: a coordinator that was started a moment ago has not been heard
of yet."""


def described(heard: Heard) -> str:
    """Whether a coordinator is running, and which."""
    if heard.age is None:
        return "no coordinator has ever run"
    who = f"process {heard.document.get('pid')} on {heard.document.get('host')}"
    if heard.alive:
        return f"a coordinator is running ({who})"
    how = "stopped" if heard.document.get("stopped") else "last heard"
    return f"no coordinator is running (the last was {who}, {how} {shown_age(heard.age)} ago)"


def shown_age(seconds: float) -> str:
    """`12 s`, `5 min`, `3 h`, `4 d`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def hear(warehouse: Path) -> Heard:
    """What the coordinator of a warehouse last said, and whether it still lives."""
    return heartbeat.hear(Layout(warehouse).control)


def last_header(warehouse: Path) -> CommitHeader | None:
    """The last commit, None where nothing was committed yet."""
    layout = Layout(warehouse)
    return inspect.last_header(layout) if storage.exists(layout.log) else None


def wait(
    project: Project,
    names: Sequence[str] = (),
    timeout: float = 60.0,
    tell: Listener = ignore,
    grace: float = GRACE,
) -> dict[str, str]:
    """Return the positions at which the sources were, once they are visible in these views (all, if none are named).

    `NotNow` if that is not so within `timeout` seconds, or if no coordinator has been at work for `grace` seconds.
    Where the sources cannot be asked from here, the running coordinator asks them.
    """
    deadline = time.monotonic() + timeout
    attendance = _Attendance(tell, min(grace, timeout))
    if project.missing.sources or not project.sources:
        return _asked_of_coordinator(project, names, deadline, attendance)
    needed = _needed(project, names)
    used = {source for sources in needed.values() for source in sources}
    with SourceSet.open(project) as opened:
        barrier = _Barrier(project, {name: opened[name] for name in sorted(used)}, needed)
        while barrier.missing():
            if time.monotonic() >= deadline:
                raise barrier.refusal(f"within {timeout:g} s")
            if attendance.nobody(barrier.heard):
                raise barrier.refusal("and nobody is at work who would make it so")
            time.sleep(min(_LOOK, max(0.0, deadline - time.monotonic())))
        return {source: position.text for source, position in barrier.goal.items()}


class _Attendance:
    """Whether somebody is at work, or may be soon."""

    def __init__(self, tell: Listener, grace: float) -> None:
        self._tell, self._grace = tell, grace
        self._since: float | None = None

    def nobody(self, heard: Heard) -> bool:
        """Whether no coordinator has been heard for long enough; the first time it is missing, that is reported."""
        if heard.alive:
            self._since = None
            return False
        if self._since is None:
            self._since = time.monotonic()
            self._tell(CoordinatorAwaited(described(heard), self._grace))
        return time.monotonic() - self._since >= self._grace


def _asked_of_coordinator(
    project: Project, names: Sequence[str], deadline: float, attendance: _Attendance
) -> dict[str, str]:
    while not (heard := hear(project.warehouse)).alive:
        project.missing.demand(project.missing.sources)
        if attendance.nobody(heard):
            fix = "Start `strobe run`, or use --project where the sources can be reached."
            raise NotNow(described(heard), where=str(project.warehouse), fix=fix)
        time.sleep(_LOOK)
    timeout = max(0.0, deadline - time.monotonic())
    wanted = {"kind": "wait", "views": list(names), "seconds": timeout}
    reply = requests.request(Layout(project.warehouse).control, wanted, timeout=timeout)
    return dict(reply["positions"])


def _needed(project: Project, names: Sequence[str]) -> dict[str, list[str]]:
    """The sources that each of these views uses."""
    for name in names:
        if name not in project.views:
            raise UserError(f"there is no view {name!r}", fix=suggestion(name, project.views))
    chosen = ((name, project.views[name].sql) for name in names or project.views)
    return {name: sorted(known_sources(sql, project.sources, f"view {name}")) for name, sql in chosen}


class _Barrier:
    """Where the sources were when the wait began, and which views are not there yet."""

    def __init__(self, project: Project, sources: dict[str, Source], needed: dict[str, list[str]]) -> None:
        self._warehouse = project.warehouse
        self._sources = sources
        self._needed = needed
        self.goal: dict[str, Position] = {}
        self._identity: dict[str, str] = {}
        self._problems: dict[str, str] = {}
        self.heard = Heard()
        self._header: CommitHeader | None = None
        self._next_look = 0.0

    def missing(self) -> list[tuple[str, str]]:
        """The (view, source) pairs of which readers do not see enough yet."""
        self._ask()
        self.heard = hear(self._warehouse)
        if time.monotonic() >= self._next_look:
            self._header = last_header(self._warehouse)
            self._next_look = time.monotonic() + _LOOK_AT_LOG
        pairs = ((view, source) for view, sources in self._needed.items() for source in sources)
        return [(view, source) for view, source in pairs if not self._reached(view, source)]

    def _ask(self) -> None:
        for name, source in self._sources.items():
            if name in self.goal:
                continue
            try:
                self._identity[name] = source.identity()
                self.goal[name] = source.now()
                self._problems.pop(name, None)
            except SourceUnavailable as error:
                self._problems[name] = str(error)

    def _reached(self, view: str, source: str) -> bool:
        if source not in self.goal or self._header is None:
            return False
        if self._header.identity.get(source) != self._identity[source]:
            return False
        return any(self.goal[source] <= position for position in self._visible(view, source))

    def _visible(self, view: str, source: str) -> Iterable[Position]:
        parse = self._sources[source].position
        if self._header is not None and source in self._header.positions.get(view, {}):
            yield parse(self._header.positions[view][source])
        said = self.heard.document if self.heard.alive else {}
        kept, position = said.get("views", {}).get(view), said.get("sources", {}).get(source, {}).get("position")
        if kept is not None and not kept.get("stale") and position is not None:
            yield parse(position)

    def refusal(self, why: str) -> NotNow:
        missing = self.missing()
        reasons = list(dict.fromkeys(self._reason(view, source) for view, source in missing))
        fix = "Wait longer with --timeout, or see `strobe status`." if self.heard.alive else "Start `strobe run`."
        return NotNow(
            f"not everything is visible {why}: {'; '.join(reasons)}; {described(self.heard)}",
            where=f"views {', '.join(dict.fromkeys(view for view, _ in missing))}",
            fix=fix,
        )

    def _reason(self, view: str, source: str) -> str:
        if source in self._problems:
            return self._problems[source]
        if self._header is None or view not in self._header.positions:
            return f"view {view} has not been loaded yet"
        if self._header.identity.get(source) != self._identity[source]:
            return f"source {source} is another database than the one that the views were loaded from"
        seen = max(self._visible(view, source), key=lambda position: position.order, default=None)
        problem = self.heard.document.get("sources", {}).get(source, {}).get("problem") if self.heard.alive else None
        return f"source {source} is at {self.goal[source]} and seen up to {seen}{f' ({problem})' if problem else ''}"
