"""The live path over real MariaDB and MySQL databases under several writers, the warehouse in memory: no JVM.

Each commit is compared with a recomputation at exactly the positions that it claims, while binlog files change and the
server ends connections.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pymysql
import pytest
from committing import no_spark
from memory_live import MemoryWarehouse, compare, contents, keep
from parts import Reads
from patience import PATIENCE, Writing

from strobe.algebra.bag import Bag
from strobe.config.load import load_project
from strobe.managers.registry import ALGORITHMS
from strobe.messages import CommitHeader
from strobe.pipeline.pipeline import Pipeline
from strobe.planning.topology import Topology, assemble
from strobe.simulator.world import Contents, evaluate

if TYPE_CHECKING:
    from mariadb_server import Server

_numbers = count(1)
SALES = [
    "CREATE TABLE customers (id INT UNSIGNED PRIMARY KEY, name VARCHAR(20), extra POINT)",
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INT UNSIGNED, state CHAR(9), KEY (customer))",
    "INSERT INTO customers (id, name) VALUES (1, 'Ada'), (2, 'Bob')",
    "INSERT INTO orders VALUES (10, 1, 'open'), (11, 2, 'open')",
]
BILLING = [
    "CREATE TABLE payments (id INT PRIMARY KEY, order_id INT, amount DECIMAL(12,2), KEY (order_id))",
    "INSERT INTO payments VALUES (1, 10, 5.00)",
]
WRITES = {
    "sales": [
        "REPLACE INTO orders VALUES ({order}, {customer}, 'v{n}')",
        "UPDATE customers SET name = 'c{n}' WHERE id = {customer}",
        "UPDATE orders SET customer = {customer} WHERE id = {order}",
        "UPDATE IGNORE orders SET id = {order} + 1 WHERE id = {order}",
        "DELETE FROM orders WHERE id = {order}",
        "INSERT INTO orders VALUES ({order}, {customer}, 'w{n}') ON DUPLICATE KEY UPDATE state = 'u{n}'",
        "DELETE FROM customers WHERE id = {customer}",
        "INSERT IGNORE INTO customers (id, name) VALUES ({customer}, 'again')",
    ],
    "billing": [
        "INSERT INTO payments VALUES ({n}, {order}, {n} / 7)",
        "DELETE FROM payments WHERE id < {n} - 30",
        "UPDATE payments SET order_id = {order} WHERE id > {n} - 6",
    ],
}
VIEW = """
  {name}:
    sql: SELECT o.id AS o, o.state, c.id AS c, c.name, p.id AS p, p.amount FROM sales.orders o
         JOIN sales.customers c ON c.id = o.customer JOIN billing.payments p ON p.order_id = o.id
    algorithm: {algorithm}
    consistency: {level}
    freshness: 20ms
"""


class Past:
    """Every state that the sources were in: where they started, and the log since."""

    def __init__(self, topology: Topology, start: Mapping[str, tuple[str, Contents]]) -> None:
        self._states: dict[str, tuple[list[tuple[int, ...]], list[Contents]]] = {}
        for name, (text, state) in start.items():
            source = topology.sources[name]
            position, end = source.position(text), source.now()
            orders, states = [position.order], [state]
            reached = [position]
            for transaction in source.transactions(position, [], lambda e=end, r=reached: e <= r[-1]):  # type: ignore[misc]
                for relation, change in transaction.changes.items():
                    assert isinstance(change, Bag)
                    state = {**state, relation: state[relation].add(change)}
                orders.append(transaction.position.order)
                states.append(state)
                reached.append(transaction.position)
            self._states[name] = orders, states

    def at(self, topology: Topology, positions: Mapping[str, str]) -> dict[str, Contents]:
        found = {}
        for name, text in positions.items():
            orders, states = self._states[name]
            found[name] = states[bisect_right(orders, topology.sources[name].position(text).order) - 1]
        return found


def write(server: Server, database: str, source: str, seed: int, writing: Writing, pause: float) -> None:
    """Random transactions of one to three statements, some rolled back; deadlocks are the server's to resolve."""
    rng = random.Random(f"{source} {seed}")
    n = seed * 100_000
    with contextlib.closing(server.connect(database, autocommit=False)) as connection:
        while writing.goes_on:
            try:
                with connection.cursor() as cursor:
                    for statement in rng.choices(WRITES[source], k=rng.randint(1, 3)):
                        n += 1
                        values = {"n": n, "order": rng.randint(10, 16), "customer": rng.randint(1, 3)}
                        cursor.execute(statement.format(**values))
                connection.rollback() if rng.random() < 0.1 else connection.commit()
            except pymysql.err.Error as error:
                assert error.args[0] in (1213, 1205, 1020, 1062, 1317), error
                connection.rollback()
            writing.rest(rng.random() * pause)


def disturb(server: Server, writing: Writing) -> None:
    """New binlog files, and streams ended by the server."""
    streams = "SELECT id FROM information_schema.processlist WHERE user = 'strobe' AND command = 'Binlog Dump'"
    while writing.goes_on:
        writing.rest(0.3)
        server.run("FLUSH BINARY LOGS")
        for (number,) in server.rows(streams):
            with contextlib.suppress(pymysql.err.Error):
                server.run(f"KILL {number}")


