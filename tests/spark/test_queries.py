"""Queries that the running coordinator answers with its own Spark."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import pytest
from patience import eventually
from pyspark.sql import SparkSession
from service_shop import Shop

import strobe
from strobe.cli.main import main
from strobe.client.query import Queries, Result
from strobe.config.load import load_project
from strobe.errors import UserError
from strobe.events import Event
from strobe.report.rows import columns, rows
from strobe.warehouse import query
from strobe.warehouse.control import query_socket
from strobe.warehouse.control.query_socket import ERROR, HEAD, LONGEST_QUERY, QUERY
from strobe.warehouse.layout import Layout

pytestmark = [pytest.mark.spark, pytest.mark.live]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Shop]:
    shop = Shop(tmp_path_factory.mktemp("queries"), spark)
    with shop.running():
        yield shop


def ask(shop: Shop, text: str, limit: int | None = None) -> Result:
    """Answered by the coordinator: nothing says that Spark is started."""
    said: list[Event] = []
    with Queries(load_project(shop.folder), said.append) as queries:
        found = queries.ask(text, limit=limit)
        result = Result(found.commit, found.columns, iter(list(found.batches)))
    assert said == []
    return result


def test_the_coordinator_answers_at_its_newest_commit(shop: Shop) -> None:
    result = ask(shop, "SELECT count(*) AS n FROM paid")
    assert columns(result) == [{"name": "n", "type": "bigint"}]
    assert result.commit >= 1
    assert len(list(rows(result))) == 1


def test_a_connection_answers_one_query_after_another(shop: Shop) -> None:
    """A mistake in one of them does not end it."""
    with Queries(load_project(shop.folder), lambda _: None) as queries:
        assert list(rows(queries.ask("SELECT 1 AS a"))) == [[1]]
        with pytest.raises(UserError, match="nothing") as refused:
            queries.ask("SELECT nothing FROM paid")
        assert "paid" in refused.value.fix
        with pytest.raises(UserError, match="DIVIDE_BY_ZERO"):
            list(queries.ask("SELECT 1 / (id - id) FROM range(3)").batches)
        assert list(rows(queries.ask("SELECT 2 AS a", at=1))) == [[2]]


def test_many_rows_come_in_their_order(shop: Shop) -> None:
    """More than come at once: they are streamed, partition by partition."""
    many = query.FEW * 7
    result = ask(shop, f"SELECT id FROM range({many}) ORDER BY id DESC")
    assert [int(row[0]) for row in rows(result)] == list(range(many - 1, -1, -1))
    assert len(list(rows(ask(shop, f"SELECT id FROM range({many})", limit=5)))) == 5


def test_a_reader_that_goes_away_takes_its_jobs_with_it(shop: Shop, spark: SparkSession) -> None:
    """The job that runs for it is cancelled, and the coordinator answers the next reader."""
    tracker = spark.sparkContext.statusTracker()
    connection = query_socket.connect(Layout(shop.warehouse).control)
    assert connection is not None
    before = set(tracker.getActiveJobsIds())
    endless = "SELECT sum(hash(id)) FROM range(10000000000000)"
    query_socket.send(connection, QUERY, {"query": endless, "at": None, "limit": None})
    eventually(lambda: set(tracker.getActiveJobsIds()) - before)
    connection.close()
    eventually(lambda: not set(tracker.getActiveJobsIds()) - before)
    assert list(rows(ask(shop, "SELECT 1"))) == [[1]]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"query": 1, "at": null, "limit": null}'),
        *(b'{"query": "SELECT 1", "at": "soon", "limit": null}', b'{"query": "SELECT 1", "at": null, "limit": -1}'),
    ],
    ids=lambda content: content[:60].decode(errors="replace"),
)
def test_what_is_no_query_is_refused(shop: Shop, content: bytes) -> None:
    connection = query_socket.connect(Layout(shop.warehouse).control)
    assert connection is not None
    with connection:
        query_socket.send(connection, QUERY, content)
        kind, answer = query_socket.receive(connection) or pytest.fail("no answer")
        assert (kind, json.loads(answer)["code"]) == (ERROR, "user")
        query_socket.send(connection, QUERY, {"query": "SELECT 1", "at": None, "limit": None})
        assert (query_socket.receive(connection) or pytest.fail("no answer"))[0] == HEAD


def test_a_query_that_is_too_long_ends_its_connection_and_no_other(shop: Shop) -> None:
    connection = query_socket.connect(Layout(shop.warehouse).control)
    assert connection is not None
    with connection:
        connection.sendall(QUERY + (LONGEST_QUERY + 1).to_bytes(8, "big"))
        with suppress(ConnectionResetError):
            assert query_socket.receive(connection) is None
    assert list(rows(ask(shop, "SELECT 1"))) == [[1]]


def test_a_reader_that_stops_reading_ends_quietly(shop: Shop) -> None:
    """`strobe sql … | head` prints what was wanted, says nothing, and exits with 0."""
    command = [sys.executable, "-m", "strobe", "sql", "--project", str(shop.folder), "--format", "csv"]
    process = subprocess.Popen(
        [*command, "SELECT id FROM range(300000)"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert [process.stdout.readline() for _ in range(2)] == ["id\n", "0\n"]
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 0


def test_values_survive_as_documents(shop: Shop) -> None:
    """What JSON numbers cannot hold is text, instants are UTC whatever the local zone, and names may repeat."""
    result = ask(
        shop,
        "SELECT 9007199254740993L AS n, 7 AS n, 1.50BD AS d, X'00ff' AS b, double('NaN') AS f, 0.5D AS h, "
        "date'2026-01-05' AS day, timestamp'2026-03-29T01:30:00.000001Z' AS t, true AS y, NULL AS nothing, "
        "array(1L, 2L) AS a, 'ärger' AS s",
    )
    assert [column["name"] for column in columns(result)][:3] == ["n", "n", "d"]
    (row,) = json.loads(json.dumps(list(rows(result))))
    assert row[:6] == ["9007199254740993", 7, "1.50", "AP8=", "NaN", 0.5]
    assert row[6:] == ["2026-01-05", "2026-03-29T01:30:00.000001+00:00", True, None, ["1", "2"], "ärger"]


def test_without_a_coordinator_a_spark_is_started_and_said_so(shop: Shop, tmp_path: Path, spark: SparkSession) -> None:
    """The socket of the coordinator is another warehouse's: nobody answers for this one."""
    own = Shop(tmp_path, spark)
    own.coordinator().run(until_idle=True)
    said: list[Event] = []
    with Queries(load_project(own.folder), said.append) as queries:
        result = queries.ask("SELECT count(*) FROM paid", at=datetime.now(timezone.utc))
        assert len(list(rows(result))) == 1
    assert ["takes a while" in str(event) for event in said] == [True]


