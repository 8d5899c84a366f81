"""How much log the server keeps for the slot: what is said about it, and when the source is given up.

The log is kept from the beginning of the oldest transaction that was open at the slot's position. So it grows while
views wait or Strobe is down, and also while somebody leaves a transaction open, however far the views have come.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg

from strobe.errors import LostGuarantee, StrobeError
from strobe.sources.base import Kept
from strobe.sources.postgres_catalog import Slot, read_slot, rows
from strobe.sources.postgres_place import Place, Pool

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
    """Looks now and then whether the server keeps more than the limit, and gives the source up if so."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._place = pool, pool.place
        self._next = 0.0

    def look(self, let_go: Callable[[], None] = lambda: None) -> None:
        """`let_go` ends whatever holds the slot, before it is dropped."""
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
            if self._place.keep.drop:
                let_go()
                self._drop()
            raise self._beyond(slot, limit)

    def _drop(self) -> None:
        """The connection that read it may need a moment to end."""
        with self._place.errors(), self._place.connect() as connection:
            for attempt in range(50):
                try:
                    rows(connection, "SELECT pg_drop_replication_slot(%s)::text", self._place.name)
                    return
                except psycopg.errors.ObjectInUse:
                    if attempt == 49:
                        raise
                    time.sleep(0.1)

    def _beyond(self, slot: Slot, limit: int) -> LostGuarantee:
        place = self._place
        message = (
            f"the server keeps {_shown(slot.retained)} of log for the slot {place.name}, more than slot.limit "
            f"({_shown(limit)}): {_because(place, slot)}"
        )
        rebuild = f"`strobe prepare {place.source}`, and `strobe rebuild` the views that use this source."
        if place.keep.drop:
            return LostGuarantee(f"{message}; the slot was dropped", where=place.where, fix=f"Run {rebuild}")
        free = f"free the log by `strobe prepare --undo {place.source}`, then {rebuild}"
        return LostGuarantee(message, where=place.where, fix=f"Raise slot.limit and run again; or {free}")
