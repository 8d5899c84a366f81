"""Consistent snapshots, and where in the binlog they are.

On MariaDB `START TRANSACTION WITH CONSISTENT SNAPSHOT` ties InnoDB's snapshot to the binlog: `Binlog_snapshot_file` and
`Binlog_snapshot_position`, read inside, say up to where. Commits become visible in the order of the log, so that a
snapshot is always a prefix of it.

MySQL does not say where a snapshot is. There, a transaction gets its GTID (it is *owned*), is written to the log,
becomes visible, and only then is its GTID not owned any more; always in this order. So there are two certain bounds,
without any lock:

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
from strobe.errors import SourceUnavailable, UserError
from strobe.messages import Position, Transaction
from strobe.retry import Retry
from strobe.sources.mariadb.connection import ConnectionSettings, rows, several
from strobe.sources.mariadb.limits import Limits

BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
OWNED = "SELECT @@GLOBAL.gtid_owned"

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


def begin_on_mariadb(connection: Any) -> End:
    """Begin a snapshot; its file and offset in the binlog."""
    rows(connection, BEGIN)
    status = {name.lower(): value for name, value in rows(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")}
    file, offset = status.get("binlog_snapshot_file"), status.get("binlog_snapshot_position")
    if not file or not offset:
        raise UserError(
            "the server does not say where in its binlog a snapshot is",
            where="",
            fix="The binlog must be on (log_bin): see `strobe check`.",
        )
    return file, int(offset)


def settled(connection: Any, settings: ConnectionSettings) -> End:
    """An end of the log up to which everything is visible."""
    ends, owned = several(connection, status(connection), OWNED)
    settle(connection, settings, owners(owned[0][0]))
    return end(ends)


def begin_on_mysql(connection: Any, settings: ConnectionSettings) -> tuple[End, End]:
    """Begin a snapshot; its two bounds."""
    ends, owned, _, later = several(connection, status(connection), OWNED, BEGIN, status(connection))
    busy = owners(owned[0][0])
    if busy:
        rows(connection, "COMMIT")
        settle(connection, settings, busy)
        _, later = several(connection, BEGIN, status(connection))
    return end(ends), end(later)


def end(found: Sequence[tuple[Any, ...]]) -> End:
    file, offset, *_ = found[0]
    return str(file), int(offset)


def settle(connection: Any, settings: ConnectionSettings, busy: frozenset[tuple[str, ...]]) -> None:
    """Wait until these transactions are visible."""
    retry = Retry(settings.timing.settle)
    while busy:
        if not retry.again():
            message = f"the transaction {':'.join(filter(None, min(busy)))} takes long to commit"
            raise SourceUnavailable(message, where=settings.where)
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
    low: Position,
    transactions: Sequence[Transaction],
    tables: Mapping[str, Keyed],
    find: Find,
    most: int = Limits.window_rows,
) -> Position | None:
    """Where a snapshot is that has everything up to `low` and nothing beyond the transactions after it; None if its
    rows do not tell, or if more than `most` were touched."""
    touched = touches(transactions, tables, most)
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


def touches(transactions: Sequence[Transaction], tables: Mapping[str, Keyed], most: int) -> Touched | None:
    """What they changed; None where a table has no key, or where it is too much."""
    touched: Touched = {}
    for number, transaction in enumerate(transactions):
        for table, bag in transaction.changes.items():
            if table not in tables or not isinstance(bag, Bag) or len(bag) > most:
                return None
            before, after = dict[Row, Row](), dict[Row, Row]()
            for row, count in bag.items():
                (after if count > 0 else before)[tables[table].key_of(row)] = row
            for key in before.keys() | after.keys():
                touched.setdefault((table, key), []).append((number, before.get(key), after.get(key)))
        if len(touched) > most:
            return None
    return touched


def expected(changes: Sequence[tuple[int, Row | None, Row | None]], count: int) -> Row | None:
    """The row of one key after so many transactions."""
    row = changes[0][1]
    for number, _, after in changes:
        if number < count:
            row = after
    return row
