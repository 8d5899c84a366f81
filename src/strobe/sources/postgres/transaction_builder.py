"""Builds transactions from the messages of the log: what each did, net, to the tables that views use.

A table is decoded as the log described it last. The log describes a table as it was when the rows were written, before
the first of them and again whenever it was altered: one that is no longer what it was when the views were made raises
`RelationLost`, even if it is put back later. So does what cannot be followed: TRUNCATE of a partitioned table, and long
values that are not in the log. The description of a partitioned table is followed by that of the partition through
which the next rows came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from strobe.algebra.bag import Row
from strobe.algebra.bounds import Bound
from strobe.data.arrow import canonical_ddl
from strobe.errors import UNREADABLE, Damaged, RelationLost, RowOf, RowUnfit, Unfit
from strobe.messages import Departed, GlobalTransaction, Parts, Transaction
from strobe.sources.base import Spill
from strobe.sources.global_transactions import NamedParts, gathered
from strobe.sources.net_changes import NetChange, NetChanges
from strobe.sources.postgres import ddl, pgoutput
from strobe.sources.postgres.connection import Connection, ConnectionSettings, identifier
from strobe.sources.postgres.partitions import Moved, Partitions
from strobe.sources.postgres.pgoutput import UNCHANGED, RelationInfo, Tuple
from strobe.sources.postgres.position import LogFingerprint, position_at
from strobe.sources.postgres.slot import peek
from strobe.sources.postgres.values import Decode, PgType, decoder, unfit_error


@dataclass(frozen=True)
class Watched:
    """What is wanted of a table, as it was when the views were made."""

    name: str
    types: Mapping[str, PgType]
    """The columns that are reported."""
    key: tuple[str, ...]
    """By which the log names old rows, where it does not have them whole."""
    images: bool
    """Whether the log has old rows whole."""
    sql: str
    """Its name in SQL."""
    qualified: tuple[str, str]
    """Its schema and its name there."""
    numbers: Mapping[str, int]
    """Of the columns that are reported, in the catalog."""
    partitioned: bool = False
    named_by: tuple[str, ...] = ()
    """The key by which rows are named to people, if the log has it whole."""


class Catalog(Protocol):
    """What the server's catalog has at the moment."""

    def types(self, wanted: set[tuple[int, int]]) -> Mapping[tuple[int, int], PgType]:
        """The types of columns, by their ids and modifiers."""

    def numbers(self, table: int) -> Sequence[tuple[int, str]]:
        """The numbers of a table's columns with their names, which are empty for columns that were dropped."""


