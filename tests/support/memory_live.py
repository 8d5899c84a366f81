"""The live pipeline over real SQLite databases under concurrent writers, with a warehouse in memory: no JVM."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from committing import MemorySink, no_spark
from patience import PATIENCE, STEP, Writing

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.view import View
from strobe.config.load import load_project
from strobe.messages import Commit, CommitHeader, Lookup, Message, Position
from strobe.pipeline.backpressure import Limits
from strobe.pipeline.pipeline import Pipeline
from strobe.pipeline.run_end import Stopped
from strobe.planning.topology import Topology, assemble
from strobe.simulator.world import Contents, changed, evaluate

HEAD = """
version: 1
project: shop
sources:
  sales: {type: sqlite, path: sales.db}
  billing: {type: sqlite, path: billing.db}
views:
"""
"""How strobe.yml begins for these two databases."""

PROJECT = (
    HEAD
    + """\
  paid:
    sql: SELECT o.id, c.name, p.cents FROM sales.orders o JOIN sales.customers c ON c.id = o.customer
         JOIN billing.payments p ON p.order_id = o.id
    freshness: 20ms
  pairs:
    sql: SELECT a.state, b.id FROM sales.orders a JOIN sales.orders b ON a.customer = b.customer
    consistency: complete
    freshness: 20ms
  twice:
    sql: SELECT p.cents, q.id, o.state FROM billing.payments p JOIN sales.orders o ON o.id = p.order_id
         JOIN billing.payments q ON q.order_id = o.id
    freshness: 20ms
"""
)
"""Three views over both."""

SALES = """
    CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT);
    CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, state TEXT);
    CREATE INDEX orders_customer ON orders (customer);
    INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bob');
    INSERT INTO orders VALUES (10, 1, 'open'), (11, 2, 'open');
"""
BILLING = """
    CREATE TABLE payments (id INTEGER PRIMARY KEY, order_id INTEGER, cents INTEGER);
    CREATE INDEX payments_order ON payments (order_id);
    INSERT INTO payments VALUES (1, 10, 500);
"""
DATABASES = {"sales": SALES, "billing": BILLING}
WRITES = {
    "sales": [
        "INSERT OR REPLACE INTO orders VALUES (:order, :customer, 'v' || :n)",
        "UPDATE customers SET name = 'c' || :n WHERE id = :customer",
        "UPDATE orders SET customer = :customer WHERE id = :order",
        "DELETE FROM orders WHERE id = :order",
        "INSERT INTO orders VALUES (:order, :customer, 'w' || :n) ON CONFLICT DO UPDATE SET state = 'u' || :n",
        "DELETE FROM customers WHERE id = :customer",
        "INSERT OR IGNORE INTO customers VALUES (:customer, 'again')",
    ],
    "billing": [
        "INSERT INTO payments VALUES (:n, :order, :n)",
        "DELETE FROM payments WHERE id < :n - 10",
        "UPDATE payments SET order_id = :order WHERE id = :n - 3",
    ],
}


class MemoryWarehouse(MemorySink):
    """Keeps commits in a list, as slowly as it is told; answers from copies of relations, as of the last commit."""

    def __init__(self, topology: Topology, start: CommitHeader, views: Mapping[str, Bag], seconds: float) -> None:
        super().__init__()
        self._assembly, self._start, self._views = topology, start, dict(views)
        self._seconds = seconds

    def copy(self, source: str, lookup: Lookup, types: Mapping[str, str]) -> tuple[Bag, str]:
        commits = list(self.commits)
        name = f"copy__{source}__{lookup.relation}"
        rows = self._views[name]
        for commit in commits:
            rows = rows.add(_bag(commit.changes.get(name), rows))
        (occurrence,) = self._assembly.views[name].view.occurrences
        named = rows.rename(dict(zip(occurrence.attributes, occurrence.columns, strict=True)))
        return named.project(lookup.columns), self._header(commits).positions[name][source]

    def shown(self, view: View, lookup: Lookup) -> tuple[Bag, str]:
        commits = list(self.commits)
        rows = self._views[view.name]
        for commit in commits:
            if view.name in commit.removals:
                rows = _bag(commit.removals[view.name].rest(rows), rows)
            rows = rows.add(_bag(commit.changes.get(view.name), rows))
        occurrence = view.occurrences[lookup.occurrence]
        found = rows.project([occurrence.attribute(c) for c in lookup.columns])
        position = self._header(commits).positions[view.name][occurrence.source]
        return Bag(lookup.columns, {row: 1 for row, _ in found.items()}), position

    def append(self, commits: Sequence[Commit]) -> CommitHeader:
        time.sleep(self._seconds)
        return super().append(commits)

    def _header(self, commits: Sequence[Commit]) -> CommitHeader:
        return commits[-1].header if commits else self._start


def opened(folder: Path, text: str, databases: Mapping[str, str] = DATABASES) -> Topology:
    """A project with these contents of strobe.yml, its two databases made and prepared."""
    for name, script in databases.items():
        with sqlite3.connect(folder / f"{name}.db") as connection:
            connection.executescript(script)
        connection.close()
    (folder / "strobe.yml").write_text(text)
    topology = assemble(load_project(folder))
    for name, source in topology.sources.items():
        relations = [relation.name for relation in topology.relations(name)]
        if relations:
            source.prepare(relations)
    return topology


def contents(topology: Topology, source: str) -> tuple[str, Contents]:
    """A source's relations and its position, in one snapshot."""
    reader = topology.sources[source].reader(at_a_position=True)
    seen = reader.open()
    found: Contents = {}
    for relation in topology.relations(source):
        columns = tuple(column.name for column in relation.columns)
        found[relation.name] = Bag.of(columns, reader.scan(relation.name, columns))
    reader.close()
    return seen.through.text, found


