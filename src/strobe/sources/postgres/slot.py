"""How much log the server keeps for the slot: what is said about it, and when it is kept no longer.

The log is kept from the beginning of the oldest transaction that was open at the slot's position. So it grows while
views wait or Strobe is down, and also while somebody leaves a transaction open, however far the views have come.
"""

from __future__ import annotations

import time
from contextlib import suppress

import psycopg

from strobe.errors import LostGuarantee, StrobeError
from strobe.retry import PG_DROP_SLOT, Retry
from strobe.sources.base import Kept
from strobe.sources.postgres.catalog import Slot, read_slot, rows
from strobe.sources.postgres.connection import Place, Pool

LOOK_SECONDS = 10.0
"""How often the limit is looked at while the stream is read."""


def kept(place: Place, slot: Slot) -> Kept:
    warning = ""
    if slot.retained > place.keep.warn:
        warning = f"the server keeps {_shown(slot.retained)} of log for the slot {place.name}: {_because(place, slot)}"
    return Kept(slot.retained, warning)


def _because(place: Place, slot: Slot) -> str:
    if slot.wal_status == "lost":
        return "it has been taken away, and the views must be rebuilt"
    if slot.unconfirmed > place.keep.warn:
        return "views are behind, or nobody reads it"
    return "a transaction has been open for long (see pg_stat_activity and pg_prepared_xacts)"


def _shown(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:,.4g} {unit}"
        size /= 1024
    return f"{size:,.4g} TB"


class Guard:
    """Looks now and then whether the server keeps more than the limit."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._place = pool, pool.place
        self._next = 0.0

    def look(self) -> None:
        """Raise if it does: `SourceLost` if the views are to be rebuilt, else what ends the run."""
        limit = self._place.keep.limit
        if limit is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_SECONDS
        try:
            with self._pool.session() as connection:
                slot = read_slot(connection, self._place.name)
        except StrobeError:
            return  # another time
        if slot is not None and slot.retained > limit:
            raise self._beyond(slot, limit)

    def _beyond(self, slot: Slot, limit: int) -> LostGuarantee:
        place = self._place
        message = (
            f"the server keeps {_shown(slot.retained)} of log for the slot {place.name}, more than slot.limit "
            f"({_shown(limit)}): {_because(place, slot)}"
        )
        if place.keep.rebuild:
            return place.lost(f"{message}; it is let go", rebuild=True)
        free = f"`strobe prepare --undo {place.source}`, then `strobe prepare {place.source}`"
        fix = f"Raise slot.limit and run again; or free the log by {free}, and `strobe rebuild` the views that use it."
        return LostGuarantee(message, where=place.where, fix=fix)


def taken_away(place: Place) -> bool:
    """Whether views are to be rebuilt because the server has not kept the log."""
    with suppress(StrobeError), place.errors(), place.connect() as connection:
        slot = read_slot(connection, place.name)
        return place.keep.rebuild and slot is not None and slot.wal_status == "lost"
    return False


def let_go(place: Place) -> None:
    """Drop a slot that is lost or keeps more than the limit. Whoever read it may need a moment to end."""
    limit = place.keep.limit
    with place.errors(), place.connect() as connection:
        slot = read_slot(connection, place.name)
        if slot is None or (slot.wal_status != "lost" and (limit is None or slot.retained <= limit)):
            return
        retry = Retry(PG_DROP_SLOT)
        while True:
            try:
                rows(connection, "SELECT pg_drop_replication_slot(%s)::text", place.name)
                return
            except psycopg.errors.ObjectInUse:
                if not retry.again():
                    raise
