"""What the log of a source has beyond what has been taken in: read ahead into a file, for the sake of answers.

An answer shows its source as it is now, and can be used only when it is known what of the log is in it: the log has to
be read up to there. After a downtime that is all of the backlog, and held in memory it would be as large as the backlog
is. So what comes for this reason alone goes into a file, and the answer is *brought back* to the moment up to which its
source has been taken in:

    R@taken in  =  R@seen  -  ΔR of what was seen and has not been taken in

From the answer's place the manager sees a source that has committed nothing since. Everything behind it holds what has
been taken in, and that is bounded (see `backpressure`).

The file has the transactions, in chunks; and the sum of ΔR, by relation and each column that a view joins by. So an
answer costs the rows that match it, however much has been read ahead. It is a temporary database of SQLite's, which has
no name and is gone with the process, as everything that is in flight.

What cannot be brought back has to wait, until all that it has seen has been taken in: an answer whose rows or keys are
in Spark, one that reads a whole relation, and one of a relation whose changes in the file are not there row by row
(they are in files themselves, or known by their keys only, or rows left all at once).
"""

from __future__ import annotations

import pickle
import sqlite3
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

from strobe.algebra.bag import Bag, Row, canonical, picker
from strobe.algebra.relation import Relation
from strobe.algebra.view import View
from strobe.data.spilled import release
from strobe.errors import UserError
from strobe.messages import Answer, BroughtBack, Departed, Lookup, Position, Query, Seen, Transaction, TransactionInfo
from strobe.pipeline.backpressure import weight

CHUNK = 200
"""Transactions that are written, and taken in, together."""
ROWS = 2_000
"""The same of their rows; long ones count as many."""

ASKED = 500
"""Keys that are looked for at a time."""

CACHE = 8 * 1024
"""Kilobytes of the file that are held in memory."""

TABLES = f"""
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA cache_size = -{CACHE};
    CREATE TABLE chunks (first INTEGER PRIMARY KEY, number INTEGER, infos BLOB, transactions BLOB);
    CREATE TABLE sums (
        place INTEGER, hash INTEGER, row BLOB, count INTEGER, PRIMARY KEY (place, hash, row)
    ) WITHOUT ROWID;
"""
ADD = """
    INSERT INTO sums VALUES (?, ?, ?, ?)
    ON CONFLICT (place, hash, row) DO UPDATE SET count = count + excluded.count
"""
DROP = "DELETE FROM sums WHERE place = ? AND hash = ? AND row = ? AND count = 0"

FIND = f"SELECT row, count FROM sums WHERE place = ? AND hash IN ({', '.join('?' * ASKED)})"

Packed = tuple[Mapping[str, Relation], Mapping[str, Relation], Mapping[str, tuple[Departed, ...]]]
"""A transaction's changes, what is gone, and what departed."""

Joined = Mapping[str, Sequence[str]]
"""By relation, the columns by which views join it."""


