"""`strobe init`: makes a project that runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from strobe.cli.options import AsJson
from strobe.cli.terminal import Terminal
from strobe.errors import UserError
from strobe.report.document import Document

_PLACES = {
    "strobe.yml": "strobe.yml",
    "gitignore": ".gitignore",
    "products.csv": "drops/products.csv",
    "views/order_lines.sql": "views/order_lines.sql",
    "views/paid_orders.sql": "views/paid_orders.sql",
}
"""Which template becomes which file of a new project."""

_DATABASES = {"shop.sql": "shop.db", "billing.sql": "billing.db"}
"""Which script fills which SQLite database."""

_NEXT = ("strobe prepare", "strobe check", "strobe run", 'strobe sql "SELECT * FROM paid_orders"')


def init(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="An absent or empty folder.")],
    as_json: AsJson = False,
) -> None:
    """Make a project that runs: two SQLite databases, a CSV drop and two views that join them."""
    terminal = Terminal.of(context)
    terminal.as_json = as_json
    made = make(directory)
    terminal.show({"project": str(directory), "files": made, "next": list(_NEXT)}, _render_init)


def make(directory: Path) -> list[str]:
    """Write the example project into an absent or empty folder."""
    where = str(directory)
    if directory.exists() and not directory.is_dir():
        raise UserError("this is a file, not a folder", where=where, fix="Name an absent or empty folder.")
    if directory.is_dir() and any(directory.iterdir()):
        raise UserError("the folder is not empty", where=where, fix="Name an absent or empty folder.")
    try:
        for template, place in _PLACES.items():
            _write(directory / place, _template(template))
        for script, database in _DATABASES.items():
            with closing(sqlite3.connect(directory / database)) as connection:
                connection.executescript(_template(script))
    except OSError as error:
        raise UserError(f"the folder cannot be written: {error.strerror}", where=where) from error
    return [*_PLACES.values(), *_DATABASES.values()]


def _template(name: str) -> str:
    found = files("strobe.cli") / "templates"
    for part in name.split("/"):
        found = found / part
    return found.read_text(encoding="utf-8")


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _render_init(document: Document) -> Iterable[RenderableType]:
    yield Text(f"Made a project in {document['project']}: {', '.join(document['files'])}.")
    yield Text("Next:")
    yield Text(f"  cd {document['project']}")
    for command in document["next"]:
        yield Text(f"  {command}")
