"""`strobe demo`: shows what Strobe does. It needs no project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strobe.cli.terminal import Terminal


def demo(
    context: typer.Context,
    seconds: Annotated[float, typer.Option("--for", min=5, metavar="SECONDS", help="How long the load lasts.")] = 40.0,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep the project in this folder afterwards.")
    ] = None,
) -> None:
    """Show what Strobe does: sources under load, views that stay right beside some that do not, and an audit."""
    from strobe.demo.demo import run

    raise typer.Exit(run(seconds, keep, Terminal.of(context).out))
