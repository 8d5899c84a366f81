"""The replication slot: its state, reading the log through a copy of it, and how much log the server keeps for it.

A copy is temporary and confirms nothing: whatever is read through it stays in the slot.

The log is kept from the beginning of the oldest transaction that was open at the slot's position. So it grows while
views wait or Strobe is down, and also while somebody leaves a transaction open, however far the views have come.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus

from strobe.errors import LostGuarantee, StrobeError
from strobe.retry import PG_DROP_SLOT, Retry
from strobe.sources.base import Kept
from strobe.sources.postgres import pgoutput
from strobe.sources.postgres.connection import Connection, ConnectionSettings, Pool, rows
from strobe.sources.postgres.pgoutput import lsn_text, parse_lsn


@dataclass(frozen=True)
class Slot:
    plugin: str
    database: str
    active: bool
    confirmed: int
    wal_status: str
    retained: int
    """Bytes of log that the server keeps for it."""
    unconfirmed: int
    """Bytes of log after the position that it was confirmed up to."""


def read_slot(connection: Connection, name: str) -> Slot | None:
    found = rows(
        connection,
        "SELECT plugin::text, database::text, active, (confirmed_flush_lsn - '0/0')::int8, wal_status,"
        " coalesce(pg_current_wal_lsn() - restart_lsn, 0)::int8,"
        " coalesce(pg_current_wal_lsn() - confirmed_flush_lsn, 0)::int8"
        " FROM pg_replication_slots WHERE slot_name = %s AND slot_type = 'logical'",
        name,
    )
    return Slot(*found[0]) if found else None


def copy_slot(connection: Connection, settings: ConnectionSettings) -> tuple[str, int]:
    """A temporary copy of the slot, which goes with the connection; returns its name and where it is confirmed."""
    name = f"{settings.name[:40]}_copy_{connection.info.backend_pid}"
    text = psycopg.sql.SQL("SELECT lsn::text FROM pg_copy_logical_replication_slot({}, {}, true)")
    result = connection.run(text.format(settings.name, name).as_string(connection))
    if result.status != ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)
    return name, parse_lsn((result.get_value(0, 0) or b"").decode())


def peek(
    looking: Connection, settings: ConnectionSettings, slot: str, through: int, kinds: str
) -> Iterator[pgoutput.Message]:
    """Messages of some kinds from the slot's own position on, of transactions that are committed before `through`, and
    a few more."""
    found = rows(
        looking,
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, NULL, 'proto_version', '1', "
        "'publication_names', %s, 'messages', 'true') WHERE get_byte(data, 0) = ANY(%s::int[])",
        slot,
        lsn_text(through),
        sql.Identifier(settings.name).as_string(looking),
        [ord(kind) for kind in kinds],
    )
    return (pgoutput.decode(bytes(data)) for (data,) in found)


def commits(
    connection: Connection, settings: ConnectionSettings, slot: str, through: int
) -> Iterator[tuple[pgoutput.Begin, pgoutput.Commit]]:
    """The transactions that a slot would bring up to a place, without taking them from it."""
    begin = None
    for message in peek(connection, settings, slot, through, "BC"):
        if isinstance(message, pgoutput.Begin):
            begin = message
        elif isinstance(message, pgoutput.Commit) and begin is not None and message.end_lsn <= through:
            yield begin, message


def kept(settings: ConnectionSettings, slot: Slot) -> Kept:
    warning = ""
    if slot.retained > settings.slot_limits.warn:
        warning = (
            f"the server keeps {_shown(slot.retained)} of log for the slot {settings.name}: {_because(settings, slot)}"
        )
    return Kept(slot.retained, warning)


def _because(settings: ConnectionSettings, slot: Slot) -> str:
    if slot.wal_status == "lost":
        return "it has been taken away, and the views must be rebuilt"
    if slot.unconfirmed > settings.slot_limits.warn:
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
        self._pool, self._settings = pool, pool.settings
        self._next = 0.0

    def look(self) -> None:
        """Raise if it does: `SourceLost` if the views are to be rebuilt, else what ends the run."""
        limit = self._settings.slot_limits.limit
        if limit is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._settings.timing.retained
        try:
            with self._pool.session() as connection:
                slot = read_slot(connection, self._settings.name)
        except StrobeError:
            return  # another time
        if slot is not None and slot.retained > limit:
            raise self._beyond(slot, limit)

    def _beyond(self, slot: Slot, limit: int) -> LostGuarantee:
        settings = self._settings
        message = (
            f"the server keeps {_shown(slot.retained)} of log for the slot {settings.name}, more than slot.limit "
            f"({_shown(limit)}): {_because(settings, slot)}"
        )
        if settings.slot_limits.rebuild:
            return settings.lost(f"{message}; it is let go", rebuild=True)
        free = f"`strobe prepare --undo {settings.source}`, then `strobe prepare {settings.source}`"
        fix = f"Raise slot.limit and run again; or free the log by {free}, and `strobe rebuild` the views that use it."
        return LostGuarantee(message, where=settings.where, fix=fix)


def taken_away(settings: ConnectionSettings) -> bool:
    """Whether views are to be rebuilt because the server has not kept the log."""
    with suppress(StrobeError), settings.errors(), settings.connect() as connection:
        slot = read_slot(connection, settings.name)
        return settings.slot_limits.rebuild and slot is not None and slot.wal_status == "lost"
    return False


def let_go(settings: ConnectionSettings) -> None:
    """Drop a slot that is lost or keeps more than the limit. Whoever read it may need a moment to end."""
    limit = settings.slot_limits.limit
    with settings.errors(), settings.connect() as connection:
        slot = read_slot(connection, settings.name)
        if slot is None or (slot.wal_status != "lost" and (limit is None or slot.retained <= limit)):
            return
        retry = Retry(PG_DROP_SLOT)
        while True:
            try:
                rows(connection, "SELECT pg_drop_replication_slot(%s)::text", settings.name)
                return
            except psycopg.errors.ObjectInUse:
                if not retry.again():
                    raise
