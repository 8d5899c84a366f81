"""`strobe init`: makes a project that runs."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from strobe.cli.options import AsJson
from strobe.cli.terminal import Terminal
from strobe.errors import UserError, suggestion
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

_SCHEMA = "strobe.schema.json"
"""Beside strobe.yml, whose first line names it: editors complete and check the file by it."""

_SOURCES = {
    "postgres": """\
    type: postgres
    dsn: ${{{variable}}}    # postgresql://strobe:PASSWORD@host:5432/database, or with ?sslmode=… as libpq takes it
""",
    "mariadb": """\
    type: mariadb
    dsn: ${{{variable}}}    # mysql://strobe:PASSWORD@host:3306/database
""",
    "mysql": """\
    type: mysql
    dsn: ${{{variable}}}    # mysql://strobe:PASSWORD@host:3306/database
""",
    "sqlite": """\
    type: sqlite
    path: {name}.db
""",
    "files": """\
    type: files
    path: drops/{name}.csv    # or drops/*.csv: files in the order of their names, each a full copy
    relation: {name}_rows
    key: [id]
    columns: {{id: bigint}}    # Spark types; columns that are not named are text
""",
    "delta": """\
    type: delta
    path: {name}_table
    key: [id]
""",
}
"""What `--sources` writes for each type."""

_NEXT = ("strobe prepare", "strobe check", "strobe run", 'strobe sql "SELECT * FROM paid_orders"')


def init(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="An absent or empty folder.")],
    sources: Annotated[
        str | None,
        typer.Option("--sources", metavar="TYPE,…", help="Write a project for sources of these types instead."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a project that runs, with two SQLite databases, a CSV drop and two views; or one for your own sources."""
    terminal = Terminal.of(context)
    terminal.as_json = as_json
    made, then = (make(directory), list(_NEXT)) if sources is None else make_for(directory, sources.split(","))
    terminal.show({"project": str(directory), "files": made, "next": then}, _render_init)


def make_for(directory: Path, types: list[str]) -> tuple[list[str], list[str]]:
    """Write a project with a source of each of these types into an absent or empty folder; its files, and what to do
    next."""
    for type_ in types:
        if type_ not in _SOURCES:
            raise UserError(f"there is no source type {type_!r}", where="--sources", fix=suggestion(type_, _SOURCES))
    seen: Counter[str] = Counter()
    blocks, variables, names = [], [], []
    for type_ in types:
        seen[type_] += 1
        names.append(type_ if seen[type_] == 1 else f"{type_}{seen[type_]}")
        variable = f"{names[-1].upper()}_DSN"
        block = _SOURCES[type_].format(name=names[-1], variable=variable)
        variables += [variable] if variable in block else []
        blocks.append(f"  {names[-1]}:\n{block}")
    name = re.sub(r"[^a-z0-9_]", "_", directory.resolve().name.lower())
    project = name if re.match(r"[a-z]", name) else f"project_{name}"
    text = _template("sources.yml").format(project=project[:40], sources="\n".join(blocks))
    _into(directory, {"strobe.yml": text, ".gitignore": _template("gitignore"), _SCHEMA: _schema()})
    (directory / "views").mkdir()
    example = f"SELECT a.id, … FROM {names[0]}.TABLE a" + (f" JOIN {names[1]}.TABLE b ON …" if len(names) > 1 else "")
    then = [f"export {variable}=…" for variable in variables]
    then += [f"write a view: views/NAME.sql, such as {example}", *_NEXT[:3]]
    return ["strobe.yml", ".gitignore", _SCHEMA], then


def make(directory: Path) -> list[str]:
    """Write the example project into an absent or empty folder."""
    _into(directory, {place: _template(template) for template, place in _PLACES.items()} | {_SCHEMA: _schema()})
    for script, database in _DATABASES.items():
        with closing(sqlite3.connect(directory / database)) as connection:
            connection.executescript(_template(script))
    return [*_PLACES.values(), _SCHEMA, *_DATABASES.values()]


def _into(directory: Path, texts: Mapping[str, str]) -> None:
    """Write files into an absent or empty folder."""
    where = str(directory)
    if directory.exists() and not directory.is_dir():
        raise UserError("this is a file, not a folder", where=where, fix="Name an absent or empty folder.")
    if directory.is_dir() and any(directory.iterdir()):
        raise UserError("the folder is not empty", where=where, fix="Name an absent or empty folder.")
    try:
        for place, text in texts.items():
            _write(directory / place, text)
    except OSError as error:
        raise UserError(f"the folder cannot be written: {error.strerror}", where=where) from error


def _schema() -> str:
    return files("strobe").joinpath(_SCHEMA).read_text(encoding="utf-8")


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
