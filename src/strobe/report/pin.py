"""What `strobe pin` reports: the published tables of one commit, for another engine. No JVM."""

from __future__ import annotations

from datetime import datetime

from strobe.config.model import Project
from strobe.errors import UserError
from strobe.report.document import Document
from strobe.warehouse import pinning, storage
from strobe.warehouse.layout import Layout


def pin(project: Project, engine: str, at: int | datetime | None, current: bool = False) -> Document:
    """The public document: the newest published commit until then, and the statements that pin it; with `current` those
    that look for the newest published commit each time."""
    if not storage.exists(Layout(project.warehouse).log):
        where = str(project.warehouse)
        raise UserError("nothing has been committed yet", where=where, fix="Start `strobe run` first.")
    found = pinning.pinned(Layout(project.warehouse), at)
    if not current:
        written = pinning.ENGINES[engine](found, project.name)
    elif engine in pinning.CURRENT:
        written = pinning.CURRENT[engine](found, Layout(project.warehouse).published)
    else:
        fix = f"Use {', '.join(pinning.CURRENT)}, or run `strobe pin --engine {engine}` for each commit."
        raise UserError(f"{engine} takes no version that is not written down", where="--current", fix=fix)
    return {
        "commit": found.commit,
        "engine": engine,
        "statements": list(written.statements),
        "once": list(written.once),
        "tables": {view: {"path": t.location, "version": t.version} for view, t in found.tables.items()},
    }
