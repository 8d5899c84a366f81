"""`strobe prepare`: puts into the sources what watching them needs, or takes it out again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from strobe.cli.options import HERE, AsJson, ProjectFolder, known, source_names
from strobe.cli.terminal import Terminal
from strobe.config.model import Project
from strobe.errors import NotNow, StrobeError, UserError
from strobe.report.document import Document
from strobe.sources.base import NotUndone

if TYPE_CHECKING:
    from strobe.planning.topology import Topology


def prepare(
    context: typer.Context,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE]...", help="Sources. Default: all.", show_default=False, autocompletion=source_names
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be executed, and do nothing.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take every trace of Strobe out of the sources again.")] = False,
    follow_ddl: Annotated[
        bool,
        typer.Option(
            "--follow-ddl",
            help="Put in an event trigger too (PostgreSQL, by a superuser), so that views follow partitions that are "
            "dropped, detached or attached.",
        ),
    ] = False,
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """Put into the sources what watching them needs, or print it for the DBA, or take it out again."""
    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json)
    chosen = known(sources or list(loaded.sources), loaded.sources, "source")
    if dry_run and undo:
        raise UserError("--dry-run and --undo do not go together", fix="Leave one of them away.")
    if follow_ddl and undo:
        raise UserError("--follow-ddl and --undo do not go together", fix="--undo takes the event trigger out too.")
    if undo:
        found, failed = _undo(loaded, chosen)
        terminal.show({"sources": found}, _render_undone)
        if failed:
            raise typer.Exit(max(error.exit_code for error in failed))
    elif dry_run:
        terminal.show({"sources": _scripts(loaded, chosen, follow_ddl)}, _render_scripts)
    else:
        terminal.show({"sources": _prepare(loaded, chosen, follow_ddl)}, _render_prepared)


def _undo(project: Project, chosen: Sequence[str]) -> tuple[Document, list[StrobeError]]:
    """What was taken out of each source. One that fails keeps nothing in the others."""
    from strobe.client.wait import described, hear
    from strobe.planning.source_set import SourceSet

    heard = hear(project.warehouse)
    if heard.alive:
        raise NotNow(f"the sources are in use: {described(heard)}", fix="Stop it first.")
    found: Document = {}
    failed: list[StrobeError] = []
    with SourceSet.open(project) as sources:
        for name in chosen:
            found[name] = {"removed": [], "left": [], "problem": None}
            try:
                found[name]["removed"] = sources[name].undo()
            except StrobeError as error:
                failed.append(error)
                found[name]["problem"] = error.message
                if isinstance(error, NotUndone):
                    found[name] |= {"removed": list(error.removed), "left": list(error.left)}
    return found, failed


def _scripts(project: Project, chosen: Sequence[str], follow_ddl: bool) -> Document:
    found: Document = {}
    with _assembled(project) as topology:
        following = _following(topology, chosen) if follow_ddl else ()
        for name in chosen:
            if relations := [r.name for r in topology.relations(name)]:
                source = topology.sources[name]
                more = source.ddl_script() if name in following else []
                found[name] = {"statements": [*source.prepare_script(relations), *more]}
    return found


def _following(topology: Topology, chosen: Sequence[str]) -> Sequence[str]:
    found = [name for name in chosen if topology.relations(name) and topology.sources[name].follows_ddl]
    if not found:
        fix = "Leave --follow-ddl away, or name a source of type postgres that views use."
        raise UserError(f"DDL of {', '.join(chosen)} cannot be followed", fix=fix)
    return found


def _prepare(project: Project, chosen: Sequence[str], follow_ddl: bool) -> Document:
    found: Document = {}
    with _assembled(project) as topology:
        following = _following(topology, chosen) if follow_ddl else ()
        for name in chosen:
            relations = [r.name for r in topology.relations(name)]
            if relations:
                topology.sources[name].prepare(relations)
            if name in following:
                topology.sources[name].follow_ddl()
            found[name] = {"relations": relations}
    return found


@contextmanager
def _assembled(project: Project) -> Iterator[Topology]:
    from strobe.planning.topology import assemble

    topology = assemble(project)
    with topology.sources:
        yield topology


def _render_undone(document: Document) -> Iterable[RenderableType]:
    for name, source in document["sources"].items():
        if source["removed"]:
            yield Text(f"{name}: took out {', '.join(source['removed'])}")
        elif not source["problem"]:
            yield Text(f"{name}: there was nothing to take out")
        if source["problem"]:
            yield Text.assemble((f"{name}: ", "bold red"), source["problem"])
        if source["left"]:
            yield Text("  Their owner, or a superuser, has to run:")
        for statement in source["left"]:
            yield Text(f"    {statement};", no_wrap=True, overflow="ignore")


def _render_scripts(document: Document) -> Iterable[RenderableType]:
    for name, source in document["sources"].items():
        yield Text(f"-- source {name}" if source["statements"] else f"-- source {name}: nothing is needed")
        for statement in source["statements"]:
            yield Text(f"{statement.rstrip().rstrip(';')};", no_wrap=True, overflow="ignore")


def _render_prepared(document: Document) -> Iterable[RenderableType]:
    for name, source in document["sources"].items():
        relations = ", ".join(source["relations"])
        yield Text(f"{name}: watching {relations}" if relations else f"{name}: no view uses it, nothing was done")
