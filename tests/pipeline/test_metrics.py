"""What a coordinator says of itself while others write, in `status` and as Prometheus metrics on a loopback port."""

from __future__ import annotations

import json
import socket
import urllib.request
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import memory_live
import pytest
from patience import PATIENCE
from prometheus_client.parser import text_string_to_metric_families

from strobe.cli import render
from strobe.cli.commands.run import _address
from strobe.coordinator import status
from strobe.coordinator.metrics import serving
from strobe.errors import UserError
from strobe.pipeline.answerer import QueryCounts
from strobe.pipeline.pipeline import TURN, Pipeline
from strobe.pipeline.run_end import RunEnd
from strobe.warehouse.control.verified import Verified

PROJECT = (
    memory_live.HEAD
    + """\
  paid:
    sql: SELECT o.id, c.name, p.id AS payment, p.cents FROM sales.orders o JOIN sales.customers c ON c.id = o.customer
         JOIN billing.payments p ON p.order_id = o.id
    freshness: 20ms
  pairs:
    sql: SELECT a.state, b.id FROM sales.orders a JOIN sales.orders b ON a.customer = b.customer
    freshness: 20ms
  never:
    sql: SELECT o.id FROM sales.orders o WHERE o.state = 'never'
    freshness: 20ms
"""
)


def scraped(port: int) -> dict[tuple[str, ...], float]:
    """Samples by name and the values of their labels, but for the project's, which every one has."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert samples and all(sample.labels["project"] == "shop" for sample in samples)
    labels = ("view", "source")
    return {(s.name, *(s.labels[name] for name in labels if name in s.labels)): s.value for s in samples}


def test_a_coordinator_says_what_waits_and_what_it_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load rows wait for views that are named; at rest nothing waits, and all that was asked has been counted."""
    statuses: list[status.Status] = []
    documents: list[dict[str, Any]] = []
    read: list[dict[tuple[str, ...], float]] = []
    late: dict[str, bool] = {}

    def record(pipeline: Pipeline) -> None:
        statuses.append(status.observe(pipeline))
        documents.append(json.loads(json.dumps(statuses[-1].document())))

    class Watched(Pipeline):
        def turn(self, pause: float = 0.0) -> None:
            super().turn(pause)
            record(self)
            if len(documents) == 20:
                read.append(scraped(port))

        def run(self, step: Any = None, pause: Any = lambda: TURN) -> RunEnd:
            end = super().run(step, pause)
            record(self)
            late.update({name: view.stale for name, view in status.observe(self, overdue={"billing"}).views.items()})
            return end

    def happened() -> list[bool]:
        """Views were waited for, updates waited, others wrote while it asked, no order was `never`, it was read."""
        known = list(documents)
        oldest = [d["waiting"]["oldest"]["waits_for"] for d in known if d["waiting"]["rows"]]
        return [
            any({"paid", "pairs"} & set(waits_for) for waits_for in oldest),
            any(d["views"]["paid"]["queue"] for d in known),
            any(d["views"]["paid"]["compensations"] for d in known[-1:]),
            any(d["views"]["never"]["dropped"] for d in known[-1:]),
            bool(read),
        ]

    monkeypatch.setattr(memory_live, "Pipeline", Watched)
    topology = memory_live.opened(tmp_path, PROJECT)
    with serving(0, "shop", lambda: statuses[-1] if statuses else None) as port:
        assert scraped(port) == {("strobe_coordinator_up",): 0}
        memory_live.run(topology, tmp_path, seconds=1, commit_seconds=0.02, enough=lambda _: all(happened()))
        found, last = scraped(port), documents[-1]
    assert happened() == [True] * 5
    assert late == {"paid": True, "pairs": False, "never": False}, "the source of some is down for long"
    assert (last["waiting"]["rows"], last["waiting"]["oldest"], last["views"]["paid"]["queue"]) == (0, None, 0)
    asked = last["sources"]["sales"]["asked"]
    assert (
        all(asked[what] > 0 for what in ("queries", "keys", "rows", "milliseconds", "bytes"))
        and not asked["through_spark"]
    )

    assert read[0]["strobe_coordinator_up",] == 1
    expected = {
        ("strobe_coordinator_up",): 1,
        ("strobe_commits_total",): last["commit"],
        ("strobe_appends_total",): last["appends"]["number"],
        ("strobe_append_seconds_total",): last["appends"]["milliseconds"] / 1000,
        ("strobe_view_update_table_rows",): 0,
        ("strobe_waiting_transactions",): 0,
        ("strobe_source_up", "sales"): 1,
        ("strobe_source_queries_total", "sales"): asked["queries"],
        ("strobe_source_keys_total", "sales"): asked["keys"],
        ("strobe_source_rows_total", "sales"): asked["rows"],
        ("strobe_source_bytes_total", "sales"): asked["bytes"],
        ("strobe_source_seconds_total", "sales"): asked["milliseconds"] / 1000,
        ("strobe_source_spark_queries_total", "sales"): 0,
        ("strobe_view_waiting_updates", "paid"): 0,
        ("strobe_view_dropped_total", "never"): last["views"]["never"]["dropped"],
        ("strobe_view_compensations_total", "paid"): last["views"]["paid"]["compensations"],
        ("strobe_view_stale", "paid"): 0,
        ("strobe_view_behind_seconds", "paid", "billing"): 0,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert ("strobe_view_behind_seconds", "pairs", "billing") not in found, "a source that the view does not use"


def test_a_view_is_behind_by_the_sources_own_clock() -> None:
    """A view says how far behind each source it is, also one that is stale; a lost source keeps its counters."""
    first = datetime(2026, 1, 1, tzinfo=timezone.utc)
    asked = QueryCounts(queries=1, snapshots=1, keys=2, rows=3, milliseconds=4, through_spark=0, bytes=5)
    said = status.Status(
        at=first,
        commit=9,
        committed_at=first,
        sources={
            "sales": status.WatchedSource("5", "6", "retrying", "x", asked),
            "gone": status.DetachedSource("x", "lost", asked, 4096),
        },
        views={
            "paid": status.MaintainedView(
                "strong",
                "sweep",
                1.0,
                1,
                (),
                0,
                0,
                {"sales": first},
                {"sales": 12.5},
                verified=Verified(1, 7, 1767225500.0),
            ),
            "late": status.MaintainedView("strong", "sweep", 1.0, 0, (), 0, 0, {}, {"sales": 30.0}, stale=True),
            "lost": status.StaleView(["gone"], dropped=6, behind={"gone": 99.5}),
        },
        waiting=status.Backlog(3, status.OldestRow(17, ["paid"]), {}, 2),
        appends=status.Appends(0, 0),
    )
    with serving(0, "shop", lambda: said) as port:
        found = scraped(port)
        with pytest.raises(UserError, match=f"port {port}"), serving(port, "shop", lambda: said):
            pass
        with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=1):
            pass
    assert found["strobe_view_behind_seconds", "paid", "sales"] == 12.5
    assert found["strobe_view_as_of_timestamp_seconds", "paid", "sales"] == 1767225600
    assert found["strobe_view_verified_commit", "paid"] == 7
    assert found["strobe_view_verified_timestamp_seconds", "paid"] == 1767225500
    assert (found["strobe_source_up", "sales"], found["strobe_source_up", "gone"]) == (0, 0)
    assert [found["strobe_view_stale", view] for view in ("lost", "paid", "late")] == [1, 0, 1]
    assert (found["strobe_source_queries_total", "gone"], found["strobe_source_rows_total", "gone"]) == (1, 3)
    assert found["strobe_source_retained_bytes", "gone"] == 4096
    assert ("strobe_source_retained_bytes", "sales") not in found
    assert (found["strobe_view_behind_seconds", "lost", "gone"], found["strobe_view_dropped_total", "lost"]) == (
        99.5,
        6,
    )
    assert found["strobe_view_waiting_updates", "lost"] == 0


