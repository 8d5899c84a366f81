"""Commands that only look: they start no JVM and answer at once."""

from __future__ import annotations

from typing import Annotated

import typer

from strobe.cli import render
from strobe.cli.options import HERE, AsJson, ProjectFolder
from strobe.cli.terminal import Terminal
from strobe.errors import UserError

_ALL = 1 << 62


def check(context: typer.Context, project: ProjectFolder = HERE, as_json: AsJson = False) -> None:
    """Look at sources and views before anything runs: what is missing, how each view will be kept, what is slow."""
    from strobe.report.check import check

    terminal = Terminal.of(context)
    document = check(terminal.open(project, as_json))
    terminal.show(document, render.check)
    if not document["ok"]:
        raise typer.Exit(UserError.exit_code)


def plan(context: typer.Context, project: ProjectFolder = HERE, as_json: AsJson = False) -> None:
    """Say what `strobe apply` would add, rebuild, drop and keep, and how many rows it would read."""
    from strobe.apply import plan as edits

    terminal = Terminal.of(context)
    edit, reads = edits.plan(terminal.open(project, as_json))
    terminal.show({**edit.document(), "reads": reads}, render.plan)


def status(context: typer.Context, project: ProjectFolder = HERE, as_json: AsJson = False) -> None:
    """Say where every source and every view stands, and whether a coordinator keeps them."""
    from strobe.report.status import status

    terminal = Terminal.of(context)
    terminal.show(status(terminal.open(project, as_json)), render.status)


def history(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=0, metavar="N", help="How many commits; 0 for all.")] = 20,
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """List the commits, newest first: number, time, the views that changed, the sources' positions."""
    from strobe.warehouse import inspect
    from strobe.warehouse.layout import Layout

    terminal = Terminal.of(context)
    warehouse = terminal.open(project, as_json).warehouse
    found = inspect.history(warehouse, limit or _ALL) if inspect.exists(Layout(warehouse).log) else []
    commits = [
        {
            "commit": past.header.number,
            "committed_at": past.header.committed_at,
            "views": list(past.changed),
            "positions": {view: dict(vector) for view, vector in past.header.positions.items()},
        }
        for past in found
    ]
    terminal.show({"commits": commits}, render.history)


def explain(
    context: typer.Context,
    view: Annotated[str, typer.Argument(metavar="VIEW", help="A view of the project.")],
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """Show a view's plan: what is asked of which source, in which order, and what each change will cost."""
    from strobe.algebra.connected import connected
    from strobe.planning.topology import open_sources, plan_view, schemas, source_names
    from strobe.report.explain import explain

    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json)
    if view not in loaded.views:
        raise UserError(f"there is no view {view!r}", fix=f"There are {', '.join(loaded.views)}.")
    config = loaded.views[view]
    sources = open_sources(loaded)
    try:
        relations = schemas(sources, source_names(config.sql))
        planned = plan_view(view, config.sql, config, relations, f"{config.origin}: view {view}")
    finally:
        for source in sources.values():
            source.close()
    group = next(g for g in connected({name: source_names(v.sql) for name, v in loaded.views.items()}) if view in g)
    terminal.show({**explain(planned), "group": sorted(group)}, render.explain)


def algorithms(context: typer.Context, project: ProjectFolder = HERE, as_json: AsJson = False) -> None:
    """List the algorithms: what each reaches, needs and costs."""
    from strobe.managers.registry import ALGORITHMS

    terminal = Terminal.of(context)
    terminal.as_json = as_json
    listed = [
        {
            "name": a.name,
            "reaches": a.level,
            "scenarios": dict(a.reaches),
            "needs": a.needs,
            "costs": a.costs,
            "origin": a.origin,
        }
        for a in ALGORITHMS.values()
    ]
    terminal.show({"algorithms": listed}, render.algorithms)


COMMANDS = (check, plan, status, history, explain, algorithms)
