"""The live path over two PostgreSQL databases under several writers, the warehouse in memory, no JVM.

Each commit is compared with a recomputation at exactly the positions that it claims.
"""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import psycopg
import pytest
from committing import no_spark
from memory_live import Audits, MemoryWarehouse, audit, compare, contents, keep
from parts import Reads
from patience import PATIENCE, Writing
from postgres_server import PostgresServer

from strobe.algebra.bag import Bag
from strobe.config.load import load_project
from strobe.coordinator import status
from strobe.managers.registry import ALGORITHMS
from strobe.messages import CommitHeader, Transaction
from strobe.pipeline.pipeline import Pipeline
from strobe.planning.topology import Topology, assemble
from strobe.redaction import redact
from strobe.simulator.world import Contents, evaluate
from strobe.sources.base import Source

TABLES = {
    "sales": """
        CREATE TABLE customers (id int PRIMARY KEY, name text);
        CREATE TABLE orders (id bigint PRIMARY KEY, customer int, state text);
        CREATE INDEX ON orders (customer);
        INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bob'), (3, NULL);
        INSERT INTO orders VALUES (10, 1, 'open'), (11, 2, 'open');
    """,
    "billing": """
        CREATE TABLE payments (id bigint PRIMARY KEY, order_id bigint, cents numeric(12,2));
        CREATE INDEX ON payments (order_id);
        INSERT INTO payments VALUES (1, 10, 500);
    """,
}
FULL = {
    "sales": "ALTER TABLE customers REPLICA IDENTITY FULL; ALTER TABLE orders REPLICA IDENTITY FULL",
    "billing": "ALTER TABLE payments REPLICA IDENTITY FULL",
}
WRITES = {
    "sales": [
        "INSERT INTO orders VALUES ({order}, {customer}, 'v{n}') ON CONFLICT (id) DO UPDATE SET state = 'u{n}'",
        "UPDATE customers SET name = 'c{n}' WHERE id = {customer}",
        "UPDATE customers SET name = NULL WHERE id = {customer}",
        "UPDATE orders SET customer = {customer} WHERE id = {order}",
        "UPDATE orders SET customer = NULL, state = NULL WHERE id = {order}",
        "DELETE FROM orders WHERE id = {order}",
        "DELETE FROM customers WHERE id = {customer}",
        "INSERT INTO customers VALUES ({customer}, 'again') ON CONFLICT DO NOTHING",
        "UPDATE orders SET id = id + 1 WHERE id = {order} AND NOT EXISTS (SELECT FROM orders WHERE id = {order} + 1)",
    ],
    "billing": [
        "INSERT INTO payments VALUES ({n}, {order}, {n}.5) ON CONFLICT DO NOTHING",
        "DELETE FROM payments WHERE id < {n} - 10",
        "UPDATE payments SET order_id = {order} WHERE id = {n} - 3",
    ],
}
NAMED = "SELECT pg_logical_emit_message(true, 'strobe', %s || ' sales,billing')"
TWO_SOURCES = """
    sql: SELECT o.id AS o, o.state, c.id AS c, c.name, p.id AS p, p.cents FROM sales.orders o
         JOIN sales.customers c ON c.id = o.customer JOIN billing.payments p ON p.order_id = o.id
"""
ONE_SOURCE = """
    sql: SELECT o.id AS o, o.state, c.id AS c, c.name, n.id AS n FROM sales.orders o
         JOIN sales.customers c ON c.id = o.customer JOIN sales.orders n ON n.customer = c.id
"""
PROJECT = """
version: 1
project: live
sources:
  sales: {type: postgres, dsn: "${SALES_DSN}", global_transactions: strobe}
  billing:
    type: postgres
    dsn: "${BILLING_DSN}"
    global_transactions: strobe
    limits: {connections: 2, statement_timeout: 10s}
views:
"""


