"""Commands that do something: to the sources, to the warehouse, or through a running coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from strobe.cli import render
from strobe.cli.commands.history_audit import HistoryFile, WantedLevel, judge
from strobe.cli.options import HERE, AsJson, ProjectFolder
from strobe.cli.terminal import Document, Terminal
from strobe.config.model import Project
from strobe.errors import NotNow, UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strobe.coordinator.coordinator import Coordinator
    from strobe.messages import Message
    from strobe.warehouse.control.lock import CoordinatorLock

REBUILD_SECONDS = 3600.0
APPLY_SECONDS = 86_400.0

FOLD_SECONDS = 600.0

Views = Annotated[
    list[str] | None, typer.Argument(metavar="[VIEW]...", help="Views. Default: all.", show_default=False)
]


# prepare


def prepare(
    context: typer.Context,
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="[SOURCE]...", help="Sources. Default: all.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be executed, and do nothing.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take every trace of Strobe out of the sources again.")] = False,
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """Put into the sources what watching them needs, or print it for the DBA, or take it out again."""
    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json)
    chosen = _known(sources or list(loaded.sources), loaded.sources, "source")
    if dry_run and undo:
        raise UserError("--dry-run and --undo do not go together", fix="Leave one of them away.")
    if undo:
        terminal.show({"sources": _undo(loaded, chosen)}, _render_undone)
    elif dry_run:
        terminal.show({"sources": _scripts(terminal, loaded, chosen)}, _render_scripts)
    else:
        terminal.show({"sources": _prepare(terminal, loaded, chosen)}, _render_prepared)


def _undo(project: Project, chosen: Sequence[str]) -> Document:
    from strobe.client.wait import hear
    from strobe.planning.topology import open_sources

    heard = hear(project.warehouse)
    if heard.alive:
        raise NotNow(f"the sources are in use: {heard}", fix="Stop it first.")
    opened = open_sources(project)
    return {name: {"removed": opened[name].undo()} for name in chosen}


def _scripts(terminal: Terminal, project: Project, chosen: Sequence[str]) -> Document:
    with _assembled(terminal, project) as topology:
        return {
            name: {"statements": topology.sources[name].prepare_script([r.name for r in topology.relations(name)])}
            for name in chosen
            if topology.relations(name)
        }


def _prepare(terminal: Terminal, project: Project, chosen: Sequence[str]) -> Document:
    found: Document = {}
    with _assembled(terminal, project) as topology:
        for name in chosen:
            relations = [r.name for r in topology.relations(name)]
            if relations:
                topology.sources[name].prepare(relations)
            found[name] = {"relations": relations}
    return found


@contextmanager
def _assembled(terminal: Terminal, project: Project) -> Iterator[Any]:
    from strobe.planning.topology import assemble

    topology = assemble(project, _starter(terminal, project))
    try:
        yield topology
    finally:
        topology.close()


def _starter(terminal: Terminal, project: Project) -> Callable[[], SparkSession]:
    """Starts Spark when somebody really needs it."""
    started: list[SparkSession] = []

    def spark() -> SparkSession:
        if not started:
            from strobe.spark.session import start

            terminal.say("starting Spark")
            started.append(start(project.spark))
        return started[0]

    return spark


def _render_undone(document: Document) -> Iterable[RenderableType]:
    for name, source in document["sources"].items():
        removed = source["removed"]
        yield Text(f"{name}: took out {', '.join(removed)}" if removed else f"{name}: there was nothing to take out")


def _render_scripts(document: Document) -> Iterable[RenderableType]:
    for name, source in document["sources"].items():
        yield Text(f"-- source {name}" if source["statements"] else f"-- source {name}: nothing is needed")
        for statement in source["statements"]:
            yield Text(f"{statement.rstrip().rstrip(';')};", no_wrap=True, overflow="ignore")


def _render_prepared(document: Document) -> Iterable[RenderableType]:
    for name, source in document["sources"].items():
        relations = ", ".join(source["relations"])
        yield Text(f"{name}: watching {relations}" if relations else f"{name}: no view uses it, nothing was done")


# run


def run(
    context: typer.Context,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when everything that the sources committed is in the warehouse.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0, metavar="SECONDS", help="End after so many seconds.")
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the place of another coordinator, which then can commit no more.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="Write down every message, to replay them later.")
    ] = None,
    metrics: Annotated[
        int | None,
        typer.Option(
            "--metrics", min=1, max=65535, metavar="PORT", help="Serve Prometheus metrics there, on 127.0.0.1."
        ),
    ] = None,
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """Maintain the views until told to stop: SIGTERM and Ctrl-C finish the commit at hand, fold and end."""
    from strobe.cli.reporter import reporter
    from strobe.cli.signals import serve
    from strobe.coordinator.coordinator import Coordinator

    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json)
    with reporter(terminal) as telling, _recording(record) as write:
        coordinator = Coordinator(loaded, telling, record=write)
        work = partial(coordinator.run, until_idle=until_idle, seconds=seconds, take_over=take_over)
        with _metrics(metrics, loaded.name, coordinator):
            interrupted = serve(coordinator, telling, work)
    if interrupted and until_idle:
        raise NotNow("stopped before the sources were idle", fix="Start `strobe run` again: it goes on from there.")
    if terminal.as_json:
        terminal.show({"commit": _last_commit(loaded)}, lambda _: ())


@contextmanager
def _metrics(port: int | None, project: str, coordinator: Coordinator) -> Iterator[None]:
    if port is None:
        yield
        return
    from strobe.coordinator.metrics import serving

    with serving(port, project, lambda: coordinator.document):
        yield


@contextmanager
def _recording(file: Path | None) -> Iterator[Callable[[Message], None]]:
    from strobe.engine import recording

    if file is None:
        yield lambda _: None
        return
    try:
        opened = file.open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(f"the recording cannot be written: {error.strerror}", where=str(file)) from None
    with opened:
        yield lambda message: recording.write(message, opened)


def _last_commit(project: Project) -> int | None:
    from strobe.client.wait import last_header

    header = last_header(project.warehouse)
    return header.number if header else None


# wait


def wait(
    context: typer.Context,
    views: Views = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0, metavar="S", help="Seconds to wait at most.")] = 60.0,
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """Return when everything the sources had committed by now is visible in the views."""
    from strobe.client import wait as waiting

    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json)
    positions = waiting.wait(loaded, views or (), timeout)
    terminal.show({"commit": _last_commit(loaded), "positions": positions}, _render_reached)


def _render_reached(document: Document) -> Iterable[RenderableType]:
    reached = ", ".join(f"{source} {render.place(position)}" for source, position in document["positions"].items())
    yield Text(f"visible: {reached} (commit {document['commit']})")


# fold, rebuild, audit


def fold(context: typer.Context, project: ProjectFolder = HERE, as_json: AsJson = False) -> None:
    """Bring the view tables up to the last commit now, for other engines that read them."""
    from strobe.warehouse import inspect
    from strobe.warehouse.control import requests
    from strobe.warehouse.layout import Layout

    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json)
    layout = Layout(loaded.warehouse)
    if not inspect.exists(layout.log):
        raise UserError("nothing has been committed yet", where=str(layout.root), fix="Start `strobe run` first.")
    with _lock(loaded) as free:
        if free:
            commit = _fold_here(terminal, loaded, free)
        else:
            terminal.say("asking the running coordinator")
            commit = requests.request(loaded.warehouse, {"kind": "fold"}, timeout=FOLD_SECONDS)["commit"]
    terminal.show({"commit": commit}, lambda found: [Text(f"the view tables hold commit {found['commit']}")])


@contextmanager
def _lock(project: Project) -> Iterator[CoordinatorLock | None]:
    """The coordinator's lock, held; None if a coordinator is at work, which then has to be asked."""
    from strobe.warehouse.control.lock import CoordinatorLock
    from strobe.warehouse.layout import Layout

    lock = CoordinatorLock(Layout(project.warehouse).control)
    try:
        lock.acquire()
    except NotNow:
        yield None
        return
    try:
        yield lock
    finally:
        lock.release()


