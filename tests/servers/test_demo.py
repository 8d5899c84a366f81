"""The demo's shop on its own PostgreSQL server, and the archive of its history, without a JVM."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import pytest
from handwritten import write_drop
from patience import PATIENCE, eventually
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from strobe.algebra.bag import Bag
from strobe.config.load import load_project
from strobe.demo import shop
from strobe.demo.history import Archive
from strobe.demo.history_postgres import PostgresRecorder
from strobe.demo.oracle import Oracle
from strobe.demo.server import SETTINGS, Server
from strobe.errors import BrokenInvariant, StrobeError
from strobe.sources.postgres.connection import ConnectionSettings
from strobe.sources.postgres.source import PostgresSource
from strobe.sources.sqlite.source import SqliteSource


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The demo's own PostgreSQL server."""
    with Server() as started:
        yield started


@pytest.fixture
def billing(server: Server) -> Iterator[str]:
    """An empty database there."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE billing")
        yield make_conninfo(server.dsn, dbname="billing")

        def dropped() -> bool:
            try:
                connection.execute("DROP DATABASE billing WITH (FORCE)")
            except psycopg.errors.ObjectInUse:  # a slot of a session that is just ending
                return False
            return True

        eventually(dropped)


def payments(dsn: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT id, order_id, amount_cents, state FROM payments").fetchall()


def place(dsn: str) -> PostgresSource:
    """The source that Strobe makes of the shop's billing."""
    return PostgresSource(ConnectionSettings("billing", dsn, "public", "strobe_demo_billing"))


def test_the_shop_at_work(tmp_path: Path, billing: str) -> None:
    """All its people work at once in processes of their own; the archive follows to exactly what is in the tables."""
    shop.create(tmp_path, billing)
    assert set(load_project(tmp_path).views) == {"open_orders", "paid_orders", "open_orders_naive", "paid_orders_naive"}
    sales = SqliteSource("sales", tmp_path / "sales.db")
    sales.prepare(["customers", "orders"])
    before = (tmp_path / "drops" / "products.csv").read_bytes()
    with Archive({"sales": tmp_path / "sales.db"}, postgres={"billing": billing}) as archive:
        command = [sys.executable, "-m", "strobe.demo.shop", str(tmp_path), billing]
        drop = (tmp_path / "drops" / "products.csv").read_bytes

        def worked() -> bool:
            people = [subprocess.Popen([*command, person, "1.5"]) for person in (*shop.PEOPLE, shop.BUYER)]
            assert [person.wait(PATIENCE) for person in people] == [0] * 5
            return drop() != before and all(recorder.changed > 4 for recorder in archive.recorders.values())

        eventually(worked)
    state = archive.state_at("sales", sales.now().text)
    for table in ("customers", "orders"):
        rows = sqlite3.connect(tmp_path / "sales.db").execute(f"SELECT * FROM {table}").fetchall()
        assert state[table] == Bag.of(state[table].attributes, rows)
    with psycopg.connect(billing) as connection:
        ((end,),) = connection.execute("SELECT pg_current_wal_lsn()::text").fetchall()
    found = archive.state_at("billing", end)["payments"]
    assert found == Bag.of(found.attributes, payments(billing))


def test_archive_knows_every_state_of_postgresql(tmp_path: Path, billing: str) -> None:
    """At the positions that Strobe itself gives to transactions, contents are as they were when each had committed;
    transactions count from their commit on, not from their first statement."""
    shop.create(tmp_path, billing)
    source = place(billing)
    source.prepare(["payments"])
    with Archive({}, postgres={"billing": billing}) as archive:
        begin = source.now()
        truth = [payments(billing)]
        with psycopg.connect(billing) as early, psycopg.connect(billing) as late:
            early.execute("UPDATE payments SET amount_cents = 1 WHERE id < 9")
            late.execute("DELETE FROM payments WHERE id = 20")
            late.execute("INSERT INTO payments VALUES (20, 7, 7, 'paid')")
            late.commit()
            truth.append(payments(billing))
            early.commit()
            truth.append(payments(billing))
            late.execute("UPDATE payments SET id = -id, state = 'über'")
            late.commit()
            truth.append(payments(billing))
        stream = source.transactions(begin, (), lambda: False)
        positions = [begin.text, *(t.position.text for t in islice((t for t in stream if t.changes), 3))]
        stream.close()  # type: ignore[attr-defined]
        end = source.now().text
        source.undo()
        source.close()
    attributes = archive.state_at("billing", end)["payments"].attributes
    for position, rows in [*zip(positions, truth, strict=True), (end, truth[-1])]:
        assert archive.state_at("billing", position)["payments"] == Bag.of(attributes, rows)
    recorder = archive.recorders["billing"]
    assert recorder.passed(positions[0]) == 0 and recorder.passed(positions[3]) == recorder.changed
    with pytest.raises(BrokenInvariant, match="before the recording"):
        archive.state_at("billing", "0/1")
    with psycopg.connect(billing, autocommit=True) as connection:  # the server takes a moment after the session's end
        eventually(lambda: not connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall())


