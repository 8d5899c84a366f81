"""`strobe check`: what is missing before anything runs. No JVM."""

from __future__ import annotations

import typer

from strobe.cli import render
from strobe.cli.options import HERE, AsJson, ProjectFolder
from strobe.cli.terminal import Terminal
from strobe.errors import UserError


def check(context: typer.Context, project: ProjectFolder = HERE, as_json: AsJson = False) -> None:
    """Look at sources and views before anything runs: what is missing, how each view will be kept, what is slow."""
    from strobe.report.check import check

    terminal = Terminal.of(context)
    document = check(terminal.open(project, as_json))
    terminal.show(document, render.check)
    if not document["ok"]:
        raise typer.Exit(UserError.exit_code)