def joined_columns(views: Iterable[View], source: str) -> dict[str, tuple[str, ...]]:
    """Of the relations of a source."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for view in views:
        for equality in view.equalities:
            for index, column in ((equality.left, equality.left_column), (equality.right, equality.right_column)):
                occurrence = view.occurrences[index]
                if occurrence.source == source:
                    found[occurrence.relation.name][column] = None
    return {relation: tuple(columns) for relation, columns in found.items()}


class ReadAhead:
    """Of one source; used by one thread."""

    def __init__(self, source: str, joined: Joined) -> None:
        self._source = source
        self._joined = {relation: tuple(columns) for relation, columns in joined.items()}
        self._places = {(r, c): n for n, (r, c) in enumerate((r, c) for r, cs in self._joined.items() for c in cs)}
        self._columns: dict[str, tuple[str, ...]] = {}
        """The order of a relation's columns in the file."""
        self._database: sqlite3.Connection | None = None
        self._buffer: list[Transaction] = []
        """The last ones, which have not been written yet."""
        self._rows = 0
        self._first = self._end = 0
        """The places of the first that is here, and of the next that comes, among all that ever came."""
        self._kept: dict[int, Transaction] = {}
        """By place, those with rows in files of their own: they are not written once more."""
        self._opaque: dict[str, deque[int]] = defaultdict(deque)
        """By relation, the places of transactions whose changes of it are not here row by row."""
        self._looked: tuple[Seen, int, int, list[Transaction]] | None = None
        """What was looked through last, from one place to another, and what of it was not seen: several answers share a
        snapshot."""
        self.position: Position | None = None
        """Up to where this goes, if anything is here."""
        self.shown = 0
        """An answer has shown everything before this place: a snapshot that is taken from then on shows it too. May be
        read by any thread."""

    def __len__(self) -> int:
        return self._end - self._first

    def add(self, transaction: Transaction) -> None:
        for relation in self._unknown(transaction):
            self._opaque[relation].append(self._end)
        self._buffer.append(transaction)
        self._rows += sum(weight(rows) for rows in transaction.changes.values() if isinstance(rows, Bag))
        self._end += 1
        self.position = transaction.position
        if len(self._buffer) >= CHUNK or self._rows >= ROWS:
            self._write()

    def take(self) -> list[Transaction]:
        """The next ones, which are to be taken in now, all of them; none if nothing is left."""
        chunk = next(self._chunks(), None) if self._database is not None else None
        if chunk is None:
            taken, self._buffer, self._rows = self._buffer, [], 0
        else:
            first, taken = chunk
            self._open().execute("DELETE FROM chunks WHERE first = ?", (first,))
            self._sum(taken, -1)
        self._first += len(taken)
        self._looked = None
        for place in [place for place in self._kept if place < self._first]:
            del self._kept[place]
        for places in self._opaque.values():
            while places and places[0] < self._first:
                places.popleft()
        if not len(self):
            self.position = None
            self._close()
        return taken

    def close(self) -> None:
        """Nobody will take what is left: it will come again."""
        for transaction in (*self._kept.values(), *self._buffer):
            release(transaction)
        self._buffer, self._kept = [], {}
        self._close()

    def brought_back(self, query: Query, answer: Answer, position: Position, since: int) -> Answer | None:
        """An answer of the state in which a source was after what was taken in, which is all up to `position`; None if
        it cannot be told. Its snapshot was taken when `shown` was `since`, or later.

        Where one of its look-ups had to be corrected, those that took their keys from it are left out."""
        self._write()
        unseen = self._unseen(answer.seen, since)
        found: list[Relation] = []
        corrected: set[int] = set()
        for number, (lookup, rows) in enumerate(zip(query.lookups, answer.relations, strict=False)):
            stale = lookup.keys_from is not None and lookup.keys_from[0] in corrected
            keys = None if stale else _keys(lookup, found)
            if not isinstance(rows, Bag) or keys is None or not self._knows(lookup):
                break
            change = self._change(lookup, keys, unseen)
            found.append(rows.add(change.negate()))
            if not change.known_empty:
                corrected.add(number)
        if not found or (query.whole and len(found) < len(query.lookups)):
            return None
        return replace(answer, relations=tuple(found), seen=BroughtBack(position, answer.seen))

    # What an answer needs.

    def _knows(self, lookup: Lookup) -> bool:
        known = (lookup.relation, lookup.on[0]) in self._places
        return known and not self._opaque.get(lookup.relation)

    def _change(self, lookup: Lookup, keys: Collection[Row], unseen: Iterable[Transaction]) -> Bag:
        """ΔR of what was seen, of the rows with these keys."""
        columns = self._columns.get(lookup.relation)
        if columns is None:
            return Bag(lookup.columns)
        key_of = picker([columns.index(column) for column in lookup.on])
        net: dict[Row, int] = defaultdict(int)
        for row, count in self._find(self._places[lookup.relation, lookup.on[0]], {hash(key[0]) for key in keys}):
            if key_of(row) in keys:
                net[row] += count
        for transaction in unseen:
            for row, count in self._rows_of(transaction, lookup.relation):
                if key_of(row) in keys:
                    net[row] -= count
        return Bag(columns, net).project(lookup.columns)

    def _find(self, place: int, hashes: Iterable[int]) -> Iterator[tuple[Row, int]]:
        """The sum of the rows with these hashes. Each statement gives up Python's lock, and has to get it back from
        threads that are busy: so it is one for many keys."""
        rest = iter(hashes)
        while some := list(islice(rest, ASKED)):
            values = [*some, *some[-1:] * (ASKED - len(some))]
            for text, count in self._open().execute(FIND, (place, *values)).fetchall():
                yield _restored(pickle.loads(text)), count

    def _unseen(self, seen: Seen, since: int) -> list[Transaction]:
        """Those that a snapshot has not seen."""
        if self._looked is not None:
            of, start, end, unseen = self._looked
            if of == seen and end == self._end and start <= since:
                return unseen
        found: list[Transaction] = []
        shown = self._end
        for first, infos in self._infos(since):
            missed = [first + n for n, info in enumerate(infos) if not seen.saw(info)]
            if missed:
                shown = min(shown, missed[0])
                transactions = next(self._chunks(first))[1]
                found += [transactions[place - first] for place in missed]
        self.shown = max(self.shown, shown)
        self._looked = (seen, since, self._end, found)
        return found

    # The file.

    def _write(self) -> None:
        if not self._buffer:
            return
        first = self._end - len(self._buffer)
        written: list[Packed | None] = []
        for place, transaction in enumerate(self._buffer, first):
            relations = (*transaction.changes.values(), *transaction.gone.values())
            if all(isinstance(relation, Bag) for relation in relations):
                written.append((transaction.changes, transaction.gone, transaction.departed))
            else:
                self._kept[place] = transaction
                written.append(None)
        infos = [_packed_info(transaction) for transaction in self._buffer]
        with self._writing() as database:
            chunk = (first, len(infos), _dumped(infos), _dumped(written))
            database.execute("INSERT INTO chunks VALUES (?, ?, ?, ?)", chunk)
        self._sum(self._buffer, 1)
        self._buffer, self._rows = [], 0

    def _sum(self, transactions: Iterable[Transaction], sign: int) -> None:
        """Add their changes to the sum, or take them out of it."""
        net: dict[tuple[int, int, bytes], int] = defaultdict(int)
        for transaction in transactions:
            for relation in transaction.changes:
                for row, count in self._rows_of(transaction, relation):
                    text = _dumped(row)
                    for column in self._joined[relation]:
                        value = row[self._columns[relation].index(column)]
                        net[self._places[relation, column], hash(value), text] += sign * count
        changed = [(*key, count) for key, count in net.items() if count]
        with self._writing() as database:
            database.execute("BEGIN")
            database.executemany(ADD, changed)
            database.executemany(DROP, [key for key, count in net.items() if sign < 0 or count < 0])
            database.execute("COMMIT")

    def _rows_of(self, transaction: Transaction, relation: str) -> Iterator[tuple[Row, int]]:
        """What it does to a relation, in the order of columns that the file has."""
        changes = transaction.changes.get(relation)
        if relation not in self._joined or not isinstance(changes, Bag):
            return iter(())
        columns = self._columns[relation]
        return changes.project(columns).items() if set(columns) == set(changes.attributes) else iter(())

    def _unknown(self, transaction: Transaction) -> Iterator[str]:
        """The relations whose changes by a transaction are not there row by row."""
        yield from {*transaction.gone, *transaction.departed}
        for relation, rows in transaction.changes.items():
            here = isinstance(rows, Bag) and set(self._columns.setdefault(relation, rows.attributes))
            if here != set(rows.attributes):
                yield relation

    def _chunks(self, first: int | None = None) -> Iterator[tuple[int, list[Transaction]]]:
        """The one that begins at a place, or the first one, with the place of its first transaction."""
        where, values = ("", ()) if first is None else ("WHERE first = ?", (first,))
        statement = f"SELECT first, infos, transactions FROM chunks {where} ORDER BY first LIMIT 1"
        for start, infos, written in self._open().execute(statement, values).fetchall():
            both = zip(self._infos_in(infos), pickle.loads(written), strict=True)
            yield start, [self._kept[start + n] if w is None else _transaction(i, *w) for n, (i, w) in enumerate(both)]

    def _infos(self, since: int) -> Iterator[tuple[int, list[TransactionInfo]]]:
        """Which transactions the chunks have, from the one at a place on."""
        statement = "SELECT first, infos FROM chunks WHERE first + number > ? ORDER BY first"
        for first, infos in self._open().execute(statement, (since,)):
            yield first, self._infos_in(infos)

    def _infos_in(self, text: bytes) -> list[TransactionInfo]:
        found = pickle.loads(text)
        return [TransactionInfo(self._source, Position(*place), *others) for place, *others in found]

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            self._database.executescript(TABLES)
        return self._database

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._open()
        except sqlite3.OperationalError as error:
            message = f"what was read ahead of a backlog could not be written: {error}"
            fix = "Make room in the folder for temporary files, or set TMPDIR to another one, and start again."
            raise UserError(message, where="a temporary file", fix=fix) from error

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _keys(lookup: Lookup, found: Sequence[Relation]) -> set[Row] | None:
    """Those that a look-up had; None if it had none, or they are not here."""
    keys = lookup.keys
    if lookup.keys_from is not None:
        keys = found[lookup.keys_from[0]].keys(lookup.keys_from[1], nulls=True)
    if not isinstance(keys, Bag) or not lookup.on:
        return None
    return {key for key, _ in keys.items() if lookup.null_safe or None not in key}


