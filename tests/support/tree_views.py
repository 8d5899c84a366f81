"""Views that are more than inner joins, over two SQLite databases, and what is written to these meanwhile."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

DATABASES = {
    "sales": """
        CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT);
        CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, state TEXT, cents INTEGER);
        CREATE TABLE notes (order_id INTEGER, word TEXT);
        CREATE INDEX orders_customer ON orders (customer);
        CREATE INDEX notes_order ON notes (order_id);
        INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bob'), (3, NULL);
        INSERT INTO orders VALUES (10, 1, 'open', 5), (11, NULL, 'open', NULL), (12, 3, 'shut', 5), (13, 1, NULL, 7);
        INSERT INTO notes VALUES (10, 'late'), (10, 'late'), (NULL, 'lost');
    """,
    "billing": """
        CREATE TABLE payments (id INTEGER PRIMARY KEY, order_id INTEGER, cents INTEGER);
        CREATE INDEX payments_order ON payments (order_id);
        INSERT INTO payments VALUES (1, 10, 500), (2, 12, 700), (3, NULL, 9), (4, 10, 500);
    """,
}

PORTABLE = {
    "left_to_one": "SELECT o.id AS id, o.state AS state, c.name AS name FROM sales.orders o "
    "LEFT JOIN sales.customers c ON c.id = o.customer",
    "left_to_many": "SELECT c.name AS name, o.id AS id, n.word AS word, p.cents AS cents FROM sales.customers c "
    "LEFT JOIN sales.orders o ON o.customer = c.id AND o.state <> 'shut' LEFT JOIN sales.notes n ON n.order_id = o.id "
    "LEFT JOIN billing.payments p ON p.order_id = o.id",
    "everything": "SELECT o.id AS id, p.id AS payment, p.cents AS cents FROM sales.orders o "
    "FULL JOIN billing.payments p ON p.order_id = o.id",
    "paid": "SELECT o.id AS id, o.state AS state FROM sales.orders o WHERE EXISTS "
    "(SELECT 1 FROM billing.payments p WHERE p.order_id = o.id AND p.cents > 100)",
    "unpaid": "SELECT o.id AS id, n.word AS word FROM sales.orders o JOIN sales.notes n ON n.order_id = o.id "
    "WHERE NOT EXISTS (SELECT 1 FROM billing.payments p WHERE p.order_id = o.id)",
    "amounts": "SELECT o.id AS id, o.cents AS cents FROM sales.orders o UNION ALL "
    "SELECT p.order_id AS id, p.cents AS cents FROM billing.payments p WHERE p.cents > 20",
    "by_customer": "SELECT o.customer AS customer, count(*) AS n, count(o.cents) AS known, sum(o.cents) AS total, "
    "count(DISTINCT o.state) AS states, min(o.cents) AS least, max(o.id) AS newest FROM sales.orders o "
    "GROUP BY o.customer",
    "revenue": "SELECT c.id AS id, c.name AS name, sum(p.cents) AS total FROM sales.customers c "
    "JOIN sales.orders o ON o.customer = c.id JOIN billing.payments p ON p.order_id = o.id "
    "GROUP BY c.id, c.name HAVING sum(p.cents) > 600",
    "states": "SELECT DISTINCT o.customer AS customer, o.state AS state FROM sales.orders o",
    "latest": "SELECT id AS id, customer AS customer, state AS state FROM (SELECT o.id, o.customer, o.state, "
    "row_number() OVER (PARTITION BY o.customer ORDER BY o.cents DESC, o.id) AS place FROM sales.orders o) latest "
    "WHERE place = 1",
    "previous": "SELECT p.id AS id, p.cents AS cents, lag(p.cents) OVER (PARTITION BY p.order_id ORDER BY p.id) "
    "AS before FROM billing.payments p",
    "totals": "SELECT count(*) AS n, sum(p.cents) AS total FROM billing.payments p",
    "balances": "WITH due AS (SELECT p.order_id, sum(p.cents) AS cents FROM billing.payments p GROUP BY p.order_id) "
    "SELECT o.id AS id, c.name AS name, coalesce(due.cents, 0) AS cents FROM sales.orders o "
    "LEFT JOIN due ON due.order_id = o.id LEFT JOIN sales.customers c ON c.id = o.customer "
    "WHERE NOT EXISTS (SELECT 1 FROM sales.notes n WHERE n.order_id = o.id AND n.word = 'lost')",
    "best": "SELECT name AS name, id AS id, cents AS cents FROM (SELECT c.name, p.id, p.cents, "
    "rank() OVER (PARTITION BY c.id ORDER BY p.cents DESC) AS place FROM sales.customers c "
    "JOIN sales.orders o ON o.customer = c.id JOIN billing.payments p ON p.order_id = o.id) ranked WHERE place <= 2",
}
"""They mean the same to SQLite and to Spark."""

SPARKS = {
    "parts": "SELECT o.id, part FROM sales.orders o LATERAL VIEW explode(sequence(1L, o.cents % 3 + 1)) e AS part",
    "averages": "SELECT o.customer, avg(CAST(o.cents AS decimal(12,2))) AS mean, "
    "sum(CAST(o.cents AS decimal(12,2))) AS total, collect_set(o.state) AS states "
    "FROM sales.orders o GROUP BY o.customer",
    "words": "SELECT o.id, n.word, count(*) AS times FROM sales.orders o LEFT JOIN sales.notes n ON n.order_id = o.id "
    "GROUP BY o.id, n.word",
}
"""They mean something to Spark alone, or something else."""

WRITES = {
    "sales": (
        "INSERT OR REPLACE INTO orders VALUES (:order, :customer, :state, :n % 9)",
        "INSERT OR REPLACE INTO orders VALUES (:order, :customer, :state, :n % 9)",
        "UPDATE orders SET customer = :customer WHERE id = :order",
        "UPDATE OR REPLACE orders SET id = :other WHERE id = :order",
        "UPDATE orders SET cents = NULL WHERE id = :order",
        "DELETE FROM orders WHERE id = :order",
        "INSERT OR REPLACE INTO customers VALUES (:owner, 'c' || (:n % 3))",
        "DELETE FROM customers WHERE id = :owner",
        "INSERT INTO notes VALUES (:order, :word)",
        "INSERT INTO notes VALUES (:order, :word)",
        "DELETE FROM notes WHERE order_id = :order",
        "DELETE FROM notes WHERE order_id IS NULL OR rowid % 7 = :n % 7",
    ),
    "billing": (
        "INSERT INTO payments (order_id, cents) VALUES (:order, :n % 900)",
        "INSERT INTO payments (order_id, cents) VALUES (NULL, :n % 900)",
        "DELETE FROM payments WHERE id % 5 = :n % 5",
        "UPDATE payments SET order_id = :order WHERE id % 4 = :n % 4",
        "UPDATE payments SET cents = 500 WHERE order_id = :order",
    ),
}


def project(views: dict[str, str], level: str = "strong") -> str:
    head = "version: 1\nproject: trees\nsources:\n"
    sources = "".join(f"  {name}: {{type: sqlite, path: {name}.db}}\n" for name in DATABASES)
    kept = "".join(f'  {n}: {{sql: "{sql}", consistency: {level}, freshness: 100ms}}\n' for n, sql in views.items())
    return f"{head}{sources}views:\n{kept}"


class Writer(threading.Thread):
    """Random transactions of one to four statements on one database."""

    def __init__(self, folder: Path, source: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._path, self._writes = folder / f"{source}.db", WRITES[source]
        self._random = random.Random(f"{source} {seed}")
        self._over = threading.Event()
        self.written = 0

    def run(self) -> None:
        self.write(lambda: not self._over.wait(self._random.uniform(0.02, 0.1)))

    def write(self, goes_on: Callable[[], bool]) -> None:
        with closing(sqlite3.connect(self._path, timeout=60, isolation_level=None)) as connection:
            while goes_on():
                connection.execute("BEGIN IMMEDIATE")
                for statement in self._random.choices(self._writes, k=self._random.randint(1, 4)):
                    connection.execute(statement, self._values())
                connection.execute("COMMIT")
                self.written += 1

    def _values(self) -> dict[str, object]:
        pick = self._random
        return {
            "n": pick.randint(0, 5000),
            "order": pick.choice([*range(10, 17), None]) if pick.random() < 0.2 else pick.randint(10, 16),
            "other": pick.randint(10, 18),
            "owner": pick.randint(1, 4),
            "customer": pick.choice([1, 2, 3, 4, None]),
            "state": pick.choice(["open", "shut", None]),
            "word": pick.choice(["late", "lost", None]),
        }

    def stop(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def writing(folder: Path, seed: int = 1) -> Iterator[list[Writer]]:
    writers = [Writer(folder, source, seed) for source in DATABASES]
    for writer in writers:
        writer.start()
    try:
        yield writers
    finally:
        for writer in writers:
            writer.stop()