def _fold_here(terminal: Terminal, project: Project, lock: CoordinatorLock) -> int | None:
    from strobe.managers.registry import ALGORITHMS
    from strobe.warehouse.warehouse import Warehouse

    spark = _starter(terminal, project)()
    warehouse = Warehouse.create_or_open(spark, project.warehouse, project.retention, project.name)
    warehouse.lock = lock
    header = warehouse.fence()
    unguaranteed = [name for name, algorithm in ALGORITHMS.items() if algorithm.level == "none"]
    warehouse.use([], unguaranteed=[name for name, view in project.views.items() if view.algorithm in unguaranteed])
    warehouse.fold()
    return header.number if header else None


def rebuild(
    context: typer.Context,
    view: Annotated[str, typer.Argument(metavar="VIEW", help="A view of the project.")],
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """Load one view anew, as strobe.yml defines it now, beside the old one, and swap."""
    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json)
    _known([view], loaded.views, "view")
    reply = _changed(terminal, loaded, {"kind": "rebuild", "view": view}, REBUILD_SECONDS)
    document = {"view": view, "commit": reply["commit"]}
    terminal.show(document, lambda found: [Text(f"{found['view']} was loaded anew at commit {found['commit']}")])


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

    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json)
    try:
        edit, _ = plan.plan(loaded)
        terminal.say(str(edit))
        wanted = {"kind": "apply", "drop_tables": drop_tables}
        reply = {"commit": _last_commit(loaded)} if edit.nothing else _changed(terminal, loaded, wanted, APPLY_SECONDS)
    except UserError as error:
        plan.note(loaded, error)
        raise
    plan.note(loaded, None)
    terminal.show({"commit": reply["commit"], **edit.document()}, render.applied)


