"""`strobe explain`: how a view is maintained, and what a change costs. No JVM."""

from __future__ import annotations

from typing import Annotated

import typer

from strobe.cli import render
from strobe.cli.options import HERE, AsJson, ProjectFolder, view_names
from strobe.cli.terminal import Terminal


def explain(
    context: typer.Context,
    view: Annotated[str, typer.Argument(metavar="VIEW", help="A view of the project.", autocompletion=view_names)],
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """Show a view's plan: what is asked of which source, in which order, and what each change will cost."""
    from strobe.report.explain import explain

    terminal = Terminal.of(context)
    terminal.show(explain(terminal.open(project, as_json), view), render.explain)
