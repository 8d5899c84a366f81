"""What `strobe pin` reports: the published tables of one commit, for another engine. No JVM."""

from __future__ import annotations

from datetime import datetime

from strobe.config.model import Project
from strobe.errors import UserError
from strobe.report.document import Document
from strobe.warehouse import pinning, storage
from strobe.warehouse.layout import Layout


def pin(project: Project, engine: str, at: int | datetime | None) -> Document:
    """The public document: the newest published commit until then, and the statements that pin it."""
    if not storage.exists(Layout(project.warehouse).log):
        where = str(project.warehouse)
        raise UserError("nothing has been committed yet", where=where, fix="Start `strobe run` first.")
    found = pinning.pinned(Layout(project.warehouse), at)
    written = pinning.ENGINES[engine](found, project.name)
    return {
        "commit": found.commit,
        "engine": engine,
        "statements": list(written.statements),
        "once": list(written.once),
        "tables": {view: {"path": t.location, "version": t.version} for view, t in found.tables.items()},
    }