class Shop:
    def __init__(self, server: PostgresServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.folder, self.monkeypatch = server, folder, monkeypatch
        self.databases: dict[str, str] = {}
        self.whole = 0
        """How many transactions over both databases have been committed."""

    def opened(self, views: str, full: bool) -> Topology:
        for name, script in TABLES.items():
            self.databases[name] = self.server.database(script + (FULL[name] if full else ""))
            self.monkeypatch.setenv(f"{name.upper()}_DSN", self.server.dsn(self.databases[name]))
        (self.folder / "strobe.yml").write_text(PROJECT + views)
        self.topology = assemble(load_project(self.folder))
        for name, source in self.topology.sources.items():
            relations = [relation.name for relation in self.topology.relations(name)]
            if relations:
                self.server.publish(self.databases[name], source.prepare_script(relations))
                source.prepare(relations)
        return self.topology

    def write(self, source: str, number: int, writing: Writing) -> None:
        """Random transactions, some rolled back, some asynchronous, some open for a while."""
        rng = random.Random(f"{source} {number}")
        with psycopg.connect(self.server.admin_dsn(self.databases[source]), autocommit=True) as connection:
            n = 100
            while writing.goes_on:
                try:
                    with connection.transaction(force_rollback=rng.random() < 0.1):
                        if rng.random() < 0.3:
                            connection.execute("SET LOCAL synchronous_commit = off")
                        for statement in rng.choices(WRITES[source], k=rng.randint(1, 3)):
                            n += 1
                            values = {"n": n, "order": rng.randint(10, 16), "customer": rng.randint(1, 3)}
                            connection.execute(statement.format(**values).encode())
                        time.sleep(rng.choice([0, 0, 0, 0.02]))
                except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                    pass
                writing.rest(0.003)

    def write_both(self, number: int, writing: Writing) -> None:
        """Random transactions over both databases, each part naming the whole; one commits some time after the
        other."""
        rng = random.Random(f"both {number}")
        n = 1000 * (number + 1)
        dsns = [self.server.admin_dsn(self.databases[name]) for name in ("sales", "billing")]
        with psycopg.connect(dsns[0]) as sales, psycopg.connect(dsns[1]) as billing:
            while writing.goes_on:
                n += 1
                order = rng.randint(10, 16)
                name = f"T{number}-{n}"
                statement = (
                    "INSERT INTO orders VALUES (%s, 1, %s) ON CONFLICT (id) DO UPDATE SET state = excluded.state"
                )
                both = [
                    (sales, statement, (order, name)),
                    (billing, "INSERT INTO payments VALUES (%s, %s, 1)", (n, order)),
                ]
                rng.shuffle(both)
                for connection, text, values in both:
                    connection.execute(text.encode(), values)
                    connection.execute(NAMED, (name,))
                    connection.commit()
                    time.sleep(rng.choice([0, 0.01, 0.05]))
                self.whole += 1
                writing.rest(0.1)  # there are moments in which none is on its way

    def run(
        self,
        seconds: float,
        audits: Audits | None = None,
        together: int = 0,
        middle: Callable[[Pipeline], bool] = lambda _: True,
        enough: Callable[[MemoryWarehouse], bool] = lambda warehouse: len(warehouse.commits) > 3,
        beside: Callable[[Pipeline, Writing], None] = lambda _pipeline, _writing: None,
    ) -> tuple[MemoryWarehouse, Past, dict[str, Bag]]:
        """While `together` writers write to both databases, and others to each, for some seconds and until it is
        `enough`; `middle` is called now and then, and says whether that may be the end. `beside` runs in a thread."""
        topology = self.topology
        start = {name: contents(topology, name) for name in topology.sources if topology.relations(name)}
        views = {name: planned.view for name, planned in topology.views.items()}
        initial = {name: evaluate(v, {s: c for s, (_, c) in start.items()}) for name, v in views.items()}
        positions = {name: {s: start[s][0] for s in view.sources} for name, view in views.items()}
        last = CommitHeader(1, datetime.now(timezone.utc), positions)
        warehouse = MemoryWarehouse(topology, last, initial, 0.02)
        tied: set[frozenset[str]] = set()
        pipeline = self._coordinator(warehouse, last, tied)
        writing = Writing(seconds, lambda: enough(warehouse))
        writers = [
            threading.Thread(target=self.write, args=(name, number, writing)) for name in start for number in range(2)
        ]
        writers += [threading.Thread(target=self.write_both, args=(number, writing)) for number in range(together)]
        writers.append(threading.Thread(target=beside, args=(pipeline, writing)))
        for writer in writers:
            writer.start()
        deadline = time.monotonic() + seconds + 2 * PATIENCE

        def done() -> bool:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the coordinator did not come to rest: {pipeline.engine.oldest()}")
            if pipeline.tied:
                return True
            may_end = middle(pipeline)
            if audits is not None and not pipeline.operation_open and any(writer.is_alive() for writer in writers):
                pipeline.start_operation(audit(pipeline, audits))
            return may_end and not any(writer.is_alive() for writer in writers) and pipeline.idle()

        try:
            keep(pipeline, done)
            while pipeline.tied:
                tied.add(pipeline.tied)
                pipeline = self._coordinator(warehouse, pipeline.committer.last, tied)
                keep(pipeline, done)
        finally:
            writing.stop()
        self.tied = tied
        return warehouse, Past(topology, start), initial

    def _coordinator(self, warehouse: MemoryWarehouse, last: CommitHeader, tied: set[frozenset[str]]) -> Pipeline:
        return Pipeline(self.topology, warehouse, last, through_spark=no_spark, together=tied)

    def remove(self) -> None:
        self.topology.sources.close()
        for database in self.databases.values():
            self.server.drop(database)


@pytest.fixture
def shop(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    made = Shop(postgres, tmp_path, monkeypatch)
    yield made
    made.remove()


class Past:
    """Every state that the sources were in: where they started, and the log since."""

    def __init__(self, topology: Topology, start: Mapping[str, tuple[str, Contents]]) -> None:
        self._places: dict[str, list[int]] = {}
        self._states: dict[str, list[Contents]] = {}
        self.parts: dict[str, dict[str, int]] = {}
        """By source and global transaction, where its part is."""
        for name, (text, state) in start.items():
            source = topology.sources[name]
            position, end = source.position(text), source.now()
            places, states = [position.order[0]], [state]
            parts = self.parts[name] = {}
            for transaction in source.transactions(position, [], lambda: False):
                states.append(after(source, states[-1], transaction))
                places.append(transaction.position.order[0])
                parts.update(dict.fromkeys((part.id for part in transaction.part_of), places[-1]))
                if end <= transaction.position:
                    break
            self._places[name], self._states[name] = places, states

    def at(self, topology: Topology, positions: Mapping[str, str]) -> dict[str, Contents]:
        found = {}
        for source, text in positions.items():
            place = bisect_right(self._places[source], topology.sources[source].position(text).order[0])
            found[source] = self._states[source][place - 1]
        return found


def after(source: Source, state: Contents, transaction: Transaction) -> Contents:
    found = dict(state)
    for name, keys in transaction.gone.items():
        rest = found[name].key_delete(keys, [(a, a) for a in keys.attributes])
        assert isinstance(rest, Bag)
        found[name] = rest
    for name, change in transaction.changes.items():
        assert isinstance(change, Bag)
        found[name] = found[name].add(change)
    return found


def view(name: str, algorithm: str, sql: str) -> str:
    level = ALGORITHMS[algorithm].level if algorithm in ALGORITHMS else "strong"
    return f"  {name}:{sql}    algorithm: {algorithm}\n    consistency: {level}\n    freshness: 20ms\n"


@pytest.mark.parametrize(
    ("algorithm", "sql", "full"),
    [
        ("sweep", TWO_SOURCES, True),
        ("sweep", ONE_SOURCE, True),
        ("nested-sweep", TWO_SOURCES, True),
        ("rv", TWO_SOURCES, True),
        ("eca", ONE_SOURCE, True),
        ("c-strobe", TWO_SOURCES, True),
        ("t-strobe", TWO_SOURCES, True),
        ("t-strobe", TWO_SOURCES, False),
        ("auto", TWO_SOURCES, False),
        ("eca-key", ONE_SOURCE, False),
    ],
)
def test_every_commit_is_a_state_of_the_sources(shop: Shop, algorithm: str, sql: str, full: bool) -> None:
    """With whole old rows, and (not `full`) with the default replica identity, which keyed algorithms make do with."""
    topology = shop.opened(view("v", algorithm, sql), full)
    if algorithm == "auto":
        assert topology.views["v"].algorithm.name == "g-strobe"
    warehouse, past, states = shop.run(1.2)
    assert len(warehouse.commits) > 3
    compare(topology, warehouse, past, states)  # type: ignore[arg-type]  # another way to know the past


@pytest.mark.parametrize(("algorithm", "full"), [("sweep", True), ("auto", False)])
def test_parts_are_read_as_of_commits(shop: Shop, algorithm: str, full: bool) -> None:
    """While everybody writes, though snapshots are placed by transactions and not by positions; rows whose old contents
    are not logged are read again, or not at all."""
    topology = shop.opened(view("v", algorithm, TWO_SOURCES), full)
    reads = Reads()
    warehouse, past, states = shop.run(1.0, enough=lambda _: reads.enough(10), beside=reads.go_on)
    reads.judge(warehouse, states, partial(past.at, topology))


def test_views_of_different_algorithms_share_their_commits(shop: Shop) -> None:
    names = ("sweep", "nested-sweep", "t-strobe")
    views = "".join(view(f"v{i}", name, TWO_SOURCES) for i, name in enumerate(names)).replace("complete", "strong")
    topology = shop.opened(views, True)
    warehouse, past, states = shop.run(1.2)
    assert len(warehouse.commits) > 3
    compare(topology, warehouse, past, states)  # type: ignore[arg-type]  # another way to know the past


def test_audits_come_to_the_vector_that_was_read(shop: Shop) -> None:
    """The coordinator stands still, and then commits exactly the positions that were read meanwhile."""
    topology = shop.opened(view("v", "sweep", TWO_SOURCES), True)
    audits: Audits = []
    warehouse, past, states = shop.run(1.5, audits, enough=lambda _: len(audits) > 1)
    assert len(audits) > 1
    for vector, positions in audits:
        assert {name: text.partition("@")[0] for name, text in positions["v"].items()} == vector
    compare(topology, warehouse, past, states)  # type: ignore[arg-type]  # another way to know the past


@pytest.mark.parametrize("algorithm", ["sweep", "nested-sweep", "t-strobe", "g-strobe"])
def test_every_commit_has_all_of_a_global_transaction_or_nothing(shop: Shop, algorithm: str) -> None:
    """Writers over both databases name what belongs together; others write to each as they please."""
    views = view("v", algorithm, TWO_SOURCES) + view("w", "sweep", ONE_SOURCE)
    if ALGORITHMS[algorithm].level != "complete":
        views = views.replace("complete", "strong")
    topology = shop.opened(views, True)
    warehouse, past, states = shop.run(2.0, together=1, enough=lambda w: len(w.commits) > 2 and shop.whole > 10)
    sales, billing = past.parts["sales"], past.parts["billing"]
    assert len(warehouse.commits) > 2 and len(sales) > 10 and set(sales) == set(billing)
    for commit in warehouse.commits:
        for vector in commit.header.positions.values():
            shown = {source: topology.sources[source].position(text).order[0] for source, text in vector.items()}
            has = {source: {n for n, at in past.parts[source].items() if at <= end} for source, end in shown.items()}
            assert len(set(map(frozenset, has.values()))) == 1, f"commit {commit.number} tears {has}"
    compare(topology, warehouse, past, states)  # type: ignore[arg-type]  # another way to know the past


def test_sources_are_tied_together_by_the_first_transaction_that_spans_them(shop: Shop) -> None:
    """Views that share no source are in groups of their own until then, and no part is shown without the other."""
    views = view("v", "sweep", ONE_SOURCE) + view("w", "sweep", "\n    sql: SELECT p.* FROM billing.payments p\n")
    topology = shop.opened(views.replace("complete", "strong"), True)
    warehouse, past, states = shop.run(2.0, together=1, enough=lambda _: shop.whole > 10)
    assert shop.tied == {frozenset({"sales", "billing"})}
    sales, billing = past.parts["sales"], past.parts["billing"]
    assert len(sales) > 10 and set(sales) == set(billing)
    for commit in warehouse.commits:
        shown = {
            s: topology.sources[s].position(t).order[0] for v in commit.header.positions.values() for s, t in v.items()
        }
        has = {source: {n for n, at in past.parts[source].items() if at <= end} for source, end in shown.items()}
        assert has["sales"] == has["billing"], f"commit {commit.number} tears {has}"
    compare(topology, warehouse, past, states)  # type: ignore[arg-type]  # another way to know the past


def test_a_part_that_does_not_come_is_waited_for(shop: Shop) -> None:
    """The views stand still, the status says for what they wait, and they go on when it comes."""
    shop.opened(view("v", "sweep", TWO_SOURCES), True)
    part = "UPDATE customers SET name = 'T' WHERE id = 1; " + NAMED.replace("%s", "'T'")
    other = """SELECT pg_logical_emit_message(true, 'strobe', '{"id": "T", "sources": ["sales", "billing"]}')"""
    waits: list[Mapping[str, Sequence[str]]] = []

    def middle(pipeline: Pipeline) -> bool:
        missing = status.observe(pipeline).waiting.parts
        if not waits:
            shop.server.execute(shop.databases["sales"], part)
            waits.append(missing)
        elif missing and missing != waits[-1]:
            waits.append(missing)
            assert not pipeline.idle()
            shop.server.execute(shop.databases["billing"], other)
        return len(waits) > 1

    warehouse, _, _ = shop.run(0.0, middle=middle, enough=lambda _: True)
    assert waits == [{}, {"T": ["billing"]}]
    assert [sorted(commit.changes) for commit in warehouse.commits if commit.changes] == [["v"]]


def test_views_wait_only_for_sources_that_they_use(shop: Shop) -> None:
    """A part at a source that no view uses is not waited for."""
    topology = shop.opened(view("v", "sweep", ONE_SOURCE), True)
    warehouse, past, states = shop.run(1.0, together=1, enough=lambda _: shop.whole > 3)
    assert len(past.parts["sales"]) > 3
    compare(topology, warehouse, past, states)  # type: ignore[arg-type]  # another way to know the past


def test_a_table_of_another_schema(shop: Shop) -> None:
    """`source.schema.table` in a view's SQL."""
    shop.opened(view("v", "sweep", TWO_SOURCES), True)
    shop.server.execute(
        shop.databases["sales"],
        f"CREATE SCHEMA audit; CREATE TABLE audit.events (id int PRIMARY KEY, customer int); "
        f"GRANT USAGE ON SCHEMA audit TO {shop.server.role}; GRANT SELECT ON audit.events TO {shop.server.role}",
    )
    sql = "\n    sql: SELECT e.id, c.id AS c FROM sales.audit.events e JOIN sales.customers c ON c.id = e.customer\n"
    (shop.folder / "strobe.yml").write_text(PROJECT + view("v", "auto", sql))
    topology = assemble(load_project(shop.folder))
    assert [relation.id for relation in topology.relations("sales")] == ["sales.audit.events", "sales.customers"]
    assert topology.sources["sales"].prepare_script(["audit.events"]) == [
        'ALTER PUBLICATION "strobe_live_sales" ADD TABLE "audit"."events"'
    ]
    topology.sources.close()


def test_secrets_stay_secret(shop: Shop) -> None:
    """The dsn and its password are redacted from whatever is shown of a project."""
    project = shop.opened(view("v", "sweep", TWO_SOURCES), True).project
    shown = f"{project!r} {redact(shop.server.dsn('x'))}"
    assert shop.server.password not in shown
