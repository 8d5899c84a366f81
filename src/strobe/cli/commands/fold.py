"""`strobe fold`: brings the view tables up to the last commit."""

from __future__ import annotations

import typer
from rich.text import Text

from strobe.cli.options import HERE, AsJson, ProjectFolder
from strobe.cli.terminal import Terminal


def fold(context: typer.Context, project: ProjectFolder = HERE, as_json: AsJson = False) -> None:
    """Bring the view tables up to the last commit now, for other engines that read them."""
    from strobe.client import local

    terminal = Terminal.of(context)
    commit = local.fold(terminal.open(project, as_json), terminal.tell)
    terminal.show({"commit": commit}, lambda found: [Text(f"the view tables hold commit {found['commit']}")])
