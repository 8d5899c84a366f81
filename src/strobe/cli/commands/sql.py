"""`strobe sql`: a query over the views, all at one commit."""

from __future__ import annotations

from typing import Annotated

import typer

from strobe.cli import render
from strobe.cli.options import HERE, AsJson, ProjectFolder
from strobe.cli.terminal import Terminal


def sql(
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="SELECT", help="A SELECT over the views, in Spark SQL.")],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="COMMIT|TIME", help="A commit's number, or a time (UTC). Default: now."),
    ] = None,
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """Query the views, mutually consistent, now or at any retained commit."""
    from strobe.api import Warehouse, parse_at, spark_errors, tables_of
    from strobe.report.rows import rows

    terminal = Terminal.of(context)
    terminal.open(project, as_json)
    tables_of(query)
    moment = parse_at(at)
    warehouse = Warehouse(project, tell=terminal.tell)
    with warehouse.pin(moment) as pin:
        frame = pin.sql(query)
        with spark_errors():
            document = {"commit": pin.commit, **rows(frame)}
    terminal.show(document, render.rows, exact=True)