def test_a_socket_without_a_listener_is_no_coordinator(tmp_path: Path) -> None:
    control = Layout(tmp_path / "warehouse").control
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(query_socket.address(control)))
    assert query_socket.connect(control) is None


READERS = (["history"], ["status"], ["pin", "--engine", "duckdb"], ["sql", "SELECT count(*) FROM paid"])


@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
def test_readers_need_the_warehouse_alone(
    shop: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    """Without the project's folder, and with a project whose secrets are not set."""
    yml = re.sub(r"path: (\w+\.db)", r'path: "${NOT_SET_HERE}/\1"', (shop.folder / "strobe.yml").read_text())
    (tmp_path / "strobe.yml").write_text(f"{yml}warehouse: {shop.warehouse}\n")
    found = []
    for where in (["--warehouse", str(shop.warehouse)], ["--project", str(tmp_path)]):
        assert main([*command, *where, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    if command == ["status"]:
        assert found[0].keys() == found[1].keys()
        assert "NOT_SET_HERE is not set" in found[1]["sources"]["sales"]["warning"]
        assert found[0]["sources"]["sales"]["state"] == "watched"
        assert found[0]["views"]["paid"]["rows"] == found[1]["views"]["paid"]["rows"]
    else:
        assert found[0] == found[1]


def test_a_wait_without_the_sources_asks_the_coordinator(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """It returns when what was written before is visible; what cannot be waited for is said at once."""
    counted = "SELECT count(*) FROM pairs WHERE state = 'seen'"
    assert list(rows(ask(shop, counted))) == [["0"]]
    shop.write("sales", "INSERT INTO orders VALUES (900, 3, 'seen')")
    assert main(["wait", "--warehouse", str(shop.warehouse), "--timeout", "120", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["positions"].keys() == {"sales", "billing"}
    seen = ask(shop, counted)
    assert seen.commit >= found["commit"]
    assert list(rows(seen)) == [["2"]]
    assert main(["wait", "nothing", "--warehouse", str(shop.warehouse)]) == 3
    assert "view nothing is not kept" in capsys.readouterr().err


def test_a_folder_without_a_warehouse_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "--warehouse", str(tmp_path)]) == 2
    assert "there is no warehouse here" in capsys.readouterr().err
    with pytest.raises(UserError, match="no warehouse"):
        strobe.open(warehouse=tmp_path)
