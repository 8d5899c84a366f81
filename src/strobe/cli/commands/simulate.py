"""`strobe simulate`: a scenario, step by step, as the papers print theirs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from strobe.cli.options import AsJson
from strobe.cli.terminal import Terminal
from strobe.report.document import Document

if TYPE_CHECKING:
    from strobe.simulator.trial import Outcome

_NO = 1


def simulate(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A scenario.")],
    schedule: Annotated[
        str | None,
        typer.Option("--schedule", metavar="random:SEED|all", help="Another schedule than the scenario's."),
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", metavar="NAME", help="Another algorithm than the scenario's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a scenario of a few lines and print each step: what happened, queries, answers, the view, and the level."""
    from strobe.simulator.algorithms import choose
    from strobe.simulator.scenario_reader import load, read_schedule
    from strobe.simulator.trial import carry_out

    terminal = Terminal.of(context)
    terminal.as_json = as_json
    outcome = carry_out(
        load(file),
        choose(algorithm, "--algorithm") if algorithm else None,
        read_schedule(schedule, "--schedule") if schedule else None,
    )
    terminal.show(_document(outcome, file), _render)
    if not outcome.ok:
        raise typer.Exit(_NO)


def _document(outcome: Outcome, file: Path) -> Document:
    from strobe.simulator.notation import rows_text
    from strobe.simulator.scenario_text import write

    scenario, teller = outcome.scenario, outcome.teller
    initial = rows_text(scenario.shown(teller.lab.states[0])) if teller else None
    wanted = ", ".join(scenario.levels)
    smallest = None
    if outcome.smallest:
        smallest = write(*outcome.smallest, outcome.algorithm, level=wanted, title=f"from {file.name}: not {wanted}")
    failed = [check.document() for check in outcome.checks if not check.holds]
    return {
        "file": str(file),
        "title": scenario.title,
        "algorithm": str(outcome.algorithm),
        "schedule": str(outcome.schedule),
        "initially": initial,
        "steps": _steps(outcome),
        "schedules": outcome.levels.total(),
        "all_schedules": outcome.all_seen if outcome.schedule.kind == "all" else None,
        "levels": dict(outcome.levels),
        "level": outcome.finding.level,
        "because": outcome.finding.because,
        "witness": list(outcome.finding.witness) or None,
        "expected": len(outcome.checks),
        "failed": failed,
        "smallest": smallest,
        "ok": outcome.ok,
    }


def _steps(outcome: Outcome) -> list[Document]:
    from strobe.simulator.notation import rows_text

    if outcome.teller is None:
        return []
    return [
        {
            "step": number + 1,
            "what": moment.text,
            "sends": [f"{s.name} to {s.source} = {s.text}" for s in moment.sent],
            "state": outcome.teller.state(moment) if moment.event[0] == "receive" else {},
            "views": [rows_text(view) for view in moment.views],
            "failed": [check.document() for check in outcome.checked.get(number, ()) if not check.holds],
        }
        for number, moment in enumerate(outcome.teller.moments)
    ]


def _render(document: Document) -> Iterable[RenderableType]:
    yield Text(document["title"] or document["file"], style="bold")
    yield Text(f"{document['algorithm']}, schedule: {document['schedule']}\n")
    if document["initially"] is not None:
        yield Text(f" 0. view = {document['initially']}")
    for step in document["steps"]:
        yield from _render_step(step)
    yield from _render_level(document)
    for check in document["failed"]:
        if not any(check in step["failed"] for step in document["steps"]):
            yield _failure(check)
    if document["expected"]:
        held = document["expected"] - len(document["failed"])
        style = "green" if document["ok"] else "bold red"
        yield Text(f"{held} of {document['expected']} expectations hold", style=style)
    if document["smallest"]:
        yield Text("\nThe smallest run that shows it, to be kept and replayed:\n")
        yield Text(document["smallest"])


def _render_step(step: Document) -> Iterable[RenderableType]:
    yield Text(f"{step['step']:>2}. {step['what']}")
    lines = [f"sends {query}" for query in step["sends"]]
    lines += [f"{name} = {text}" for name, text in step["state"].items()]
    lines += [f"view = {view}" for view in step["views"]]
    for line in lines:
        yield Text(f"      {line}")
    for check in step["failed"]:
        yield _failure(check)


def _failure(check: Document) -> Text:
    instead = f"{check['where']}: {check['expected']}; but {check['found']}"
    return Text.assemble(("      not as expected: ", "bold red"), instead)


def _render_level(document: Document) -> Iterable[RenderableType]:
    count = document["schedules"]
    if document["all_schedules"] is not None:
        found = ", ".join(f"{n:,} {level}" for level, n in document["levels"].items())
        which = "all schedules" if document["all_schedules"] else "the first schedules of more"
        yield Text(f"{count:,} runs ({which}): {found}")
    yield Text(f"\nlevel: {document['level']}, because {document['because']}", style="bold")
    for line in document["witness"] or ():
        yield Text(f"  {line}")
