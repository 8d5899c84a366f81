"""`strobe audit`: whether views are right, or with --history which consistency level a recorded history had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from strobe.cli import render
from strobe.cli.options import HERE, AsJson, ProjectFolder, Views, known
from strobe.cli.terminal import Terminal
from strobe.errors import NotNow, UserError
from strobe.report.document import Document

HistoryFile = Annotated[
    Path | None, typer.Option("--history", metavar="FILE", help="Judge a recorded history instead.", show_default=False)
]
WantedLevel = Annotated[
    str | None,
    typer.Option(
        "--level",
        metavar="LEVEL",
        help="The level that the history should have: convergent, weak, consistent, strong, complete-N, complete. "
        "Default: strong.",
        show_default=False,
    ),
]

_EXIT = {"valid": 0, "invalid": 1}


def audit(
    context: typer.Context,
    views: Views = None,
    history: HistoryFile = None,
    level: WantedLevel = None,
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """Recompute views from the live sources, while they change, and compare; or judge a recorded history."""
    terminal = Terminal.of(context)
    if history or level:
        raise typer.Exit(_judge(terminal, history, level, views or (), as_json))
    from strobe.client.audit import audit

    loaded = terminal.open(project, as_json)
    known(views or (), loaded.views, "view")
    document = audit(loaded, views or (), terminal.tell)
    terminal.show(document, render.audit)
    raise typer.Exit(_EXIT.get(document["verdict"], NotNow.exit_code))


def _judge(terminal: Terminal, file: Path | None, level: str | None, views: Sequence[str], as_json: bool) -> int:
    """Reports the verdict; returns the exit code: as after every audit, 0 for valid, 1 for invalid, 3 for unknown."""
    from strobe.auditor import history_file

    terminal.as_json = as_json
    if file is None:
        raise UserError("--level is for histories", fix="Name one with --history FILE.")
    history = history_file.read(file)
    document = (history.only(views) if views else history).verdict(level or "strong").document()
    terminal.show(document, _render_history)
    return _EXIT.get(document["verdict"], NotNow.exit_code)


def _render_history(document: Document) -> Iterable[RenderableType]:
    findings = dict(document["views"])
    if len(findings) > 1:
        findings["all together"] = document
    shown = [[name, f["verdict"], _level(f), f["because"]] for name, f in findings.items()]
    yield render.table(["view", "verdict", "level", "because"], shown)
    for name, finding in findings.items():
        for line in finding["witness"] or ():
            yield Text(f"  {name}: {line}")
    style = "green" if document["verdict"] == "valid" else "bold red"
    yield Text(f"verdict: {document['verdict']} ({document['wanted']} was wanted)", style=style)


def _level(finding: Document) -> str:
    every = finding.get("complete_n")
    return f"{finding['level']}, complete-{every}" if every else str(finding["level"])
