"""`strobe status`: where every source and every view is. No JVM."""

from __future__ import annotations

import typer

from strobe.cli import render
from strobe.cli.options import HERE, AsJson, ProjectFolder, WarehouseFolder
from strobe.cli.terminal import Terminal


def status(
    context: typer.Context,
    project: ProjectFolder = HERE,
    warehouse: WarehouseFolder = None,
    as_json: AsJson = False,
) -> None:
    """Say where every source and every view stands, and whether a coordinator keeps them."""
    from strobe.report.status import status

    terminal = Terminal.of(context)
    terminal.show(status(terminal.open_to_read(project, warehouse, as_json)), render.status)