def write(folder: Path, source: str, writing: Writing, pause: float = 0.003, first: int = 100, most: int = 3) -> None:
    """Random transactions of a few statements."""
    rng, n = random.Random(source), first
    connection = sqlite3.connect(folder / f"{source}.db", timeout=PATIENCE)
    while writing.goes_on:
        with connection:
            for statement in rng.choices(WRITES[source], k=rng.randint(1, most)):
                n += 1
                values = {"n": n, "order": rng.randint(10, 16), "customer": rng.randint(1, 3)}
                connection.execute(statement, values)
        writing.rest(pause)
    connection.close()


class Past:
    """Every state that the sources were in, by position: where they started, and the log since."""

    def __init__(self, topology: Topology, start: Mapping[str, tuple[str, Contents]]) -> None:
        self._states: dict[str, dict[int, Contents]] = {}
        for name, (text, state) in start.items():
            source = topology.sources[name]
            source.spill = None
            self._states[name] = {source.position(text).order[0]: state}
            for transaction in source.transactions(
                source.position(text), self._everywhere(name, topology), lambda: False
            ):
                state = {r: bag.add(_bag(transaction.changes.get(r), bag)) for r, bag in state.items()}
                self._states[name][transaction.position.order[0]] = state
                if source.now() <= transaction.position:
                    break

    @staticmethod
    def _everywhere(name: str, topology: Topology) -> list[Position]:
        end = topology.sources[name].now().order[0]
        path = topology.project.sources[name].path
        with sqlite3.connect(path) as connection:
            rows = connection.execute("SELECT seq, mark FROM __strobe_log WHERE seq <= ?", (end,)).fetchall()
        return [topology.sources[name].position(f"{seq}:{mark}") for seq, mark in rows]

    def at(self, topology: Topology, positions: Mapping[str, str]) -> dict[str, Contents]:
        return {s: self._states[s][topology.sources[s].position(text).order[0]] for s, text in positions.items()}


def _bag(change: Relation | None, like: Bag) -> Bag:
    return Bag(like.attributes) if change is None else change.collect()


Audits = list[tuple[dict[str, str], Mapping[str, Mapping[str, str]]]]


