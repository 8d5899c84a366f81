"""The command line without a JVM: documents, exit codes, messages, and that looking never starts Spark."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import typer
from paths import ROOT
from patience import PATIENCE
from rich.console import Console
from rich.live import Live
from rich.text import Text

from strobe.api import parse_at
from strobe.cli import render
from strobe.cli.main import app, main
from strobe.cli.reporter import LiveReporter, Loads, LogReporter
from strobe.cli.signals import serve
from strobe.cli.terminal import Terminal
from strobe.client import wait
from strobe.config.load import load_project
from strobe.coordinator.status import Appends, Backlog, MaintainedView, StaleView, Status, WatchedSource
from strobe.errors import Fenced, NotNow, StrobeError, UserError
from strobe.events import CoordinatorAwaited, Event, Loading, RowsRead
from strobe.messages import CommitHeader
from strobe.pipeline.answerer import QueryCounts
from strobe.planning.source_set import SourceSet
from strobe.redaction import learn
from strobe.sources.base import NotUndone
from strobe.sources.sqlite.source import SqliteSource
from strobe.warehouse.control.heartbeat import write_heartbeat
from strobe.warehouse.layout import Layout


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example project of `strobe init`, as the current folder."""
    folder = tmp_path / "shop"
    assert main(["init", str(folder)]) == 0
    monkeypatch.chdir(folder)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(arguments)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def document(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    found, out, err = run(capsys, *arguments, "--json")
    assert (found, err) == (code, "")
    read: dict[str, Any] = json.loads(out)
    assert read["format"] == 1
    return read


def only_sqlite(shop: Path) -> None:
    """Leave the CSV drop away."""
    text = (shop / "strobe.yml").read_text()
    (shop / "strobe.yml").write_text(re.sub(r"  catalog:\n(    .*\n)*", "", text))
    (shop / "views" / "order_lines.sql").unlink()


# Making projects.


def test_a_project_for_ones_own_sources(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source of each type, with what has to be set and done next; what is written can be read, and the editor's
    schema lies beside it."""
    folder = tmp_path / "My shop"
    made = document(capsys, "init", str(folder), "--sources", "postgres,mysql,mysql,mariadb,sqlite,files,delta")
    assert [line.split("=")[0] for line in made["next"][:4]] == [
        "export POSTGRES_DSN", "export MYSQL_DSN", "export MYSQL2_DSN", "export MARIADB_DSN"
    ]  # fmt: skip
    for variable in ("POSTGRES_DSN", "MYSQL_DSN", "MYSQL2_DSN", "MARIADB_DSN"):
        monkeypatch.setenv(variable, "mysql://strobe:longsecret@h/d")
    (folder / "views" / "mine.sql").write_text("SELECT a.id FROM sqlite.a a")
    project = load_project(folder)
    types = {name: source.type for name, source in project.sources.items()}
    assert (project.name, types.pop("mysql2")) == ("my_shop", "mysql") and all(n == t for n, t in types.items())
    first = (folder / "strobe.yml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=strobe.schema.json"
    assert json.loads((folder / "strobe.schema.json").read_text())["title"] == "strobe.yml"
    error = document(capsys, "init", str(tmp_path / "b"), "--sources", "postgre", code=2)["error"]
    assert error["fix"].startswith("Did you mean postgres?") and not (tmp_path / "b").exists()


def test_the_example_begins_with_its_schema(shop: Path) -> None:
    assert (shop / "strobe.yml").read_text().startswith("# yaml-language-server: $schema=strobe.schema.json\n")
    assert json.loads((shop / "strobe.schema.json").read_text())["title"] == "strobe.yml"


# Looking.


@pytest.mark.parametrize(
    "arguments",
    [
        *(["status"], ["history"], ["algorithms"], ["explain", "paid_orders"], ["check"]),
        *(["wait", "--timeout", "0"], ["pin", "--engine", "duckdb"], ["prepare"]),
    ],
    ids=lambda arguments: arguments[0],
)
def test_looking_imports_no_spark(shop: Path, arguments: list[str]) -> None:
    """Commands that only look work where pyspark cannot even be imported, and so does `prepare`, with a drop too."""
    poison = shop / "poison"
    poison.mkdir()
    (poison / "pyspark.py").write_text("raise RuntimeError('a command that only looks imported pyspark')")
    environment = {**os.environ, "PYTHONPATH": f"{poison}{os.pathsep}{ROOT / 'src'}"}
    command = [sys.executable, "-m", "strobe", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=shop, timeout=240)
    assert "pyspark" not in done.stdout + done.stderr
    assert json.loads(done.stdout)["format"] == 1
    assert done.returncode in (0, 2)


def test_a_new_project_is_ready_after_prepare(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` says what is missing, `prepare` puts it there, `check` agrees, `prepare --undo` takes it out again."""
    only_sqlite(shop)
    before = document(capsys, "check", code=2)
    assert {f["where"] for f in before["findings"]} == {"source shop", "source billing"}
    assert before["views"]["paid_orders"]["level"] == "complete"
    assert before["views"]["paid_orders"]["key"] == ["order_id", "payment_id", "customer_id"]
    script = document(capsys, "prepare", "--dry-run", "shop")
    assert any("CREATE TRIGGER" in statement for statement in script["sources"]["shop"]["statements"])
    assert not document(capsys, "check", code=2)["ok"]
    assert document(capsys, "prepare")["sources"]["billing"] == {"relations": ["payments"]}
    assert document(capsys, "check") == {**before, "ok": True, "findings": []}
    assert document(capsys, "prepare", "--undo")["sources"]["shop"]["removed"]
    with closing(sqlite3.connect(shop / "shop.db")) as connection:
        assert not connection.execute("SELECT * FROM sqlite_master WHERE name LIKE '%strobe%'").fetchall()


def test_undo_goes_on_with_the_other_sources(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One whose database cannot be reached is reported, and the exit code says so."""
    only_sqlite(shop)
    document(capsys, "prepare")
    (shop / "shop.db").rename(shop / "gone.db")
    found = document(capsys, "prepare", "--undo", code=1)["sources"]
    assert found["shop"]["problem"] and found["shop"]["removed"] == []
    assert found["billing"]["removed"] and found["billing"]["problem"] is None
    (shop / "gone.db").rename(shop / "shop.db")
    assert document(capsys, "prepare", "--undo")["sources"]["shop"]["removed"]


def test_undo_prints_what_the_owner_must_run(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def undo(_: Any) -> list[str]:
        raise NotUndone("must be owner", removed=["slot s"], left=["DROP PUBLICATION s"])

    only_sqlite(shop)
    monkeypatch.setattr(SqliteSource, "undo", undo)
    code, out, err = run(capsys, "prepare", "--undo", "shop")
    assert (code, err) == (2, "")
    assert out.splitlines() == [
        "shop: took out slot s",
        "shop: must be owner",
        "  Their owner, or a superuser, has to run:",
        "    DROP PUBLICATION s;",
    ]


@pytest.mark.parametrize(("algorithm", "warned"), [("t-strobe", True), ("nested-sweep", False)])
def test_an_algorithm_that_a_backlog_burdens_is_reported(
    shop: Path, capsys: pytest.CaptureFixture[str], algorithm: str, warned: bool
) -> None:
    only_sqlite(shop)
    text = (shop / "strobe.yml").read_text()
    changed = re.sub(r"(  paid_orders:\n)(    .*\n)*", rf"\1    {{algorithm: {algorithm}}}\n", text)
    (shop / "strobe.yml").write_text(changed)
    found = [f for f in document(capsys, "check", code=2)["findings"] if f["where"] == "view paid_orders"]
    assert [("backlog" in f["message"]) for f in found] == [True] * warned


def test_check_says_what_others_could_reach(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A warehouse that an older Strobe made open is a warning, with what closes it; a cluster that lets anybody in is
    an error, before Spark is started."""
    only_sqlite(shop)
    assert run(capsys, "prepare")[0] == 0
    text = (shop / "strobe.yml").read_text()
    (shop / "warehouse").mkdir()
    (shop / "warehouse").chmod(0o755)
    assert "private" in next(f["message"] for f in document(capsys, "check")["findings"] if "warehouse" in f["where"])
    for mode, fix in (("private", "g=,o="), ("group", "g=rX,o="), ("all", None)):
        (shop / "strobe.yml").write_text(text + f"warehouse_mode: {mode}\n")
        found = [f for f in document(capsys, "check")["findings"] if f["where"].endswith("warehouse")]
        assert [f["severity"] for f in found] == (["warning"] if fix else [])
        assert not fix or f"chmod -R {fix} {shop}/warehouse" in found[0]["fix"]
    (shop / "strobe.yml").write_text(text + 'spark: {spark.master: "spark://head:7077"}\n')
    (error,) = [f for f in document(capsys, "check", code=2)["findings"] if f["severity"] == "error"]
    assert "without authentication and encryption" in error["message"]


def test_check_reports_everything_at_once(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two broken views, a missing database and a missing index are all told in one go."""
    only_sqlite(shop)
    (shop / "views" / "grouped.sql").write_text("SELECT count(*) AS n FROM shop.orders o")
    (shop / "views" / "unknown.sql").write_text("SELECT o.nothing FROM shop.orders o")
    (shop / "views" / "by_city.sql").write_text(
        "SELECT o.id, c.city FROM shop.orders o JOIN shop.customers c ON c.name = o.sku"
    )
    (shop / "views" / "lost.sql").write_text("SELECT x.id FROM gone.x x")
    text = (shop / "strobe.yml").read_text()
    (shop / "strobe.yml").write_text(text.replace("  billing:", "  gone: {type: sqlite, path: gone.db}\n  billing:"))
    found = document(capsys, "check", code=2)["findings"]
    told = [f"{f['severity']} {f['where']} {f['message']}" for f in found]
    for part in ("view grouped", "view unknown", "error source gone", "view lost"):
        assert any(part in line for line in told), part
    assert any(
        "no index on the joined column name" in f["message"] and "index on customers (name)" in f["fix"] for f in found
    )


def test_an_unknown_source_and_an_unknown_table_are_two_mistakes(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each names the view, its file and the place, and what was probably meant; so does SQL that is refused."""
    (shop / "views" / "a.sql").write_text("SELECT o.id\nFROM shpo.orders o")
    (shop / "views" / "b.sql").write_text("SELECT o.id FROM shop.order o")
    (shop / "views" / "c.sql").write_text("SELECT o.id FROM shop.orders o GROUP BY o.id LIMIT 1 +")
    found = {f["where"].split(":")[0]: f for f in document(capsys, "check", code=2)["findings"]}
    assert found["views/a.sql"]["where"] == "views/a.sql: view a: line 2, column 6"
    assert "there is no source shpo" in found["views/a.sql"]["message"]
    assert found["views/a.sql"]["fix"].startswith("Did you mean shop?")
    assert found["views/b.sql"]["message"] == "source shop has no table order"
    assert found["views/b.sql"]["fix"].startswith("Did you mean shop.orders?")
    assert found["views/c.sql"]["where"].startswith("views/c.sql: view c: line 1, column ")
    for command in ("plan", "prepare"):
        error = document(capsys, command, code=2)["error"]
        assert (error["where"], error["message"]) == ("views/a.sql: view a", "there is no source shpo")
        assert error["fix"].startswith("Did you mean shop?")
    offline = document(capsys, "check", "--offline", code=2)["findings"]
    assert [f["fix"] for f in offline if "shpo" in f["message"]] == [
        "Did you mean shop? There are shop, billing, catalog."
    ]


def test_help_offers_no_value_for_switches(capsys: pytest.CaptureFixture[str]) -> None:
    for command in app.registered_commands:
        code, out, _ = run(capsys, str(command.name), "--help")
        assert code == 0 and "bool" not in out


def test_a_source_whose_view_is_refused_is_used(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only a source that no view's SQL names is reported as unused."""
    only_sqlite(shop)
    (shop / "views" / "lost.sql").write_text("SELECT x.nothing FROM spare.x x")
    (shop / "views" / "refused.sql").write_text("SELECT x.y FROM other.x x ORDER BY 1")
    text = (shop / "strobe.yml").read_text()
    more = "".join(f"  {name}: {{type: sqlite, path: shop.db}}\n" for name in ("spare", "other", "unused"))
    (shop / "strobe.yml").write_text(text.replace("  billing:", f"{more}  billing:"))
    found = document(capsys, "check", code=2)["findings"]
    assert [f["where"] for f in found if f["message"] == "no view uses it"] == ["source unused"]


def test_check_says_the_level_that_status_says(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A strong view beside a complete one that shares a source is kept at complete."""
    only_sqlite(shop)
    document(capsys, "prepare")
    sql = '  every_order: {consistency: complete, sql: "SELECT o.id FROM shop.orders o"}\n'
    text = (shop / "strobe.yml").read_text()
    (shop / "strobe.yml").write_text(re.sub(r"^views:.*\n", f"views:\n{sql}", text, flags=re.M))
    views = document(capsys, "check")["views"]
    assert {name: view["level"] for name, view in views.items()} == {
        "paid_orders": "complete",
        "every_order": "complete",
    }


def test_explain_names_the_order_of_asking(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A payment leads to its order by key, and from there to the customer, in one fragment of one source."""
    plan = document(capsys, "explain", "paid_orders")
    change = next(c for c in plan["changes"] if c["relation"] == "billing.payments")
    assert change["messages"] == 2
    (fragment,) = change["fragments"]
    assert [(x["relation"], x["by"], x["found_by"]) for x in fragment["lookups"]] == [
        ("shop.orders", ["id = p.order_id"], "key"),
        ("shop.customers", ["id = o.customer_id"], "key"),
    ]
    assert plan["condition"] == "(p.state = 'paid')"
    code, out, _ = run(capsys, "explain", "paid_orders")
    assert code == 0
    assert "a change of billing.payments as p: 2 messages" in out


def test_explain_names_what_is_refused_and_explains_the_rest(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error has the view, its file and the place; other views are explained all the same."""
    (shop / "views" / "refused.sql").write_text("SELECT o.id\nFROM shop.orders o\nLIMIT 3")
    error = document(capsys, "explain", "refused", code=2)["error"]
    assert error["where"] == "views/refused.sql: view refused: line 3, column 1"
    assert document(capsys, "explain", "paid_orders")["view"] == "paid_orders"
    assert document(capsys, "explain", "paid_order", code=2)["error"]["fix"].startswith("Did you mean paid_orders?")


def test_explain_shows_a_tree_and_check_what_it_reads_whole(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a view with more than inner joins: the operators, what a change asks for in its own relation too, and which
    reads have no column to go by."""
    (shop / "views").mkdir(exist_ok=True)
    (shop / "views" / "per_customer.sql").write_text(
        "SELECT c.name, count(o.id) AS orders FROM shop.customers c LEFT JOIN shop.orders o ON o.customer_id = c.id "
        "GROUP BY c.id, c.name"
    )
    (shop / "views" / "orders_in_all.sql").write_text("SELECT count(*) AS orders FROM shop.orders o")
    plan = document(capsys, "explain", "per_customer")
    assert [(line["depth"], line["operator"]) for line in plan["tree"]] == [
        (0, "GROUP BY c.id, c.name"),
        (1, "LEFT JOIN"),
        (2, "scan"),
        (2, "scan"),
    ]
    changes = {c["relation"]: [x["by"] for f in c["fragments"] for x in f["lookups"]] for c in plan["changes"]}
    assert changes["shop.customers"][0] == ["customer_id = c.id"]
    assert ["id = o.customer_id"] in changes["shop.orders"] and ["customer_id = c.id"] in changes["shop.orders"]
    code, out, _ = run(capsys, "explain", "per_customer")
    assert code == 0 and "  GROUP BY c.id, c.name count(o.id) as x0; read whole by c.id, c.name\n    LEFT JOIN" in out
    said = document(capsys, "check", code=2)["findings"]
    assert any("every change of shop.orders fetches all rows of shop.orders" in f["message"] for f in said)


def test_status_before_the_first_run(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a warehouse status says so, and history is empty."""
    found = document(capsys, "status")
    assert (found["commit"], found["coordinator"]["alive"]) == (None, False)
    assert found["views"]["paid_orders"]["loaded"] is False
    assert "never run" in run(capsys, "status")[1]
    assert document(capsys, "history")["commits"] == []


def test_status_tells_the_dead_from_the_living(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fresh heartbeat of a living process counts; that of a dead one, a stopped one or an old one does not."""
    control = Layout(shop / "warehouse").control
    heartbeat = {"epoch": 3, "sources": {}, "views": {"paid_orders": {"queue": 7, "waits_for": ["shop"]}}}
    write_heartbeat(control, heartbeat)
    found = document(capsys, "status")
    assert found["coordinator"] | {"last_heard_seconds": 0} == {
        "alive": True, "pid": os.getpid(), "host": socket.gethostname(), "epoch": 3, "last_heard_seconds": 0
    }  # fmt: skip
    assert found["views"]["paid_orders"]["queue"] == 7
    for gone in ({"pid": 2**22 + 1}, {"stopped": True}):
        write_heartbeat(control, {**heartbeat, **gone})
        assert document(capsys, "status")["coordinator"]["alive"] is False
    write_heartbeat(control, heartbeat)
    os.utime(control.folder / "heartbeat.json", (1, 1))
    assert not wait.hear(shop / "warehouse").alive
    assert "last heard" in run(capsys, "status")[1]


def test_a_stale_view_stays_stale_without_a_coordinator(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the last heartbeat said of it is shown, with the reason; what was only true at that moment is not."""
    said = {"stale": True, "problem": "another database", "queue": 7, "waits_for": ["shop"]}
    write_heartbeat(Layout(shop / "warehouse").control, {"views": {"paid_orders": said}, "stopped": True})
    found = document(capsys, "status")["views"]["paid_orders"]
    assert (found["stale"], found["problem"], found["queue"], found["waits_for"]) == (True, "another database", 0, [])
    assert "another database" in run(capsys, "status")[1]


# Waiting.


def test_a_wait_without_a_coordinator_times_out(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, and the message says that nobody is running and what is missing."""
    only_sqlite(shop)
    document(capsys, "prepare")
    error = document(capsys, "wait", "--timeout", "0.2", code=3)["error"]
    assert error["code"] == "not_now"
    assert "view paid_orders has not been loaded yet" in error["message"]
    assert "no coordinator has ever run" in error["message"]
    assert "there is no view 'x'" in document(capsys, "wait", "x", code=2)["error"]["message"]


def test_a_wait_gives_up_when_nobody_is_at_work(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so at once, and ends as soon as no coordinator has appeared for a while, whatever its timeout."""
    only_sqlite(shop)
    document(capsys, "prepare")
    told: list[Event] = []
    with pytest.raises(NotNow, match="nobody is at work") as caught:
        wait.wait(load_project(shop), timeout=1e6, tell=told.append, grace=0.3)
    assert (told, caught.value.fix) == (
        [CoordinatorAwaited("no coordinator has ever run", 0.3)],
        "Start `strobe run`.",
    )


def test_a_wait_stays_for_a_coordinator_that_starts(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is heard of within the grace is waited for as long as it lives: `strobe run &`, then `strobe wait`."""
    only_sqlite(shop)
    document(capsys, "prepare")
    control = Layout(shop / "warehouse").control

    def start(event: Event) -> None:
        told.append(event)
        if len(told) == 1:
            write_heartbeat(control, {"state": "starting"})
            threading.Timer(1.0, write_heartbeat, (control, {"stopped": True})).start()

    told: list[Event] = []
    with pytest.raises(NotNow, match="nobody is at work"):
        wait.wait(load_project(shop), timeout=1e6, tell=start, grace=0.2)
    assert len(told) == 2, "it was there in between"


def test_a_wait_on_an_unprepared_source_is_a_mistake(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It could never end, so it does not begin: exit code 2."""
    only_sqlite(shop)
    assert "not prepared" in document(capsys, "wait", code=2)["error"]["message"]


def test_a_wait_believes_only_views_that_are_kept(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the coordinator says of a source counts for a view that it keeps, not for one that stands still, and never
    for another database than the view was loaded from."""
    only_sqlite(shop)
    document(capsys, "prepare")
    project = load_project(shop)
    sources = SourceSet.open(project)
    before = {name: source.now().text for name, source in sources.items()}
    with closing(sqlite3.connect(shop / "shop.db")) as connection:
        connection.execute("UPDATE orders SET quantity = 9 WHERE id = 101")
        connection.commit()
    now = {name: source.now().text for name, source in sources.items()}
    identity = {name: source.identity() for name, source in sources.items()}
    header = CommitHeader(1, datetime.now(timezone.utc), {"paid_orders": before}, {}, identity, {"paid_orders": 1}, 1)
    monkeypatch.setattr(wait, "last_header", lambda _: header)
    said = {"sources": {name: {"position": text} for name, text in now.items()}}
    control = Layout(shop / "warehouse").control
    write_heartbeat(control, {**said, "views": {"paid_orders": {"stale": True}}})
    with pytest.raises(NotNow, match=r"source shop is at 2:.* a coordinator is running"):
        wait.wait(project, timeout=0.1)
    write_heartbeat(control, {**said, "views": {"paid_orders": {}}})
    assert wait.wait(project, timeout=0) == now
    header = replace(header, identity={**identity, "shop": "sqlite:another"})
    with pytest.raises(NotNow, match="source shop is another database"):
        wait.wait(project, timeout=0)


# Watching, and the shell's help.


def test_status_is_shown_again_and_again(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until Ctrl-C, which is no failure; on a terminal in place."""
    naps = iter([None, None])

    def nap(seconds: float) -> None:
        if next(naps, seconds):
            raise KeyboardInterrupt

    monkeypatch.setattr("strobe.cli.terminal.sleep", nap)
    code, out, err = run(capsys, "status", "--watch")
    assert (code, err, out.count("nothing committed yet")) == (0, "", 3)
    assert document(capsys, "status", "--watch", code=2)["error"]["message"].endswith("do not go together")
    naps = iter([None])
    terminal = Terminal()
    terminal.out = Console(file=(file := io.StringIO()), force_terminal=True, width=100)
    terminal.watch(lambda: {"n": "one [bold]"}, lambda found: [Text(found["n"])], 2.0)
    assert "one [bold]" in file.getvalue()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("strobe reb", {"rebuild"}),
        ("strobe explain ", {"paid_orders", "order_lines"}),
        ("strobe rebuild paid", {"paid_orders"}),
        ("strobe prepare ", {"shop", "billing", "catalog"}),
        ("strobe pin --engine d", {"duckdb"}),
        ("strobe run --until", {"--until-idle"}),
    ],
)
def test_a_shell_completes_commands_options_and_names(shop: Path, line: str, offered: set[str]) -> None:
    """With the script that `strobe --show-completion` prints; names are those of the project."""
    words = line.split(" ")
    environment = {**os.environ, "_STROBE_COMPLETE": "complete_bash", "PYTHONPATH": str(ROOT / "src")}
    environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "strobe"], capture_output=True, text=True, env=environment, timeout=240
    )
    assert (done.returncode, set(done.stdout.split()), done.stderr) == (0, offered, "")


# Errors.


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nonsense"], "No such command"),
        (["status", "--nonsense"], "No such option"),
        (["explain"], "Missing argument"),
        (["sql", "SELECT 1", "--format", "xml"], "--format"),
        (["sql", "SELECT 1", "--format", "parquet", "--output", "no/such/folder"], "cannot write the result"),
        (["history", "--limit", "many"], "--limit"),
        (["status", "--project", "nowhere"], "no folder nowhere"),
        (["init", "."], "not empty"),
        (["explain", "nothing"], "no view 'nothing'"),
        (["prepare", "nothing"], "no source 'nothing'"),
        (["prepare", "--undo", "--dry-run"], "do not go together"),
        (["sql", "SELECT 1 FROM paid_orders"], "nothing has been committed yet"),
        (["sql", "SELECT 1", "--at", "yesterday"], "neither a commit nor a time"),
        (["sql", "DROP TABLE paid_orders"], "only one SELECT"),
        (["sql", "SELECT 1; SELECT 2"], "only one SELECT"),
        (["sql", "SELEC 1"], ""),
        (["fold"], "nothing has been committed yet"),
        (["pin", "--engine", "duckdb", "--current"], "nothing has been committed yet"),
        (["pin", "--engine", "duckdb", "--current", "--at", "3"], "do not go together"),
        (["rebuild", "nothing"], "no view 'nothing'"),
        (["audit", "nothing"], "no view 'nothing'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_message(
    shop: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], part: str
) -> None:
    """Exit code 2 and the same message as text on standard error and as JSON on standard output."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    shown, out, err_json = run(capsys, *arguments, "--json")
    error = json.loads(out)["error"]
    assert (shown, err_json, set(error)) == (2, "", {"code", "message", "where", "fix"})
    assert part in error["message"]
    assert error["message"].splitlines()[0] in err


@pytest.mark.parametrize(
    ("error", "code"), [(StrobeError("no"), 1), (UserError("no"), 2), (NotNow("no"), 3), (Fenced("no"), 4)]
)
def test_exit_codes(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: StrobeError, code: int
) -> None:
    """Every kind of error has the exit code of the public contract."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(wait, "wait", fail)
    assert document(capsys, "wait", code=code)["error"]["code"] == error.code


def test_the_unexpected_is_one_line_and_a_file(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in Strobe shows no traceback and no secret: both the line and the file are without."""
    monkeypatch.setenv("SHOP_DB", "very-secret.db")
    text = (shop / "strobe.yml").read_text()
    (shop / "strobe.yml").write_text(text.replace("path: shop.db", 'path: "${SHOP_DB}"'))
    (shop / "warehouse" / "_strobe").mkdir(parents=True)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("oops in very-secret.db")

    monkeypatch.setattr(wait, "wait", fail)
    code, out, err = run(capsys, "wait")
    assert (code, out) == (1, "")
    assert "this is a bug in Strobe: ZeroDivisionError: oops in ***" in err
    (file,) = (shop / "warehouse" / "_strobe").glob("error-*.txt")
    assert str(file) in err.replace("\n", "")
    assert "Traceback" in file.read_text()
    assert "very-secret" not in file.read_text() + err


def test_secrets_are_never_shown(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that came in through the environment appears in no message, text or JSON."""
    monkeypatch.setenv("SHOP_DB", "very-secret.db")
    text = (shop / "strobe.yml").read_text()
    (shop / "strobe.yml").write_text(text.replace("path: shop.db", 'path: "${SHOP_DB}"'))
    for arguments in (["check"], ["explain", "paid_orders"], ["prepare"], ["status"], ["wait"]):
        for as_json in ([], ["--json"]):
            code, out, err = run(capsys, *arguments, *as_json)
            assert "very-secret" not in out + err
    assert "***" in run(capsys, "check")[1]
    assert code in (2, 3)


def test_init_writes_a_valid_project(tmp_path: Path) -> None:
    """The templates are in the package and pass the project's own validation; a folder with something in it is kept."""
    assert main(["init", str(tmp_path / "a")]) == 0
    project = load_project(tmp_path / "a")
    assert sorted(project.views) == ["order_lines", "paid_orders"]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("")
    assert main(["init", str(tmp_path / "b")]) == 2
    assert [f.name for f in (tmp_path / "b").iterdir()] == ["mine"]


def test_redaction_leaves_rows_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that a user asks for are exact, even where they contain what is a secret elsewhere."""
    learn(["secret"])
    terminal = Terminal(as_json=True)
    terminal.show({"rows": [["secret"]]}, lambda _: (), exact=True)
    terminal.show({"rows": [["secret"]]}, lambda _: ())
    first, second = capsys.readouterr().out.split("}\n{")
    assert "secret" in first
    assert "secret" not in second


def test_moments_as_people_write_them() -> None:
    """A commit's number, or a time that is UTC unless it says otherwise."""
    noon = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
    assert parse_at("12") == 12
    assert parse_at(None) is None
    for text in ("2026-01-05T12:00:00", "2026-01-05 12:00", "2026-01-05T12:00:00Z", "2026-01-05T13:00:00+01:00"):
        assert parse_at(text) == noon
    assert parse_at(noon.replace(tzinfo=None)) == noon


# Running.

NOON = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
RETRYING = WatchedSource("5:1", "6:1", "retrying", "no [bold]s3cret[/bold]", QueryCounts())
STATUS = Status(
    at=NOON,
    commit=7,
    committed_at=NOON,
    sources={"shop": RETRYING},
    views={
        "paid_orders": MaintainedView("strong", "sweep", 1.0, 3, ["shop"], 0, 0, {}, {"shop": 2.5}),
        "order_lines": StaleView(["catalog"]),
    },
    waiting=Backlog(0, None, {}, 0),
    appends=Appends(0, 0),
)


def test_log_lines_say_each_thing_once() -> None:
    """A problem is told when it begins and when it ends, a commit now and then, each with its time."""
    learn(["s3cret"])
    file = io.StringIO()
    told = LogReporter(Console(file=file, width=200))
    for _ in range(3):
        told.status(STATUS)
    told.status(replace(STATUS, sources={"shop": replace(RETRYING, problem=None)}))
    lines = file.getvalue().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [
        "source shop: trying again: no [bold]***[/bold]",
        "commit 7",
        "source shop: answers again",
    ]
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", line) for line in lines)


def test_the_live_table_shows_everything_but_secrets() -> None:
    """On a terminal: progress while loading, then sources and views with what they wait for."""
    learn(["s3cret"])
    file = io.StringIO()
    with Live(console=Console(file=file, force_terminal=True, width=150), auto_refresh=False) as live:
        told = LiveReporter(live)
        told.tell(Loading(["paid_orders"]))
        told.tell(RowsRead("shop", 12_345))
        told.tell(RowsRead("billing", 500, 4_000))
        told.status(STATUS)
    shown = file.getvalue()
    for part in (
        "loading paid_orders",
        "12,345",
        "paid_orders",
        "5:1",
        "6:1",
        "no [bold]***[/bold]",
        "of about 4,000",
        "lag",
        "2.5 s",
        "commit 7",
        "stale",
    ):
        assert part in shown


def test_how_fast_a_source_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since it was first heard of; one that is read again, in another snapshot, begins again."""
    now = iter([0.0, 0.5, 2.0, 3.0, 5.0])
    monkeypatch.setattr("strobe.cli.reporter.time.monotonic", lambda: next(now))
    loads = Loads()
    assert [loads.rate(RowsRead("shop", rows)) for rows in (100, 200, 1_100)] == [None, None, 500.0]
    assert [loads.rate(RowsRead("shop", rows)) for rows in (0, 50)] == [None, 25.0]


class _Service:
    """Stands for a service: works until it is told to stop, or is never ready."""

    def __init__(self, ready: bool) -> None:
        self.pipeline = object() if ready else None
        self.stopped = threading.Event()
        self.finished = False
        self.working = threading.Event()

    def stop(self) -> None:
        if self.pipeline is not None:
            self.stopped.set()

    def run(self) -> None:
        self.working.set()
        self.stopped.wait(PATIENCE)
        time.sleep(0.3)
        self.finished = True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("ready", [True, False], ids=["at work", "loading"])
def test_signals_stop_a_run(number: int, ready: bool) -> None:
    """At work, the service is stopped and waited for; while it still loads, nothing has to be finished."""
    coordinator = _Service(ready)

    def interrupt() -> None:
        assert coordinator.working.wait(PATIENCE)
        time.sleep(0.3)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    began = time.monotonic()
    told = LogReporter(Console(file=io.StringIO()))
    assert serve(coordinator, told, coordinator.run)  # type: ignore[arg-type]
    assert coordinator.finished is ready
    assert time.monotonic() - began < PATIENCE


# Documentation.


def _documented() -> dict[str, str]:
    """The sections of docs/commands.md by command."""
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    parts = re.split(r"^## `strobe (\w+)", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_command_and_option_is_documented() -> None:
    """docs/commands.md has a section for each command, which names each of its options and arguments, and no others."""
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    documented = _documented()
    assert set(documented) == set(commands)
    everywhere = {"--project", "--json", "--help", "-h"}
    for name, command in commands.items():
        options = {option for p in command.params for option in p.opts if option.startswith("-")}
        for option in options - everywhere:
            assert f"`{option}" in documented[name], f"strobe {name} {option}"
        written = set(re.findall(r"`(--[a-z-]+)", documented[name]))
        assert written - everywhere <= options, f"strobe {name} has no {written - everywhere - options}"


@pytest.mark.parametrize(
    ("position", "shown"),
    [
        ("0/16B3748@0/16B3700:816598441234567", "0/16B3748"),
        ("binlog.000004:3456@1763300000/0-1-17@3321:1763300042", "binlog.000004:3456"),
        ("12:839", "12:839"),
        (None, "–"),
    ],
)
def test_tables_show_where_a_position_is(position: str | None, shown: str) -> None:
    """What tells its log from others is long, and for machines."""
    assert render.place(position) == shown
    table = render.sources({"sources": {"shop": {"position": position}}})
    assert [str(cell) for cell in table.columns[1].cells] == [shown]


@pytest.mark.parametrize(
    ("left", "unit", "seconds", "shown"),
    [
        (12_900_000, "bytes of log", 120.0, "43 %, 12.3 MB of log left, about 2 min at the present rate"),
        (1_234, "logged changes", 7.4, "43 %, 1,234 logged changes left, about 7 s at the present rate"),
        (9, "versions", None, "43 %, 9 versions left, falling behind"),
    ],
)
def test_how_far_a_backlog_is(left: int, unit: str, seconds: float | None, shown: str) -> None:
    backlog = {"percent": 43.2, "left": left, "unit": unit, "per_second": 1.0, "seconds": seconds}
    assert render.backlog_text(backlog) == shown
    console = Console(file=io.StringIO(), width=200)
    for part in render.backlogs({"shop": backlog, "depot": None}):
        console.print(part)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert written.startswith("shop catches up") and shown in written and "depot" not in written
