"""What `strobe history` reports: the commits, newest first. No JVM."""

from __future__ import annotations

from strobe.config.model import Project
from strobe.report.document import Document
from strobe.report.status import known_verified
from strobe.warehouse import inspect, storage
from strobe.warehouse.layout import Layout

_ALL = 1 << 62


def history(project: Project, limit: int = 0) -> Document:
    """The public document: so many commits, or all of them (0)."""
    layout = Layout(project.warehouse)
    found = inspect.history(layout, limit or _ALL) if storage.exists(layout.log) else []
    verified = known_verified(layout, found[0].header) if found else {}
    commits = [
        {
            "commit": past.header.number,
            "committed_at": past.header.committed_at,
            "views": list(past.changed),
            "positions": {view: dict(vector) for view, vector in past.header.positions.items()},
            "verified": [n for n, known in sorted(verified.items()) if known.covers(n, past.header)],
        }
        for past in found
    ]
    return {"commits": commits}
