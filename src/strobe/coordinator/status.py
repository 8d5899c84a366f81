"""What a running coordinator says of itself: written with every heartbeat, shown by `strobe status`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from strobe.errors import StrobeError
from strobe.pipeline.pipeline import Pipeline


def document(
    pipeline: Pipeline, detached: Collection[str] = (), still: Mapping[str, StrobeError] | None = None
) -> dict[str, Any]:
    """`detached` are sources that are down, without whose views the others go on; views in `still` have to be
    rebuilt."""
    last = pipeline.committer.last
    oldest = pipeline.engine.oldest()
    return {
        "at": datetime.now(timezone.utc).isoformat(),
        "commit": last.number,
        "committed_at": last.committed_at.isoformat(),
        "sources": {
            **{name: {"state": "down", "problem": "it cannot be reached; tried again"} for name in detached},
            **{name: _source(pipeline, name) for name in pipeline.vector},
        },
        "views": {
            **{name: {"stale": True, "waits_for": sorted(detached)} for name in last.positions},
            **{name: {"stale": True, "waits_for": [], "problem": str(why)} for name, why in (still or {}).items()},
            **{name: _view(pipeline, name) for name in pipeline.topology.views},
        },
        "waiting": {
            "rows": pipeline.engine.size,
            "oldest": None if oldest is None else {"update": oldest[0], "waits_for": list(oldest[1])},
            "parts": {name: sorted(missing) for name, missing in pipeline.engine.missing_parts().items()},
            "commits": pipeline.committer.waiting,
        },
        "appends": {
            "number": pipeline.committer.appends,
            "milliseconds": round(pipeline.committer.append_seconds * 1000),
        },
    }


def _source(pipeline: Pipeline, name: str) -> dict[str, Any]:
    monitor = pipeline.monitors[name]
    problem = pipeline.problem(name)
    return {
        "position": pipeline.visible(name).text,
        "read": monitor.position.text,
        "state": "retrying" if problem else "paused" if monitor.paused else "watched",
        "problem": str(problem) if problem else None,
        "asked": {what: round(n) for what, n in asdict(pipeline.answerer.asked[name]).items()},
    }


def _view(pipeline: Pipeline, name: str) -> dict[str, Any]:
    planned = pipeline.topology.views[name]
    worker = pipeline.workers[name]
    down = [s for s in planned.view.sources if pipeline.problem(s)]
    as_of = pipeline.committer.last.as_of.get(name, {})
    return {
        "stale": False,
        "level": planned.level,
        "algorithm": planned.algorithm.name,
        "freshness": planned.freshness,
        "queue": pipeline.engine.waiting_for(name),
        "waits_for": down or list(worker.waits_for),
        "dropped": pipeline.engine.dropped[name],
        "compensations": worker.compensations,
        "as_of": {source: time.isoformat() for source, time in as_of.items()},
        "behind": {source: _behind(pipeline, name, source) for source in planned.view.sources},
    }


def _behind(pipeline: Pipeline, view: str, source: str) -> float:
    """0 when the view shows all that was read of a source which can be read; else how old the newest thing is that it
    shows, by the source's own commit time where it tells one."""
    monitor, last = pipeline.monitors[source], pipeline.committer.last
    if not pipeline.problem(source) and monitor.position <= pipeline.visible(source):
        return 0.0
    newest = last.as_of.get(view, {}).get(source, last.committed_at)
    return round(max(0.0, (datetime.now(timezone.utc) - newest).total_seconds()), 3)