def test_metrics_are_served_where_the_user_says() -> None:
    with serving(0, "shop", lambda: None, "127.0.0.2") as port:
        with socket.create_connection(("127.0.0.2", port), timeout=PATIENCE):
            pass
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            pass
    assert (_address("9100"), _address("0.0.0.0:9100"), _address("[::1]:80")) == (
        ("", 9100),
        ("0.0.0.0", 9100),
        ("::1", 80),
    )
    for wrong in ("", "host", "0", "70000", "host:", "::1:80", "a:b:1"):
        with pytest.raises(UserError, match="no address"):
            _address(wrong)


@pytest.mark.parametrize(
    ("oldest", "text"),
    [
        (None, "view-update table: 1,200 rows; 2 warehouse"),
        ({"update": 17, "waits_for": ["paid", "pairs"]}, "the oldest, update 17, waits for paid, pairs; 2 warehouse"),
        ({"update": 17, "waits_for": []}, "the oldest, update 17, waits for rows that it is tied to"),
    ],
)
def test_the_view_update_table_in_words(oldest: dict[str, Any] | None, text: str) -> None:
    """Its size, its oldest row, and which views that waits for."""
    empty = {"project": "shop", "commit": None, "committed_at": None, "sources": {}, "views": {}}
    nobody = {"last_heard_seconds": None}
    waiting = {"rows": 1200, "oldest": oldest, "commits": 2}
    shown = render.status({**empty, "coordinator": nobody, "waiting": waiting, "appends": None})
    assert any(text in str(part) for part in shown)
