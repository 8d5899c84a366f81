"""`strobe spectrum`: which level each algorithm really reaches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from strobe.cli.options import AsJson
from strobe.cli.render import table
from strobe.cli.terminal import Terminal
from strobe.errors import UserError
from strobe.events import LevelFound
from strobe.report.document import Document

if TYPE_CHECKING:
    from strobe.simulator.spectrum import Cell

SHORT = {"none": "X", "convergent": "cv", "weak": "w", "strong": "S", "complete": "C"}


def spectrum(
    context: typer.Context,
    algorithms: Annotated[
        list[str] | None, typer.Argument(metavar="[ALGORITHM]...", help="All, if none are named.")
    ] = None,
    schedules: Annotated[int, typer.Option("--schedules", min=1, metavar="N", help="How many to run per cell.")] = 500,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Another number explores others.")] = 0,
    examples: Annotated[
        Path | None,
        typer.Option("--examples", metavar="DIR", help="Write what broke the next higher level there, as scenarios."),
    ] = None,
    picture: Annotated[Path | None, typer.Option("--picture", metavar="FILE", help="Draw the table, as SVG.")] = None,
    as_json: AsJson = False,
) -> None:
    """Explore schedules and print, for each algorithm and scenario, the highest level that none of them broke."""
    from strobe.managers.registry import ALGORITHMS
    from strobe.simulator.picture import svg
    from strobe.simulator.spectrum import spectrum

    terminal = Terminal.of(context)
    terminal.as_json = as_json
    unknown = [name for name in algorithms or () if name not in ALGORITHMS]
    if unknown:
        raise UserError(f"there is no algorithm {unknown[0]!r}", fix=f"There are {', '.join(ALGORITHMS)}.")

    def told(cell: Cell) -> None:
        terminal.tell(LevelFound(cell.algorithm, cell.scenario, cell.level, cell.schedules))

    cells = spectrum(schedules, seed, told, only=algorithms)
    documents = [_document(cell, examples, as_json) for cell in cells]
    if picture is not None:
        _write(picture, svg(cells))
    total = sum(cell.schedules for cell in cells)
    terminal.show({"cells": documents, "schedules": total, "seed": seed}, _render)


def _document(cell: Cell, examples: Path | None, as_json: bool) -> Document:
    scenario = cell.counterexample() if examples is not None or as_json else None
    file = None
    if scenario is not None and examples is not None:
        file = examples / f"{cell.algorithm}--{cell.scenario.replace(' ', '-')}.scenario"
        _write(file, scenario)
    return {
        "algorithm": cell.algorithm,
        "scenario": cell.scenario,
        "level": cell.level,
        "expected": cell.expected,
        "schedules": cell.schedules,
        "broke": cell.next_level,
        "counterexample": scenario,
        "file": str(file) if file else None,
    }


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"it cannot be written: {error.strerror}", where=str(file), fix="Name another.") from error


def _render(document: Document) -> Iterable[RenderableType]:
    cells = document["cells"]
    scenarios = list(dict.fromkeys(cell["scenario"] for cell in cells))
    rows: dict[str, dict[str, str]] = {}
    for cell in cells:
        rows.setdefault(cell["algorithm"], {})[cell["scenario"]] = _shown(cell)
    yield table(["algorithm", *scenarios], [[name, *(row[s] for s in scenarios)] for name, row in rows.items()])
    yield Text("X not convergent, cv convergent, w weak, S strong, C complete; ! other than documented")
    yield Text(f"{document['schedules']:,} schedules; each cell is the highest level that none of its schedules broke")
    files = [cell["file"] for cell in cells if cell["file"]]
    if files:
        folder = Path(files[0]).parent
        yield Text(f"{len(files)} shortest counterexamples for the next higher levels are in {folder}")


def _shown(cell: Document) -> str:
    return SHORT[cell["level"]] + ("" if cell["level"] == cell["expected"] else "!")
