"""`strobe pin`: the published tables of one commit, for another engine. No JVM."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from strobe.cli.options import HERE, AsJson, ProjectFolder, WarehouseFolder
from strobe.cli.terminal import Terminal
from strobe.errors import UserError
from strobe.report.document import Document


class Engine(str, Enum):
    """The engines that statements can be written for."""

    duckdb = "duckdb"
    spark = "spark"
    trino = "trino"
    polars = "polars"


def pin(
    context: typer.Context,
    engine: Annotated[Engine, typer.Option("--engine", help="Who is to read the tables.")],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="COMMIT|TIME", help="The newest published commit until then. Default: until now."),
    ] = None,
    current: Annotated[
        bool, typer.Option("--current", help="Statements that find the newest published commit by themselves.")
    ] = False,
    project: ProjectFolder = HERE,
    warehouse: WarehouseFolder = None,
    as_json: AsJson = False,
) -> None:
    """Print the statements that pin the published tables of one commit in another engine."""
    from strobe.api import parse_at
    from strobe.report.pin import pin

    terminal = Terminal.of(context)
    loaded = terminal.open_to_read(project, warehouse, as_json)
    if current and at is not None:
        raise UserError("--current and --at do not go together", fix="Use one or the other.")
    terminal.show(pin(loaded, engine.value, parse_at(at), current), _render_current if current else _render)


def _render(document: Document) -> Iterable[RenderableType]:
    python = document["engine"] == Engine.polars.value
    comment, end = ("#", "") if python else ("--", ";")
    yield _line(f"{comment} the views as they were at commit {document['commit']}")
    if document["once"]:
        yield _line(f"{comment} once, if they are not there yet:")
    for statement in document["once"]:
        yield _line(f"{comment}   {statement}{end}")
    for statement in document["statements"]:
        yield _line(f"{statement}{end}")


def _render_current(document: Document) -> Iterable[RenderableType]:
    python = document["engine"] == Engine.polars.value
    comment, end = ("#", "") if python else ("--", ";")
    yield _line(f"{comment} once in a session")
    for statement in document["once"]:
        yield _line(f"{statement}{end}")
    yield _line(f"{comment} whenever the newest published commit is wanted: all views are at one")
    for statement in document["statements"]:
        yield _line(f"{statement}{end}")


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ignore")
