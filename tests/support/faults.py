"""What the tests of faults share: a TCP proxy that misbehaves on demand, and a shop over two real servers behind such.

Orders and customers are in PostgreSQL, payments in MariaDB. Writers go to the servers directly, the real coordinator
through the proxies; the warehouse is in memory. Every commit is compared with a recomputation at its positions.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import struct
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from committing import no_spark
from mariadb_server import Server
from memory_live import MemoryWarehouse, compare, contents, keep
from patience import PATIENCE, Writing, eventually
from postgres_server import PostgresServer

from strobe.algebra.bag import Bag
from strobe.config.load import load_project
from strobe.coordinator.verify import verify_source
from strobe.errors import SourceUnavailable
from strobe.messages import CommitHeader, Position
from strobe.pipeline.pipeline import Pipeline
from strobe.planning.topology import Topology, assemble
from strobe.simulator.world import Contents, evaluate

SLOT = "strobe_faults_sales"
SALES = """
    CREATE TABLE customers (id int PRIMARY KEY, name text);
    CREATE TABLE orders (id bigint PRIMARY KEY, customer int, state text);
    CREATE INDEX ON orders (customer);
    ALTER TABLE customers REPLICA IDENTITY FULL;
    ALTER TABLE orders REPLICA IDENTITY FULL;
    INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bob'), (3, NULL);
    INSERT INTO orders VALUES (10, 1, 'open'), (11, 2, 'open');
"""
BILLING = [
    "CREATE TABLE payments (id BIGINT PRIMARY KEY, order_id BIGINT, cents DECIMAL(12,2), KEY (order_id))",
    "INSERT INTO payments VALUES (1, 10, 500)",
]
WRITES = {
    "sales": [
        "INSERT INTO orders VALUES ({order}, {customer}, 'v{n}') ON CONFLICT (id) DO UPDATE SET state = 'u{n}'",
        "UPDATE customers SET name = 'c{n}' WHERE id = {customer}",
        "UPDATE orders SET customer = {customer} WHERE id = {order}",
        "DELETE FROM orders WHERE id = {order}",
        "DELETE FROM customers WHERE id = {customer}",
        "INSERT INTO customers VALUES ({customer}, 'again') ON CONFLICT DO NOTHING",
    ],
    "billing": [
        "INSERT IGNORE INTO payments VALUES ({n}, {order}, {n} / 7)",
        "DELETE FROM payments WHERE id BETWEEN {n} - 300 AND {n} - 30",
        "UPDATE payments SET order_id = {order} WHERE id BETWEEN {n} - 6 AND {n}",
    ],
}
PROJECT = """
version: 1
project: faults
sources:
  sales: {type: postgres, dsn: "${SALES_DSN}", limits: {connections: 4, statement_timeout: 2s}}
  billing: {type: mariadb, dsn: "${BILLING_DSN}", limits: {connections: 4, statement_timeout: 2s}}
views:
  v:
    sql: SELECT o.id AS o, o.state, c.id AS c, c.name, p.id AS p, p.cents FROM sales.orders o
         JOIN sales.customers c ON c.id = o.customer JOIN billing.payments p ON p.order_id = o.id
    algorithm: sweep
    consistency: complete
    freshness: 20ms
