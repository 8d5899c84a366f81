"""Makes transactions of the binlog's events: whole, each with the place where it ends.

Two-phase (XA) transactions have their rows in the first phase, and count from the second; between the two there may be
anything, even the position from which the log is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from strobe.algebra.bag import Row
from strobe.data.byte_reader import ByteReader
from strobe.errors import Damaged, LostGuarantee, RowOf, RowUnfit
from strobe.messages import Transaction
from strobe.sources.base import Spill
from strobe.sources.global_transactions import NamedParts, gathered
from strobe.sources.mariadb.binlog import protocol as binlog
from strobe.sources.mariadb.binlog import xa
from strobe.sources.mariadb.binlog.events import payload, rotated, statement, uncompressed
from strobe.sources.mariadb.binlog.protocol import Event
from strobe.sources.mariadb.binlog.rows import RowPlan, TableMap, Undescribed, UnfitRow, kind_of, lenenc
from strobe.sources.mariadb.binlog.sql import words
from strobe.sources.mariadb.binlog.statements import Scene, judge
from strobe.sources.mariadb.connection import ConnectionSettings
from strobe.sources.mariadb.global_names import GlobalNames
from strobe.sources.mariadb.position import Log, LogFingerprint, Whereabouts, passed_by
from strobe.sources.mariadb.values import Kind
from strobe.sources.net_changes import NetChanges, Saved

STANDALONE, PREPARED = 1, 64
SHORT = 1000
"""Characters of a statement that begins or ends a transaction, and more."""

Watched = Mapping[str, Mapping[str, Kind]]
"""The tables that are reported, with the columns that somebody uses and what they hold."""
FirstPhase = Callable[[str, tuple[str, int]], "EventGroup"]
"""Finds the first phase of an XA transaction by its name, given the place where the second begins."""


@dataclass
class EventGroup:
    """A transaction that is being read."""

    standalone: bool
    prepared: bool = False
    mysql: bool = False
    net: NetChanges = field(default_factory=NetChanges)
    named: list[str] = field(default_factory=list)
    """What the application calls the global transactions that this is a part of."""
    began: tuple[str, int] = ("", 0)
    """The place in the log before its first event."""
    fingerprint: LogFingerprint | None = None
    savepoints: dict[str, tuple[Saved, list[str]]] = field(default_factory=dict)

    def add(self, table: str, types: Mapping[str, str], row: Row, sign: int, size: int) -> None:
        self.net.of(table, types).change(*((None, row) if sign > 0 else (row, None)))
        self.net.grew(size)

    def save(self, name: str) -> None:
        self.savepoints[name] = self.net.save(), list(self.named)

    def back_to(self, name: str) -> None:
        saved, named = self.savepoints.get(name, ({}, []))
        self.net.back_to(saved)
        self.named = list(named)


class TransactionBuilder:
    """Takes one event after another, from a place in the log on."""

    def __init__(
        self,
        settings: ConnectionSettings,
        log: Log,
        watched: Watched,
        spill: Spill | None = None,
        names: GlobalNames | None = None,
        first_phase: FirstPhase | None = None,
        keys: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Large transactions go into files in `spill`; `names` says where global ones are named. Without `first_phase`
        nothing but the first phases of XA transactions is wanted, which are left in `prepared`. By their `keys` rows
        are named in errors."""
        self._settings, self._log, self._watched = settings, log, watched
        self._spill, self._names, self._first_phase, self._keys = spill, names, first_phase, keys or {}
        self._named_parts = NamedParts(settings.source)
        self._charsets: Mapping[int, str] = {}
        self._plans: dict[tuple[str, bytes], RowPlan] = {}
        self._maps: dict[int, TableMap] = {}
        self._group: EventGroup | None = None
        self.prepared: dict[str, EventGroup] = {}
        """First phases whose second has not come."""
        self.at = Whereabouts("", 0, 0)
        """Behind the last event."""
        self._asked_for = ""
        """The file with whose name the stream begins."""
        self.logs_actions = False
        """Whether rows that foreign keys change are in the log."""

    def begin(self, at: Whereabouts, charsets: Mapping[int, str]) -> None:
        """Events come from this place on. What was read of an unfinished transaction is forgotten."""
        self.at, self._charsets, self._asked_for = at, charsets, at.file
        self._begin_anew()

    def forget(self) -> None:
        """Nothing more will come."""
        self._begin_anew()
        for group in self.prepared.values():
            group.net.forget()

    def _begin_anew(self) -> None:
        if self._group is not None:
            self._group.net.forget()
        self._group, self._maps = None, {}

    def take(self, event: Event) -> Transaction | None:
        """The transaction that ends with this event; one without changes where nothing was open."""
        file, offset = self.at.file, self.at.offset
        try:
            return self._take(event)
        except Damaged as error:
            raise error.of(f"the event of the binlog at {file}:{offset}", self._settings.where) from None

    def _take(self, event: Event) -> Transaction | None:
        if event.type == binlog.HEARTBEAT:
            return None
        if event.type == binlog.ROTATE:
            self._rotate(event)
            return None
        self._asked_for = ""
        if event.type == binlog.FORMAT:
            self._begin_file(event)
        before = self.at.file, self.at.offset
        if event.end and not event.flags & binlog.ARTIFICIAL:
            self.at.advance(event.end)
        group = self._group
        if group is None:
            return self._outside(event, before)
        ended = self._inside(event, group)
        if ended is None:
            return None
        self._group, self._maps = None, {}
        self.at.last = group.fingerprint
        return self._transaction(event, ended, group.named)

    def _rotate(self, event: Event) -> None:
        file, asked_for, self._asked_for = rotated(event), self._asked_for, ""
        if asked_for and file != asked_for:
            raise Damaged(f"it is of the file {file!r}, and {asked_for} was asked for", 8)
        if (event.flags & binlog.ARTIFICIAL or not event.timestamp) and file != self.at.file:
            self.at = Whereabouts(file, 4, 0)
            self._begin_anew()  # what a crash left unfinished was never committed

    def _begin_file(self, event: Event) -> None:
        if self.at.created and self.at.created != event.timestamp:
            raise passed_by(self._settings, self.at)
        self.at.created = event.timestamp
        self._log.learn(self.at.file, event.timestamp)

    def _outside(self, event: Event, before: tuple[str, int]) -> Transaction | None:
        if event.type == binlog.GTID:
            flags = ByteReader(event.body, min(12, len(event.body))).byte()
            fingerprint = LogFingerprint.of(event, before[1])
            self._group = EventGroup(
                bool(flags & STANDALONE), bool(flags & PREPARED), began=before, fingerprint=fingerprint
            )
            return None
        if event.type in binlog.MYSQL_GTIDS:
            self._group = EventGroup(
                standalone=True, mysql=True, began=before, fingerprint=LogFingerprint.of(event, before[1])
            )
            return None
        if event.type == binlog.FORMAT or event.type in binlog.HARMLESS or event.flags & binlog.IGNORABLE:
            return self._transaction(event, NetChanges(), ()) if event.end else None
        raise self._unknown(event)

    def _inside(self, event: Event, group: EventGroup) -> NetChanges | None:
        """What the group changed, if it ends with this event."""
        if event.type == binlog.TABLE_MAP:
            found = TableMap.parse(event.body, group.mysql)
            self._maps[found.id] = found
        elif event.type in binlog.WRITES | binlog.UPDATES | binlog.DELETES:
            self._rows(event, group)
        elif event.type == binlog.XID:
            return group.net
        elif event.type in (binlog.QUERY, binlog.QUERY_COMPRESSED):
            return self._query(event, group)
        elif event.type == binlog.XA_PREPARE:
            return self._prepare(event, group)
        elif event.type == binlog.PAYLOAD:
            return self._payload(event, group)
        elif event.type == binlog.PARTIAL_UPDATE:
            self._partial(event)
        elif not (event.type in binlog.HARMLESS or event.flags & binlog.IGNORABLE):
            raise self._unknown(event)
        return None

    def _payload(self, event: Event, group: EventGroup) -> NetChanges | None:
        """MySQL's compressed transactions: all their events in one."""
        for inner in payload(event, self._settings.limits):
            if (ended := self._inside(inner, group)) is not None:
                return ended
        return None

    def _partial(self, event: Event) -> None:
        table_map = self._maps.get(ByteReader(event.body).number(6))
        if table_map is None or table_map.database != self._settings.database or not self._watched.get(table_map.table):
            return
        what = "the binlog has only part of a row (binlog_row_value_options)"
        raise self._settings.table_lost(what, table_map.table)

    def _unknown(self, event: Event) -> LostGuarantee:
        if event.type == binlog.INCIDENT:
            return self._settings.lost("the server noted in its binlog that changes are missing from it")
        return self._settings.lost(f"the binlog has an event of type {event.type}, which Strobe cannot read")

    def _transaction(self, event: Event, net: NetChanges, named: Sequence[str]) -> Transaction:
        changes, _ = net.take()
        position, source = self.at.position, self._settings.source
        moment = datetime.fromtimestamp(event.timestamp, timezone.utc)
        part_of = self._named_parts.of(named)
        return Transaction(source, position, changes=changes, committed_at=moment, part_of=part_of)

    @property
    def warning(self) -> str:
        """About what cannot be used of what the log says about global transactions."""
        return self._named_parts.warning

    def _query(self, event: Event, group: EventGroup) -> NetChanges | None:
        said = statement(event, self._charsets, self._settings.limits)
        spoken = words(said.text[:SHORT])
        head = " ".join(spoken[:2]).upper()
        verb = head.partition(" ")[0]
        if head == "BEGIN":
            group.standalone = False
        elif head == "COMMIT":
            return group.net
        elif verb == "ROLLBACK":
            if not head.startswith("ROLLBACK TO"):
                group.net.forget()
                group.named = []
                return group.net
            group.back_to(spoken[-1])
        elif verb == "SAVEPOINT":
            group.save(spoken[-1])
        elif head in ("XA COMMIT", "XA ROLLBACK"):
            return self._decide(said.text, head == "XA COMMIT", group)
        elif head in ("XA START", "XA BEGIN"):
            group.standalone, group.prepared = False, True
        elif verb not in ("RELEASE", "XA") and self._first_phase is not None:
            scene = Scene(self._settings.database, self._watched, folds_case=True, logs_actions=self.logs_actions)
            found = judge(said, scene).harm_to(self._watched)
            if found is not None:
                message = f"{found.what}, at {self.at.file}:{self.at.offset}"
                raise self._settings.table_lost(message, found.table) if found.table else self._settings.lost(message)
        return group.net if group.standalone else None

    # Two-phase transactions: rows come with the first phase, and count from the second

    def _prepare(self, event: Event, group: EventGroup) -> NetChanges:
        in_one_phase, name = xa.prepared(event.body)
        if in_one_phase:
            gathered(group.named, self._named_by(name))
            return group.net
        self.prepared[name] = group
        return NetChanges()

    def _decide(self, sql: str, commits: bool, group: EventGroup) -> NetChanges:
        name = xa.decided(sql)
        first = self.prepared.pop(name, None)
        if not commits or self._first_phase is None:
            if first is not None:
                first.net.forget()
            return NetChanges()
        if first is None:
            first = self._first_phase(name, group.began) if self._watched else EventGroup(standalone=False)
        gathered(group.named, [*first.named, *self._named_by(name)])
        return first.net

    def _named_by(self, name: str) -> list[str]:
        return xa.named(name, self._settings.xa_prefix)

    # Rows

    def _rows(self, event: Event, group: EventGroup) -> None:
        number = ByteReader(event.body).number(6)
        table_map = self._maps.get(number)
        if table_map is None:
            if number == 0xFFFFFF:
                return  # ends a statement whose tables are all gone
            raise self._settings.lost(f"the binlog has rows of a table that it does not name, at {self.at.offset}")
        table = table_map.table
        if table_map.database != self._settings.database or (self._first_phase is None and not group.prepared):
            return
        if self._names and table == self._names.table:
            plan = self._names.plan(self._settings, table_map, self._charsets)
            gathered(group.named, self._names.given(self._images(event, table, plan)))
        if self._watched.get(table):
            group.net.spill = self._spill
            types = {name: kind.type for name, kind in self._watched[table].items()}
            for sign, row, size in self._images(event, table, self._plan(table_map)):
                group.add(table, types, row, sign, size)

    def _images(self, event: Event, table: str, plan: RowPlan) -> Iterator[tuple[int, Row, int]]:
        """The rows of an event, those that go with -1 and those that come with 1, and how long they are in the log."""
        reader = ByteReader(event.body, min(8, len(event.body)))
        if event.type in binlog.SECOND_VERSION:
            reader.skip(reader.number(2) - 2)
        width = lenenc(reader)
        if width != plan.width:
            raise reader.damaged(f"its rows have {width} columns, and their table {plan.width}")
        signs = (-1, 1) if event.type in binlog.UPDATES else (1,) if event.type in binlog.WRITES else (-1,)
        images = [(sign, plan.present(reader)) for sign in signs]
        if not all(plan.complete(present) for _, present in images):
            raise self._settings.table_lost("the binlog has only part of a row (binlog_row_image is not FULL)", table)
        if event.type in binlog.COMPRESSED:
            reader = ByteReader(uncompressed(reader, self._settings.limits))
        try:
            while reader.at < reader.end:
                for sign, present in images:
                    begin = reader.at
                    yield sign, plan.image(reader, present), reader.at - begin
        except UnfitRow as unfit:
            source, key = self._settings.source, self._keys.get(table, ())
            raise RowUnfit(
                f"the binlog has a value that Spark cannot hold: {unfit}",
                row=RowOf.named(source, table, key, plan.columns, unfit.values),
                source=source,
                relations=[table],
                where=f"{self._settings.where}, table {table}",
            ) from None

    def _plan(self, table_map: TableMap) -> RowPlan:
        key = (table_map.table, table_map.body)
        if key not in self._plans:
            self._plans[key] = self._make_plan(table_map)
        return self._plans[key]

    def _make_plan(self, table_map: TableMap) -> RowPlan:
        table, wanted = table_map.table, self._watched[table_map.table]
        try:
            logged = table_map.columns()
        except Undescribed as problem:
            fix = "SET GLOBAL binlog_row_metadata = FULL; then rebuild the views that use it: `strobe rebuild VIEW`."
            raise self._settings.table_lost(f"its rows in the binlog cannot be read: {problem}", table, fix) from None
        by_name = {column.name: column for column in logged}
        for name, expected in wanted.items():
            if name not in by_name:
                raise self._settings.table_lost(f"the column {name}, which a view uses, is not in the binlog", table)
            found = kind_of(by_name[name], self._charsets)
            if found != expected:
                was = f"{found.type} {found.form} {found.charset}".strip() if found else "of an unsupported type"
                now = f"{expected.type} {expected.form} {expected.charset}".strip()
                raise self._settings.table_lost(f"the column {name} is {was} in the binlog, and {now} today", table)
        return RowPlan(logged, list(wanted), list(wanted.values()))
