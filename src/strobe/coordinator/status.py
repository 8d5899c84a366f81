"""What a running coordinator says of itself: written with every heartbeat, shown by `strobe status`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from strobe.errors import StrobeError
from strobe.pipeline.pipeline import Coordinator


def document(
    coordinator: Coordinator, detached: Collection[str] = (), still: Mapping[str, StrobeError] | None = None
) -> dict[str, Any]:
    """`detached` are sources that are down, without whose views the others go on; views in `still` have to be
    rebuilt."""
    last = coordinator.committer.last
    oldest = coordinator.merge.oldest()
    return {
        "at": datetime.now(timezone.utc).isoformat(),
        "commit": last.number,
        "committed_at": last.committed_at.isoformat(),
        "sources": {
            **{name: {"state": "down", "problem": "it cannot be reached; tried again"} for name in detached},
            **{name: _source(coordinator, name) for name in coordinator.vector},
        },
        "views": {
            **{name: {"stale": True, "waits_for": sorted(detached)} for name in last.positions},
            **{name: {"stale": True, "waits_for": [], "problem": str(why)} for name, why in (still or {}).items()},
            **{name: _view(coordinator, name) for name in coordinator.assembly.views},
        },
        "waiting": {
            "rows": coordinator.merge.size,
            "oldest": None if oldest is None else {"update": oldest[0], "waits_for": list(oldest[1])},
            "parts": {name: sorted(missing) for name, missing in coordinator.merge.missing_parts().items()},
            "commits": coordinator.committer.waiting,
        },
        "appends": {
            "number": coordinator.committer.appends,
            "milliseconds": round(coordinator.committer.append_seconds * 1000),
        },
    }


def _source(coordinator: Coordinator, name: str) -> dict[str, Any]:
    monitor = coordinator.monitors[name]
    problem = coordinator.problem(name)
    return {
        "position": coordinator.visible(name).text,
        "read": monitor.position.text,
        "state": "retrying" if problem else "paused" if monitor.paused else "watched",
        "problem": str(problem) if problem else None,
        "asked": {what: round(n) for what, n in asdict(coordinator.answerer.asked[name]).items()},
    }


def _view(coordinator: Coordinator, name: str) -> dict[str, Any]:
    planned = coordinator.assembly.views[name]
    task = coordinator.tasks[name]
    down = [s for s in planned.view.sources if coordinator.problem(s)]
    as_of = coordinator.committer.last.as_of.get(name, {})
    return {
        "stale": False,
        "level": planned.level,
        "algorithm": planned.algorithm.name,
        "freshness": planned.freshness,
        "queue": coordinator.merge.waiting_for(name),
        "waits_for": down or list(task.waits_for),
        "dropped": coordinator.integrator.dropped[name],
        "compensations": task.compensations,
        "as_of": {source: time.isoformat() for source, time in as_of.items()},
        "behind": {source: _behind(coordinator, name, source) for source in planned.view.sources},
    }


def _behind(coordinator: Coordinator, view: str, source: str) -> float:
    """0 when the view shows all that was read of a source which can be read; else how old the newest thing is that it
    shows, by the source's own commit time where it tells one."""
    monitor, last = coordinator.monitors[source], coordinator.committer.last
    if not coordinator.problem(source) and monitor.position <= coordinator.visible(source):
        return 0.0
    newest = last.as_of.get(view, {}).get(source, last.committed_at)
    return round(max(0.0, (datetime.now(timezone.utc) - newest).total_seconds()), 3)
