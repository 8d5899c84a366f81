"""`strobe rebuild`: loads one view again."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from strobe.cli.options import HERE, AsJson, ProjectFolder, known
from strobe.cli.terminal import Terminal

SECONDS = 3600.0
"""How long a running coordinator may take."""


def rebuild(
    context: typer.Context,
    view: Annotated[str, typer.Argument(metavar="VIEW", help="A view of the project.")],
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """Load one view anew, as strobe.yml defines it now, beside the old one, and swap."""
    from strobe.cli.reporter import LogReporter
    from strobe.client.local import change

    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json)
    known([view], loaded.views, "view")
    wanted = {"kind": "rebuild", "view": view}
    reply = change(loaded, wanted, SECONDS, LogReporter(terminal.err), terminal.tell)
    document = {"view": view, "commit": reply["commit"]}
    terminal.show(document, lambda found: [Text(f"{found['view']} was loaded anew at commit {found['commit']}")])
