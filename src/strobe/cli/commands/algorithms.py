"""`strobe algorithms`: what each reaches, needs and costs. No JVM."""

from __future__ import annotations

import typer

from strobe.cli import render
from strobe.cli.options import HERE, AsJson, ProjectFolder
from strobe.cli.terminal import Terminal


def algorithms(context: typer.Context, project: ProjectFolder = HERE, as_json: AsJson = False) -> None:
    """List the algorithms: what each reaches, needs and costs."""
    from strobe.report.algorithms import algorithms

    terminal = Terminal.of(context)
    terminal.as_json = as_json
    terminal.show(algorithms(), render.algorithms)
