"""Which views have to be rebuilt though strobe.yml did not change: `strobe plan` and `strobe rebuild --stale`."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from memory_live import HEAD

from strobe.apply import plan
from strobe.cli.commands import rebuild
from strobe.cli.main import main
from strobe.client import local, stale
from strobe.client.stale import stale_views
from strobe.config.load import load_project
from strobe.config.model import Project
from strobe.messages import CommitHeader
from strobe.planning.source_set import SourceSet
from strobe.warehouse.control.heartbeat import write_heartbeat
from strobe.warehouse.layout import Layout
from strobe.warehouse.records import Definition

VIEWS = {
    "orders": "SELECT o.id FROM sales.orders o",
    "paid": "SELECT p.id FROM billing.payments p",
    "both": "SELECT o.id, p.id AS payment FROM sales.orders o JOIN billing.payments p ON p.id = o.id",
}
TABLES = {"sales": "orders", "billing": "payments"}


def make(folder: Path, name: str) -> None:
    with sqlite3.connect(folder / f"{name}.db") as connection:
        connection.execute(f"CREATE TABLE {TABLES[name]} (id INTEGER PRIMARY KEY)")
    connection.close()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Project:
    """Three views, as a warehouse would have them that was loaded a moment ago."""
    for name in TABLES:
        make(tmp_path, name)
    (tmp_path / "strobe.yml").write_text(HEAD + "".join(f'  {n}: {{sql: "{sql}"}}\n' for n, sql in VIEWS.items()))
    assert main(["prepare", "--project", str(tmp_path)]) == 0
    project = load_project(tmp_path)
    applied = {n: Definition(n, 1, sql, "", ("id",), 1, None, 0) for n, sql in VIEWS.items()}
    applied["gone"] = Definition("gone", 1, VIEWS["orders"], "", ("id",), 1, None, 0, wrong="no matter")
    with SourceSet.open(project) as sources:
        now = {name: source.now().text for name, source in sources.items()}
        identity = {name: source.identity() for name, source in sources.items()}
    vectors = {"orders": {"sales": now["sales"]}, "paid": {"billing": now["billing"]}, "both": now}
    header = CommitHeader(1, datetime.now(timezone.utc), vectors, {}, identity, dict.fromkeys(VIEWS, 1), 1)
    monkeypatch.setattr(plan, "applied", lambda _: applied)
    for module in (stale, local):
        monkeypatch.setattr(module, "last_header", lambda _: header)
    return project


def replace_database(folder: Path, name: str) -> None:
    (folder / f"{name}.db").unlink()
    make(folder, name)
    assert main(["prepare", name, "--project", str(folder)]) == 0


def test_views_of_another_database_are_stale(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a coordinator the sources are looked at; `strobe plan` names the views and the reason."""
    assert stale_views(project) == {}
    replace_database(project.directory, "billing")
    assert stale_views(project).keys() == {"paid", "both"}
    capsys.readouterr()
    assert main(["plan", "--project", str(project.directory)]) == 0
    shown = capsys.readouterr().out
    assert "another database" in shown and "strobe rebuild --stale" in shown
    (project.directory / "sales.db").rename(project.directory / "away.db")
    assert stale_views(project).keys() == {"paid", "both"}, "one that cannot be reached may be well"


def test_the_coordinator_says_which_views_are_stale(project: Project) -> None:
    """While it runs it is believed, and what it said last is believed afterwards; only of views of strobe.yml."""
    replace_database(project.directory, "billing")
    said: dict[str, Any] = {"orders": {"stale": True, "rebuild": True, "problem": "table orders was dropped"}}
    said |= {"paid": {"stale": True, "rebuild": False, "problem": "wrong password"}, "gone": said["orders"]}
    control = Layout(project.warehouse).control
    write_heartbeat(control, {"views": said})
    assert stale_views(project) == {"orders": "table orders was dropped"}
    write_heartbeat(control, {"views": said, "stopped": True})
    assert stale_views(project).keys() == {"orders", "paid", "both"}


def test_all_stale_views_are_rebuilt_at_once(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one request, so in one commit; with nothing to do, nobody is asked."""
    asked: list[dict[str, Any]] = []

    def change(_project: Project, wanted: dict[str, Any], *_: Any) -> dict[str, Any]:
        asked.append(wanted)
        return {"commit": 8}

    def rebuilt(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main(["rebuild", *arguments, "--project", str(project.directory), "--json"]) == code
        return json.loads(capsys.readouterr().out)

    monkeypatch.setattr(local, "change", change)
    assert rebuild.SECONDS
    assert rebuilt("--stale") == {"format": 1, "view": None, "views": [], "commit": 1} and not asked
    replace_database(project.directory, "billing")
    assert rebuilt("--stale")["views"] == ["paid", "both"]
    assert rebuilt("orders") == {"format": 1, "view": "orders", "views": ["orders"], "commit": 8}
    assert asked == [{"kind": "rebuild", "views": ["paid", "both"]}, {"kind": "rebuild", "views": ["orders"]}]
    for wrong in ((), ("orders", "--stale")):
        assert "name a view, or use --stale" in rebuilt(*wrong, code=2)["error"]["message"]
