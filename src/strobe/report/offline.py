"""What `strobe check --offline` finds: all that can be said of a project from its own files alone.

Nothing is connected to, no `${…}` is looked up, and no file outside the project's folder is read, so that a project can
be examined before it is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from strobe.algebra.sql import check_syntax
from strobe.config.model import Project
from strobe.config.spark_code import that_load_code
from strobe.errors import StrobeError, suggestion
from strobe.report.document import Document
from strobe.sources.base import Finding


def check(project: Project) -> Document:
    """The public document, as of `check`; how views would be kept cannot be known."""
    findings = [*_of_spark(project), *_of_views(project)]
    return {
        "ok": not any(finding.severity == "error" for finding in findings),
        "findings": [asdict(finding) for finding in findings],
        "views": {},
        "unlogged": {},
        "audit_seconds": None,
    }


def _of_spark(project: Project) -> Iterator[Finding]:
    settings = that_load_code(project.spark_settings)
    if settings:
        message = f"these settings can load code: {', '.join(settings)}"
        yield Finding("warning", "strobe.yml: spark", message, "Run the project only if you trust it like a program.")


def _of_views(project: Project) -> Iterator[Finding]:
    for name, config in project.views.items():
        where = f"{config.origin}: view {name}"
        try:
            used = check_syntax(config.sql, where=where)
        except StrobeError as error:
            yield from (Finding("error", each.where, each.message, each.fix) for each in error.each)
            continue
        for source in dict.fromkeys(relation.partition(".")[0] for relation in used):
            if source not in project.sources:
                yield Finding("error", where, f"there is no source {source}", suggestion(source, project.sources))
