"""What `strobe status` reports: the coordinator's last heartbeat, beside what the warehouse itself says. No JVM."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from strobe.apply import plan
from strobe.client.wait import hear, last_header
from strobe.config.model import Project
from strobe.errors import StrobeError
from strobe.messages import CommitHeader, Position
from strobe.planning.source_set import SourceSet
from strobe.report.document import Document
from strobe.sources.base import Source
from strobe.warehouse import inspect, storage
from strobe.warehouse.control import verified
from strobe.warehouse.control.heartbeat import Heard
from strobe.warehouse.control.verified import Verified
from strobe.warehouse.layout import Layout


def status(project: Project) -> Document:
    """The public document."""
    heard, header = hear(project.warehouse), last_header(project.warehouse)
    sources = _sources(project, heard, header)
    rows = _rows(Layout(project.warehouse), header) if header else {}
    names = dict.fromkeys([*project.views, *(header.generations if header else ())])
    known = known_verified(Layout(project.warehouse), header) if header else {}
    applied = plan.applied(project.warehouse)
    pending, failed = plan.pending(project, applied), plan.failed(project, applied)
    return {
        "project": project.name,
        "commit": header.number if header else None,
        "committed_at": header.committed_at if header else None,
        "sources": sources,
        "views": {
            name: {
                **_view(project, name, heard, header, rows, sources),
                "verified": _verified(known.get(name)),
                "pending": pending.get(name),
                "failed": failed.get(name),
            }
            for name in names
        },
        "published": _published(project, header) if header else None,
        "coordinator": heard.summary,
        "waiting": heard.document.get("waiting") if heard.alive else None,
        "appends": heard.document.get("appends") if heard.alive else None,
    }


def _sources(project: Project, heard: Heard, header: CommitHeader | None) -> Document:
    if project.missing.sources or not project.sources:
        return {name: _unasked(name, project, heard) for name in _named(project, heard, header)}
    with SourceSet.open(project) as sources:
        return {name: _source(source, heard, header) for name, source in sources.items()}


def _source(source: Source, heard: Heard, header: CommitHeader | None) -> Document:
    found = _reported(source.name, heard)
    try:
        if log := source.kept():
            found |= {"retained_bytes": log.bytes, "warning": log.warning or None}
        reflected = _reflected(source, header)
        known = [min(reflected, key=_order)] if reflected else []  # the log may be ahead of the last heartbeat
        known += [source.position(found["position"])] if found["position"] else []
        if seen := max(known, key=_order, default=None):
            found |= {"position": seen.text, "lag_seconds": _lag(source, seen, header)}
    except StrobeError as error:
        found["problem"] = found["problem"] or str(error)
    return found


def _named(project: Project, heard: Heard, header: CommitHeader | None) -> list[str]:
    """The sources of the project or, where only its warehouse is known, those that the views reflect."""
    reflected = (source for vector in (header.positions.values() if header else ()) for source in vector)
    return list(project.sources or dict.fromkeys((*heard.document.get("sources", {}), *sorted(set(reflected)))))


def _unasked(name: str, project: Project, heard: Heard) -> Document:
    """What the coordinator says of a source that cannot be asked from here."""
    why = "; ".join(error.message for error in project.missing.sources) or "its project is not known here"
    return {**_reported(name, heard), "warning": f"not asked: {why}"}


def _reported(name: str, heard: Heard) -> Document:
    """What the coordinator says of a source."""
    said = heard.document.get("sources", {}).get(name, {}) if heard.alive else {}
    return {
        "position": said.get("position"),
        "lag_seconds": None,
        "state": said.get("state", "not watched"),
        "problem": said.get("problem"),
        "asked": said.get("asked"),
        "backlog": said.get("backlog"),
        "retained_bytes": None,
        "warning": None,
    }


def _reflected(source: Source, header: CommitHeader | None) -> list[Position]:
    """The positions of a source at which views stand in the last commit."""
    vectors = header.positions.values() if header else ()
    return [source.position(vector[source.name]) for vector in vectors if source.name in vector]


def _lag(source: Source, seen: Position, header: CommitHeader | None) -> float | None:
    """0 when readers see everything; else how old the newest thing is that they see; None where nobody knows."""
    if source.now() <= seen:
        return 0.0
    times = [t[source.name] for t in header.as_of.values() if source.name in t] if header else []
    newest = max([*times, *([header.committed_at] if header and not times else [])], default=None)
    return round((datetime.now(timezone.utc) - newest).total_seconds(), 1) if newest else None


def _view(
    project: Project,
    name: str,
    heard: Heard,
    header: CommitHeader | None,
    rows: dict[str, int],
    sources: Document,
) -> Document:
    said = _said(name, heard)
    config = project.views.get(name)
    vector = header.positions.get(name, {}) if header else {}
    lags = [sources[s]["lag_seconds"] for s in vector if s in sources]
    return {
        "rows": rows.get(name),
        "level": said.get("level") or (config.consistency if config else None),
        "algorithm": said.get("algorithm") or (config.algorithm if config else None),
        "freshness": config.freshness.total_seconds() if config else None,
        "lag_seconds": None if not lags or None in lags else max(lags),
        "queue": said.get("queue", 0),
        "waits_for": said.get("waits_for", []),
        "dropped": said.get("dropped", 0),
        "compensations": said.get("compensations", 0),
        "as_of": header.as_of.get(name, {}) if header else {},
        "stale": bool(said.get("stale")),
        "problem": said.get("problem"),
        "waits": said.get("waits"),
        "loaded": bool(vector),
    }


def _said(view: str, heard: Heard) -> Document:
    """What the coordinator says of a view. That one was stale stays true when the coordinator has ended."""
    said: Document = heard.document.get("views", {}).get(view, {})
    return said if heard.alive else {key: said[key] for key in ("stale", "problem") if key in said}


def _published(project: Project, header: CommitHeader) -> Document | None:
    """What other engines can read: the newest published commit, and how long the first one has been there that is not
    published yet."""
    layout = Layout(project.warehouse)
    newest = max(inspect.published(layout), key=lambda row: (row.commit, row.published_at), default=None)
    if newest is None:
        return None
    lag: float | None = 0.0
    if newest.commit < header.number:
        first = inspect.header_of(inspect.open_log(layout), newest.commit + 1)
        lag = round((datetime.now(timezone.utc) - first.committed_at).total_seconds(), 1) if first else None
    within = project.publish.total_seconds() if project.sources else None
    return {"commit": newest.commit, "at": newest.published_at, "lag_seconds": lag, "publish_seconds": within}


def known_verified(layout: Layout, header: CommitHeader) -> dict[str, Verified]:
    """Through which commit each view is verified that commits say the positions of: as it was loaded, if there is no
    audit in the background."""
    found = {d.view: d for d in inspect.definitions(layout) if _in_force(d, header)}
    return {n: Verified.as_loaded(d, 0.0) for n, d in found.items()} | verified.read(layout.control, found)


def _verified(known: Verified | None) -> Document | None:
    if known is None:
        return None
    parts = None if known.round is None else f"{known.round.next} of {known.round.parts}"
    at = datetime.fromtimestamp(known.at, timezone.utc) if known.at else None
    return {"commit": known.commit, "at": at, "parts": parts, "problem": known.problem or None}


def _rows(layout: Layout, header: CommitHeader) -> dict[str, int]:
    """How many rows each view has at the last commit: those in its table, and what the log adds after the last fold."""
    log = inspect.open_log(layout)
    start = {d.view: d for d in inspect.definitions(layout) if _in_force(d, header)}
    tables = {view: inspect.open_table(layout.view(view)) for view in start if storage.exists(layout.view(view))}
    folded = {
        view: inspect.folded_to(table, view, header.generations[view]) or start[view].from_commit
        for view, table in tables.items()
    }
    added = _added(log, {view: (commit, start[view].shown_at(header.number)) for view, commit in folded.items()})
    return {view: int(table.count()) + added.get(view, 0) for view, table in tables.items()}


def _in_force(definition: Any, header: CommitHeader) -> bool:
    return bool(header.generations.get(definition.view) == definition.generation)


def _added(log: DeltaTable, between: dict[str, tuple[int, int]]) -> dict[str, int]:
    """For each view the net number of rows that the log holds between two commits of its own."""
    first = min((after for after, _ in between.values()), default=0)
    found: dict[str, int] = {}
    for file in inspect.log_files(log):
        if file.last <= first:
            continue
        table = pq.read_table(file.location, columns=["commit", "view", "count"], partitioning=None)
        for view, (after, through) in between.items():
            among = (pc.field("commit") > after) & (pc.field("commit") <= through)
            chosen = table.filter((pc.field("view") == view) & among)
            found[view] = found.get(view, 0) + (pc.sum(chosen["count"]).as_py() or 0)
    return found


def _order(position: Position) -> tuple[int, ...]:
    return position.order
