"""Prometheus metrics of a running coordinator, on the loopback interface or where the user says.

They are made of the status that the coordinator reports with every heartbeat, when somebody reads them: so they cost
nothing in between, and say what `strobe status` says. Counters begin anew with the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from strobe.coordinator.status import SourceStatus, Status, ViewStatus
from strobe.errors import UserError

LOOPBACK = "127.0.0.1"


class StatusCollector(Collector):
    """Reads the status for every scrape."""

    def __init__(self, project: str, read: Callable[[], Status | None]) -> None:
        self._project = project
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Nothing: what there is depends on sources and views."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        status = self._read()
        kept = int(status is not None)
        yield self._one(GaugeMetricFamily, "strobe_coordinator_up", "1 while views are kept, 0 before.", kept)
        if status is not None:
            yield from self._whole(status)
            yield from self._sources(status.sources)
            yield from self._views(status.views)

    def _whole(self, status: Status) -> Iterator[Metric]:
        waiting, appends = status.waiting, status.appends
        for kind, name, help_, value in (
            (CounterMetricFamily, "strobe_commits", "The number of the last commit.", status.commit),
            (CounterMetricFamily, "strobe_appends", "Appends to the log.", appends.number),
            (CounterMetricFamily, "strobe_append_seconds", "Seconds that appends took.", appends.milliseconds / 1e3),
            (GaugeMetricFamily, "strobe_view_update_table_rows", "Rows of the view-update table.", waiting.rows),
            (
                GaugeMetricFamily,
                "strobe_waiting_transactions",
                "Warehouse transactions that wait for an append.",
                waiting.commits,
            ),
        ):
            yield self._one(kind, name, help_, value)

    def _sources(self, sources: Mapping[str, SourceStatus]) -> Iterator[Metric]:
        up = {(name,): int(said.state == "watched") for name, said in sources.items()}
        yield self._many(GaugeMetricFamily, "strobe_source_up", "1 while a source is read.", ["source"], up.items())
        kept = {(name,): said.retained_bytes for name, said in sources.items() if said.retained_bytes is not None}
        help_ = "Bytes of log that a source keeps for Strobe."
        yield self._many(GaugeMetricFamily, "strobe_source_retained_bytes", help_, ["source"], kept.items())
        for metric, help_, what, unit in (
            ("strobe_source_queries", "Queries asked.", "queries", 1),
            ("strobe_source_snapshots", "Snapshots in which they were answered.", "snapshots", 1),
            ("strobe_source_keys", "Keys asked for.", "keys", 1),
            ("strobe_source_rows", "Rows that answers had.", "rows", 1),
            ("strobe_source_bytes", "About how many bytes answers had.", "bytes", 1),
            ("strobe_source_seconds", "Seconds that answers took.", "milliseconds", 1000),
            ("strobe_source_spark_queries", "Queries that Spark answered.", "through_spark", 1),
        ):
            found = {(name,): getattr(said.asked, what) / unit for name, said in sources.items()}
            yield self._many(CounterMetricFamily, metric, help_, ["source"], found.items())

    def _views(self, views: Mapping[str, ViewStatus]) -> Iterator[Metric]:
        stale = {(name,): int(said.stale) for name, said in views.items()}
        yield self._many(
            GaugeMetricFamily, "strobe_view_stale", "1 while a source of it is down.", ["view"], stale.items()
        )
        for kind, name, help_, what in (
            (GaugeMetricFamily, "strobe_view_waiting_updates", "Updates that wait for this view.", "queue"),
            (CounterMetricFamily, "strobe_view_dropped", "Transactions found irrelevant.", "dropped"),
            (CounterMetricFamily, "strobe_view_compensations", "Answers put right.", "compensations"),
        ):
            yield self._many(
                kind, name, help_, ["view"], [((view,), getattr(said, what)) for view, said in views.items()]
            )
        through = {view: said.verified for view, said in views.items() if said.verified is not None}
        for name, help_, attribute in (
            ("strobe_view_verified_commit", "The commit through which the audit has verified it.", "commit"),
            ("strobe_view_verified_timestamp_seconds", "When the last round of the audit began.", "at"),
        ):
            values = [((view,), getattr(known, attribute)) for view, known in through.items()]
            yield self._many(GaugeMetricFamily, name, help_, ["view"], values)
        pairs = ["view", "source"]
        behind = {(view, source): n for view, said in views.items() for source, n in said.behind.items()}
        help_ = "0 when all that was read of a source is shown; else the age of the newest thing shown."
        yield self._many(GaugeMetricFamily, "strobe_view_behind_seconds", help_, pairs, behind.items())
        as_of = {
            (view, source): time.timestamp() for view, said in views.items() for source, time in said.as_of.items()
        }
        help_ = "The source's own commit time of the newest transaction shown."
        yield self._many(GaugeMetricFamily, "strobe_view_as_of_timestamp_seconds", help_, pairs, as_of.items())

    def _one(self, kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, help_: str, value: float) -> Metric:
        return self._many(kind, name, help_, [], [((), value)])

    def _many(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        help_: str,
        labels: list[str],
        values: Iterable[tuple[tuple[str, ...], float]],
    ) -> Metric:
        family = kind(name, help_, labels=["project", *labels])
        for label_values, value in values:
            family.add_metric([self._project, *label_values], value)
        return family


@contextmanager
def serving(port: int, project: str, read: Callable[[], Status | None], host: str = LOOPBACK) -> Iterator[int]:
    """Serve `/metrics` on this port of an address (0 takes a free one); the port."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(project, read))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise UserError(
            f"metrics cannot be served on {host}, port {port}: {error.strerror}",
            where="--metrics",
            fix="Name another port, or an address of this machine.",
        ) from None
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
