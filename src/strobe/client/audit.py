"""`strobe audit`: recompute views from the live sources *while they change*, and compare.

The sources are read, each in one snapshot with its position; the coordinator commits exactly that vector; the view at
that commit must equal the recomputation, row for row. A running coordinator is asked to stand still while the sources
are being read, so that it cannot pass the vector before it is known; without one, this process keeps the views up to
there itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from strobe.apply import plan
from strobe.apply.load import LoadSnapshot, snapshot
from strobe.auditor.compare import differences
from strobe.client.local import coordinator_at_work
from strobe.config.model import Project
from strobe.coordinator.coordinator import Coordinator
from strobe.coordinator.requests import FREEZE
from strobe.coordinator.status import Status
from strobe.data.scratch import Scratch
from strobe.errors import UserError
from strobe.events import BringingToVector, Comparing, Event, Listener, SparkStarting, ignore
from strobe.planning.topology import Topology, as_applied
from strobe.warehouse import reader
from strobe.warehouse.control import requests
from strobe.warehouse.layout import Layout

if TYPE_CHECKING:
    from strobe.spark.session import SparkSession


class _Silent:
    """Tells nobody."""

    def tell(self, event: Event) -> None: ...

    def status(self, status: Status) -> None: ...


def audit(project: Project, names: Sequence[str], tell: Listener = ignore) -> dict[str, Any]:
    """The verdict over these views (all, if none are named), as the public JSON document."""
    coordinator = Coordinator(project, _Silent(), set_aside=True)
    topology = coordinator.assembled()
    with topology.sources:
        return _audited(project, coordinator, topology, names, tell)


def _audited(
    project: Project, coordinator: Coordinator, topology: Topology, names: Sequence[str], tell: Listener
) -> dict[str, Any]:
    verdicts: dict[str, dict[str, Any]] = {}
    if applied := plan.applied(project.warehouse):
        asked = {n: d for n, d in applied.items() if n in (names or applied)}
        topology, verdicts = _as_applied(topology, {n: d.sql for n, d in asked.items() if not d.wrong})
        verdicts |= {n: _invalid(d.wrong) for n, d in asked.items() if d.wrong}
    unknown = [name for name in names if name not in {*topology.views, *verdicts}]
    if unknown:
        raise UserError(f"there is no view {unknown[0]!r}", fix=f"There are {', '.join(applied or topology.views)}.")
    chosen = [name for name in names or topology.views if name in topology.views]
    if not chosen:
        return _document(coordinator.last_number(), verdicts)
    tell(SparkStarting())
    spark = coordinator.spark()
    with coordinator_at_work(project, coordinator, tell):
        with _frozen(project) as freeze, _read(spark, topology, chosen, project) as taken:
            tell(BringingToVector())
            vector = {source: position.text for source, position in taken.positions.items()}
            bring = {"kind": "bring", "freeze": freeze, "positions": vector}
            reply = requests.request(Layout(project.warehouse).control, bring, timeout=120)
            tell(Comparing(int(reply["commit"])))
            state = reader.snapshot(spark, Layout(project.warehouse), int(reply["commit"]))
            verdicts |= {n: _verdict(spark, state, topology, n, taken) for n in chosen}
    return _document(state.commit, verdicts)


def _document(commit: int, verdicts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    found = [verdict["verdict"] for verdict in verdicts.values()]
    worst = next((verdict for verdict in ("invalid", "unknown") if verdict in found), "valid")
    return {"verdict": worst, "commit": commit, "views": verdicts}


def _as_applied(topology: Topology, applied: Mapping[str, str]) -> tuple[Topology, dict[str, dict[str, Any]]]:
    """The views as they were last applied, and what can be said of those that the sources have no rows for any more."""
    verdicts = {}
    for name, sql in applied.items():
        try:
            as_applied(topology, {name: sql}, ignore)
        except UserError as error:
            verdicts[name] = _unknown(f"it stands still: {error.message}")
    return as_applied(topology, {n: q for n, q in applied.items() if n not in verdicts}, ignore), verdicts


def _unknown(because: str) -> dict[str, Any]:
    return {"verdict": "unknown", "level": "none", "because": because, "witness": None}


def _invalid(because: str) -> dict[str, Any]:
    return {"verdict": "invalid", "level": "none", "because": because, "witness": None}


def _verdict(
    spark: SparkSession, state: reader.ViewsAtCommit, topology: Topology, name: str, taken: LoadSnapshot
) -> dict[str, Any]:
    planned, commit = topology.views[name], state.commit
    for source, text in state.header.positions[name].items() if planned.level != "none" else ():
        if topology.sources[source].position(text).order != taken.positions[source].order:
            stands = f"it stands still, at position {text} of source {source}, and there are no rows to compare it with"
            return _unknown(stands)
    total, rows = differences(state.table(name), taken.compute(spark, planned.view))
    if not total:
        because = f"commit {commit} equals a recomputation at exactly the positions that it names"
        return {"verdict": "valid", "level": planned.level, "because": because, "witness": None}
    because = f"{total} different rows differ from a recomputation at the positions of commit {commit}"
    return {"verdict": "invalid", "level": "none", "because": because, "witness": [str(row) for row in rows]}


@contextmanager
def _read(spark: SparkSession, topology: Topology, names: list[str], project: Project) -> Iterator[LoadSnapshot]:
    views = [topology.views[name].view for name in names]
    with snapshot(spark, topology.sources, views, Scratch(Layout(project.warehouse).staging)) as taken:
        yield taken


@contextmanager
def _frozen(project: Project) -> Iterator[str]:
    """The coordinator takes nothing new in, until it has been brought to a vector or nobody renews the request."""
    freeze = str(requests.request(Layout(project.warehouse).control, {"kind": "freeze"}, timeout=90)["freeze"])
    over = threading.Event()

    def renew() -> None:
        while not over.wait(FREEZE / 4):
            requests.post(Layout(project.warehouse).control, {"kind": "renew", "freeze": freeze})

    threading.Thread(target=renew, name="renew", daemon=True).start()
    try:
        yield freeze
    finally:
        over.set()