class TransactionBuilder:
    """Message in; at its commit, the transaction out."""

    def __init__(
        self,
        settings: ConnectionSettings,
        watched: Mapping[int, Watched],
        catalog: Catalog,
        widen: Callable[[int], int],
        partitions: Partitions | None = None,
        spill: Spill | None = None,
        token: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`watched` is by the tables' ids; `widen` makes a whole transaction id of its lower 32 bits, which is what the
        log has; `partitions` hears of those through which rows come; `token` reads what the
        messages of the event trigger carry, if there is one."""
        self._settings, self._watched, self._catalog, self._widen = settings, watched, catalog, widen
        self._partitions = partitions or Partitions()
        self._above: Watched | None = None
        """A partitioned table that was described just now: its partition comes next."""
        self._expected: int | None = None
        """The watched table that was described last, if none of its rows have come yet."""
        self._relations: dict[int, ChangeDecoder | None] = {}
        self._begin: pgoutput.Begin | None = None
        self._nets = NetChanges(spill)
        self._came_through: set[int] = set()
        """The partitions through which rows have come."""
        self._departed: dict[str, list[Departed]] = {}
        self._left: list[ddl.Left] = []
        self._moved = Moved()
        self._read_token, self._token = token, ""
        self._forged = ""
        """What is to be said about messages in the name of the event trigger that are not its own."""
        self._named_parts = NamedParts(settings.source)
        self._texts: list[str] = []
        """What the open transaction says about the global ones that it is a part of."""

    def forget(self) -> None:
        """What has come in part will come again."""
        self._nets.forget()

    def receive(self, message: pgoutput.Message, size: int = 0) -> Transaction | None:
        """A message, which had so many bytes; the transaction that ends with it."""
        if isinstance(message, pgoutput.Begin):
            self._begin, self._texts, self._departed = message, [], {}
            self._left, self._moved = [], Moved()
            self._above = self._expected = None
            self._nets.forget()
        elif isinstance(message, pgoutput.Commit):
            return self._commit(message)
        elif isinstance(message, RelationInfo):
            self._describe(message)
        elif isinstance(message, (pgoutput.Insert, pgoutput.Update, pgoutput.Delete)):
            self._as_described(message.relation)
            if self._begin is None or message.relation not in self._relations:
                raise Damaged("a row comes outside a transaction, or of a table that was not described", 0)
            rows = self._relations[message.relation]
            if rows is not None:
                self._expect_one_side(rows.watched.name)
                rows.apply(message, rows.net(self._nets))
                self._nets.grew(size)
        elif isinstance(message, pgoutput.Truncate):
            self._truncate(message)
        elif isinstance(message, pgoutput.Emitted) and message.prefix == self._settings.name:
            self._statement(message)
        elif isinstance(message, pgoutput.Emitted):
            gathered(self._texts, texts_of(message, self._settings))
        return None

    def _statement(self, message: pgoutput.Emitted) -> None:
        """What the event trigger wrote about a statement. It is written in a subtransaction, so the one row that was
        written right after it may come before it; never the other way round."""
        statement = self._read_statement(message) if message.transactional else None
        if statement is None:
            self._forged = "the log has a message in the name of Strobe's event trigger that it did not write"
            return
        self._moved = self._moved.and_then(statement.moved)
        for came in statement.came:
            if (watched := self._watched.get(came.table)) is not None:
                self._come(watched, came)
        for left in statement.left:
            if (watched := self._watched.get(left.table)) is not None:
                self._left.append(left)
                if self._nets.touched(watched.name):
                    raise self._settings.table_lost(
                        f"partition {left.name} was dropped or detached after rows of the table were changed, in one "
                        "transaction: their order is not certain",
                        watched.name,
                    )
                self._depart(watched, replace(_departed(left, watched), seen=left.id in self._came_through))

    def _come(self, watched: Watched, came: ddl.Came) -> None:
        """The rows of a partition come with it."""
        what = f"partition {came.name} was attached to table {watched.name}"
        if came.rows is None:
            raise self._settings.table_lost(f"{what}, and has too many rows or unknown ones", watched.name)
        place = self._begin.commit_lsn if self._begin is not None else 0
        if self._partitions.left_before(came.id, place) or any(left.id == came.id for left in self._left):
            raise self._settings.table_lost(f"{what} after it had left", watched.name)
        if not came.rows:
            return
        if not watched.images and self._nets.touched(watched.name):
            what += " after rows of the table were changed, in one transaction: their order is not certain"
            raise self._settings.table_lost(what, watched.name)
        self._came_through.add(came.id)
        self._partitions.described(watched.name, came.id)
        columns = tuple(pgoutput.ColumnInfo(False, name, 0, 0) for name in came.columns)
        decoder = ChangeDecoder(self._settings, watched, RelationInfo(came.table, "", came.name, "", columns))
        for row in came.rows:
            values = tuple([None if text is None else text.encode() for text in row])
            decoder.apply(pgoutput.Insert(came.table, values), decoder.net(self._nets))
            self._nets.grew(sum(len(value) for value in values if value is not None))

    def _read_statement(self, message: pgoutput.Emitted) -> ddl.Statement | None:
        """None if it is not of the trigger. To pass it over is safe: what nobody announced shows in the fingerprint."""
        try:
            statement = ddl.parse(message.content)
        except ValueError:
            return None
        if statement.token != self._token:  # it may have been installed since
            self._token = self._read_token() or ""
        return statement if self._token and statement.token == self._token else None

    def _depart(self, watched: Watched, departed: Departed) -> None:
        """Rows leave after what the transaction has done to the table so far, and before what it still does."""
        departed = replace(departed, late=self._nets.touched(watched.name))
        self._departed.setdefault(watched.name, []).append(departed)

    def _expect_one_side(self, relation: str) -> None:
        if any(departed.late for departed in self._departed.get(relation, ())):
            left = self._departed[relation][-1].what
            what = f"{left}, and rows of the table were changed before and after that in one transaction"
            raise self._settings.table_lost(what, relation)

    @property
    def warning(self) -> str:
        """About what cannot be used of what the log says, of global transactions or in the name of the trigger."""
        return self._named_parts.warning or self._forged

    def _commit(self, message: pgoutput.Commit) -> Transaction:
        begin, self._begin = self._begin, None
        if begin is None:
            raise Damaged("a commit comes without its beginning", 0)
        changes, gone = self._nets.take()
        self._partitions.committed(message.end_lsn)
        self._partitions.have_moved(self._moved)
        for left in self._left:
            if not self._partitions.left(left.id, message.end_lsn):
                name = self._watched[left.table].name
                raise self._settings.table_lost(f"partition {left.name} has left table {name} twice", name)
        return Transaction(
            self._settings.source,
            position_at(message.end_lsn, LogFingerprint.of(message)),
            committed_at=message.committed_at,
            part_of=self._named_parts.of(self._texts),
            xid=self._widen(begin.xid),
            changes=changes,
            gone=gone,
            departed={name: tuple(found) for name, found in self._departed.items()},
        )

    def _truncate(self, message: pgoutput.Truncate) -> None:
        self._above = self._expected = None
        found = [rows.watched for n in message.relations if (rows := self._relations.get(n)) is not None]
        for watched in found:
            self._depart(watched, Departed(f"table {watched.name} was emptied by TRUNCATE", Bound()))
        emptied = [watched.name for watched in found if watched.partitioned]
        if emptied:
            what = f"partitioned table {', '.join(emptied)} was emptied by TRUNCATE, which Strobe cannot follow"
            fix = "Rebuild the views that use it: `strobe rebuild VIEW`."
            raise self._settings.table_lost(what, *emptied, fix=fix)

    def _describe(self, info: RelationInfo) -> None:
        watched, above = self._watched.get(info.id), self._above
        if above is not None:
            self._partition(above, info)
        self._above = watched if watched is not None and watched.partitioned else None
        if above is None and watched is not None:
            self._expected = info.id
        self._relations[info.id] = None if watched is None else self._rows(watched, info)

    def _partition(self, table: Watched, info: RelationInfo) -> None:
        """The partition that the next rows are in: the old rows that the log has of it are those of the partition's
        own REPLICA IDENTITY."""
        named = {c.name for c in info.columns if c.key}
        if info.identity != "f" and (table.images or not set(table.key) <= named):
            what = f"partition {info.name} has a REPLICA IDENTITY by which its old rows are not whole in the log"
            fix = f"Give it the one of the table: ALTER TABLE {identifier(info.schema, info.name)} REPLICA IDENTITY "
            fix += f"{'FULL' if table.images else 'DEFAULT'}; then `strobe rebuild` the views that use the table."
            raise self._settings.table_lost(what, table.name, fix=fix)
        self._came_through.add(info.id)
        self._partitions.described(table.name, info.id)

    def _as_described(self, relation: int) -> None:
        """A description is followed by a row of that table. Otherwise its rows come as those of another one."""
        expected, self._expected, self._above = self._expected, None, None
        if expected is not None and expected != relation:
            raise self._altered(self._watched[expected], "its changes are published as those of another table")

    def _rows(self, watched: Watched, info: RelationInfo) -> ChangeDecoder:
        if (info.schema, info.name) != watched.qualified:
            raise self._altered(watched, "it was renamed")
        types = self._catalog.types({(c.type, c.modifier) for c in info.columns})
        names, known = [c.name for c in info.columns], self._catalog.numbers(info.id)
        if not known:
            raise self._altered(watched, "it was dropped")
        there = {c.name: types[c.type, c.modifier] for c in info.columns}
        for column, wanted in watched.types.items():
            if column not in there:
                raise self._altered(watched, f"its column {column} was dropped or renamed")
            if (there[column].spark, there[column].name) != (wanted.spark, wanted.name):
                raise self._altered(watched, f"its column {column} has another type")
            if misplaced(names, known, column, watched.numbers[column]):
                raise self._altered(watched, f"its column {column} was another one: columns were renamed")
        if watched.images and info.identity != "f":
            raise self._altered(watched, "its REPLICA IDENTITY is no longer FULL")
        if not watched.images and info.identity != "f":
            named = {c.name for c in info.columns if c.key}
            if not set(watched.key) <= named:
                raise self._altered(watched, f"old rows are no longer named by its key ({', '.join(watched.key)})")
        return ChangeDecoder(self._settings, watched, info)

    def _altered(self, watched: Watched, what: str) -> RelationLost:
        return self._settings.table_lost(f"table {watched.name} was altered: {what}", watched.name)


def _departed(left: ddl.Left, watched: Watched) -> Departed:
    what = f"partition {left.name} was dropped or detached"
    try:
        return Departed(what, ddl.bound_of(left, watched.types), partition=left.id)
    except ddl.Unknown as reason:
        return Departed(what, unknown=str(reason), partition=left.id)


def misplaced(names: Sequence[str], known: Sequence[tuple[int, str]], column: str, number: int) -> bool:
    """Whether the column that the log calls so cannot be the one with this number in the catalog.

    `names` are the columns that the log has, in order; `known` those of the catalog now, by their numbers, where the
    names of dropped ones are empty: these may be in the log or not.
    """
    before = names[: names.index(column)]
    live = [name for n, name in known if n < number and name]
    dropped = sum(n < number and not name for n, name in known)
    if len(before) == len(live) and not dropped:
        return False
    rest = iter(before)
    return not (len(live) <= len(before) <= len(live) + dropped and all(name in rest for name in live))


class ChangeDecoder:
    """Decodes the changes of one table, as it was described last."""

    def __init__(self, settings: ConnectionSettings, watched: Watched, info: RelationInfo) -> None:
        self.watched = watched
        self._settings = settings
        names = [c.name for c in info.columns]
        self._width = len(names)
        self._columns = tuple(watched.types)
        self._spark = {name: canonical_ddl(type_.spark or "") for name, type_ in watched.types.items()}
        self._places = [names.index(c) for c in self._columns]
        self._decoders: list[Decode] = [decoder(t) for t in watched.types.values()]
        self._key = [names.index(c) for c in watched.key] if not watched.images else []
        self._key_decoders = [self._decoders[self._columns.index(c)] for c in watched.key] if self._key else []

    def net(self, nets: NetChanges) -> NetChange:
        """What the transaction does to this table."""
        return nets.of(self.watched.name, self._spark, () if self.watched.images else self.watched.key)

    def apply(self, message: pgoutput.Insert | pgoutput.Update | pgoutput.Delete, net: NetChange) -> None:
        if isinstance(message, pgoutput.Insert):
            net.change(None, self._row(message.new))
        elif not self.watched.images:
            new = message.new if isinstance(message, pgoutput.Update) else None
            named = message.key or message.old or new
            net.change(self._key_of(named or ()), None if new is None else self._row(new))
        elif message.old is None:
            raise Damaged("an old row is missing", 0)
        elif isinstance(message, pgoutput.Update):
            net.change(self._row(message.old), self._row(message.new, message.old))
        else:
            net.change(self._row(message.old), None)

    @property
    def _where(self) -> str:
        return f"{self._settings.where}, table {self.watched.name}"

    def _row(self, values: Tuple, old: Tuple | None = None) -> Row:
        found: list[Any] = []
        if len(values) != self._width:
            raise Damaged(f"a row has {len(values)} columns, and its table {self._width}", 0)
        for place, decode in zip(self._places, self._decoders, strict=True):
            value = values[place]
            if value is UNCHANGED and old is not None:
                value = old[place]
            if value is None:
                found.append(None)
                continue
            if not isinstance(value, bytes):
                raise self._out_of_line(self._columns[len(found)])
            try:
                found.append(decode(value))
            except Unfit as reason:
                raise self._unfit(self._columns[len(found)], value, str(reason), values) from None
            except (ValueError, ArithmeticError):
                raise self._unreadable(self._columns[len(found)]) from None
        return tuple(found)

    def _key_of(self, values: Tuple) -> Row:
        if len(values) != self._width:
            raise Damaged(f"a key has {len(values)} columns, and its table {self._width}", 0)
        found: list[Any] = []
        for column, place, decode in zip(self.watched.key, self._key, self._key_decoders, strict=True):
            value = values[place]
            try:
                found.append(decode(value) if isinstance(value, bytes) else None)
            except Unfit as reason:
                raise self._unfit(column, value if isinstance(value, bytes) else b"", str(reason)) from None
            except (ValueError, ArithmeticError):
                raise self._unreadable(column) from None
        return tuple(found)

    def _unreadable(self, column: str) -> Damaged:
        type_ = self.watched.types[column].name
        return Damaged(f"column {column} of table {self.watched.name} has what is not of type {type_}", 0)

    def _unfit(self, column: str, value: bytes, reason: str, row: Tuple = ()) -> RowUnfit:
        found = unfit_error(self._where, column, self.watched.types[column], value, reason)
        relations = [self.watched.name]
        return RowUnfit(
            found.message, row=self._named(row), source=self._settings.source, relations=relations, where=found.where
        )

    def _named(self, row: Tuple) -> RowOf | None:
        """A row by its key; None if that cannot be read."""
        found: list[Any] = []
        for place, decode in zip(self._places, self._decoders, strict=True) if row else ():
            value = row[place]
            found.append(None if value is None else UNREADABLE)
            if isinstance(value, bytes):
                with suppress(Unfit, ValueError, ArithmeticError):
                    found[-1] = decode(value)
        columns = self._columns if row else ()
        return RowOf.named(self._settings.source, self.watched.name, self.watched.named_by, columns, found)

    def _out_of_line(self, column: str) -> RelationLost:
        return self._settings.table_lost(
            f"a long value of column {column} was left alone by an update, and is not in the log",
            self.watched.name,
            fix=f"Run: ALTER TABLE {self.watched.sql} REPLICA IDENTITY FULL; then `strobe rebuild` the views that use "
            "the column.",
        )


def texts_of(message: pgoutput.Emitted, settings: ConnectionSettings) -> Iterator[str]:
    """What a message in the log says about global transactions, if that is what it is for."""
    if message.transactional and message.prefix == settings.global_transactions:
        yield message.content.decode(errors="replace")


def parts_before(looking: Connection, settings: ConnectionSettings, slot: str, through: int) -> Parts:
    """The global transactions with a part in the log between the slot's position and another."""
    found: dict[GlobalTransaction, datetime] = {}
    known, texts = NamedParts(settings.source), list[str]()
    since = at = None
    for message in peek(looking, settings, slot, through, "BMC"):
        if isinstance(message, pgoutput.Begin):
            texts, at = [], message.committed_at
            since = since or at
        elif isinstance(message, pgoutput.Emitted):
            gathered(texts, texts_of(message, settings))
        elif isinstance(message, pgoutput.Commit) and at is not None and message.end_lsn <= through:
            found |= dict.fromkeys(known.of(texts), at)
    return Parts(found, since)
