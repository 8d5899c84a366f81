"""What a running coordinator says of itself: read off the pipeline, written with every heartbeat, shown by `strobe run`
and `strobe status`, and served as metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any, Protocol

from strobe.coordinator.draining import Draining
from strobe.errors import AccessRefused, StrobeError
from strobe.events import Event
from strobe.pipeline.answerer import QueryCounts
from strobe.pipeline.health import Refused, Wait
from strobe.pipeline.pipeline import Pipeline
from strobe.warehouse.control.verified import Verified


@dataclass(frozen=True)
class WatchedSource:
    """A source that the run reads."""

    position: str
    """Up to where readers see it."""
    read: str
    state: str
    """watched, paused or retrying"""
    problem: str | None
    asked: QueryCounts
    backlog: Draining | None = None
    """How far what it committed meanwhile has been worked off, if that takes a while."""


@dataclass(frozen=True)
class DetachedSource:
    """A source that is down, while the views that do not use it are kept."""

    state: str = field(default="down", init=False)
    problem: str


SourceStatus = WatchedSource | DetachedSource


@dataclass(frozen=True)
class MaintainedView:
    level: str
    algorithm: str
    freshness: float
    queue: int
    """Updates that wait for it."""
    waits_for: Sequence[str]
    dropped: int
    """Transactions found irrelevant."""
    compensations: int
    as_of: Mapping[str, datetime]
    """By source, its own commit time of the newest transaction shown."""
    behind: Mapping[str, float]
    """By source, 0 when all that was read of it is shown; else the age in seconds of the newest thing shown."""
    waits: Wait | None = None
    """Why it makes no progress, if there is a reason."""
    problem: str | None = None
    """What keeps it from going on until somebody does something: a source does not let Strobe in."""
    verified: Verified | None = None
    """How far the audit in the background has come, if there is one."""


@dataclass(frozen=True)
class StaleView:
    """A view at the last right state that it had."""

    waits_for: Sequence[str] = ()
    problem: str | None = None
    """Why it has to be rebuilt, or which source does not let Strobe in; None where it only waits for sources."""
    waits: Wait | None = None
    """Which table does not answer it."""


ViewStatus = MaintainedView | StaleView


@dataclass(frozen=True)
class OldestRow:
    """The first row of the view-update table."""

    update: int
    waits_for: Sequence[str]


@dataclass(frozen=True)
class Backlog:
    """What has been read and is not committed."""

    rows: int
    """Those of the view-update table."""
    oldest: OldestRow | None
    parts: Mapping[str, Sequence[str]]
    """By global transaction, the sources whose part is missing."""
    commits: int
    """Warehouse transactions that wait for an append."""


@dataclass(frozen=True)
class Appends:
    number: int
    milliseconds: int


@dataclass(frozen=True)
class Status:
    at: datetime
    commit: int
    committed_at: datetime
    sources: Mapping[str, SourceStatus]
    views: Mapping[str, ViewStatus]
    waiting: Backlog
    appends: Appends

    def document(self) -> dict[str, Any]:
        """The JSON document of a heartbeat."""
        return {
            "at": self.at.isoformat(),
            "commit": self.commit,
            "committed_at": self.committed_at.isoformat(),
            "sources": {name: asdict(source) for name, source in self.sources.items()},
            "views": {name: _view_document(view) for name, view in self.views.items()},
            "waiting": asdict(self.waiting),
            "appends": asdict(self.appends),
        }


def _view_document(view: ViewStatus) -> dict[str, Any]:
    if isinstance(view, MaintainedView):
        times = {source: time.isoformat() for source, time in view.as_of.items()}
        return {"stale": False, **asdict(view), "as_of": times, "waits": _wait_document(view.waits)}
    problem = {} if view.problem is None else {"problem": view.problem}
    waits = {} if view.waits is None else {"waits": _wait_document(view.waits)}
    return {"stale": True, "waits_for": list(view.waits_for), **problem, **waits}


def _wait_document(wait: Wait | None) -> dict[str, str] | None:
    return None if wait is None else {"why": wait.why, "since": wait.since.isoformat()}


class Reporter(Protocol):
    """Who tells a person what a coordinator does."""

    def tell(self, event: Event) -> None: ...

    def status(self, status: Status) -> None: ...


def observe(
    pipeline: Pipeline,
    down: Mapping[str, StrobeError] | None = None,
    still: Mapping[str, StrobeError] | None = None,
    refused: Mapping[str, Refused] | None = None,
    verified: Mapping[str, Verified] | None = None,
    backlogs: Mapping[str, Draining] | None = None,
) -> Status:
    """`down` are sources without whose views the others go on, and what is wrong with them; views in `still` have to
    be rebuilt, and those in `refused` wait for a table to answer. `verified` is what the audit has found."""
    last, down = pipeline.committer.last, down or {}
    oldest = pipeline.engine.oldest()
    return Status(
        at=datetime.now(timezone.utc),
        commit=last.number,
        committed_at=last.committed_at,
        sources={
            **{name: DetachedSource(str(why)) for name, why in down.items()},
            **{name: _source(pipeline, name, (backlogs or {}).get(name)) for name in pipeline.vector},
        },
        views={
            **{name: _stale({s: down[s] for s in vector if s in down}) for name, vector in last.positions.items()},
            **{name: StaleView([each.query.source], waits=each.wait) for name, each in (refused or {}).items()},
            **{name: StaleView(problem=str(why)) for name, why in (still or {}).items()},
            **{name: _view(pipeline, name, (verified or {}).get(name)) for name in pipeline.topology.views},
        },
        waiting=Backlog(
            rows=pipeline.engine.size,
            oldest=None if oldest is None else OldestRow(oldest[0], list(oldest[1])),
            parts={name: sorted(missing) for name, missing in pipeline.engine.missing_parts().items()},
            commits=pipeline.committer.waiting,
        ),
        appends=Appends(pipeline.committer.appends, round(pipeline.committer.append_seconds * 1000)),
    )


def _source(pipeline: Pipeline, name: str, backlog: Draining | None) -> WatchedSource:
    monitor = pipeline.monitors[name]
    problem = pipeline.problem(name)
    return WatchedSource(
        position=pipeline.visible(name).text,
        read=monitor.position.text,
        state="retrying" if problem else "paused" if monitor.paused else "watched",
        problem=str(problem) if problem else None,
        asked=QueryCounts(**{what: round(n) for what, n in asdict(pipeline.answerer.asked[name]).items()}),
        backlog=backlog,
    )


def _view(pipeline: Pipeline, name: str, verified: Verified | None) -> MaintainedView:
    planned = pipeline.topology.views[name]
    worker = pipeline.workers[name]
    down = {s: problem for s in planned.view.sources if (problem := pipeline.problem(s))}
    return MaintainedView(
        level=planned.level,
        algorithm=planned.algorithm.name,
        freshness=planned.freshness,
        queue=pipeline.engine.waiting_for(name),
        waits_for=list(down or worker.waits_for),
        dropped=pipeline.engine.dropped[name],
        compensations=worker.compensations,
        as_of=dict(pipeline.committer.last.as_of.get(name, {})),
        behind={source: _behind(pipeline, name, source) for source in planned.view.sources},
        waits=pipeline.wait(name),
        problem=_refused(down.values()),
        verified=verified,
    )


def _stale(down: Mapping[str, StrobeError]) -> StaleView:
    """A view that waits for these sources."""
    return StaleView(sorted(down), _refused(down.values()))


def _refused(problems: Iterable[StrobeError]) -> str | None:
    """What somebody has to do something about: an outage may pass by itself, a wrong password does not."""
    return next((str(problem) for problem in problems if isinstance(problem, AccessRefused)), None)


def _behind(pipeline: Pipeline, view: str, source: str) -> float:
    """By the source's own commit time, where it tells one."""
    monitor, last = pipeline.monitors[source], pipeline.committer.last
    if not pipeline.problem(source) and monitor.position <= pipeline.visible(source):
        return 0.0
    newest = last.as_of.get(view, {}).get(source, last.committed_at)
    return round(max(0.0, (datetime.now(timezone.utc) - newest).total_seconds()), 3)
