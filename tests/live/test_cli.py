"""One small project, from `strobe init` to `strobe audit`, with a coordinator that runs as a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ports
import pytest
from paths import ROOT

import strobe
from strobe.cli.main import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.usefixtures("spark")]

SOURCES = ROOT / "src"
QUERY = "SELECT order_id, amount, placed FROM paid_orders ORDER BY order_id"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The example project without its CSV drop, prepared."""
    folder = tmp_path / "shop"
    assert main(["init", str(folder)]) == 0
    text = (folder / "strobe.yml").read_text()
    text = re.sub(r"  catalog:\n(    .*\n)*", "", text)
    settings = 'spark: {spark.master: "local[2]", spark.driver.memory: 1g, spark.sql.shuffle.partitions: 2}\n'
    (folder / "strobe.yml").write_text(text + settings)
    (folder / "views" / "order_lines.sql").unlink()
    assert main(["prepare", "--project", str(folder)]) == 0
    return folder


def command(shop: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "strobe", *arguments, "--project", str(shop)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCES)}


def ask(shop: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run a command as a process."""
    given = command(shop, *arguments, "--json")
    done = subprocess.run(given, capture_output=True, text=True, env=environment(), timeout=400)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def here(capsys: pytest.CaptureFixture[str], shop: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run a command in this process, which has a JVM already."""
    capsys.readouterr()
    assert main([*arguments, "--project", str(shop), "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@contextmanager
def running(shop: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`strobe run`, ended cleanly afterwards."""
    process = subprocess.Popen(
        command(shop, "run", *options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(120)
            finally:
                process.kill()


def write(shop: Path, database: str, sql: str) -> None:
    with closing(sqlite3.connect(shop / database)) as connection:
        connection.executescript(sql)


def test_from_init_to_audit(shop: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Run, write, wait, read, look, be refused, fold, rebuild, audit, stop: as a user does it, in one go."""
    recorded = shop / "messages.jsonl"
    port = ports.claim()
    with running(shop, "--record", str(recorded), "--metrics", str(port)) as process:
        ask(shop, "wait", "--timeout", "300")
        write(shop, "billing.db", "INSERT INTO payments VALUES (4, 104, 7.50, 'card', 'paid')")
        reached = ask(shop, "wait", "paid_orders", "--timeout", "300")
        assert reached["commit"] >= 2

        status = ask(shop, "status")
        assert status["coordinator"]["alive"]
        assert status["coordinator"]["pid"] == process.pid
        assert (status["views"]["paid_orders"]["rows"], status["sources"]["billing"]["lag_seconds"]) == (3, 0)
        assert (status["waiting"]["rows"], status["sources"]["shop"]["asked"]["queries"] > 0) == (0, True)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as metrics:
            assert f'strobe_commits_total{{project="example"}} {status["commit"]}.0' in metrics.read().decode()
        refused = ask(shop, "run", "--until-idle", code=3)["error"]
        assert f"process {process.pid}" in refused["message"]

        found = here(capsys, shop, "sql", QUERY)
        assert found["columns"][1] == {"name": "amount", "type": "decimal(10,2)"}
        assert found["rows"][-1] == ["104", "7.50", "2026-01-09"]
        assert len(here(capsys, shop, "sql", QUERY, "--at", "1")["rows"]) == 2
        assert (
            "NOTHING"
            in here(capsys, shop, "sql", "SELECT nothing FROM paid_orders", code=2)["error"]["message"].upper()
        )

        assert here(capsys, shop, "fold")["commit"] == status["commit"]
        pinned = ask(shop, "pin", "--engine", "duckdb")
        assert (pinned["commit"], list(pinned["tables"])) == (status["commit"], ["paid_orders"])
        rebuilt = here(capsys, shop, "rebuild", "paid_orders")
        assert rebuilt["commit"] > status["commit"]
        audited = here(capsys, shop, "audit")
        assert audited["verdict"] == "valid"

        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out
        assert "Traceback" not in out
    assert recorded.read_text().count('{"Transaction"') >= 1
    assert ask(shop, "status")["coordinator"]["alive"] is False
    commits = ask(shop, "history", "--limit", "0")["commits"]
    assert [c["commit"] for c in commits] == list(range(len(commits), 0, -1))
    assert ["paid_orders"] in [c["views"] for c in commits]
    assert ask(shop, "wait", "--timeout", "60")["positions"].keys() == {"shop", "billing"}

    with strobe.open(shop, spark) as warehouse, warehouse.pin() as pin:
        table, counted = pin.table("paid_orders"), pin.sql("SELECT count(*) AS n FROM paid_orders")
        assert (table.count(), counted.collect()[0].n, pin.commit) == (3, 3, commits[0]["commit"])
        assert warehouse.table("paid_orders", at=commits[-1]["committed_at"]).count() == 2
    assert here(capsys, shop, "fold")["commit"] == commits[0]["commit"]
    assert here(capsys, shop, "rebuild", "paid_orders")["commit"] == commits[0]["commit"] + 1
