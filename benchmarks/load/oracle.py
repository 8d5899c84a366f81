"""Judges every committed state of the shop's view, without anything of Strobe's that keeps it.

What the database went through is read from a slot of its own, with PostgreSQL's `test_decoding`: each transaction with
the place where its commit ends and its time. The view is kept in dictionaries, row by row. Then the warehouse is read
from its files: the first state must be the view at that commit's position, and every later commit must bring exactly
the rows by which the view differs between the two positions. So every state is right if this is so for all.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from benchmarks.load.shop import VIEW, place_of

SLOT = "oracle"
_TABLE = re.compile(r"table public\.(\w+): (INSERT|UPDATE|DELETE): (.*)", re.DOTALL)
_VALUE = re.compile(r"(\w+)\[[^\]]*\]:(?:'((?:[^']|'')*)'|(\S+))")
_COMMIT = re.compile(r"COMMIT \d+ \(at (.*)\)")

Row = tuple[int, int, str, int]
Net = dict[Row, int]


class Model:
    """The three tables and what the view shows of them."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[int, dict[str, str]]] = {"orders": {}, "customers": {}, "products": {}}
        self._orders_of: dict[tuple[str, str], set[int]] = defaultdict(set)

    def apply(self, table: str, values: dict[str, str], gone: bool) -> Net:
        """A row that comes, or takes the place of the one with its key, or goes: by which rows the view differs."""
        key = int(values["id"])
        if table == "orders":
            concerned = {key}
        else:
            concerned = set(self._orders_of[table, values["id"]])
        difference: Net = defaultdict(int)
        for order in concerned:
            self._count(order, -1, difference)
        before = self._tables[table].pop(key, None)
        if table == "orders" and before is not None:
            self._orders_of["customers", before["customer"]].discard(key)
            self._orders_of["products", before["product"]].discard(key)
        if not gone:
            self._tables[table][key] = values
            if table == "orders":
                self._orders_of["customers", values["customer"]].add(key)
                self._orders_of["products", values["product"]].add(key)
        for order in concerned:
            self._count(order, +1, difference)
        return {row: count for row, count in difference.items() if count}

    def _count(self, number: int, sign: int, net: Net) -> None:
        row = self._row(number)
        if row is not None:
            net[row] += sign

    def _row(self, number: int) -> Row | None:
        order = self._tables["orders"].get(number)
        customer = order and self._tables["customers"].get(int(order["customer"]))
        product = order and self._tables["products"].get(int(order["product"]))
        if not order or not customer or not product:
            return None
        return number, int(order["quantity"]), customer["name"], int(product["price"])

    def rows(self) -> Net:
        found = (self._row(number) for number in self._tables["orders"])
        return {row: 1 for row in found if row is not None}


@dataclass(frozen=True)
class Past:
    """A transaction of the source."""

    place: int
    at: float
    changes: tuple[tuple[str, dict[str, str], bool], ...]


