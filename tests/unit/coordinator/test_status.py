"""The document of a heartbeat: what it is made of and what it says. Other processes read it, of other versions too."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

from strobe.coordinator.draining import Draining
from strobe.coordinator.status import (
    Appends,
    Backlog,
    DetachedSource,
    MaintainedView,
    OldestRow,
    StaleView,
    Status,
    WatchedSource,
    observe,
)
from strobe.coordinator.tally import Tally
from strobe.errors import AccessRefused, RowFailed, SourceLost, SourceUnavailable, UserError
from strobe.pipeline.answerer import QueryCounts
from strobe.pipeline.health import Wait
from strobe.warehouse.control.verified import Verified

NOON = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)


def test_the_document_of_a_heartbeat() -> None:
    """Every key, for sources that are read and that are down, for views that are kept, wait and have to be rebuilt."""
    said = Status(
        at=NOON,
        commit=7,
        committed_at=NOON,
        sources={
            "shop": WatchedSource(
                "5:1",
                "6:1",
                "watched",
                None,
                QueryCounts(1, 2, 3, 4, 5, 6, 7),
                Draining(25.0, 750, "bytes of log", 25.0, 30.0),
                4096,
            ),
            "billing": DetachedSource("it cannot be reached; tried again", asked=QueryCounts(1, 2, 3, 4, 5, 6, 7)),
        },
        views={
            "orders": MaintainedView(
                "strong",
                "sweep",
                1.0,
                3,
                ["shop"],
                4,
                5,
                {"shop": NOON},
                {"shop": 2.5},
                verified=Verified(2, 5, 1e9),
            ),
            "paid": StaleView(["billing"], dropped=1, compensations=2, as_of={"shop": NOON}, behind={"shop": 9.0}),
            "lost": StaleView(problem="another database"),
            "refused": StaleView(["shop"], waits=Wait("permission denied", NOON)),
        },
        waiting=Backlog(9, OldestRow(17, ["orders"]), {"T": ["billing"]}, 2),
        appends=Appends(11, 1234),
    )
    noon = "2026-01-05T12:00:00+00:00"
    counts = {"queries": 1, "snapshots": 2, "keys": 3, "rows": 4, "milliseconds": 5, "through_spark": 6, "bytes": 7}
    numbers = {
        "rebuild": False,
        "queue": 0,
        "dropped": 0,
        "compensations": 0,
        "as_of": {},
        "behind": {},
        "verified": None,
    }
    stale = {"stale": True, "waits_for": [], "problem": None, "waits": None, **numbers}
    assert said.document() == {
        "at": noon,
        "commit": 7,
        "committed_at": noon,
        "sources": {
            "shop": {
                "position": "5:1",
                "read": "6:1",
                "state": "watched",
                "problem": None,
                "asked": counts,
                "backlog": {"percent": 25.0, "left": 750, "unit": "bytes of log", "per_second": 25.0, "seconds": 30.0},
                "retained_bytes": 4096,
            },
            "billing": {
                "state": "down",
                "problem": "it cannot be reached; tried again",
                "asked": counts,
                "retained_bytes": None,
            },
        },
        "views": {
            "orders": {
                "stale": False,
                "level": "strong",
                "algorithm": "sweep",
                "freshness": 1.0,
                "queue": 3,
                "waits_for": ["shop"],
                "dropped": 4,
                "compensations": 5,
                "as_of": {"shop": noon},
                "behind": {"shop": 2.5},
                "waits": None,
                "problem": None,
                "verified": {"generation": 2, "commit": 5, "at": 1e9, "round": None, "problem": ""},
            },
            "paid": {
                **stale,
                "waits_for": ["billing"],
                "dropped": 1,
                "compensations": 2,
                "as_of": {"shop": noon},
                "behind": {"shop": 9.0},
            },
            "lost": {**stale, "problem": "another database"},
            "refused": {**stale, "waits_for": ["shop"], "waits": {"why": "permission denied", "since": noon}},
        },
        "waiting": {
            "rows": 9,
            "oldest": {"update": 17, "waits_for": ["orders"]},
            "parts": {"T": ["billing"]},
            "commits": 2,
        },
        "appends": {"number": 11, "milliseconds": 1234},
    }


def run(positions: dict[str, dict[str, str]], asked: dict[str, QueryCounts] | None = None) -> Any:
    """A run that keeps no view, of those at these positions."""
    last = SimpleNamespace(number=7, committed_at=NOON, positions=positions, as_of={})
    return SimpleNamespace(
        committer=SimpleNamespace(last=last, waiting=0, appends=3, append_seconds=0.5),
        engine=SimpleNamespace(size=0, oldest=lambda: None, missing_parts=dict, dropped={}),
        topology=SimpleNamespace(views={}),
        answerer=SimpleNamespace(asked=asked or {}),
        workers={},
        vector={},
    )


def test_what_a_view_waits_for_and_who_has_to_act() -> None:
    """A view waits for those of its own sources that are down. A wrong password is said of the view as well, since it
    goes on only when somebody does something; an outage is said of the source alone."""
    positions = {"orders": {"shop": "1"}, "paid": {"shop": "1", "billing": "2"}, "stock": {"depot": "3"}}
    refused, outage = AccessRefused("wrong password", where="source billing"), SourceUnavailable("no answer")
    said = observe(run(positions), {"billing": refused, "depot": outage})
    assert said.sources == {
        "shop": DetachedSource(None, "not watched"),
        "billing": DetachedSource("source billing: wrong password"),
        "depot": DetachedSource("no answer"),
    }
    assert {name: (view.waits_for, view.problem) for name, view in said.views.items()} == {
        "orders": ([], None),
        "paid": (["billing"], "source billing: wrong password"),
        "stock": (["depot"], None),
    }


def test_a_lost_source_keeps_its_numbers() -> None:
    """It is there, with what it was asked in former runs; the lag of its views grows; a run takes no counter back."""
    counts = QueryCounts(1, 1, 2, 3, 4.0, 0, 5)
    positions = {"paid": {"billing": "2"}}
    tally = Tally(retained={"billing": 4096}).plus(run(positions, {"billing": counts}))
    why = SourceLost("another database", source="billing")
    said = observe(run(positions), still={"paid": why}, tally=tally)
    assert said.sources == {"billing": DetachedSource(str(why), "lost", counts, 4096)}
    view = said.views["paid"]
    assert isinstance(view, StaleView) and view.rebuild, "until somebody rebuilds it"
    for heals in (SourceLost("let go", source="billing", rebuild=True), RowFailed("1/0", view="paid"), UserError("x")):
        again = observe(run(positions), still={"paid": heals}).views["paid"]
        assert isinstance(again, StaleView) and not again.rebuild
    assert view.stale and view.behind["billing"] >= (datetime.now(timezone.utc) - NOON).total_seconds() - 60
    assert said.appends == Appends(6, 1000)
    more = tally.plus(run(positions, {"billing": counts}))
    assert (more.asked["billing"].queries, more.asked["billing"].bytes) == (2, 10)