def _dumped(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _packed_info(info: TransactionInfo) -> tuple[object, ...]:
    """In plain values: half as large as a pickled object, and made in a tenth of the time."""
    position = info.position
    return (position.text, position.order), info.committed_at, info.part_of, info.xid


def _transaction(
    info: TransactionInfo,
    changes: Mapping[str, Relation],
    gone: Mapping[str, Relation],
    departed: Mapping[str, tuple[Departed, ...]],
) -> Transaction:
    """One that was read from the file, with values in their canonical form."""
    return Transaction(
        *(info.source, info.position, info.committed_at, info.part_of, info.xid),
        {name: _canonical(rows) for name, rows in changes.items()},
        {name: _canonical(rows) for name, rows in gone.items()},
        departed,
    )


def _canonical(relation: Relation) -> Relation:
    if not isinstance(relation, Bag) or not any(map(_has_floats, (row for row, _ in relation.items()))):
        return relation
    return Bag(relation.attributes, {_restored(row): count for row, count in relation.items()})


def _restored(row: Row) -> Row:
    """NaN is one object (see `algebra.bag.NAN`), and a file brings another."""
    return tuple(map(canonical, row)) if _has_floats(row) else row


def _has_floats(row: Row) -> bool:
    return any(isinstance(value, (float, tuple)) for value in row)
