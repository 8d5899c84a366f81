"""`strobe rebuild`: loads views again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from strobe.cli.options import HERE, AsJson, ProjectFolder, known, view_names
from strobe.cli.terminal import Terminal
from strobe.errors import UserError
from strobe.report.document import Document

SECONDS = 86_400.0
"""How long a running coordinator may take."""


def rebuild(
    context: typer.Context,
    view: Annotated[
        str | None,
        typer.Argument(metavar="[VIEW]", help="A view of the project.", show_default=False, autocompletion=view_names),
    ] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="All views that make no progress until they are rebuilt.")
    ] = False,
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """Load a view again, or all that are stale, as strobe.yml defines them now, beside the old ones, and swap."""
    from strobe.cli.reporter import waiting
    from strobe.client.local import change, last_commit
    from strobe.client.stale import stale_views

    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json)
    if (view is None) is not stale:
        raise UserError("name a view, or use --stale", fix="`strobe plan` shows which views are stale.")
    views = list(stale_views(loaded)) if view is None else known([view], loaded.views, "view")
    commit = last_commit(loaded)
    if views:
        wanted = {"kind": "rebuild", "views": views}
        with waiting(terminal) as reporter:
            commit = change(loaded, wanted, SECONDS, reporter, terminal.quieted(reporter.tell))["commit"]
    terminal.show({"view": view, "views": views, "commit": commit}, _render)


def _render(document: Document) -> Iterable[RenderableType]:
    if document["views"]:
        yield Text(f"rebuilt at commit {document['commit']}: {', '.join(document['views'])}")
    else:
        yield Text("No view has to be rebuilt.")
