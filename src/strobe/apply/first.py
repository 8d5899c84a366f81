"""The first views of a project: loaded, and brought in with the first commit.

They come in as they were read, unless that holds a part of a global transaction and not the others: then they catch up
first, as views do that join others, until it holds all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from strobe.apply.catch_up import Arrivals, CatchUp
from strobe.apply.load import interrupted, load
from strobe.data.scratch import Scratch
from strobe.engine.halves import halves
from strobe.events import CatchingUp, Listener, RowsRead, ViewsWritten
from strobe.messages import Commit, CommitHeader
from strobe.planning.topology import Topology
from strobe.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from strobe.spark.session import SparkSession

TURN = 0.05
"""Seconds between two looks how far they are."""


def load_first(
    warehouse: Warehouse,
    spark: SparkSession,
    topology: Topology,
    within: float,
    stopped: Callable[[], bool],
    tell: Listener,
) -> CommitHeader:
    """`within` is how many seconds a global transaction may take."""
    views = [planned.view for planned in topology.views.values()]
    scratch = Scratch(warehouse.layout.staging)

    def progress(source: str, rows: int, total: int | None) -> None:
        tell(RowsRead(source, rows, total))

    def written(number: int) -> None:
        tell(ViewsWritten(number, len(views)))

    loaded = load(spark, topology.sources, warehouse, views, scratch, progress, stopped, written)
    if any(halves(loaded.parts, datetime.now(timezone.utc), within)):
        tell(CatchingUp(tuple(topology.views)))
        return _caught_up(CatchUp(warehouse, spark, topology, list(topology.views), within, loaded), warehouse, stopped)
    return _joined(warehouse, Arrivals(loaded.generations, at=loaded.at))


def _caught_up(beside: CatchUp, warehouse: Warehouse, stopped: Callable[[], bool]) -> CommitHeader:
    try:
        for _ in beside.arrive():
            if stopped():
                raise interrupted()
            time.sleep(TURN)
        return _joined(warehouse, beside.arrivals())
    finally:
        beside.close()


def _joined(warehouse: Warehouse, arrivals: Arrivals) -> CommitHeader:
    first = CommitHeader().cut_over(datetime.now(timezone.utc), arrivals.at)
    header = warehouse.cut_over(arrivals.loaded, Commit(first), carried=arrivals.carried)
    warehouse.fold()
    return header
