"""`strobe history`: the commits. No JVM."""

from __future__ import annotations

from typing import Annotated

import typer

from strobe.cli import render
from strobe.cli.options import HERE, AsJson, ProjectFolder, WarehouseFolder
from strobe.cli.terminal import Terminal


def history(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="How many commits; 0 for all.")] = 20,
    project: ProjectFolder = HERE,
    warehouse: WarehouseFolder = None,
    as_json: AsJson = False,
) -> None:
    """List the commits, newest first: number, time, the views that changed, the sources' positions."""
    from strobe.report.history import history

    terminal = Terminal.of(context)
    terminal.show(history(terminal.open_to_read(project, warehouse, as_json), limit), render.history)
