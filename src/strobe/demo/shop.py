"""A little shop: sales in SQLite, billing in PostgreSQL, a catalogue that is dropped as a CSV file now and then.

Its people work at the same time, each in a process of their own, and mostly on the order of the moment: the clerk
changes it, the desk renames its customer, the cashier books its payment, the bank settles it. That is where a
maintainer of joined views goes wrong that believes whatever the databases answer.

    python -m strobe.demo.shop FOLDER BILLING PERSON SECONDS

BILLING is the dsn of the PostgreSQL database.
"""

from __future__ import annotations

import csv
import json
import os
import random
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import psycopg

ORDERS, CUSTOMERS, PAYMENTS, PRODUCTS = 60, 25, 90, 30
"""About how many rows there are."""

MOMENT = 0.4
"""Seconds for which everybody is busy with the same order."""

VIEWS = {
    "open_orders": """\
SELECT o.id AS order_id, c.id AS customer_id, p.sku AS sku, y.id AS payment_id,
       c.name AS customer, p.name AS product, o.quantity AS quantity,
       o.quantity * p.price_cents AS total_cents, y.amount_cents AS offered_cents
FROM sales.orders AS o
JOIN sales.customers AS c ON c.id = o.customer
JOIN catalog.products AS p ON p.sku = o.sku
JOIN billing.payments AS y ON y.order_id = o.id
WHERE o.state = 'open' AND y.state = 'pending'
""",
    "paid_orders": """\
SELECT o.id AS order_id, c.id AS customer_id, p.sku AS sku, y.id AS payment_id,
       c.name AS customer, c.city AS city, p.name AS product,
       y.amount_cents AS paid_cents, o.quantity * p.price_cents - y.amount_cents AS due_cents
FROM billing.payments AS y
JOIN sales.orders AS o ON o.id = y.order_id
JOIN sales.customers AS c ON c.id = o.customer
JOIN catalog.products AS p ON p.sku = o.sku
WHERE y.state = 'paid'
""",
}
"""They mean the same to Spark and to SQLite: integers and text, compared for equality."""

PROJECT = """\
version: 1
project: demo
warehouse: ./warehouse
spark: {spark.master: "local[2]"}
sources:
  sales:   {type: sqlite, path: sales.db}
  billing: {type: postgres, dsn: BILLING}
  catalog: {type: files, path: drops/products.csv, relation: products, key: [sku],
            columns: {sku: string, name: string, price_cents: bigint}}
views:                              # their SQL is in views/
  open_orders: {consistency: complete, freshness: 200ms}
  paid_orders: {consistency: complete, freshness: 200ms}
  # The same views, kept by a maintainer that believes every answer:
  open_orders_naive: {file: views/open_orders.sql, algorithm: conventional, freshness: 200ms}
  paid_orders_naive: {file: views/paid_orders.sql, algorithm: conventional, freshness: 200ms}
"""

_FIRST = ("Ada", "Alan", "Barbara", "Donald", "Edgar", "Grace", "Jim", "Leslie", "Radia", "Tony", "Zoë", "Łukasz")
_LAST = ("Codd", "Gray", "Hoare", "Hopper", "Knuth", "Lamport", "Liskov", "Lovelace", "Perlman", "Turing")
_CITIES = ("Aarhus", "Bologna", "Cádiz", "Dublin", "Edinburgh", "Fribourg", "Göteborg")
_THINGS = ("lamp", "kettle", "chair", "bicycle", "umbrella", "radio", "teapot", "compass", "notebook", "clock")
_COLOURS = ("red", "blue", "green")


class Database(Protocol):
    """A connection to either database, whose transactions begin and end by statements."""

    def execute(self, sql: Any, parameters: Any = ..., /) -> object: ...


Action = Callable[[Database, random.Random, int], None]
"""What somebody does in one transaction, mostly to one order."""


def create(folder: Path, billing: str) -> None:
    """The shop as it is in the morning, and a project that watches it; `billing` is an empty PostgreSQL database."""
    chance = random.Random(1)
    (folder / "views").mkdir(parents=True)
    (folder / "drops").mkdir()
    (folder / "strobe.yml").write_text(PROJECT.replace("BILLING", json.dumps(billing)), encoding="utf-8")
    for name, sql in VIEWS.items():
        (folder / "views" / f"{name}.sql").write_text(sql, encoding="utf-8")
    _create_sales(folder / "sales.db", chance)
    _create_billing(billing, chance)
    drop(folder, {_sku(n): (_product(n), chance.randrange(100, 9000)) for n in range(PRODUCTS)})