@dataclass
class Judged:
    """What became of the committed states."""

    states: int = 0
    wrong: list[str] = field(default_factory=list)
    most_together: int = 0
    """Transactions that the view shows between two states, at the most."""
    commits: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Of each commit."""
    shown: list[tuple[int, float]] = field(default_factory=list)
    """Place and time of every transaction that the view shows."""
    transactions: int = 0


class Oracle:
    def __init__(self, dsn: str) -> None:
        """Begins now; nobody may write meanwhile."""
        self._dsn = dsn
        self._model = Model()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", (SLOT,))
            ((here,),) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
            self._start = place_of(here)
            for table in ("customers", "products", "orders"):
                cursor = connection.execute(f"SELECT * FROM {table}".encode())
                names = [column.name for column in cursor.description or ()]
                for row in cursor:
                    self._model.apply(table, dict(zip(names, map(str, row), strict=True)), gone=False)

    def past(self) -> Iterator[Past]:
        """All that has been committed since, in the order of the log."""
        changes: list[tuple[str, dict[str, str], bool]] = []
        with psycopg.connect(self._dsn) as connection, connection.cursor("oracle") as cursor:
            cursor.itersize = 10_000
            cursor.execute(
                "SELECT lsn::text, data FROM pg_logical_slot_peek_changes(%s, NULL, NULL, 'include-timestamp', '1')",
                (SLOT,),
            )
            for lsn, data in cursor:
                if committed := _COMMIT.match(data):
                    at = datetime.fromisoformat(_iso(committed[1])).timestamp()
                    yield Past(place_of(lsn), at, tuple(changes))
                    changes = []
                elif found := _TABLE.match(data):
                    table, kind, text = found.groups()
                    changes.append((table, decoded(text), kind == "DELETE"))

    def judge(self, warehouse: Path) -> Judged:
        """All states that the warehouse holds. Once only: the model moves on with them."""
        found = Judged()
        model, past, following = self._model, self.past(), None
        for commit, place, changes in commits(warehouse):
            expected: Net = defaultdict(int)
            together = 0
            while (following := following or next(past, None)) is not None and following.place <= place:
                net: Net = defaultdict(int)
                for change in following.changes:
                    _add(net, model.apply(*change))
                found.transactions += bool(following.changes)
                if net:
                    found.shown.append((following.place, following.at))
                    together += 1
                _add(expected, net)
                following = None
            if found.states:
                found.most_together = max(found.most_together, together)
            wanted = expected if found.states else model.rows()
            if wanted != changes:
                found.wrong.append(f"commit {commit}: {_difference(changes, wanted)}")
            found.states += 1
            found.commits.append(commit)
            found.places.append(place)
        return found


def decoded(text: str) -> dict[str, str]:
    """A row as `test_decoding` writes it; of an update the new one."""
    new = text.rpartition("new-tuple: ")[2]
    return {name: plain or quoted.replace("''", "'") for name, quoted, plain in _VALUE.findall(new)}


def commits(warehouse: Path) -> Iterator[tuple[int, int, Net]]:
    """Every commit from the first on, with its place in the source's log, and the rows that come and go; of the first
    all rows."""
    definition, *later = _query(warehouse / "definitions", "SELECT generation, from_commit, version FROM t").to_pylist()
    if later:
        raise RuntimeError("the view was loaded more than once")
    table = DeltaTable(str(warehouse / "views" / VIEW), version=definition["version"])
    first = QueryBuilder().register("t", table).execute("SELECT id, quantity, name, price FROM t")
    stored = {tuple(row.values()): 1 for row in pa.table(first).to_pylist()}
    name = f"{VIEW}_g{definition['generation']}"
    brought: dict[int, Net] = defaultdict(dict)
    there = _query(warehouse / "log", f"SELECT commit, count, rows['{name}'] AS r FROM t WHERE view IS NOT NULL")
    for batch in there.to_batches():
        for row in batch.to_pylist():
            key = tuple(row["r"][column] for column in ("id", "quantity", "name", "price"))
            _add(brought[row["commit"]], {key: row["count"]})
    headers = _query(warehouse / "log", "SELECT commit, positions FROM t WHERE view IS NULL ORDER BY commit")
    for batch in headers.to_batches():
        for row in batch.to_pylist():
            commit, place = row["commit"], place_of(dict(dict(row["positions"])[VIEW])["shop"])
            if commit >= definition["from_commit"]:
                yield commit, place, stored if commit == definition["from_commit"] else brought.pop(commit, {})


def _query(path: Path, sql: str) -> pa.Table:
    return pa.table(QueryBuilder().register("t", DeltaTable(str(path))).execute(sql))


def _add(net: Net, other: Net) -> None:
    for row, count in other.items():
        if total := net.get(row, 0) + count:
            net[row] = total
        else:
            net.pop(row, None)


def _difference(found: Net, wanted: Net) -> str:
    rows = {row: found.get(row, 0) - wanted.get(row, 0) for row in {*found, *wanted}}
    return str([(row, count) for row, count in rows.items() if count][:5])


def _iso(text: str) -> str:
    """As Python 3.10 takes it: `+00` is `+00:00`, and a fraction has six digits."""
    date, _, zone = text.rpartition("+")
    whole, _, fraction = date.partition(".")
    return f"{whole}.{fraction:0<6}+{zone if ':' in zone else zone + ':00'}"


def waits(judged: Judged, versions: list[tuple[float, int]]) -> list[tuple[float, float]]:
    """For every transaction that the view shows, its time and how long it took until a reader could see it. `versions`
    are the moments at which versions of the log were there, each with its last commit."""
    found, last = [], [commit for _, commit in versions]
    for place, at in judged.shown:
        number = bisect_left(judged.places, place)
        if number < len(judged.places):
            version = bisect_left(last, judged.commits[number])
            if version < len(versions):
                found.append((at, versions[version][0] - at))
    return found