def audit(pipeline: Pipeline, audits: Audits) -> Iterator[None]:
    """What an audit asks of a coordinator: stand still, and then commit exactly the vector that was read meanwhile."""
    yield from pipeline.barrier.pause(PATIENCE)
    time.sleep(0.02)
    vector = {name: source.now() for name, source in pipeline.topology.sources.items()}
    yield from pipeline.barrier.bring_to(vector, PATIENCE)
    audits.append(({name: p.text for name, p in vector.items()}, pipeline.committer.last.positions))
    pipeline.barrier.resume()


def keep(pipeline: Pipeline, done: Callable[[], bool]) -> None:
    """Run it until this is so; raise what it fails with."""
    pipeline.run(lambda: Stopped() if done() else None).check()


def run(
    topology: Topology,
    folder: Path,
    seconds: float,
    commit_seconds: float,
    ahead: str = "",
    audits: Audits | None = None,
    record: Callable[[Message], None] = lambda _: None,
    enough: Callable[[MemoryWarehouse], bool] = lambda warehouse: len(warehouse.commits) > 5,
    step: float = STEP,
    limits: Limits = Limits(),  # noqa: B008  # frozen
    beside: Callable[[Pipeline, Writing], None] = lambda _pipeline, _writing: None,
    write: Callable[[Path, str, Writing], None] = write,
) -> tuple[MemoryWarehouse, Past, dict[str, Bag]]:
    """Keep the views while others write, for some seconds and until it is `enough`; the view `ahead` starts from a
    later state than the others. `beside` runs in a thread meanwhile, and is waited for like a writer.

    With `audits` one comes after the other: the vector that was read, and the positions of the commit made for it.
    """
    start = {name: contents(topology, name) for name in topology.sources if topology.relations(name)}
    later = start
    if ahead:
        for name in WRITES:
            write(folder, name, Writing(0.3), first=10_000)
        later = {name: contents(topology, name) for name in start}
    views = {name: planned.view for name, planned in topology.views.items()}
    begins = {name: later if name == ahead else start for name in views}
    initial = {name: evaluate(view, {s: c for s, (_, c) in begins[name].items()}) for name, view in views.items()}
    positions = {name: {s: begins[name][s][0] for s in view.sources} for name, view in views.items()}
    last = CommitHeader(1, datetime.now(timezone.utc), positions)
    warehouse = MemoryWarehouse(topology, last, initial, commit_seconds)
    pipeline = Pipeline(topology, warehouse, last, through_spark=no_spark, record=record, limits=limits)
    writing = Writing(seconds, lambda: enough(warehouse), step)
    writers = [threading.Thread(target=write, args=(folder, name, writing)) for name in WRITES]
    writers.append(threading.Thread(target=beside, args=(pipeline, writing)))
    for writer in writers:
        writer.start()
    deadline = time.monotonic() + seconds + 2 * PATIENCE

    def done() -> bool:
        if time.monotonic() > deadline:
            raise TimeoutError("the pipeline did not come to rest")
        if audits is not None and not pipeline.operation_open and any(writer.is_alive() for writer in writers):
            pipeline.start_operation(audit(pipeline, audits))
        if any(writer.is_alive() for writer in writers):
            return False
        pipeline.end_blocks()
        return pipeline.idle()

    try:
        keep(pipeline, done)
    finally:
        writing.stop()
    return warehouse, Past(topology, start), initial


def compare(topology: Topology, warehouse: MemoryWarehouse, past: Past, states: dict[str, Bag]) -> None:
    """Every commit against a recomputation at its positions."""
    for commit in warehouse.commits:
        for name, removal in commit.removals.items():
            states[name] = _bag(removal.rest(states[name]), states[name])
        for name, change in commit.changes.items():
            states[name] = states[name].add(_bag(change, states[name]))
        for name, fragments in commit.fragments.items():
            states[name] = changed(topology.views[name].view, states[name], fragments)
        for name, state in states.items():
            expected = evaluate(topology.views[name].view, past.at(topology, commit.header.positions[name]))
            assert state == expected, f"{name} at commit {commit.number}: {commit.header.positions[name]}"
