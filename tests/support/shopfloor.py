"""A project under load, for tests that start and kill the real `strobe` process."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from strobe.auditor.history import History, HistoryState, HistoryView
from strobe.auditor.levels import HistoryTransaction
from strobe.auditor.replay import states
from strobe.config.load import load_project
from strobe.demo.history import Archive
from strobe.demo.oracle import Verdict, check_every_state
from strobe.messages import CommitHeader
from strobe.planning.topology import assemble
from strobe.warehouse import inspect, storage
from strobe.warehouse.layout import Layout

SALES = """
    CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT);
    CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, state TEXT);
    CREATE INDEX orders_customer ON orders (customer);
    INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bob'), (3, 'Ćić');
    INSERT INTO orders VALUES (10, 1, 'open'), (11, 2, 'open'), (12, 3, 'shut');
"""
BILLING = """
    CREATE TABLE payments (id INTEGER PRIMARY KEY, order_id INTEGER, cents INTEGER);
    CREATE INDEX payments_order ON payments (order_id);
    INSERT INTO payments VALUES (1, 10, 500), (2, 12, 700);
"""
STOCK = """
    CREATE TABLE parcels (id INTEGER PRIMARY KEY, order_id INTEGER, grams INTEGER);
    CREATE INDEX parcels_order ON parcels (order_id);
    INSERT INTO parcels VALUES (1, 10, 250), (2, 11, 900);
"""
DATABASES = {"sales": SALES, "billing": BILLING}
VIEWS = {
    "paid": "SELECT o.id, o.state, c.name, p.id AS payment, p.cents FROM sales.orders o "
    "JOIN sales.customers c ON c.id = o.customer JOIN billing.payments p ON p.order_id = o.id WHERE p.cents > 120",
    "pairs": "SELECT a.state, b.state AS other FROM sales.orders a JOIN sales.orders b ON a.customer = b.customer",
}
PROJECT = f"""
version: 1
project: shop
sources:
  sales: {{type: sqlite, path: sales.db}}
  billing: {{type: sqlite, path: billing.db}}
views:
  paid: {{sql: "{VIEWS["paid"]}", freshness: 100ms}}
  pairs: {{sql: "{VIEWS["pairs"]}", consistency: complete, freshness: 100ms}}
