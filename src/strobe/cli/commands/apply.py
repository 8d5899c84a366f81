"""`strobe apply`: makes the views those of the edited strobe.yml."""

from __future__ import annotations

from typing import Annotated

import typer

from strobe.cli import render
from strobe.cli.options import HERE, AsJson, ProjectFolder
from strobe.cli.terminal import Terminal
from strobe.errors import UserError
from strobe.events import Planned

SECONDS = 86_400.0
"""How long a running coordinator may take."""


def apply(
    context: typer.Context,
    drop_tables: Annotated[
        bool, typer.Option("--drop-tables", help="Empty the tables of views that are dropped; they are kept otherwise.")
    ] = False,
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """Make the views those of the edited strobe.yml, in one commit, in a running system too."""
    from strobe.apply import plan
    from strobe.cli.reporter import waiting
    from strobe.client.local import change, last_commit

    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json)
    try:
        edit, _ = plan.plan(loaded)
        terminal.tell(Planned(edit.add, edit.rebuild, edit.drop))
        wanted = {"kind": "apply", "drop_tables": drop_tables}
        if edit.nothing:
            reply = {"commit": last_commit(loaded)}
        else:
            with waiting(terminal) as reporter:
                reply = change(loaded, wanted, SECONDS, reporter, terminal.quieted(reporter.tell))
    except UserError as error:
        plan.note(loaded, error)
        raise
    plan.note(loaded, None)
    terminal.show({"commit": reply["commit"], **edit.document()}, render.applied)
