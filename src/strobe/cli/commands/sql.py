"""`strobe sql`: a query over the views, all at one commit; without a query, an interactive shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import typer
from rich.text import Text

from strobe.cli.options import HERE, AsJson, ProjectFolder, WarehouseFolder
from strobe.cli.results import Format, write
from strobe.cli.terminal import Terminal
from strobe.errors import UserError


def sql(
    context: typer.Context,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="[SELECT]", help="A SELECT over the views, in Spark SQL. Default: an interactive shell."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="COMMIT|TIME", help="A commit's number, or a time (UTC). Default: now."),
    ] = None,
    format_: Annotated[Format | None, typer.Option("--format", help="How to write the rows. Default: table.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where to write them. Default: standard output.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=0, metavar="N", help="At most so many rows. Default: all.")
    ] = None,
    project: ProjectFolder = HERE,
    warehouse: WarehouseFolder = None,
    as_json: AsJson = False,
) -> None:
    """Query the views, mutually consistent, now or at any retained commit."""
    from strobe.api import parse_at
    from strobe.cli.shell import Shell
    from strobe.client.query import Queries

    terminal = Terminal.of(context)
    loaded = terminal.open_to_read(project, warehouse, as_json)
    moment = parse_at(at)
    chosen = Format.json if as_json and format_ is None else format_ or Format.table
    if chosen is Format.parquet and output is None and (query is None or sys.stdout.isatty()):
        raise UserError("Parquet is not text", where="--format", fix="Name a file with --output.")
    with Queries(loaded, terminal.tell) as queries, _opened(output) as out:
        if query is None:
            Shell(queries, out, chosen, moment, limit, terminal.fail).run()
            return
        result = queries.ask(query, moment, limit)
        count = write(result, chosen, out, lambda: out.buffer)  # type: ignore[attr-defined]
        if chosen is Format.table:
            said = f"{count} row{'' if count == 1 else 's'} at commit {result.commit}"
            terminal.err.print(Text(said, style="dim")) if output else print(f"\n{said}", file=out)


@contextmanager
def _opened(output: Path | None) -> Iterator[IO[str]]:
    """Where the rows go. A file appears under its name when it is whole."""
    if output is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    draft = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8", newline="") as file:
            yield file
        draft.replace(output)
    except OSError as error:
        raise UserError(
            f"cannot write the result: {error.strerror}", where=str(output), fix="Choose another file."
        ) from None
    finally:
        draft.unlink(missing_ok=True)
