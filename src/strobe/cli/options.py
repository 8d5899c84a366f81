"""Options that several commands share, and what is said of a name that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from strobe.config.load import load_project
from strobe.config.model import Project
from strobe.errors import StrobeError, UserError, suggestion

ProjectFolder = Annotated[Path, typer.Option("--project", metavar="DIR", help="The project's folder. Default: here.")]
WarehouseFolder = Annotated[
    Path | None,
    typer.Option("--warehouse", metavar="PATH", help="Read this warehouse, without its project.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
HERE = Path()


def _names(of: Callable[[Project], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    """Names of the project that a shell offers for completion. Nothing is read but the project's own files."""

    def offered(context: typer.Context, incomplete: str) -> list[str]:
        with suppress(StrobeError, OSError):
            project = load_project(Path(context.params.get("project") or HERE), offline=True)
            return [name for name in of(project) if name.startswith(incomplete)]
        return []

    return offered


view_names = _names(lambda project: project.views)
source_names = _names(lambda project: project.sources)

Views = Annotated[
    list[str] | None,
    typer.Argument(metavar="[VIEW]...", help="Views. Default: all.", show_default=False, autocompletion=view_names),
]


def known(names: Sequence[str], there: Iterable[str], what: str) -> list[str]:
    """The names, all of which are there."""
    for name in names:
        if name not in there:
            raise UserError(f"there is no {what} {name!r}", where="strobe.yml", fix=suggestion(name, there))
    return list(names)
