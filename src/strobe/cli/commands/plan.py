"""`strobe plan`: what `strobe apply` would do. No JVM."""

from __future__ import annotations

import typer

from strobe.cli import render
from strobe.cli.options import HERE, AsJson, ProjectFolder
from strobe.cli.terminal import Terminal
from strobe.config.spark_code import that_load_code


def plan(context: typer.Context, project: ProjectFolder = HERE, as_json: AsJson = False) -> None:
    """Say what `strobe apply` would add, rebuild, drop and keep, and how many rows it would read."""
    from strobe.apply import plan as edits
    from strobe.client.stale import stale_views

    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json)
    edit, reads = edits.plan(loaded)
    code, stale = that_load_code(loaded.spark), stale_views(loaded)
    stale = {name: why for name, why in stale.items() if name not in edit.load}
    terminal.show({**edit.document(), "reads": reads, "code": code, "stale": stale}, render.plan)