def _create_sales(path: Path, chance: random.Random) -> None:
    connection = sqlite3.connect(path)
    connection.executescript("""
        CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL);
        CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER NOT NULL, sku TEXT NOT NULL,
                             quantity INTEGER NOT NULL, state TEXT NOT NULL);
        CREATE INDEX orders_of_customer ON orders (customer);
        CREATE INDEX orders_of_product ON orders (sku);
    """)
    people = [(n, _person(chance), chance.choice(_CITIES)) for n in range(1, CUSTOMERS + 1)]
    connection.executemany("INSERT INTO customers VALUES (?, ?, ?)", people)
    connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", [_order(n, chance) for n in range(1, ORDERS)])
    connection.commit()
    connection.close()


def _create_billing(dsn: str, chance: random.Random) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("""
            CREATE TABLE payments (id bigint PRIMARY KEY, order_id bigint NOT NULL, amount_cents bigint NOT NULL,
                                   state text NOT NULL);
            CREATE INDEX payments_of_order ON payments (order_id);
            ALTER TABLE payments REPLICA IDENTITY FULL;
        """)
        payments = [_payment(n, chance.randrange(1, ORDERS), chance) for n in range(1, PAYMENTS)]
        connection.cursor().executemany("INSERT INTO payments VALUES (%s, %s, %s, %s)", payments)


def drop(folder: Path, products: dict[str, tuple[str, int]]) -> None:
    """Put a new catalogue in the old one's place, whole."""
    temporary = folder / "drops" / ".products.csv.new"
    with temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sku", "name", "price_cents"])
        writer.writerows([sku, name, price] for sku, (name, price) in products.items())
    os.replace(temporary, folder / "drops" / "products.csv")


def _person(chance: random.Random) -> str:
    return f"{chance.choice(_FIRST)} {chance.choice(_LAST)}"


def _sku(number: int) -> str:
    return f"P{number:03d}"


def _product(number: int) -> str:
    return f"{_COLOURS[number % 3]} {_THINGS[number // 3 % 10]}"


def _order(number: int, chance: random.Random) -> tuple[int, int, str, int, str]:
    state = chance.choice(("open", "open", "open", "closed"))
    return number, chance.randint(1, CUSTOMERS), _sku(chance.randrange(PRODUCTS)), chance.randint(1, 5), state


def _payment(number: int, order: int, chance: random.Random) -> tuple[int, int, int, str]:
    return number, order, chance.randrange(100, 20000), chance.choice(("pending", "pending", "paid"))


# The clerk: orders.


def _change_quantity(db: Database, chance: random.Random, order: int) -> None:
    db.execute("UPDATE orders SET quantity = ? WHERE id = ?", (chance.randint(1, 9), order))


def _change_product(db: Database, chance: random.Random, order: int) -> None:
    db.execute("UPDATE orders SET sku = ? WHERE id = ?", (_sku(chance.randrange(PRODUCTS)), order))


def _change_customer(db: Database, chance: random.Random, order: int) -> None:
    db.execute("UPDATE orders SET customer = ? WHERE id = ?", (chance.randint(1, CUSTOMERS), order))


def _open_or_close(db: Database, chance: random.Random, order: int) -> None:
    db.execute("UPDATE orders SET state = CASE state WHEN 'open' THEN 'closed' ELSE 'open' END WHERE id = ?", (order,))


def _replace_order(db: Database, chance: random.Random, order: int) -> None:
    db.execute("INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?, ?)", _order(order, chance))


def _cancel(db: Database, chance: random.Random, order: int) -> None:
    db.execute("DELETE FROM orders WHERE id = ?", (order,))


def _renumber(db: Database, chance: random.Random, order: int) -> None:
    """Two orders change places, by their keys."""
    other = chance.randrange(1, ORDERS)
    db.execute("UPDATE orders SET id = -1 WHERE id = ?", (other,))
    db.execute("UPDATE orders SET id = ? WHERE id = ?", (other, order))
    db.execute("UPDATE orders SET id = ? WHERE id = -1", (order,))


# The desk: customers.


def _rename(db: Database, chance: random.Random, order: int) -> None:
    chosen = "(SELECT customer FROM orders WHERE id = ?)"
    db.execute(f"UPDATE customers SET name = ? WHERE id = {chosen}", (_person(chance), order))


def _move_house(db: Database, chance: random.Random, order: int) -> None:
    """A new address, and all that the customer has ordered is doubled on the occasion: two tables, one transaction."""
    chosen = "(SELECT customer FROM orders WHERE id = ?)"
    db.execute(f"UPDATE customers SET city = ? WHERE id = {chosen}", (chance.choice(_CITIES), order))
    db.execute(f"UPDATE orders SET quantity = 1 + quantity * 2 % 9 WHERE customer = {chosen}", (order,))