def _changed(terminal: Terminal, project: Project, wanted: Document, seconds: float) -> Document:
    """Have a coordinator change the views: the one that runs, or one in this process for as long as it takes."""
    from strobe.cli.reporter import LogReporter
    from strobe.client.audit import coordinator_at_work
    from strobe.coordinator.coordinator import Coordinator
    from strobe.warehouse.control import requests

    first = _last_commit(project) is None
    with _lock(project) as free:
        pass
    if not free:
        terminal.say("asking the running coordinator")
        return requests.request(project.warehouse, wanted, timeout=seconds, say=terminal.say)
    coordinator = Coordinator(project, LogReporter(terminal.redact, terminal.err), set_aside=True)
    with coordinator_at_work(project, coordinator, terminal.say):
        if first:  # everything is loaded already
            return {"commit": _last_commit(project)}
        return requests.request(project.warehouse, wanted, timeout=seconds)


def audit(
    context: typer.Context,
    views: Views = None,
    history: HistoryFile = None,
    level: WantedLevel = None,
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """Recompute views from the live sources, while they change, and compare; or judge a recorded history."""
    terminal = Terminal.of(context)
    if history or level:
        raise typer.Exit(judge(terminal, history, level, views or (), as_json))
    from strobe.client.audit import audit

    loaded = terminal.open(project, as_json)
    _known(views or (), loaded.views, "view")
    document = audit(loaded, views or (), terminal.say)
    terminal.show(document, render.audit)
    codes = {"valid": 0, "invalid": 1}
    raise typer.Exit(codes.get(document["verdict"], NotNow.exit_code))


def _known(names: Sequence[str], known: Iterable[str], what: str) -> list[str]:
    for name in names:
        if name not in known:
            raise UserError(f"there is no {what} {name!r}", where="strobe.yml", fix=f"There are {', '.join(known)}.")
    return list(names)


COMMANDS = (prepare, apply, run, wait, fold, rebuild, audit)