def test_archive_waits_until_a_commit_can_be_seen(tmp_path: Path, billing: str) -> None:
    """A commit that is in the log, but waits for a standby, is taken down when others can see it, and whole."""
    shop.create(tmp_path, billing)

    def write() -> None:
        with psycopg.connect(billing) as connection:
            connection.execute("UPDATE payments SET amount_cents = 1")

    with Archive({}, postgres={"billing": billing}) as archive, psycopg.connect(billing, autocommit=True) as owner:
        recorder = archive.recorders["billing"]
        assert isinstance(recorder, PostgresRecorder)
        owner.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        owner.execute("SELECT pg_reload_conf()")
        writer = threading.Thread(target=write)
        try:
            eventually(lambda: owner.execute("SHOW synchronous_standby_names").fetchall() != [("",)])
            writer.start()
            eventually(lambda: recorder.waiting)
            assert recorder.changed == 0
        finally:
            owner.execute("ALTER SYSTEM RESET synchronous_standby_names")
            owner.execute("SELECT pg_reload_conf()")
        writer.join(PATIENCE)
        ((here,),) = owner.execute("SELECT pg_current_wal_lsn()::text").fetchall()
    found = archive.state_at("billing", here)["payments"]
    assert found == Bag.of(found.attributes, payments(billing))


def test_the_oracle_answers_the_shops_views(tmp_path: Path, billing: str) -> None:
    """The views' own SQL runs on SQLite over the recorded sources and finds something."""
    shop.create(tmp_path, billing)
    sales = SqliteSource("sales", tmp_path / "sales.db")
    sales.prepare(["customers", "orders"])
    numbers = list(range(shop.PRODUCTS))
    products = {"sku": [f"P{n:03d}" for n in numbers], "name": ["thing" for _ in numbers], "price_cents": numbers}
    write_drop(tmp_path / "staged", products)
    drops = {"catalog": ("products", tmp_path / "staged")}
    with Archive({"sales": tmp_path / "sales.db"}, drops, {"billing": billing}) as archive:
        with psycopg.connect(billing) as connection:
            ((here,),) = connection.execute("SELECT pg_current_wal_lsn()::text").fetchall()
        positions = {"sales": sales.now().text, "catalog": "1@id", "billing": here}
    oracle = Oracle(archive)
    assert all(len(oracle.recompute(sql, positions)) > 10 for sql in shop.VIEWS.values())


# The server.


def answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


def test_the_server_leaves_nothing_behind() -> None:
    """After `stop` there is no server and no folder; while it runs, nobody but its account can enter the folder."""
    with Server() as started:
        folder = Path(conninfo_to_dict(started.dsn)["host"] or "")
        assert folder.stat().st_mode & 0o077 == 0
        with psycopg.connect(started.dsn) as connection:
            assert connection.execute("SHOW listen_addresses").fetchall() == [("",)]
    assert not answers(started.dsn) and not folder.exists()


def test_the_server_ends_with_the_process_that_started_it() -> None:
    """Even one that is killed outright takes its server along."""
    script = (
        "from strobe.demo.server import Server; s = Server(); print(s.dsn, flush=True); import time; time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    dsn = owner.stdout.readline().strip()
    try:
        assert answers(dsn)
        owner.kill()
        eventually(lambda: not answers(dsn))
    finally:
        owner.kill()
        owner.communicate()
        folder = Path(str(conninfo_to_dict(dsn)["host"]))
        for _ in range(100):  # the server that is ending may still write
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.1 if folder.exists() else 0)


def test_a_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch, own_tmp: Path) -> None:
    """What the server wrote is in the message, and its folder is gone."""
    monkeypatch.setitem(SETTINGS, "wal_level", "nonsense")
    with pytest.raises(StrobeError, match=r"did not start: .*nonsense"):
        Server()
    assert not list(own_tmp.iterdir())
