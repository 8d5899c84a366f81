"""A shop in PostgreSQL whose server writes single-row transactions by itself, and a coordinator as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psycopg
from postgres_server import PostgresServer

from strobe.config.load import load_project
from strobe.planning.topology import assemble
from strobe.warehouse import inspect, storage
from strobe.warehouse.layout import Layout

VIEW = "lines"
SQL = (
    "SELECT o.id, o.quantity, c.name, p.price FROM shop.orders o "
    "JOIN shop.customers c ON c.id = o.customer JOIN shop.products p ON p.id = o.product"
)
TABLES = """
    CREATE TABLE customers (id int PRIMARY KEY, name text);
    CREATE TABLE products (id int PRIMARY KEY, price int);
    CREATE TABLE orders (id int PRIMARY KEY, customer int, product int, quantity int);
    CREATE INDEX ON orders (customer);
    CREATE INDEX ON orders (product);
    ALTER TABLE customers REPLICA IDENTITY FULL;
    ALTER TABLE products REPLICA IDENTITY FULL;
    ALTER TABLE orders REPLICA IDENTITY FULL;
    INSERT INTO customers SELECT n, 'customer ' || n FROM generate_series(1, {orders} / 4) n;
    INSERT INTO products SELECT n, n % 900 FROM generate_series(1, {orders} / 4) n;
    INSERT INTO orders SELECT n, n % ({orders} / 4) + 1, n * 7 % ({orders} / 4) + 1, n % 10
    FROM generate_series(1, {orders}) n;
    ANALYZE;
"""
WORK = """
CREATE PROCEDURE work(first int, last int, step int, rate float, size int) LANGUAGE plpgsql AS $$
DECLARE
    begun timestamptz := clock_timestamp();
    few int := size / 4;
    done int := 0;
    other int;
BEGIN
    FOR i IN first..last BY step LOOP
        IF rate > 0 THEN
            PERFORM pg_sleep(extract(epoch FROM begun + done / rate * interval '1 second' - clock_timestamp()));
        END IF;
        other := abs(hashint4(i));
        CASE
            WHEN i % 20 < 12 THEN UPDATE orders SET quantity = i WHERE id = other % size + 1;
            WHEN i % 20 < 14 THEN UPDATE orders SET customer = i % few + 1 WHERE id = other % size + 1;
            WHEN i % 20 < 16 THEN
                INSERT INTO orders VALUES (1000000 + i, other % few + 1, i % few + 1, i);
            WHEN i % 20 < 17 THEN DELETE FROM orders WHERE id = 1000000 + i - 2;
            WHEN i % 20 < 19 THEN UPDATE customers SET name = 'customer ' || i WHERE id = other % few + 1;
            ELSE UPDATE products SET price = i WHERE id = other % few + 1;
        END CASE;
        COMMIT;
        done := done + 1;
    END LOOP;
END $$;
"""
"""Single-row transactions, numbered; a `rate` of 0 is as fast as the server can."""

PROJECT = """
version: 1
project: {project}
spark: {{spark.driver.memory: 1g}}
sources:
  shop: {{type: postgres, dsn: "${{SHOP_DSN}}"}}
views:
  {view}: {{sql: "{sql}", consistency: {level}, freshness: 0s}}
