"""`strobe wait`: returns when the views show what the sources have committed. No JVM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from strobe.cli import render
from strobe.cli.options import HERE, AsJson, ProjectFolder, Views, WarehouseFolder
from strobe.cli.terminal import Terminal
from strobe.report.document import Document


def wait(
    context: typer.Context,
    views: Views = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0, metavar="S", help="Seconds to wait at most.")] = 60.0,
    project: ProjectFolder = HERE,
    warehouse: WarehouseFolder = None,
    as_json: AsJson = False,
) -> None:
    """Return when everything the sources had committed by now is visible in the views."""
    from strobe.client import wait as waiting
    from strobe.client.local import last_commit

    terminal = Terminal.of(context)
    loaded = terminal.open_to_read(project, warehouse, as_json)
    positions = waiting.wait(loaded, views or (), timeout, terminal.tell)
    terminal.show({"commit": last_commit(loaded), "positions": positions}, _render_reached)


def _render_reached(document: Document) -> Iterable[RenderableType]:
    reached = ", ".join(f"{source} {render.place(position)}" for source, position in document["positions"].items())
    yield Text(f"visible: {reached} (commit {document['commit']})")
