"""What a running coordinator says of itself: read off the pipeline, written with every heartbeat, shown by `strobe run`
and `strobe status`, and served as metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any, Protocol

from strobe.coordinator.draining import Draining
from strobe.coordinator.states import reason_of
from strobe.coordinator.tally import Tally
from strobe.errors import AccessRefused, SourceLost, StrobeError
from strobe.events import Event
from strobe.messages import CommitHeader
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
    retained_bytes: int | None = None
    """How much log it keeps for Strobe, if it does."""


@dataclass(frozen=True)
class DetachedSource:
    """A source that the run does not read, while the views that do not use it are kept."""

    problem: str | None
    state: str = "down"
    """down, lost, or not watched because no view is left that could be kept from it"""
    asked: QueryCounts = field(default_factory=QueryCounts)
    """Before."""
    retained_bytes: int | None = None


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
    stale: bool = False
    """Whether a source of it has been down for so long that the view would be detached if others could go on."""


@dataclass(frozen=True)
class StaleView:
    """A view at the last right state that it had."""

    stale = True
    queue = 0

    waits_for: Sequence[str] = ()
    problem: str | None = None
    """Why it has to be rebuilt, or which source does not let Strobe in; None where it only waits for sources."""
    waits: Wait | None = None
    """Which table does not answer it."""
    dropped: int = 0
    compensations: int = 0
    as_of: Mapping[str, datetime] = field(default_factory=dict)
    behind: Mapping[str, float] = field(default_factory=dict)
    """As of a maintained view: the age of the newest thing shown."""
    verified: Verified | None = None
    rebuild: bool = False
    """Whether it makes no progress until somebody rebuilds it."""


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
    times = {source: time.isoformat() for source, time in view.as_of.items()}
    said = {**asdict(view), "stale": view.stale, "queue": view.queue, "waits_for": list(view.waits_for)}
    return {**said, "as_of": times, "waits": _wait_document(view.waits)}


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
    overdue: Collection[str] = (),
    tally: Tally | None = None,
) -> Status:
    """`down` are sources without whose views the others go on, and what is wrong with them; views in `still` have to
    be rebuilt, and those in `refused` wait for a table to answer. `verified` is what the audit has found; `overdue`
    sources would be down if any view could go on without them; `tally` is what former runs have counted."""
    last, down, still = pipeline.committer.last, down or {}, still or {}
    oldest = pipeline.engine.oldest()
    known = _Known(pipeline, (tally or Tally()).plus(pipeline), verified or {}, overdue)
    return Status(
        at=datetime.now(timezone.utc),
        commit=last.number,
        committed_at=last.committed_at,
        sources={
            **{name: known.unread(name, None, "not watched") for v in last.positions.values() for name in v},
            **{e.source: known.unread(e.source, e, "lost") for e in still.values() if isinstance(e, SourceLost)},
            **{name: known.unread(name, why, "down") for name, why in down.items()},
            **{name: known.source(name, (backlogs or {}).get(name)) for name in pipeline.vector},
        },
        views={
            **{
                name: known.waiting(name, [s for s in vector if s in down], down)
                for name, vector in last.positions.items()
            },
            **{name: known.stale(name, [each.query.source], waits=each.wait) for name, each in (refused or {}).items()},
            **{name: known.stale(name, problem=str(why), rebuild=_to_rebuild(why)) for name, why in still.items()},
            **{name: known.view(name) for name in pipeline.topology.views},
        },
        waiting=Backlog(
            rows=pipeline.engine.size,
            oldest=None if oldest is None else OldestRow(oldest[0], list(oldest[1])),
            parts={name: sorted(missing) for name, missing in pipeline.engine.missing_parts().items()},
            commits=pipeline.committer.waiting,
        ),
        appends=Appends(known.counted.appends, round(known.counted.append_seconds * 1000)),
    )


@dataclass(frozen=True)
class _Known:
    """What a status is made of."""

    pipeline: Pipeline
    counted: Tally
    verified: Mapping[str, Verified]
    overdue: Collection[str]

    def source(self, name: str, backlog: Draining | None) -> WatchedSource:
        monitor = self.pipeline.monitors[name]
        problem = self.pipeline.problem(name)
        return WatchedSource(
            position=self.pipeline.visible(name).text,
            read=monitor.position.text,
            state="retrying" if problem else "paused" if monitor.paused else "watched",
            problem=str(problem) if problem else None,
            asked=self.counted.asked[name],
            backlog=backlog,
            retained_bytes=self.counted.retained.get(name),
        )

    def unread(self, name: str, why: StrobeError | None, state: str) -> DetachedSource:
        asked, retained = self.counted.asked.get(name, QueryCounts()), self.counted.retained.get(name)
        return DetachedSource(None if why is None else str(why), state, asked, retained)

    def view(self, name: str) -> MaintainedView:
        pipeline = self.pipeline
        planned = pipeline.topology.views[name]
        worker = pipeline.workers[name]
        down = {s: problem for s in planned.view.sources if (problem := pipeline.problem(s))}
        return MaintainedView(
            level=planned.level,
            algorithm=planned.algorithm.name,
            freshness=planned.freshness,
            queue=pipeline.engine.waiting_for(name),
            waits_for=list(down or worker.waits_for),
            dropped=self.counted.dropped.get(name, 0),
            compensations=self.counted.compensations.get(name, 0),
            as_of=dict(pipeline.committer.last.as_of.get(name, {})),
            behind={source: _behind(pipeline, name, source) for source in planned.view.sources},
            waits=pipeline.wait(name),
            problem=_refused(down.values()),
            verified=self.verified.get(name),
            stale=any(source in self.overdue for source in planned.view.sources),
        )

    def waiting(self, name: str, sources: Sequence[str], down: Mapping[str, StrobeError]) -> StaleView:
        """A view that waits for these sources."""
        return self.stale(name, sorted(sources), _refused(down[source] for source in sources))

    def stale(
        self,
        name: str,
        waits_for: Sequence[str] = (),
        problem: str | None = None,
        waits: Wait | None = None,
        rebuild: bool = False,
    ) -> StaleView:
        last = self.pipeline.committer.last
        return StaleView(
            waits_for,
            problem,
            waits,
            dropped=self.counted.dropped.get(name, 0),
            compensations=self.counted.compensations.get(name, 0),
            as_of=dict(last.as_of.get(name, {})),
            behind={source: _age(last, name, source) for source in last.positions.get(name, {})},
            verified=self.verified.get(name),
            rebuild=rebuild,
        )


def _to_rebuild(why: StrobeError) -> bool:
    """Whether the view has to be rebuilt, by somebody; one that does not compile has to be edited."""
    if not isinstance(why, SourceLost):
        return False
    reason = reason_of(why)
    return not (reason.rebuilt or reason.heals)


def _refused(problems: Iterable[StrobeError]) -> str | None:
    """What somebody has to do something about: an outage may pass by itself, a wrong password does not."""
    return next((str(problem) for problem in problems if isinstance(problem, AccessRefused)), None)


def _behind(pipeline: Pipeline, view: str, source: str) -> float:
    """By the source's own commit time, where it tells one."""
    if not pipeline.problem(source) and pipeline.monitors[source].position <= pipeline.visible(source):
        return 0.0
    return _age(pipeline.committer.last, view, source)


def _age(last: CommitHeader, view: str, source: str) -> float:
    """Of the newest thing that a view shows of a source."""
    newest = last.as_of.get(view, {}).get(source, last.committed_at)
    return round(max(0.0, (datetime.now(timezone.utc) - newest).total_seconds()), 3)