"""
LAST = 2_000_000_000
"""The order whose insertion ends a load: with it in the view, everything before is."""


class LoadedShop:
    """One database, and one project that keeps a view over it."""

    def __init__(self, server: PostgresServer, folder: Path, level: str, orders: int, gateway: str = "") -> None:
        """Coordinators attach to the Spark at the gateway, if one is given; else each starts a JVM of its own."""
        self._server, self.folder, self.level, self._orders = server, folder, level, orders
        self.database = server.database(TABLES.format(orders=orders) + WORK)
        self.layout = Layout(folder / "warehouse")
        self._written, self._ends = 0, 0
        folder.mkdir(parents=True, exist_ok=True)
        self._project = f"load_{level}"
        document = PROJECT.format(project=self._project, view=VIEW, sql=SQL, level=level)
        (folder / "strobe.yml").write_text(document)
        os.environ["SHOP_DSN"] = server.dsn(self.database)
        topology = assemble(load_project(folder))
        relations = [relation.name for relation in topology.relations("shop")]
        server.publish(self.database, topology.sources["shop"].prepare_script(relations))
        topology.sources["shop"].prepare(relations)
        topology.sources.close()
        self._environment = {**os.environ, "STROBE_SPARK_GATEWAY": gateway} if gateway else dict(os.environ)

    @property
    def admin(self) -> str:
        return self._server.admin_dsn(self.database)

    def start(self, failpoint: str = "") -> CoordinatorProcess:
        return CoordinatorProcess(self.folder, {**self._environment, "STROBE_FAILPOINT": failpoint})

    def write(self, transactions: int, rate: float = 0.0, writers: int = 2) -> int:
        """So many transactions, over several connections, and one that ends them: a place just before its end."""
        first = self._written + 1
        self._written += transactions
        working = []
        with ThreadPoolExecutor(writers) as pool:
            for n in range(writers):
                work = partial(self._work, first + n, self._written, writers, rate / writers)
                working.append(pool.submit(work))
        for one in working:
            one.result()
        return self.end()

    def _work(self, first: int, last: int, step: int, rate: float) -> None:
        with psycopg.connect(self.admin, autocommit=True) as connection:
            connection.execute("CALL work(%s, %s, %s, %s, %s)", (first, last, step, rate, self._orders))

    def end(self) -> int:
        """A transaction that the view shows, after all others; a place just before its end."""
        self._ends += 1
        with psycopg.connect(self.admin, autocommit=True) as connection:
            with connection.transaction():
                connection.execute("INSERT INTO orders VALUES (%s, 1, 1, 0)", (LAST + self._ends,))
                ((place,),) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
        return place_of(place)  # the commit ends after it

    def shown(self) -> int:
        """The place in the server's log that readers see; 0 if there is no commit."""
        if not storage.exists(self.layout.log):
            return 0
        header = inspect.last_header(self.layout)
        return 0 if header is None else place_of(header.positions[VIEW]["shop"])

    def streaming(self) -> bool:
        """Whether a coordinator reads the log."""
        found = self._server.execute(
            "postgres",
            "SELECT active FROM pg_replication_slots WHERE database = %s AND slot_name <> 'oracle'",
            self.database,
        )
        return any(active for (active,) in found)

    def remove(self) -> None:
        self._server.drop(self.database)


class CoordinatorProcess:
    """`strobe run`, with what the system knows about its Python process."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._log = (folder / "coordinator.log").open("a")
        command = [sys.executable, "-m", "strobe", "run", "--project", str(folder)]
        self.process = subprocess.Popen(command, env=environment, stdout=self._log, stderr=subprocess.STDOUT)
        self._folder = folder

    def check(self) -> None:
        if self.process.poll() is not None:
            said = (self._folder / "coordinator.log").read_text()[-3000:]
            raise RuntimeError(f"the coordinator ended with {self.process.returncode}:\n{said}")

    def memory(self, which: str = "VmHWM") -> float:
        """In MB; by default the most it ever had. (`ru_maxrss` would count who started it too.)"""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{which}:\s+(\d+) kB", text)
        if found is None:
            raise RuntimeError("the kernel does not say how much memory a process has")
        return int(found[1]) / 1024

    def cpu(self) -> float:
        """Seconds of a processor that it used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(300)
        self._log.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self._log.close()


def place_of(position: str) -> int:
    """A place in PostgreSQL's log as a number; what a position says besides is left aside."""
    high, low = position.partition("@")[0].split("/")
    return int(high, 16) << 32 | int(low, 16)


def became(condition: Callable[[], bool], coordinator: CoordinatorProcess, seconds: float, pause: float = 0.3) -> bool:
    """Whether it became so in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        coordinator.check()
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def need(so: bool, otherwise: str) -> None:
    if not so:
        raise RuntimeError(otherwise)