def _register_again(db: Database, chance: random.Random, order: int) -> None:
    """A customer leaves and comes back under the same number; the orders go to somebody else meanwhile."""
    customer, heir = chance.randint(1, CUSTOMERS), chance.randint(1, CUSTOMERS)
    db.execute("DELETE FROM customers WHERE id = ?", (customer,))
    db.execute("UPDATE orders SET customer = ? WHERE id = ?", (heir, order))
    db.execute("INSERT INTO customers VALUES (?, ?, ?)", (customer, _person(chance), chance.choice(_CITIES)))


# The cashier and the bank: payments.


def _take_payment(db: Database, chance: random.Random, order: int) -> None:
    again = "order_id = excluded.order_id, amount_cents = excluded.amount_cents, state = excluded.state"
    statement = f"INSERT INTO payments VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET {again}"
    db.execute(statement, _payment(_number(chance), order, chance))


def _correct_amount(db: Database, chance: random.Random, order: int) -> None:
    db.execute("UPDATE payments SET amount_cents = %s WHERE order_id = %s", (chance.randrange(100, 20000), order))


def _book_elsewhere(db: Database, chance: random.Random, order: int) -> None:
    db.execute("UPDATE payments SET order_id = %s WHERE id = %s", (order, _number(chance)))


def _refund(db: Database, chance: random.Random, order: int) -> None:
    db.execute("DELETE FROM payments WHERE id = (SELECT min(id) FROM payments WHERE order_id = %s)", (order,))


def _settle(db: Database, chance: random.Random, order: int) -> None:
    db.execute("UPDATE payments SET state = 'paid' WHERE order_id = %s AND state = 'pending'", (order,))


def _reopen(db: Database, chance: random.Random, order: int) -> None:
    db.execute("UPDATE payments SET state = 'pending' WHERE order_id = %s", (order,))


def _number(chance: random.Random) -> int:
    return chance.randrange(1, PAYMENTS)


_CLERK = (_change_quantity, _change_product, _change_customer, _open_or_close, _replace_order, _cancel, _renumber)
_DESK = (_rename, _rename, _move_house, _register_again)
_CASHIER = (_take_payment, _take_payment, _correct_amount, _book_elsewhere, _refund)
_BANK = (_settle, _reopen)

PEOPLE: dict[str, tuple[str, float, tuple[Action, ...]]] = {
    "clerk": ("sales", 4.0, _CLERK),
    "desk": ("sales", 2.0, _DESK),
    "cashier": ("billing", 3.5, _CASHIER),
    "bank": ("billing", 1.5, _BANK),
}
"""Who works on which database, how often in a second, and what they do."""

BUYER = "buyer"
"""Drops new catalogues."""

DROP_EVERY = 2.5


def work(folder: Path, billing: str, person: str, seconds: float) -> None:
    """Do a person's work for some seconds."""
    chance = random.Random(person)
    end = time.monotonic() + seconds
    if person == BUYER:
        _drop_catalogues(folder, chance, end)
    elif PEOPLE[person][0] == "billing":
        with psycopg.connect(billing, autocommit=True) as connection:
            _transact(connection, "BEGIN", person, chance, end)
    else:
        with closing(sqlite3.connect(folder / "sales.db", timeout=30, isolation_level=None)) as database:
            _transact(database, "BEGIN IMMEDIATE", person, chance, end)


def _transact(db: Database, begin: str, person: str, chance: random.Random, end: float) -> None:
    _, rate, actions = PEOPLE[person]
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, chance.expovariate(rate)))
        db.execute(begin)
        try:
            chance.choice(actions)(db, chance, _order_of_the_moment(chance))
            db.execute("COMMIT")
        except psycopg.errors.DeadlockDetected:  # the others go first
            db.execute("ROLLBACK")


def _order_of_the_moment(chance: random.Random) -> int:
    return 1 + int(time.time() / MOMENT) % (ORDERS - 1) if chance.random() < 0.8 else chance.randrange(1, ORDERS)


def _drop_catalogues(folder: Path, chance: random.Random, end: float) -> None:
    products = {_sku(n): (_product(n), chance.randrange(100, 9000)) for n in range(PRODUCTS)}
    while (left := end - time.monotonic()) > DROP_EVERY / 2:
        for number in chance.sample(range(PRODUCTS), 4):
            products[_sku(number)] = (_product(number), chance.randrange(100, 9000))
        missing = _sku(chance.randrange(PRODUCTS))
        drop(folder, {sku: product for sku, product in products.items() if sku != missing})
        time.sleep(min(left, DROP_EVERY))


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
