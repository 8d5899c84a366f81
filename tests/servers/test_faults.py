"""Faults of networks, servers and operators, one after the other, while the real coordinator keeps a view.

Each either passes by itself, with every commit a state of the databases and nothing lost or doubled, or it stops with
what to do. See docs/faults.md for all of them; test_faults_past.py has other pasts,
tests/spark/test_warehouse_faults.py what concerns the warehouse.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack, closing
from datetime import datetime, timedelta, timezone
from itertools import product
from typing import Any

import psycopg
import pytest
from faults import Crash, Past, World, end_connections, end_server, other_passwords, paused
from memory_live import contents
from patience import PATIENCE, Writing, eventually

from strobe.coordinator.status import MaintainedView, observe
from strobe.errors import AccessRefused, SourceUnavailable
from strobe.messages import Transaction
from strobe.pipeline import read_ahead
from strobe.pipeline.backpressure import Limits
from strobe.pipeline.read_ahead import ReadAhead
from strobe.simulator.world import Contents

# The network.


@pytest.mark.parametrize("reset", [False, True])
def test_connections_that_are_cut(world: World, reset: bool) -> None:
    """Every connection to both servers ends, again and again: in order, and by a reset."""

    def fault() -> None:
        for _ in range(5):
            world.more()
            for proxy in world.proxies.values():
                proxy.cut(reset=reset)

    world.keep(world.pipeline(), 1, fault)
    world.judge()


def test_a_reset_in_the_middle_of_an_answer(world: World) -> None:
    """After any number of bytes of what the servers send: of a stream, of an answer, of a greeting."""
    rng = random.Random(7)

    def fault() -> None:
        for times in range(1, 7):
            for proxy in world.proxies.values():
                proxy.break_after(rng.randint(1, 4000))
            eventually(lambda times=times: all(proxy.broken == times for proxy in world.proxies.values()))  # type: ignore[misc]

    world.keep(world.pipeline(), 2, fault)
    world.judge()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_bytes_of_the_log_that_are_damaged(impatient: None, world: World, seed: int) -> None:
    """Changed, lost and doubled, on their way from the servers: changed ones of MariaDB's, which has checksums. What is
    committed is right, and the log is read again."""
    rng = random.Random(seed)

    def lost(data: bytes) -> bytes:
        at = rng.randrange(len(data))
        return data[:at] + data[at + rng.randint(1, 9) :]

    def doubled(data: bytes) -> bytes:
        at = rng.randrange(len(data))
        return data[:at] + data[at : at + rng.randint(1, 9)] + data[at:]

    def changed(data: bytes) -> bytes:
        at = rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]

    def fault() -> None:
        for times in range(1, 10):
            for name, proxy in world.proxies.items():
                proxy.damage(rng.choice([lost, doubled, *([changed] if name == "billing" else [])]))
            eventually(lambda times=times: all(proxy.damaged == times for proxy in world.proxies.values()))  # type: ignore[misc]

    world.keep(world.pipeline(), 2, fault)
    world.judge()


def test_connections_that_stall(impatient: None, world: World) -> None:
    """They stay open and carry nothing: they are given up, and made anew until one is of use."""

    def fault() -> None:
        world.more()
        for proxy in world.proxies.values():
            proxy.stall()
        eventually(lambda: all(isinstance(pipeline.problem(name), SourceUnavailable) for name in world.proxies))
        for proxy in world.proxies.values():
            proxy.go_on()

    pipeline = world.pipeline()
    world.keep(pipeline, 1, fault)
    world.judge()


# A load.


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *product(["sales", "billing"], ["cut", "stalled", "killed", "paused", "ended", "refused"]),
        *(
            pytest.param(name, how, marks=pytest.mark.slow)
            for name, how in product(["sales", "billing"], ["reset", "stopped"])
        ),
    ],
)
def test_a_half_done_snapshot_is_repeated(impatient: None, world: World, name: str, how: str) -> None:
    """A load that is interrupted in the middle fails as a whole; another one is exactly the state at its position."""
    world.sql("INSERT INTO orders SELECT n, 1, repeat('x', 100) FROM generate_series(100, 6000) n")
    world.mariadb.run(
        "INSERT INTO payments SELECT seq, seq, 1 FROM seq_100_to_20000",
        "SET sql_log_bin = 0",
        "CREATE TABLE wide (id INT PRIMARY KEY, note LONGTEXT)",  # MariaDB sends what fits into the sockets at once
        "INSERT INTO wide SELECT seq, repeat('x', 1000000) FROM seq_1_to_20",
        database=world.billing,
    )
    proxy, source = world.proxies[name], world.topology.sources[name]
    relation, columns = ("orders", ("id", "state")) if name == "sales" else ("wide", ("id", "note"))
    reader = source.reader(at_a_position=True)
    reader.open()
    proxy.break_after(50_000, stall=True)
    given_up, refused = threading.Event(), ExitStack()

    def fault() -> None:
        eventually(lambda: proxy.stalled)
        if how == "refused":
            refused.enter_context(other_passwords(world))
        if how in ("killed", "stopped"):
            end_server(world, name, killed=how == "killed")
        elif how == "ended":
            end_connections(world, name)
        elif how == "paused":
            with paused(world.postgres, world.mariadb):
                proxy.go_on()
                assert given_up.wait(PATIENCE)
        if how in ("killed", "stopped", "cut", "reset", "refused"):
            proxy.cut(reset=how == "reset")
        elif how == "ended":
            proxy.go_on()

    disturbing = threading.Thread(target=fault)
    disturbing.start()
    try:
        with pytest.raises(SourceUnavailable):
            list(reader.scan(relation, columns))
    finally:
        given_up.set()
        disturbing.join()
    reader.close()
    proxy.go_on()
    with refused:
        if how == "refused":
            with pytest.raises(AccessRefused):
                contents(world.topology, name)
    if how in ("killed", "stopped"):
        (world.postgres if name == "sales" else world.mariadb).start()
    writing = Writing(PATIENCE)
    writer = threading.Thread(target=world.write, args=(name, writing))
    writer.start()
    text, state = world.loaded(name)
    writing.stop()
    writer.join()
    past = Past(world.topology, {name: world.start[name]})
    assert past.state(world.topology, name, text) == state
    assert max(len(rows) for rows in state.values()) > 5000


# Servers.


@pytest.mark.parametrize("killed", [True, False])
def test_servers_that_are_killed_and_restarted(world: World, killed: bool) -> None:
    """Both, with -9 or in order, in the middle of everything."""

    def fault() -> None:
        world.more()
        for name in world.proxies:
            end_server(world, name, killed=killed)
        time.sleep(0.3)
        world.mariadb.start()
        world.postgres.start()

    world.keep(world.pipeline(), 1, fault)
    world.judge()


def test_servers_that_are_paused(impatient: None, world: World) -> None:
    """Their processes stand still for longer than anybody waits, and go on."""

    def fault() -> None:
        world.more()
        with paused(world.postgres, world.mariadb):
            eventually(lambda: all(isinstance(pipeline.problem(name), SourceUnavailable) for name in world.proxies))

    pipeline = world.pipeline()
    world.keep(pipeline, 1, fault)
    world.judge()


def test_streams_that_the_server_ends(world: World) -> None:
    """`pg_terminate_backend` and `KILL`, of streams and of whoever asks questions."""

    def fault() -> None:
        for _ in range(6):
            world.more()
            for name in world.proxies:
                end_connections(world, name)

    world.keep(world.pipeline(), 1, fault)
    world.judge()


def test_a_password_that_is_changed(world: World) -> None:
    """The view stands still and the problem says what to do, without the secret; with the old password back it goes
    on."""
    pipeline = world.pipeline()

    def fault() -> None:
        world.more()
        with other_passwords(world):
            for proxy in world.proxies.values():
                proxy.cut()
            for name in world.proxies:
                eventually(lambda name=name: isinstance(pipeline.problem(name), AccessRefused))  # type: ignore[misc]
                problem = str(pipeline.problem(name))
                assert f"source {name}" in problem and "right user and password" in problem
                assert "least-privilege" not in problem and "s3cret" not in problem
            said = observe(pipeline).views.values()
            assert all(isinstance(view, MaintainedView) for view in said)
            assert all("right user and password" in (view.problem or "") for view in said)

    world.keep(pipeline, 1, fault)
    world.judge()


# Ways to lose or double rows.


def test_restarts_between_the_commit_and_the_confirmation(world: World) -> None:
    """The coordinator is killed again and again, sometimes with the slot confirmed and sometimes not; transactions
    with several changes have one position, and are in one commit or in none."""
    rng = random.Random(3)
    for turn in range(5):
        pipeline = world.restarted()

        def fault(pipeline: Any = pipeline, confirm: bool = turn % 2 == 0) -> None:
            world.more(2)
            time.sleep(rng.random() / 2)
            if confirm:
                world.confirm()
            pipeline.fail(Crash())

        with pytest.raises(Crash):
            world.keep(pipeline, 1, fault, pause=0.005)
    world.keep(world.restarted(), 0.3)
    world.judge(commits=10)


def test_a_transaction_that_stays_open_for_long(world: World) -> None:
    """It wrote before the load and everybody else and commits after all of them, across a restart and the confirmation
    of all that came in between; its many changes come with one position, once."""
    with (
        psycopg.connect(world.postgres.admin_dsn(world.database)) as one,
        closing(world.mariadb.connect(world.billing)) as other,
        other.cursor() as cursor,
    ):
        one.execute("INSERT INTO orders SELECT n, 1, 'late' FROM generate_series(500, 699) n")
        cursor.execute("INSERT INTO payments SELECT -seq - 1000000, seq, 1 FROM seq_500_to_699")
        world.load()
        world.keep(world.pipeline(), 1)
        world.confirm()
        world.keep(world.restarted(), 1)
        world.confirm()
        assert not any(row[0] >= 500 for row, _ in world.loaded("sales")[1]["orders"].items())
        one.commit()
        other.commit()
        world.keep(world.restarted(), 0.5)
    before = len(world.warehouse.commits)
    past = world.judge()
    assert before == len(world.warehouse.commits)
    orders = past.state(world.topology, "sales", world.last.positions["v"]["sales"])["orders"]
    assert len([row for row, _ in orders.items() if row[0] >= 500]) == 200


def test_a_burst_of_ten_times_the_load(world: World) -> None:
    """The view-update table stays near its bound, the sources keep what does not fit, and all of it comes in. Loads
    under such writers are exactly the states at their positions."""
    pipeline, sizes, loads = world.pipeline(limits=Limits(updates=50)), [0], dict[str, tuple[str, Contents]]()

    def fault() -> None:
        world.more()
        burst = [
            threading.Thread(target=world.write, args=(name, 1.5, 0.003, seed))
            for name in world.proxies
            for seed in range(10, 13)
        ]
        for thread in burst:
            thread.start()
        for name in world.proxies:
            loads[name] = world.loaded(name)
        while any(thread.is_alive() for thread in burst):
            sizes.append(pipeline.engine.size)
            time.sleep(0.01)

    world.keep(pipeline, 2, fault, pause=0.03, commits=50)
    past = world.judge(commits=50)
    assert len(loads) == 2
    for name, (text, state) in loads.items():
        assert past.state(world.topology, name, text) == state
    assert max(sizes) < 1500  # 50, what is on its way, and what answers wait for


def test_a_backlog_after_a_downtime(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer has seen the end of it. It is read ahead into a file, and no more is in memory than under any other
    load; every commit is a state of the databases, at complete each of them."""
    writers = [threading.Thread(target=world.write, args=(name, 1.5, 0.001, 20)) for name in world.proxies]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    limits = Limits(updates=20, queued=10)
    pipeline, ahead, sizes = world.pipeline(limits=limits), list[int](), list[int]()
    add = ReadAhead.add

    def added(self: ReadAhead, transaction: Transaction) -> None:
        add(self, transaction)
        ahead.append(len(self))
        sizes.append(pipeline.engine.size)

    monkeypatch.setattr(ReadAhead, "add", added)
    monkeypatch.setattr(read_ahead, "CHUNK", 5)
    world.keep(pipeline, 0.5, commits=50)
    world.judge(commits=50)
    assert max(ahead) > 100
    assert max(sizes) <= limits.updates + limits.queued + 5


def test_a_clock_that_is_moved(world: World) -> None:
    """Back by a day, forth by two, at every commit: the times of commits never go back, and the states do not care."""
    rng = random.Random(5)

    def moved() -> datetime:
        return datetime.now(timezone.utc) + timedelta(days=rng.choice([-1, 0, 2]))

    world.keep(world.pipeline(now=moved), 1)
    world.keep(world.restarted(now=moved), 0.5)
    times = [commit.header.committed_at for commit in world.warehouse.commits]
    assert times == sorted(set(times)) and times[0] > datetime.now(timezone.utc) - timedelta(days=2)
    world.judge()
