"""`strobe status`: where every source and every view is. No JVM."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from strobe.cli import render
from strobe.cli.options import HERE, AsJson, ProjectFolder, WarehouseFolder
from strobe.cli.terminal import Terminal
from strobe.errors import UserError

_EVERY = 2.0
"""Seconds between two looks."""


def status(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")] = False,
    project: ProjectFolder = HERE,
    warehouse: WarehouseFolder = None,
    as_json: AsJson = False,
) -> None:
    """Say where every source and every view stands, and whether a coordinator keeps them."""
    from strobe.report.status import status

    terminal = Terminal.of(context)
    loaded = terminal.open_to_read(project, warehouse, as_json)
    if watch and as_json:
        raise UserError(
            "--watch and --json do not go together", fix="Call `strobe status --json` as often as you like."
        )
    if watch:
        terminal.watch(partial(status, loaded), render.status, _EVERY)
    else:
        terminal.show(status(loaded), render.status)
