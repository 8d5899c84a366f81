"""Transactions from the log of a SQLite database, in commit order.

SQLite shows triggers no transaction identifiers, so a reported transaction is everything committed between two looks at
the log, split at `stops`: whole transactions, one or several. Of such a group only its net changes are kept, in files
if they are many.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from strobe.algebra.relation import Relation
from strobe.data.spilled import release
from strobe.messages import Position, Transaction
from strobe.sources.base import Spill
from strobe.sources.net_changes import NetChanges
from strobe.sources.sqlite.catalog import read_table
from strobe.sources.sqlite.connection import ConnectionSettings
from strobe.sources.sqlite.gate import Gate
from strobe.sources.sqlite.inspection import Inspection
from strobe.sources.sqlite.position import end_of_log, position_at, require_passed
from strobe.sources.sqlite.preparation import Prepared, Watched, require_prepared
from strobe.sources.sqlite.reader import RowDecoder
from strobe.sources.sqlite.triggers import LOG


class Stream:
    """Looks at the log whenever the database has changed, until it is told to stop."""

    def __init__(
        self,
        settings: ConnectionSettings,
        gate: Gate,
        inspection: Inspection,
        stops: Sequence[Position],
        stopped: Callable[[], bool],
        focus: Mapping[str, Collection[str]] | None,
        spill: Spill | None,
    ) -> None:
        """Columns outside `focus` are not decoded; large transactions go into files in `spill`."""
        self._settings, self._gate, self._inspection = settings, gate, inspection
        self._stops, self._stopped = stops, stopped
        self._focus, self._spill = focus, spill

    def transactions(self, after: Position) -> Iterator[Transaction]:
        while not self._stopped():
            with self._settings.session() as connection:
                file = self._settings.file()
                version, changed = None, time.monotonic()
                while not self._stopped() and self._settings.file() == file:
                    (current,) = connection.execute("PRAGMA data_version").fetchone()
                    if current == version:
                        self._sleep(time.monotonic() - changed)
                        continue
                    version, changed = current, time.monotonic()
                    groups = self._look(connection, after)
                    try:
                        while groups:
                            transaction = groups.pop(0)
                            after = transaction.position
                            yield transaction
                    finally:
                        for transaction in groups:  # nobody took it: it will be read again
                            release(transaction)

    def _sleep(self, quiet: float) -> None:
        """Between two looks, when nothing has changed for so many seconds."""
        timing = self._settings.timing
        time.sleep(timing.poll if quiet < timing.quiet else timing.quiet_poll)

    def _look(self, connection: sqlite3.Connection, after: Position) -> list[Transaction]:
        """What the log holds after a position, in one read transaction, if the tables are watched as they should be."""
        with self._gate.look(after, self._stopped) as snapshots:
            connection.execute("BEGIN")
            end = end_of_log(connection, self._settings).order[0]
        try:
            require_passed(connection, self._settings, after)
            state = require_prepared(connection, self._settings)
            for relation in sorted(self._used(state)):
                if lost := self._inspection.fault(connection, state, relation):
                    raise lost
            ends = {s.order[0] for s in self._stops} | snapshots | {end}
            return self._groups(connection, state, after, ends, end)
        finally:
            connection.execute("ROLLBACK")

    def _used(self, state: Prepared) -> set[str]:
        """The tables that views use."""
        return {w.relation for w in state.current} if self._focus is None else set(self._focus)

    def _groups(
        self, connection: sqlite3.Connection, state: Prepared, after: Position, ends: set[int], end: int
    ) -> list[Transaction]:
        start = after.order[0]
        ends |= {w.since for w in state.watched}  # from there on a relation has other columns
        groups = []
        try:
            for through in sorted(e for e in ends if start < e <= end):
                groups.append(self._group(connection, state, start, through))
                start = through
        except BaseException:
            for group in groups:
                release(group)
            raise
        return groups

    def _group(self, connection: sqlite3.Connection, state: Prepared, start: int, through: int) -> Transaction:
        group = TransactionBuilder(self._settings, connection, state, self._focus, self._spill)
        cursor = connection.execute(f"SELECT * FROM {LOG} WHERE seq > ? AND seq <= ? ORDER BY seq", (start, through))
        seq = mark = at = None
        try:
            while rows := cursor.fetchmany(1000):
                for seq, mark, at, watch, sign, *values in rows:  # noqa: B007  # the last ones are used below
                    start += 1
                    if seq != start:
                        raise self._settings.lost(f"the log has no row {start} any more")
                    group.add(watch, sign, values)
            if seq != through or mark is None or at is None:
                raise self._settings.lost(f"the log has no row {through} any more")
        except BaseException:
            group.forget()
            raise
        return Transaction(
            self._settings.source,
            position_at(through, mark),
            changes=group.changes(),
            committed_at=datetime.fromtimestamp(at, timezone.utc),
        )


class TransactionBuilder:
    """Net changes of a stretch of the log, by relation, over the columns that somebody uses."""

    def __init__(
        self,
        settings: ConnectionSettings,
        connection: sqlite3.Connection,
        state: Prepared,
        focus: Mapping[str, Collection[str]] | None,
        spill: Spill | None,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._watched = state.by_id
        self._focus = focus
        self._net = NetChanges(spill)
        self._decoders: dict[int, tuple[list[int], dict[str, str], RowDecoder]] = {}

    def add(self, watch: int, sign: int, values: Sequence[Any]) -> None:
        watched = self._watched[watch]
        if self._focus is not None and watched.relation not in self._focus:
            return
        if not sign:
            what = "it had another trigger or unique index for some time, or Strobe's triggers were missing or altered"
            raise self._settings.table_lost(watched.relation, what)
        if watch not in self._decoders:
            self._decoders[watch] = self._decoder(watched)
        places, types, rows = self._decoders[watch]
        if places:
            row = rows.decode([values[i] for i in places])
            net = self._net.of(watched.relation, types)
            net.change(*((None, row) if sign > 0 else (row, None)))
            self._net.grew(sum([len(value) for value in row if isinstance(value, (str, bytes))]))

    def _decoder(self, watched: Watched) -> tuple[list[int], dict[str, str], RowDecoder]:
        used = watched.columns if self._focus is None else self._focus.get(watched.relation, ())
        places = [i for i, column in enumerate(watched.columns) if column in used]
        types = {watched.columns[i]: watched.types[watched.columns[i]] for i in places}
        key = read_table(self._connection, watched.relation).primary_key
        return places, types, RowDecoder(self._settings, watched.relation, types, key)

    def changes(self) -> dict[str, Relation]:
        return self._net.take()[0]

    def forget(self) -> None:
        """It could not be read to its end."""
        self._net.forget()
