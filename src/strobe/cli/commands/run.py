"""`strobe run`: the coordinator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strobe.cli.options import HERE, AsJson, ProjectFolder
from strobe.cli.reporter import Log, reporter
from strobe.cli.terminal import Terminal
from strobe.errors import NotNow, UserError

if TYPE_CHECKING:
    from strobe.coordinator.coordinator import Coordinator
    from strobe.messages import Message


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
        str | None,
        typer.Option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Serve Prometheus metrics there, to everybody who can reach it. Default host: 127.0.0.1.",
        ),
    ] = None,
    log: Annotated[
        Log | None,
        typer.Option("--log", help="How to write log lines. Default: text, or a live table on a terminal."),
    ] = None,
    project: ProjectFolder = HERE,
    as_json: AsJson = False,
) -> None:
    """Maintain the views until told to stop: SIGTERM and Ctrl-C finish the commit at hand, fold and end."""
    from strobe.cli.signals import serve
    from strobe.client.local import last_commit
    from strobe.coordinator.coordinator import Coordinator

    terminal = Terminal.of(context)
    loaded = terminal.open(project, as_json)
    with reporter(terminal, log) as telling, _recording(record) as write:
        coordinator = Coordinator(loaded, telling, record=write)
        work = partial(coordinator.run, until_idle=until_idle, seconds=seconds, take_over=take_over)
        with _metrics(metrics, loaded.name, coordinator):
            interrupted = serve(coordinator, telling, work)
    if interrupted and until_idle:
        raise NotNow("stopped before the sources were idle", fix="Start `strobe run` again: it goes on from there.")
    if terminal.as_json:
        terminal.show({"commit": last_commit(loaded)}, lambda _: ())


@contextmanager
def _metrics(address: str | None, project: str, coordinator: Coordinator) -> Iterator[None]:
    if address is None:
        yield
        return
    from strobe.coordinator.metrics import LOOPBACK, serving

    host, port = _address(address)
    with serving(port, project, lambda: coordinator.status, host or LOOPBACK):
        yield


def _address(text: str) -> tuple[str, int]:
    """`9100`, `0.0.0.0:9100` or `[::]:9100`."""
    found = re.fullmatch(r"(?:(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):)?([0-9]{1,5})", text)
    if found is None or not 0 < int(found[2]) < 65_536:
        fix = "Write a port, or an address and a port: 9100, 0.0.0.0:9100 or [::]:9100."
        raise UserError(f"{text!r} is no address to serve metrics at", where="--metrics", fix=fix)
    return (found[1] or "").strip("[]"), int(found[2])


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
