"""Views that needed log which a source has let go, or for which a row failed that is another one now: loaded anew
without anybody's asking."""

from __future__ import annotations

from functools import partial

from strobe.apply.cutover import Cutover
from strobe.coordinator.availability import Availability
from strobe.errors import LostGuarantee, NotNow, RowFailed, RowUnfit, SourceLost, SourceUnavailable, UserError
from strobe.pipeline.background import aside
from strobe.pipeline.barrier import Operation
from strobe.pipeline.pipeline import Pipeline
from strobe.retry import REBUILD_WITHIN_LIMIT
from strobe.warehouse.warehouse import Warehouse


def rebuild_lost(warehouse: Warehouse, pipeline: Pipeline, cutover: Cutover, availability: Availability) -> Operation:
    """Let go of what is left of log that views needed; load those anew, as they are, that can be."""
    sources, last = pipeline.topology.sources, pipeline.committer.last
    try:
        for name in sorted(availability.to_renew & sources.keys() - pipeline.vector.keys()):
            yield from aside(sources[name].renew, "renew")
        availability.put_still(
            (yield from aside(partial(availability.unfit, sources, last, availability.ready), "verify"))
        )
        while views := availability.ready:
            try:
                yield from cutover.reload(warehouse, pipeline, views)
                return
            except (RowFailed, RowUnfit) as error:
                pipeline.barrier.resume()
                availability.put_off(error)
                if isinstance(error, RowUnfit):
                    availability.stand_still(error, views)
                if set(views) <= set(availability.ready):
                    return
    except (UserError, NotNow, SourceUnavailable) as error:
        pipeline.barrier.resume()
        availability.put_off(error)
        if not isinstance(error, SourceLost):
            return
        if not error.rebuild:
            availability.stand_still(error, availability.ready)
            return
        cutover.lost_again += 1
        if REBUILD_WITHIN_LIMIT.exhausted(cutover.lost_again):
            fix = "Raise slot.limit: it was reached again, each time, before the views had been loaded."
            raise LostGuarantee(error.message, where=error.where, fix=fix) from error