"""


STREAMS = (b"START_REPLICATION", b"\x00\x12")
"""What a client sends that asks for the log: of PostgreSQL, and (the command of a first packet) of MariaDB."""


class Proxy:
    """Passes bytes on between clients and one server, until it is told not to."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._stalled = threading.Event()
        self._closed = threading.Event()
        self._left: int | None = None
        self._then_stall = False
        self.broken = 0
        self._damage: Callable[[bytes], bytes] | None = None
        self.damaged = 0
        self._accepting = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            if not select.select([self._listening], [], [], 0.1)[0]:
                continue
            client, _ = self._listening.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._pairs.append((client, server))
            threading.Thread(target=self._pump, args=(client, server), daemon=True).start()

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        stream = False
        try:
            while not self._closed.is_set():
                if self._stalled.is_set():
                    time.sleep(0.01)
                    continue
                for source in select.select([client, server], [], [], 0.05)[0]:
                    data = source.recv(1 << 14)
                    if not data:
                        return
                    if source is client:
                        stream = stream or any(asked in data for asked in STREAMS)
                    elif stream:
                        data = self._spoilt(data)
                    self._send(data, server if source is client else client, source is server)
        except (OSError, ValueError):
            pass  # cut
        finally:
            _end(client, reset=False)
            _end(server, reset=False)

    def _send(self, data: bytes, to: socket.socket, answer: bool) -> None:
        with self._lock:
            kept = self._kept(len(data)) if answer else len(data)
        to.sendall(data[:kept])
        if kept < len(data) and not self._then_stall:
            _end(to, reset=True)
            raise ConnectionResetError
        while self._stalled.is_set() and not self._closed.is_set():
            time.sleep(0.01)
        to.sendall(data[kept:])

    def _kept(self, size: int) -> int:
        """How many of these bytes of an answer are still passed on."""
        if self._left is None or self._left >= size:
            self._left = None if self._left is None else self._left - size
            return size
        kept, self._left = self._left, None
        self.broken += 1
        if self._then_stall:
            self.stall()
        return kept

    def damage(self, how: Callable[[bytes], bytes]) -> None:
        """Change some bytes of what the server sends of its log next."""
        with self._lock:
            self._damage = how

    def _spoilt(self, data: bytes) -> bytes:
        with self._lock:
            how, self._damage = self._damage, None
        if how is None:
            return data
        found = how(data)
        self.damaged += 1
        return found

    def cut(self, *, reset: bool = False) -> None:
        """End every connection, in order or by a reset."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _end(end, reset)

    def break_after(self, size: int, *, stall: bool = False) -> None:
        """Reset a connection in the middle of what the server sends, after so many bytes of all its answers; or let all
        of them stall then."""
        with self._lock:
            self._left, self._then_stall = size, stall

    def stall(self) -> None:
        """Keep every connection open and carry nothing."""
        self._stalled.set()

    @property
    def stalled(self) -> bool:
        return self._stalled.is_set()

    def go_on(self) -> None:
        self._stalled.clear()

    def close(self) -> None:
        self._closed.set()
        self._accepting.join()
        self.cut()
        self._listening.close()


def _end(end: socket.socket, reset: bool) -> None:
    with contextlib.suppress(OSError):
        if reset:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            end.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        end.close()


class Past:
    """Every state that the sources were in: where they started, and the log since."""

    def __init__(self, topology: Topology, start: Mapping[str, tuple[str, Contents]]) -> None:
        self._orders: dict[str, list[tuple[int, ...]]] = {}
        self._states: dict[str, list[Contents]] = {}
        for name, (text, state) in start.items():
            source = topology.sources[name]
            position, end = source.position(text), source.now()
            orders, states = [position.order], [state]
            while position < end:
                with contextlib.suppress(SourceUnavailable):  # too slow for who is impatient
                    for transaction in source.transactions(position, [], lambda: False):
                        for relation, change in transaction.changes.items():
                            assert isinstance(change, Bag)
                            state = {**state, relation: state[relation].add(change)}
                        position = transaction.position
                        orders.append(position.order)
                        states.append(state)
                        if end <= position:
                            break
            self._orders[name], self._states[name] = orders, states

    def at(self, topology: Topology, positions: Mapping[str, str]) -> dict[str, Contents]:
        return {name: self.state(topology, name, text) for name, text in positions.items()}

    def state(self, topology: Topology, name: str, text: str) -> Contents:
        return self._states[name][bisect_right(self._orders[name], topology.sources[name].position(text).order) - 1]


class Crash(Exception):
    """The coordinator ends here and now, as if it had been killed."""


class World:
    """The shop, its warehouse, and whoever keeps it."""

    def __init__(self, postgres: PostgresServer, mariadb: Server, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.postgres, self.mariadb, self.folder = postgres, mariadb, folder
        self.database = postgres.database(SALES)
        self.billing = f"billing_{self.database}"
        mariadb.database(self.billing)
        mariadb.run(*BILLING, database=self.billing)
        self.proxies = {"sales": Proxy(postgres.port), "billing": Proxy(mariadb.port)}
        sales = postgres.dsn(self.database).replace(f":{postgres.port}/", f":{self.proxies['sales'].port}/")
        billing = mariadb.dsn(self.billing).replace(f":{mariadb.port}/", f":{self.proxies['billing'].port}/")
        patch.setenv("SALES_DSN", sales)
        patch.setenv("BILLING_DSN", billing)
        (folder / "strobe.yml").write_text(PROJECT)
        self.opened: list[Topology] = []
        self.topology = self.open()
        source = self.topology.sources["sales"]
        postgres.publish(self.database, source.prepare_script(["customers", "orders"]))
        source.prepare(["customers", "orders"])
        self.sql("SELECT pg_copy_logical_replication_slot(%s, 'keeper')", SLOT)
        self.load()
        self._n = 100

    def open(self) -> Topology:
        """The project as a new process would see it."""
        self.opened.append(assemble(load_project(self.folder)))
        return self.opened[-1]

    def load(self) -> None:
        topology = self.topology
        self.start = {name: contents(topology, name) for name in topology.sources}
        view = topology.views["v"].view
        self.initial = {"v": evaluate(view, {s: c for s, (_, c) in self.start.items()})}
        identity = {name: source.identity() for name, source in topology.sources.items()}
        positions = {"v": {name: text for name, (text, _) in self.start.items()}}
        self.first = CommitHeader(1, datetime.now(timezone.utc), positions, identity=identity)
        self.warehouse = MemoryWarehouse(topology, self.first, self.initial, 0.01)

    @property
    def last(self) -> CommitHeader:
        return [self.first, *(commit.header for commit in self.warehouse.commits)][-1]

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.postgres.execute(self.database, statement, *parameters)

    def close(self) -> None:
        for topology in self.opened:
            topology.sources.close()
        for proxy in self.proxies.values():
            proxy.close()
        self.postgres.drop(self.database)
        self.mariadb.run(f"DROP DATABASE {self.billing}")

    # Writing.

    def write(self, source: str, writing: Writing | float, pause: float = 0.02, seed: int = 0) -> None:
        """Random transactions of one to three statements, for some seconds and a few at least; a server that is down is
        tried again."""
        if not isinstance(writing, Writing):
            few = self._n + 10
            writing = Writing(writing, lambda: self._n > few)
        rng = random.Random(f"{source} {seed}")
        while writing.goes_on:
            with contextlib.suppress(psycopg.Error, pymysql.err.Error, OSError):
                if source == "sales":
                    with psycopg.connect(self.postgres.admin_dsn(self.database), autocommit=True) as server:
                        self._write(rng, writing, pause, source, server.transaction, server.execute)
                else:
                    with contextlib.closing(self.mariadb.connect(self.billing)) as server, server.cursor() as cursor:

                        @contextlib.contextmanager
                        def transaction(server: Any = server) -> Iterator[None]:
                            yield
                            server.commit()

                        self._write(rng, writing, pause, source, transaction, cursor.execute)
            writing.rest(0.05)

    def _write(
        self,
        rng: random.Random,
        writing: Writing,
        pause: float,
        source: str,
        transaction: Callable[[], contextlib.AbstractContextManager[Any]],
        execute: Callable[[Any], Any],
    ) -> None:
        while writing.goes_on:
            with transaction():
                for statement in rng.choices(WRITES[source], k=rng.randint(1, 3)):
                    self._n += 1
                    values = {"n": self._n, "order": rng.randint(10, 16), "customer": rng.randint(1, 3)}
                    execute(statement.format(**values).encode())
            writing.rest(pause * rng.random() * 2)

    # Keeping.

    def pipeline(self, *, verify: bool = True, **options: Any) -> Pipeline:
        """As at a start of the service: the sources are verified first."""
        if verify:
            for name, source in self.topology.sources.items():
                verify_source(source, self.last, ["v"])
                source.focus(self.topology.columns(name))
        return Pipeline(self.topology, self.warehouse, self.last, through_spark=no_spark, **options)

    def keep(
        self,
        pipeline: Pipeline,
        seconds: float,
        fault: Callable[[], None] = lambda: None,
        *,
        pause: float = 0.02,
        commits: int = 3,
    ) -> None:
        """Keep the view while two writers for each source and the fault are at work, and until all is in, after so many
        commits at least."""
        enough = len(self.warehouse.commits) + commits

        def done_enough() -> bool:
            return not work[-1].is_alive() and len(self.warehouse.commits) >= enough

        writing = Writing(seconds, done_enough, step=0.2)
        writers = [
            threading.Thread(target=self.write, args=(name, writing, pause, seed))
            for name in self.topology.sources
            for seed in range(2)
        ]
        failed: list[BaseException] = []

        def disturb() -> None:
            try:
                fault()
            except BaseException as error:  # raised where the test is
                failed.append(error)
                pipeline.fail(error)

        work = [*writers, threading.Thread(target=disturb)]
        for thread in reversed(work):
            thread.start()
        deadline = time.monotonic() + seconds + 2 * PATIENCE

        def done() -> bool:
            if time.monotonic() > deadline:
                problems = {name: pipeline.problem(name) for name in pipeline.vector}
                raise TimeoutError(f"the coordinator did not come to rest: {problems}")
            return not any(thread.is_alive() for thread in work) and pipeline.idle()

        try:
            keep(pipeline, done)
        finally:
            writing.stop()
            for thread in work:
                thread.join()
        if failed:
            raise failed[0]

    def more(self, commits: int = 2) -> None:
        """Wait for further commits: before a fault, so that it comes in the middle of something."""
        enough = len(self.warehouse.commits) + commits
        eventually(lambda: len(self.warehouse.commits) >= enough)

    def loaded(self, name: str) -> tuple[str, Contents]:
        """A source's contents and their position, read again as long as the server has no time for it."""
        found: list[tuple[str, Contents]] = []

        def load() -> bool:
            with contextlib.suppress(SourceUnavailable):
                found.append(contents(self.topology, name))
            return bool(found)

        eventually(load)
        return found[0]

    def restarted(self, **options: Any) -> Pipeline:
        """A new process, from the last commit."""
        self.topology = self.open()
        return self.pipeline(**options)

    def confirm(self) -> None:
        """What maintenance does: what is durable need not be kept by the sources."""
        for name, source in self.topology.sources.items():
            source.discard(source.position(self.last.positions["v"][name]))

    def confirmed(self) -> Position:
        ((text,),) = self.sql("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", SLOT)
        return self.topology.sources["sales"].position(text)

    # Judging.

    def judge(self, commits: int = 3) -> Past:
        """Every commit is a state of the sources, and the last one is their present state."""
        self.topology = self.open()
        self.rewind()
        past = Past(self.topology, self.start)
        assert len(self.warehouse.commits) >= commits, f"only {len(self.warehouse.commits)} commits"
        compare(self.topology, self.warehouse, past, dict(self.initial))  # type: ignore[arg-type]  # our own past
        numbers = [commit.number for commit in self.warehouse.commits]
        assert numbers == list(range(2, 2 + len(numbers)))
        for name in self.topology.sources:
            _, now = self.loaded(name)
            assert past.state(self.topology, name, self.last.positions["v"][name]) == now, f"{name}: not at its end"
        return past

    def rewind(self) -> None:
        """Let the slot begin where everything began, to read it all again."""
        eventually(lambda: not self.sql("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active", SLOT))
        self.sql("SELECT pg_drop_replication_slot(%s)", SLOT)
        self.sql("SELECT pg_copy_logical_replication_slot('keeper', %s)", SLOT)


