"""Everything that a person is told: each event has its line, is plain data, and is shown without secrets."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from strobe import events
from strobe.cli.reporter import LiveReporter, Log, LogReporter
from strobe.cli.terminal import Terminal
from strobe.events import Event
from strobe.redaction import learn

LINES: dict[Event, str] = {
    events.SparkStarting(): "starting Spark",
    events.SparkRestarting("Spark ended"): "Spark ended: it is started again",
    events.ProjectRefused("no view"): "the views are kept as they were last applied: no view",
    events.Maintaining(("a", "b"), 7): "keeping a, b from commit 7",
    events.Maintaining((), 7): "keeping no view from commit 7",
    events.CommitInDoubt("No space left"): "No space left",
    events.MaintenancePutOff("no room"): "put off: no room",
    events.DocumentRefused("heartbeat.json", "it is not JSON"): "ignored _strobe/heartbeat.json: it is not JSON",
    events.Committed(7): "commit 7",
    events.StopRequested(): "stopping: the commit at hand is finished first (once more to end at once)",
    events.Stopping(7): "stopping at commit 7",
    events.BacklogMeasured("shop", "43 %"): "source shop: backlog 43 %",
    events.SourceRetried("shop", "gone"): "source shop: trying again: gone",
    events.SourceAnswers("shop"): "source shop: answers again",
    events.SourceWarned("shop", "not a name"): "source shop: warning: not a name",
    events.SourceUnreachable("source shop: gone"): "source shop: gone",
    events.Detached(("shop",), ("a",)): "waiting for shop: a stands still",
    events.Detached(("billing", "shop"), ("a", "b")): "waiting for billing, shop: a, b stand still",
    events.TableRefused(("a",), "table shop.t cannot be asked: denied"): (
        "a stands still until it answers again: table shop.t cannot be asked: denied"
    ),
    events.ViewWaits("a", "denied"): "view a waits: denied",
    events.ViewUnusable("a", "no column"): "view a stands still: no column",
    events.ViewsStopped(("a",), "another database"): "a stands still: another database",
    events.ViewsStopped(("a", "b"), "another database"): "a, b stand still: another database",
    events.SourcesTied(("billing", "shop")): (
        "a transaction spans billing, shop: their views share commits from now on"
    ),
    events.ViewRemoved("a"): "view a is no longer in strobe.yml: it is kept until `strobe apply`",
    events.ViewEdited("a"): "view a was edited: `strobe apply` loads the new definition",
    events.ViewAdded("a"): "view a is new: `strobe apply` loads it",
    events.Loading(("a", "b")): "loading a, b",
    events.RowsRead("shop", 12345): "loading shop: 12,345 rows read",
    events.RowsRead("shop", 12345, 50_000): "loading shop: 12,345 of about 50,000 rows read",
    events.ViewsWritten(4, 30): "loading views: 4 of 30 written",
    events.Loaded(("a", "b"), 7): "loaded a, b at commit 7",
    events.CatchingUp(("a", "b")): "a, b: catching up",
    events.CuttingOver(("a", "b")): "a, b: joining",
    events.Planned(("a",), ("b", "c"), ("d",)): "add a; rebuild b, c; drop d",
    events.Planned((), (), ()): "nothing to do",
    events.Applied(7, ("a",), (), ("d",)): "applied at commit 7: add a; drop d",
    events.ApplyFailed("no column"): "no column",
    events.RebuildPutOff(("a", "b"), "gone"): "a, b could not be rebuilt yet: gone",
    events.AskingCoordinator(): "asking the running coordinator",
    events.CoordinatorAwaited("no coordinator is running", 15.0): (
        "no coordinator is running: waiting 15 s for one to start"
    ),
    events.NobodyAnswersQueries(): "no running coordinator answers here: starting Spark for this query, which takes a "
    "while",
    events.CoordinatorReplied("loading a"): "loading a",
    events.MaintainingHere(): "no coordinator is running: keeping the views here meanwhile",
    events.BringingToVector(): "bringing the views to the vector that was read",
    events.Comparing(7): "comparing at commit 7",
    events.LevelFound("sweep", "keys", "strong", 500): "sweep, keys: strong after 500 schedules",
}
EVERY = list(LINES)


def named(event: Event) -> str:
    return type(event).__name__


def test_every_event_has_its_line() -> None:
    """A new one has to be added here, with the words that users see."""
    assert {type(event) for event in EVERY} == set(Event.__subclasses__())
    assert {event: str(event) for event in LINES} == LINES
    assert {event.severity for event in EVERY} == {"info", "warning", "error"}


@pytest.mark.parametrize("event", EVERY, ids=named)
def test_events_are_plain_data(event: Event) -> None:
    """With its type's name it is a document, from which the same line is made."""
    document = json.loads(json.dumps({"event": type(event).__name__, **asdict(event)}))  # type: ignore[call-overload]
    again: Event = getattr(events, document.pop("event"))(**document)
    assert str(again) == str(event)


def in_a_log(event: Event) -> str:
    file = io.StringIO()
    LogReporter(Console(file=file, width=200)).tell(event)
    return file.getvalue()


def in_a_json_log(event: Event) -> str:
    file = io.StringIO()
    LogReporter(Console(file=file, width=40), Log.json).tell(event)
    (line,) = file.getvalue().splitlines()
    found = json.loads(line)
    assert found["level"] == event.severity and found["at"].endswith("Z") and found["event"].islower()
    assert {field.name for field in fields(event)} < found.keys()  # type: ignore[arg-type]
    return found["text"] + line


def in_a_live_table(event: Event) -> str:
    file = io.StringIO()
    with Live(console=Console(file=file, force_terminal=True, width=200), auto_refresh=False) as live:
        LiveReporter(live).tell(event)
    return file.getvalue()


def on_a_terminal(event: Event) -> str:
    terminal = Terminal()
    terminal.err = Console(file=(file := io.StringIO()), width=200)
    terminal.tell(event)
    return file.getvalue()


@pytest.mark.parametrize("show", [in_a_log, in_a_json_log, in_a_live_table, on_a_terminal])
@pytest.mark.parametrize("event", EVERY, ids=named)
def test_nobody_is_shown_a_secret(event: Event, show: Callable[[Event], str]) -> None:
    """Whatever text an event carries."""
    learn(["s3cret"])
    texts: dict[str, Any] = {f.name: "s3cret" for f in fields(event) if f.type == "str"}  # type: ignore[arg-type]
    shown = show(replace(event, **texts))  # type: ignore[type-var]
    assert "s3cret" not in shown
    assert shown.strip()