@dataclass
class Kept:
    """A view over two databases that a coordinator keeps in memory."""

    topology: Topology
    start: dict[str, tuple[str, Contents]]
    initial: dict[str, Bag]
    warehouse: MemoryWarehouse
    pipeline: Pipeline

    def run(self, writers: Sequence[threading.Thread]) -> None:
        """Until nobody writes any more and everything has been committed."""
        for writer in writers:
            writer.start()
        deadline = time.monotonic() + 2 * PATIENCE

        def done() -> bool:
            assert time.monotonic() < deadline, "the coordinator did not come to rest"
            return not any(writer.is_alive() for writer in writers) and self.pipeline.idle()

        keep(self.pipeline, done)

    def judge(self) -> None:
        """Every commit is a state of the databases."""
        past = Past(self.topology, self.start)
        compare(self.topology, self.warehouse, past, self.initial)  # type: ignore[arg-type]  # a past of MariaDB's
        self.topology.sources.close()


def kept(folder: Path, settings: Mapping[str, str], algorithm: str, level: str) -> Kept:
    """`settings` of each source; the addresses are in the environment."""
    kind = "type: mariadb, dsn"
    sources = (f'  {name}: {{{kind}: "${{{name.upper()}_DSN}}"{more}}}\n' for name, more in settings.items())
    view = VIEW.format(name="v", algorithm=algorithm, level=level)
    (folder / "strobe.yml").write_text(f"version: 1\nproject: shop\nsources:\n{''.join(sources)}views:{view}")
    topology = assemble(load_project(folder))
    start = {name: contents(topology, name) for name in topology.sources}
    initial = {"v": evaluate(topology.views["v"].view, {s: c for s, (_, c) in start.items()})}
    last = CommitHeader(1, datetime.now(timezone.utc), {"v": {s: start[s][0] for s in start}})
    warehouse = MemoryWarehouse(topology, last, initial, 0.02)
    pipeline = Pipeline(topology, warehouse, last, through_spark=no_spark)
    return Kept(topology, start, initial, warehouse, pipeline)


def databases(servers: Mapping[str, Server], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """New ones on these servers, by their names; their addresses are in the environment."""
    names = {source: f"{source}{next(_numbers)}" for source in servers}
    for source, statements in (("sales", SALES), ("billing", BILLING)):
        monkeypatch.setenv(f"{source.upper()}_DSN", servers[source].database(names[source]))
        servers[source].run(*statements, database=names[source])
    return names


@pytest.mark.parametrize(
    ("algorithm", "writers", "pause", "sales", "billing"),
    [
        ("sweep", 3, 0.02, "mysql", "mysql"),
        ("nested-sweep", 3, 0.02, "mariadb", "mysql"),
        ("t-strobe", 2, 0.3, "mariadb", "mariadb"),
    ],
)
def test_every_commit_is_a_state_of_the_databases(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
    writers: int,
    pause: float,
    sales: str,
    billing: str,
) -> None:
    """While everybody writes; and every part of the view that is read meanwhile is of such a state too."""
    servers: dict[str, Server] = {"sales": request.getfixturevalue(sales), "billing": request.getfixturevalue(billing)}
    names = databases(servers, monkeypatch)
    settings = {"sales": "", "billing": ", limits: {connections: 2, statement_timeout: 20s}"}
    made = kept(tmp_path, settings, algorithm, ALGORITHMS[algorithm].level)
    reads = Reads()
    writing = Writing(2.0, lambda: len(made.warehouse.commits) > 5 and reads.enough(5))
    work = [
        threading.Thread(target=write, args=(servers[source], names[source], source, seed, writing, pause))
        for source in names
        for seed in range(1, 1 + writers)
    ]
    work.append(threading.Thread(target=reads.go_on, args=(made.pipeline, writing)))
    try:
        made.run([*work, threading.Thread(target=disturb, args=(servers["billing"], writing))])
    finally:
        writing.stop()
    assert len(made.warehouse.commits) > 5
    reads.judge(made.warehouse, made.initial, partial(Past(made.topology, made.start).at, made.topology))
    made.judge()


def test_every_commit_has_all_of_a_global_transaction_or_nothing(
    mariadb: Server, mysql: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named by a column in one database, and by the identifier of an XA transaction in the other."""
    names = databases({"sales": mariadb, "billing": mysql}, monkeypatch)
    mariadb.run("CREATE TABLE marks (n INT PRIMARY KEY, name TEXT)", database=names["sales"])
    named = {"sales": ", global_transactions: marks.name", "billing": ", xa_prefix: 'strobe:'"}
    made = kept(tmp_path, named, "sweep", "complete")

    def together() -> None:
        for n in range(100, 130):
            xid = f"'strobe:g{n} sales,billing', 'x'"
            mysql.run(
                f"XA START {xid}",
                f"INSERT INTO payments VALUES ({n}, {n}, 1)",
                f"XA END {xid}",
                f"XA PREPARE {xid}",
                database=names["billing"],
            )
            mariadb.run(
                "BEGIN",
                f"INSERT INTO orders VALUES ({n}, 1, 'open')",
                f"INSERT INTO marks VALUES ({n}, 'g{n} sales,billing')",
                "COMMIT",
                database=names["sales"],
            )
            mysql.run(f"XA COMMIT {xid}", database=names["billing"])

    made.run([threading.Thread(target=together)])
    places: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, (text, _) in made.start.items():
        source = made.topology.sources[name]
        end, reached = source.now(), [source.position(text)]
        places[name] = {}
        for transaction in source.transactions(reached[0], [], lambda e=end, r=reached: e <= r[-1]):  # type: ignore[misc]
            places[name] |= {part.id: transaction.position.order for part in transaction.part_of}
            reached.append(transaction.position)
    assert len(places["sales"]) == 30 and places["sales"].keys() == places["billing"].keys()
    for commit in made.warehouse.commits:
        shown = {s: made.topology.sources[s].position(text).order for s, text in commit.header.positions["v"].items()}
        has = [{n for n, at in places[s].items() if at <= end} for s, end in shown.items()]
        assert has[0] == has[1], f"commit {commit.number} tears a global transaction"
    made.judge()
