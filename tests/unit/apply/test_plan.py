"""`strobe plan` on real SQLite projects: what an edit adds, rebuilds, drops, keeps and reads. Nothing is written."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from memory_live import HEAD

from strobe.apply import plan
from strobe.cli.main import main
from strobe.config.load import load_project
from strobe.errors import UserError
from strobe.events import Planned
from strobe.planning.topology import assemble
from strobe.warehouse.records import Definition

ORDERS = "SELECT o.id, o.state FROM sales.orders o"
PAID = "SELECT o.id, p.cents FROM sales.orders o JOIN billing.payments p ON p.order_id = o.id"
TABLES = {
    "sales": "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT); INSERT INTO orders VALUES (1, 'a'), (2, 'b')",
    "billing": "CREATE TABLE payments (id INTEGER PRIMARY KEY, order_id INTEGER, cents INTEGER);"
    "INSERT INTO payments VALUES (1, 1, 5)",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, script in TABLES.items():
        connection = sqlite3.connect(tmp_path / f"{name}.db")
        connection.executescript(script)
        connection.close()
    write(tmp_path, f'  orders: {{sql: "{ORDERS}"}}\n')
    assert main(["prepare", "--project", str(tmp_path)]) == 0
    return tmp_path


def write(folder: Path, views: str) -> None:
    (folder / "strobe.yml").write_text(HEAD + views)


def applied(**views: str) -> dict[str, Definition]:
    keys = {ORDERS: ("id",)}
    return {n: Definition(n, 1, sql, "", keys.get(sql.strip(), ()), 1, None, 0) for n, sql in views.items()}


def wanted(folder: Path, there: dict[str, Definition]) -> plan.ApplyPlan:
    topology = assemble(load_project(folder))
    try:
        return plan.edit(topology, there)
    finally:
        topology.sources.close()


def planned(folder: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["plan", "--project", str(folder), "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_becomes_of_views(folder: Path) -> None:
    """New ones are added, those with another SQL rebuilt, missing ones dropped, the rest kept."""
    write(folder, f'  orders: {{sql: "{ORDERS}"}}\n  paid: {{sql: "{PAID}"}}\n  more: {{sql: "{ORDERS}"}}\n')
    found = wanted(folder, applied(orders=f"{ORDERS}\n", paid=f"{PAID} WHERE p.cents > 1", gone=ORDERS))
    assert found == plan.ApplyPlan(add=("more",), rebuild=("paid",), drop=("gone",), keep=("orders",))
    assert str(Planned(found.add, found.rebuild, found.drop)) == "add more; rebuild paid; drop gone"


def test_copies_are_part_of_it(folder: Path) -> None:
    """A copy of a relation comes with the first view that caches it, and goes with the last."""
    copy = "copy__sales__orders"
    write(folder, f'  paid: {{sql: "{PAID}", cache: [sales.orders]}}\n')
    found = wanted(folder, applied(paid=PAID))
    assert (found.add, found.keep) == ((copy,), ("paid",))
    sql = assemble(load_project(folder)).views[copy].view.sql
    there = {**applied(paid=PAID), copy: Definition(copy, 1, sql, "", ("id",), 1, None, 0)}
    assert wanted(folder, there).nothing
    write(folder, f'  paid: {{sql: "{PAID}"}}\n')
    assert wanted(folder, there).drop == (copy,)


def test_a_rebuild_leaves_other_edits_alone(folder: Path) -> None:
    """Only the view that was named is loaded, with the copies that it lacks."""
    write(folder, f'  orders: {{sql: "{ORDERS} WHERE o.id > 1"}}\n  paid: {{sql: "{PAID}", cache: [sales.orders]}}\n')
    topology = assemble(load_project(folder))
    there = applied(orders=ORDERS, paid=PAID, gone=ORDERS)
    found = plan.rebuilt(topology, there, ["paid"], there)
    assert found == plan.ApplyPlan(("copy__sales__orders",), ("paid",), (), ("orders", "gone"))
    with pytest.raises(UserError, match="no view 'nothing'"):
        plan.rebuilt(topology, there, ["nothing"], there)


def test_the_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows are counted at the sources, each relation once, unknown where one is not prepared; nothing is written."""
    write(folder, f'  orders: {{sql: "{ORDERS}"}}\n  paid: {{sql: "{PAID}"}}\n')
    assert planned(folder, capsys)["reads"] == {"sales": {"orders": 2}, "billing": {"payments": None}}
    assert main(["plan", "--project", str(folder)]) == 0
    assert "unknown" in capsys.readouterr().out
    assert main(["prepare", "--project", str(folder)]) == 0
    assert planned(folder, capsys) == {
        "format": 1,
        "add": ["orders", "paid"],
        "rebuild": [],
        "drop": [],
        "keep": [],
        "reads": {"sales": {"orders": 2}, "billing": {"payments": 1}},
        "code": [],
        "stale": {},
    }
    assert main(["plan", "--project", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "sales.orders" in shown and "strobe apply" in shown
    assert not (folder / "warehouse").exists()


@pytest.mark.parametrize(
    ("views", "part"),
    [
        ('  bad: {sql: "SELECT o.id FROM sales.orders o LIMIT 3"}\n', "not supported"),
        ('  bad: {sql: "SELECT n.id FROM sales.nothing n"}\n', "nothing"),
        ('  bad: {sql: "SELECT o.nothing FROM sales.orders o"}\n', "nothing"),
        (f'  "a-b": {{sql: "{ORDERS}"}}\n', "not a name"),
        (f'  one: {{sql: "{ORDERS}"}}\n  one: {{sql: "{ORDERS}"}}\n', "twice"),
        (f'  copy__x: {{sql: "{ORDERS}"}}\n', "copies"),
    ],
    ids=["SQL", "table", "column", "identifier", "two of one name", "reserved"],
)
def test_mistakes(folder: Path, capsys: pytest.CaptureFixture[str], views: str, part: str) -> None:
    """Exit code 2 and what is wrong, from `plan` and from `apply`; nothing is written but why it failed."""
    write(folder, views)
    assert part in planned(folder, capsys, code=2)["error"]["message"]
    assert main(["apply", "--project", str(folder)]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (folder / "warehouse" / "log").exists()


def test_a_source_that_cannot_be_reached(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the source."""
    write(folder, f'  paid: {{sql: "{PAID}"}}\n')
    (folder / "billing.db").unlink()
    assert "billing" in str(planned(folder, capsys, code=2)["error"])


def test_a_view_that_failed_is_named_in_status(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With why, until it is mended; the others are only pending."""
    bad = '  orders: {sql: "SELECT o.id FROM sales.orders o"}\n  bad: {sql: "SELECT o.nothing FROM sales.orders o"}\n'
    write(folder, bad)
    assert main(["apply", "--project", str(folder)]) == 2
    capsys.readouterr()
    assert main(["status", "--project", str(folder), "--json"]) == 0
    views = json.loads(capsys.readouterr().out)["views"]
    assert "nothing" in views["bad"]["failed"]
    assert (views["bad"]["pending"], views["orders"]["pending"], views["orders"]["failed"]) == ("add", "add", None)
    assert main(["status", "--project", str(folder)]) == 0
    assert "view bad: `strobe apply` failed" in capsys.readouterr().out


def test_rows_that_repeat_where_they_did_not(folder: Path) -> None:
    """A view whose key is another one has another table."""
    there = {"orders": Definition("orders", 1, ORDERS, "", (), 1, None, 0)}
    assert wanted(folder, there).rebuild == ("orders",)
