"""`strobe check`: what is missing before anything runs. No JVM."""

from __future__ import annotations

from typing import Annotated

import typer

from strobe.cli import render
from strobe.cli.options import HERE, AsJson, ProjectFolder
from strobe.cli.terminal import Terminal
from strobe.errors import UserError


def check(
    context: typer.Context,
    project: ProjectFolder = HERE,
    offline: Annotated[
        bool, typer.Option("--offline", help="Connect nowhere, and read nothing outside the project's folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look at sources and views before anything runs: what is missing, how each view will be kept, what is slow."""
    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json, offline=offline)
    if offline:
        from strobe.report.offline import check as check_offline

        document = check_offline(loaded)
    else:
        from strobe.report.check import check

        document = check(loaded)
    terminal.show(document, render.check)
    if not document["ok"]:
        raise typer.Exit(UserError.exit_code)
