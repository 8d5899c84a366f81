"""Where in its binlog a snapshot of a MySQL server is, which MySQL itself does not say.

A transaction gets its GTID (it is *owned*), is written to the log, becomes visible, and only then is its GTID not owned
any more; always in this order. So there are two certain bounds, without any lock:

* *low*, an end of the log: once everything owned after it was read is owned no more, all of the log up to it is
  visible;
* *high*, the end of the log after the snapshot was taken: nothing beyond it is in the snapshot.

On a server with pauses between its commits the two are the same place, and that is where the snapshot is. Otherwise the
transactions between them are read from the log, and the snapshot is asked for the rows that they touched. Whichever
number of these transactions explains all of these rows, before and after images being known, is right: in all other
rows the states between low and high are the same. Should several numbers do, then their states are equal. Should none,
or should a table be touched whose rows cannot be told apart by a key, another snapshot is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strobe.algebra.bag import Bag, Row
from strobe.errors import SourceUnavailable
from strobe.messages import Position, Transaction
from strobe.retry import MYSQL_SETTLE, Retry
from strobe.sources.mariadb.connection import Place, rows, several

BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
OWNED = "SELECT @@GLOBAL.gtid_owned"
ROWS = 10_000
"""With more rows than this touched meanwhile, another snapshot is cheaper."""

End = tuple[str, int]
"""File and offset."""
Touched = dict[tuple[str, Row], list[tuple[int, Row | None, Row | None]]]
"""For each table and key: which transaction changed it, from what to what."""
Find = Callable[[str, Sequence[Row]], Iterable[Row]]
"""The rows of a table with these keys, in the snapshot, all columns."""


@dataclass(frozen=True)
class Keyed:
    """A table whose rows can be told apart: its columns, and which of them are the key."""

    columns: tuple[str, ...]
    key: tuple[str, ...]

    def key_of(self, row: Row) -> Row:
        return tuple([row[self.columns.index(column)] for column in self.key])


def status(connection: Any) -> str:
    """The statement that shows where the log ends."""
    version = tuple(int(part) for part in connection.get_server_info().split("-")[0].split(".")[:2])
    return "SHOW BINARY LOG STATUS" if version >= (8, 2) else "SHOW MASTER STATUS"


def settled(connection: Any, place: Place) -> End:
    """An end of the log up to which everything is visible."""
    ends, owned = several(connection, status(connection), OWNED)
    settle(connection, place, owners(owned[0][0]))
    return end(ends)


def begin(connection: Any, place: Place) -> tuple[End, End]:
    """Begin a snapshot; its two bounds."""
    ends, owned, _, later = several(connection, status(connection), OWNED, BEGIN, status(connection))
    busy = owners(owned[0][0])
    if busy:
        rows(connection, "COMMIT")
        settle(connection, place, busy)
        _, later = several(connection, BEGIN, status(connection))
    return end(ends), end(later)


def end(found: Sequence[tuple[Any, ...]]) -> End:
    file, offset, *_ = found[0]
    return str(file), int(offset)


def settle(connection: Any, place: Place, busy: frozenset[tuple[str, ...]]) -> None:
    """Wait until these transactions are visible."""
    retry = Retry(MYSQL_SETTLE)
    while busy:
        if not retry.again():
            message = f"the transaction {':'.join(filter(None, min(busy)))} takes long to commit"
            raise SourceUnavailable(message, where=place.where)
        busy &= owners(rows(connection, OWNED)[0][0])


def owners(text: str) -> frozenset[tuple[str, ...]]:
    """The transactions of a text such as `uuid:1#23:2#24,uuid:tag:7#25`; the numbers of connections are left out."""
    found = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        server, *fields = part.split(":")
        tag = ""
        for item in fields:
            number, owner, _ = item.partition("#")
            if owner:
                found.add((server, tag, number))
            else:
                tag = number
    return frozenset(found)


def placed(
    low: Position, transactions: Sequence[Transaction], tables: Mapping[str, Keyed], find: Find
) -> Position | None:
    """Where a snapshot is that has everything up to `low` and nothing beyond the transactions after it; None if its
    rows do not tell."""
    touched = touches(transactions, tables)
    if touched is None:
        return None
    present: dict[tuple[str, Row], Row] = {}
    for table in {table for table, _ in touched}:
        wanted = [key for name, key in touched if name == table]
        present |= {(table, tables[table].key_of(row)): row for row in find(table, wanted)}
    for count in range(len(transactions), -1, -1):
        if all(expected(changes, count) == present.get(place) for place, changes in touched.items()):
            return transactions[count - 1].position if count else low
    return None


def touches(transactions: Sequence[Transaction], tables: Mapping[str, Keyed]) -> Touched | None:
    """What they changed; None where a table has no key, or where it is too much."""
    touched: Touched = {}
    for number, transaction in enumerate(transactions):
        for table, bag in transaction.changes.items():
            if table not in tables or not isinstance(bag, Bag) or len(bag) > ROWS:
                return None
            before, after = dict[Row, Row](), dict[Row, Row]()
            for row, count in bag.items():
                (after if count > 0 else before)[tables[table].key_of(row)] = row
            for key in before.keys() | after.keys():
                touched.setdefault((table, key), []).append((number, before.get(key), after.get(key)))
        if len(touched) > ROWS:
            return None
    return touched


def expected(changes: Sequence[tuple[int, Row | None, Row | None]], count: int) -> Row | None:
    """The row of one key after so many transactions."""
    row = changes[0][1]
    for number, _, after in changes:
        if number < count:
            row = after
    return row
