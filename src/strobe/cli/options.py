"""Options that several commands share, and what is said of a name that is not there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from strobe.errors import UserError, suggestion

ProjectFolder = Annotated[Path, typer.Option("--project", metavar="DIR", help="The project's folder. Default: here.")]
WarehouseFolder = Annotated[
    Path | None,
    typer.Option("--warehouse", metavar="PATH", help="Read this warehouse, without its project.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Views = Annotated[
    list[str] | None, typer.Argument(metavar="[VIEW]...", help="Views. Default: all.", show_default=False)
]
HERE = Path()


def known(names: Sequence[str], there: Iterable[str], what: str) -> list[str]:
    """The names, all of which are there."""
    for name in names:
        if name not in there:
            raise UserError(f"there is no {what} {name!r}", where="strobe.yml", fix=suggestion(name, there))
    return list(names)
