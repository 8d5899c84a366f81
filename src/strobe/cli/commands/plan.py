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

    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json)
    edit, reads = edits.plan(loaded)
    terminal.show({**edit.document(), "reads": reads, "code": that_load_code(loaded.spark)}, render.plan)
