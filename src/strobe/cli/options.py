"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ProjectFolder = Annotated[Path, typer.Option("--project", metavar="DIR", help="The project's folder. Default: here.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
HERE = Path()