"""
WRITES = {
    "sales": [
        "INSERT OR REPLACE INTO orders VALUES (:order, :customer, 'v' || :n)",
        "UPDATE customers SET name = 'c' || :n WHERE id = :customer",
        "UPDATE orders SET customer = :customer WHERE id = :order",
        "UPDATE OR REPLACE orders SET id = :other WHERE id = :order",
        "DELETE FROM orders WHERE id = :order",
        "INSERT OR IGNORE INTO customers VALUES (:customer, 'again')",
    ],
    "billing": [
        "INSERT INTO payments VALUES (:n, :order, :n)",
        "DELETE FROM payments WHERE id < :n - 12",
        "UPDATE payments SET order_id = :order WHERE id = :n - 3",
    ],
    "stock": [
        "INSERT INTO parcels VALUES (:n, :order, :n % 1000)",
        "DELETE FROM parcels WHERE id < :n - 15",
        "UPDATE parcels SET grams = :n % 700 WHERE order_id = :order",
    ],
}
LAST = {
    "sales": [
        "INSERT OR REPLACE INTO customers VALUES (1, 'last')",
        "INSERT OR REPLACE INTO orders VALUES (10, 1, 'last')",
    ],
    "billing": ["INSERT INTO payments VALUES (999999, 10, 999999)"],
    "stock": ["INSERT INTO parcels VALUES (999999, 10, 999)"],
}
STROBE = [sys.executable, "-m", "strobe"]


class Shop:
    def __init__(
        self,
        folder: Path,
        project: str = PROJECT,
        views: Mapping[str, str] = VIEWS,
        databases: Mapping[str, str] = DATABASES,
        gateway: str = "",
    ) -> None:
        """Processes attach to the Spark at the gateway, if one is given; else each starts a JVM of its own."""
        self.folder, self.views, self.databases, self.gateway = folder, views, databases, gateway
        for name, script in databases.items():
            connection = sqlite3.connect(folder / f"{name}.db")
            connection.executescript(script)
            connection.close()
        (folder / "strobe.yml").write_text(project)
        self.strobe("prepare")
        self.archive = Archive({name: folder / f"{name}.db" for name in databases})

    def start(self, *arguments: str, failpoint: str = "", into: Path | None = None) -> subprocess.Popen[str]:
        """A process; what it says is to be had from it, or goes into a file."""
        environment = {**os.environ, "STROBE_FAILPOINT": failpoint}
        if self.gateway:
            environment["STROBE_SPARK_GATEWAY"] = self.gateway
        command = [*STROBE, *arguments, "--project", str(self.folder)]
        with into.open("w") if into else nullcontext(subprocess.PIPE) as output:
            return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True)

    def write(self, source: str, *statements: str) -> None:
        """One transaction."""
        with closing(sqlite3.connect(self.folder / f"{source}.db", timeout=30)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def strobe(self, *arguments: str, code: int = 0, failpoint: str = "", timeout: float = 400) -> str:
        """Run a command to its end; it must end with this exit code."""
        process = self.start(*arguments, failpoint=failpoint)
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            raise AssertionError(f"{arguments} did not end within {timeout} s:\n{output}") from None
        assert process.returncode == code, f"{arguments} ended with {process.returncode}:\n{output}"
        return output

    def wait_for_commits(self, process: subprocess.Popen[str], number: int, patience: float = 400) -> None:
        """Until a running process has committed so many times, counted from the first."""
        self._await(process, lambda last: last.number >= number, f"{number} commits", patience)

    def kill_after(self, commits: int) -> None:
        """A run that is killed with -9 when so many commits are there."""
        process = self.start("run")
        self.wait_for_commits(process, commits)
        process.kill()
        process.communicate()

    def kill_at_the_end(self, process: subprocess.Popen[str]) -> None:
        """When nobody writes any more: kill a run with -9 as soon as it has committed everything; ends the archive.

        Last comes something that every view shows: what changes nothing may take half a minute to be committed.
        """
        for name in self.databases:
            self.write(name, *LAST[name])
        self.archive.stop()
        ends = {name: recorder.changes[-1].seq for name, recorder in self.archive.recorders.items()}

        def reached(last: CommitHeader) -> bool:
            places = [place for vector in last.positions.values() for place in vector.items()]
            return all(int(position.split(":")[0]) == ends[name] for name, position in places)

        self._await(process, reached, f"commit of everything up to {ends}", 400)
        process.kill()
        process.communicate()

    def _await(
        self, process: subprocess.Popen[str], reached: Callable[[CommitHeader], bool], what: str, patience: float
    ) -> None:
        end, warehouse = time.monotonic() + patience, self.folder / "warehouse"
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
            if (
                storage.exists(Layout(warehouse).log)
                and (last := inspect.last_header(Layout(warehouse))) is not None
                and reached(last)
            ):
                return
        process.kill()
        said, _ = process.communicate()
        raise AssertionError(f"there was no {what}; the process said:\n{said}")

    @contextmanager
    def load(self, writers: int = 2, rests: float = 0) -> Iterator[None]:
        """Several processes write to each database meanwhile; see `write`."""
        processes = [
            subprocess.Popen([sys.executable, __file__, str(self.folder), source, str(number), str(rests)])
            for source in self.databases
            for number in range(writers)
        ]
        try:
            yield
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait(timeout=120)

    def judge(self) -> dict[str, Verdict]:
        """Every committed state against a recomputation at exactly its positions."""
        return check_every_state(self.folder / "warehouse", self.archive, self.views)

    def history(self) -> History:
        """The sources' past as the archive has it, and what readers were shown, for the auditor to judge.

        What a source reports as one transaction is known from where commits stand: at no place but between two.
        """
        shown = list(states(self.folder / "warehouse"))
        schemas = assemble(load_project(self.folder)).schemas
        transactions, start, relations = [], {}, []
        for source in self.archive.sources:
            reached = {place[source] for state in shown for place in state.positions.values() if source in place}
            first, *later = sorted(reached, key=lambda text: self.archive.order(source, text))
            start[source], before = first, dict(self.archive.state_at(source, first))
            relations += [(schemas[f"{source}.{table}"], rows) for table, rows in before.items()]
            for position in later:
                after = dict(self.archive.state_at(source, position))
                changes = {table: rows.add(before[table].negate()) for table, rows in after.items()}
                transactions.append(HistoryTransaction(f"{source}@{position}", {source: changes}, {source: position}))
                before = after
        told = [
            HistoryState(
                {name: rows for name, rows in state.views.items() if name in self.views},
                positions={name: dict(place) for name, place in state.positions.items() if name in self.views},
            )
            for state in shown
        ]
        views = tuple(HistoryView(name, sql) for name, sql in self.views.items())
        return History(tuple(relations), views, tuple(transactions), tuple(told), start)


def write(folder: Path, source: str, number: int, rests: float, seconds: float = 900) -> None:
    """Random transactions of one to three statements, until told to end.

    Some algorithms take up whatever comes while they work. Where they have to come to an end on any machine, writers
    rest after every twenty transactions: so many seconds, and each time a little longer.
    """
    rng = random.Random(f"{source} {number}")
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    connection = sqlite3.connect(folder / f"{source}.db", timeout=30)
    end, n, written = time.monotonic() + seconds, 1000 * (number + 1), 0
    while not stop and time.monotonic() < end:
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            for statement in rng.choices(WRITES[source], k=rng.randint(1, 3)):
                n += 10
                values = {
                    "n": n + number,
                    "order": rng.randint(10, 17),
                    "other": rng.randint(10, 17),
                    "customer": rng.randint(1, 4),
                }
                connection.execute(statement, values)
        written += 1
        time.sleep(rng.uniform(0.02, 0.08) + (rests * written / 20 if written % 20 == 0 else 0))
    connection.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