def server_processes(postgres: PostgresServer) -> list[int]:
    """The server's processes, its first one first."""
    first = int((postgres.data / "postmaster.pid").read_text().split()[0])
    found = [first]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == first:
                found.append(int(path.parent.name))
    return found


def kill(postgres: PostgresServer) -> None:
    """With -9, all at once: the first process is stopped before, so that it starts no others meanwhile."""
    os.kill(server_processes(postgres)[0], signal.SIGSTOP)
    processes = server_processes(postgres)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    os.kill(postgres.process, signal.SIGCONT)  # it stops by itself when what it has started stops
    postgres.gone()
    eventually(lambda: not any(map(_runs, processes)))


def _runs(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextlib.contextmanager
def paused(postgres: PostgresServer, mariadb: Server) -> Iterator[None]:
    """Both servers stand still, and keep their connections."""
    processes = [*server_processes(postgres), mariadb.process]
    for process in processes:
        with contextlib.suppress(ProcessLookupError):  # a session that has just ended
            os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in (*processes, postgres.process):  # the last one stops by itself when what it has started stops
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def end_server(world: World, name: str, *, killed: bool) -> None:
    """With -9, or in order."""
    if name == "billing":
        world.mariadb.stop(kill=killed)
    elif killed:
        kill(world.postgres)
    else:
        world.postgres.stop()


@contextlib.contextmanager
def other_passwords(world: World) -> Iterator[None]:
    """Both servers let Strobe in no more; whoever is in stays."""
    role, user = world.postgres.role, "strobe@'127.0.0.1'"
    ((kept,),) = world.mariadb.rows("SELECT authentication_string FROM mysql.user WHERE user = 'strobe'")
    try:
        world.sql(f"ALTER ROLE {role} PASSWORD 'another'")
        world.mariadb.run(f"ALTER USER {user} IDENTIFIED BY 'another'")
        yield
    finally:
        world.sql(f"ALTER ROLE {role} PASSWORD '{world.postgres.password}'")
        world.mariadb.run(f"ALTER USER {user} IDENTIFIED VIA mysql_native_password USING '{kept}'")


def end_connections(world: World, name: str) -> None:
    """`pg_terminate_backend` or `KILL`, for whatever Strobe has open."""
    if name == "sales":
        world.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", SLOT)
        return
    for (number,) in world.mariadb.rows("SELECT id FROM information_schema.processlist WHERE user = 'strobe'"):
        try:
            world.mariadb.run(f"KILL {number}")
        except pymysql.err.OperationalError as error:
            assert error.args[0] == 1094, error  # it has ended by itself
