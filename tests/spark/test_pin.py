"""One commit, pinned: in a Python session, and in other engines, by executing the statements of `strobe pin`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import strobe
from strobe.algebra.bag import NAN, Bag, Row, canonical
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.view import Occurrence, Output, View
from strobe.auditor import replay
from strobe.cli.main import main
from strobe.data.arrow import from_arrow, to_arrow
from strobe.messages import Commit, CommitHeader
from strobe.warehouse.layout import Layout, Sizes
from strobe.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
ODD = datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone.utc)
PROJECT = """
version: 1
project: shop
sources:
  shop: {type: sqlite, path: shop.db}
views:
  lines: {sql: "SELECT l.sku, l.Amount FROM shop.lines l"}
"""


def view(name: str, columns: Mapping[str, str], *key: str) -> View:
    schema = RelationSchema("shop", name, tuple(Column(n, t) for n, t in columns.items()), key)
    occurrence = Occurrence(0, "t", schema, tuple(columns))
    return View(
        name, "SELECT", (occurrence,), (), None, tuple(Output(n, f"r0c{i}") for i, n in enumerate(columns)), key
    )


LINES = view("lines", {"sku": "string", "Amount": "bigint"})
ITEMS = view(
    "items",
    {"id": "bigint", "price": "decimal(12,3)", "day": "date", "at": "timestamp", "ok": "boolean", "raw": "binary",
     "x": "double"},
    "id",
)  # fmt: skip


def item(number: int, **other: Any) -> Row:
    row = {
        "id": number,
        "price": Decimal("1.500"),
        "day": date(2024, 2, 29),
        "at": ODD,
        "ok": True,
        "raw": b"\0",
        "x": 0.5,
    }
    return tuple(canonical(value) for value in {**row, **other}.values())


def frame(spark: SparkSession, of: View, rows: list[Row]) -> Any:
    types = of.attribute_types()
    table = to_arrow(list(types), list(types.values()), rows)
    return spark.createDataFrame(table).selectExpr(*(f"{o.expression} AS {o.name}" for o in of.outputs))


class Shop:
    """A project whose warehouse has the commits 1 to 6, of which 1, 3 and 5 are published."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder = folder
        (folder / "strobe.yml").write_text(PROJECT)
        self.path = folder / "warehouse"
        self.warehouse = Warehouse.create_or_open(
            spark, Layout(self.path, sizes=Sizes(large=3)), timedelta(days=7), "shop"
        )
        self.warehouse.fence()
        empty = item(9, price=None, day=None, at=None, ok=None, raw=None, x=None)
        lines: list[Row] = [("a", 1), ("a", 1), (None, None), ("ä'\"`", 2**62)]
        items = [*(item(n) for n in range(1, 8)), empty]
        loaded = [
            self.warehouse.load(LINES, frame(spark, LINES, lines)),
            self.warehouse.load(ITEMS, frame(spark, ITEMS, items)),
        ]
        self.warehouse.cut_over(loaded, self.commit(1))
        self.append(2, lines=_bag(LINES, ("a", 1)), items=_bag(ITEMS, item(1), count=-1))
        self.append(3, items=_bag(ITEMS, item(2), count=-1).add(_bag(ITEMS, item(2, x=NAN, price=Decimal("-9.999")))))
        self.warehouse.fold()
        self.append(4, lines=_bag(LINES, ("a", 1), count=-2), items=_bag(ITEMS, empty, count=-1))
        self.append(5, lines=_bag(LINES, ("b", None), (None, None)))
        self.warehouse.fold()
        self.append(6, items=_bag(ITEMS, item(6), count=-1), lines=_bag(LINES, ("c", 0)))

    def commit(self, number: int, **changes: Bag) -> Commit:
        position = {"shop": f"p{number}"}
        at = START + timedelta(minutes=number)
        header = CommitHeader(number, at, {"lines": position, "items": position}, {}, {"shop": "server"})
        return Commit(header, changes)

    def append(self, number: int, **changes: Bag) -> None:
        self.warehouse.append([self.commit(number, **changes)])

    def states(self) -> dict[int, dict[str, Counter[Row]]]:
        return {s.commit: {n: Counter(dict(b.items())) for n, b in s.views.items()} for s in replay.states(self.path)}


def _bag(of: View, *rows: Row, count: int = 1) -> Bag:
    return Bag.of(of.attributes, rows, count)


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """With deletion vectors, as large tables have them."""
    made = Shop(spark, tmp_path_factory.mktemp("shop"))
    vectors = pa.table(DeltaTable(str(made.path / "views" / "items")).deletion_vectors())
    assert vectors.num_rows, "the table has no deletion vector, and shows nothing about engines that cannot read them"
    return made


def contents(table: pa.Table) -> Counter[Row]:
    return Counter(tuple(map(canonical, row)) for row in from_arrow(table))


def pinned(capsys: pytest.CaptureFixture[str], shop: Shop, engine: str, *options: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["pin", "--engine", engine, *options, "--project", str(shop.folder), "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def duckdb_with_delta() -> Any:
    """DuckDB with its delta extension: from the wheel that carries it, or as it is installed here. DuckDB checks the
    signature of either."""
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    package = find_spec("duckdb_extension_delta")
    carried = (
        Path(package.origin).parent / "extensions" / f"v{duckdb.__version__}" if package and package.origin else None
    )
    try:
        if carried and carried.is_dir():
            connection.execute(f"LOAD '{carried / 'delta.duckdb_extension'}'")
        else:
            connection.execute("LOAD delta")
    except duckdb.Error as error:
        pytest.skip(f"DuckDB has no delta extension here: {error}")
    return connection


Read = Callable[[str], pa.Table]


def in_duckdb(statements: list[str]) -> Read:
    connection = duckdb_with_delta()
    for statement in statements:
        connection.execute(statement)
    return lambda name: pa.table(connection.execute(f"SELECT * FROM {name}").to_arrow_table())


def in_polars(statements: list[str]) -> Read:
    pytest.importorskip("polars")
    names: dict[str, Any] = {}
    exec("\n".join(statements), names)
    return lambda name: names[name].collect().to_arrow()


def in_spark(statements: list[str]) -> Read:
    session = SparkSession.active().newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    for statement in statements:
        session.sql(statement)
    return lambda name: session.table(name).toArrow()


@pytest.mark.parametrize(("engine", "execute"), [("duckdb", in_duckdb), ("polars", in_polars), ("spark", in_spark)])
def test_pinned_tables_hold_what_was_true_together(
    shop: Shop, capsys: pytest.CaptureFixture[str], engine: str, execute: Callable[[list[str]], Read]
) -> None:
    """At every published commit, in each engine: the rows of a rebuilt state, copies repeated and without `_copy`."""
    states = shop.states()
    wanted = {"1": 1, "2": 1, "3": 3, "4": 3, "6": 5, str(START + timedelta(minutes=3.5)): 3}
    for at, commit in wanted.items():
        found = pinned(capsys, shop, engine, "--at", at)
        assert (found["commit"], found["engine"]) == (commit, engine)
        read = execute(found["statements"])
        for name, rows in states[commit].items():
            table = read(name)
            assert "_copy" not in table.schema.names
            assert contents(table) == rows, f"{name} at commit {commit}"
    newest = pinned(capsys, shop, engine)
    assert newest["commit"] == 5
    assert newest["tables"]["lines"]["path"] == str(shop.path / "views" / "lines")


def published_status(capsys: pytest.CaptureFixture[str], shop: Shop) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["status", "--project", str(shop.folder), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["published"]
    return found


def refreshed_in_duckdb(found: dict[str, Any]) -> Callable[[], Read]:
    connection = duckdb_with_delta()
    for statement in found["once"]:
        connection.execute(statement)
    connection.execute("RESET VARIABLE strobe_versions")  # as in another session with the same database file
    with pytest.raises(Exception, match="strobe_versions is not set"):
        connection.execute("SELECT * FROM lines()")

    def refresh() -> Read:
        for statement in found["statements"]:
            connection.execute(statement)
        return lambda name: pa.table(connection.execute(f"SELECT * FROM {name}()").to_arrow_table())

    return refresh


def refreshed_in_polars(found: dict[str, Any]) -> Callable[[], Read]:
    pytest.importorskip("polars")
    names: dict[str, Any] = {}
    exec("\n".join(found["once"]), names)

    def refresh() -> Read:
        exec("\n".join(found["statements"]), names)
        return lambda name: names["views"][name].collect().to_arrow()

    return refresh


def refreshed_in_spark(found: dict[str, Any]) -> Callable[[], Read]:
    session = SparkSession.active().newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    for statement in found["once"]:
        session.sql(statement)

    def refresh() -> Read:
        for statement in found["statements"]:
            session.sql(statement)
        return lambda name: session.table(name).toArrow()

    return refresh


REFRESHED = {"duckdb": refreshed_in_duckdb, "polars": refreshed_in_polars, "spark": refreshed_in_spark}


def test_current_statements_follow_the_published_commit(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """The statements of one print, in each engine, across commits and folds: all views are at the newest published
    commit when they are refreshed, and stay there until they are refreshed again."""
    shop = Shop(spark, tmp_path_factory.mktemp("current"))
    prints = {engine: pinned(capsys, shop, engine, "--current") for engine in REFRESHED}
    refresh = {engine: REFRESHED[engine](found) for engine, found in prints.items()}

    def check(read: Read, commit: int) -> None:
        for name, rows in shop.states()[commit].items():
            table = read(name)
            assert "_copy" not in table.schema.names
            assert contents(table) == rows, f"{name} at commit {commit}"

    earlier = {engine: again() for engine, again in refresh.items()}
    for read in earlier.values():
        check(read, 5)
    shop.append(7, lines=_bag(LINES, ("new", 1)), items=_bag(ITEMS, item(3), count=-1))
    behind = published_status(capsys, shop)
    assert (behind["commit"], behind["publish_seconds"]) == (5, 60.0)
    assert behind["lag_seconds"] > (datetime.now(timezone.utc) - START).total_seconds() - 3600
    for read in earlier.values():
        check(read, 5)
    for again in refresh.values():
        check(again(), 5)  # commit 7 is not published yet
    shop.warehouse.fold()
    done = published_status(capsys, shop)
    assert (done["commit"], done["lag_seconds"]) == (7, 0.0)
    for engine in ("duckdb", "spark"):
        check(earlier[engine], 5)
    for again in refresh.values():
        check(again(), 7)
    assert pinned(capsys, shop, "trino", "--current", code=2)["error"]["where"] == "--current"
    assert "do not go together" in pinned(capsys, shop, "spark", "--current", "--at", "3", code=2)["error"]["message"]
    shown = main(["pin", "--engine", "spark", "--current", "--project", str(shop.folder)]), capsys.readouterr().out
    assert shown[0] == 0 and shown[1].startswith("-- once in a session\nDECLARE")


def test_commits_that_cannot_be_pinned_name_those_that_can(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """One that never was, and times and commits before the first."""
    never = pinned(capsys, shop, "duckdb", "--at", "99", code=2)["error"]
    assert (never["message"], never["fix"]) == ("there is no commit 99", "The nearest one is 5.")
    for early in ("0", "2020-01-01T00:00:00"):
        error = pinned(capsys, shop, "duckdb", "--at", early, code=2)["error"]
        assert error["message"].startswith("nothing that was published is as old as")
        assert error["fix"] == "The nearest one is 1."
    trino = pinned(capsys, shop, "trino", "--at", "3")
    version = trino["tables"]["lines"]["version"]
    assert (
        'CREATE OR REPLACE VIEW delta."shop"."lines" AS SELECT "sku", "Amount" '
        f'FROM delta."shop_tables"."lines" FOR VERSION AS OF {version}' in trino["statements"]
    )
    assert any(f"table_location => 'file://{shop.path}/views/lines'" in statement for statement in trino["once"])
    capsys.readouterr()
    assert main(["pin", "--engine", "trino", "--project", str(shop.folder)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "-- the views as they were at commit 5"
    assert all(line.startswith("--") or line.endswith(";") for line in shown)


def test_a_pinned_session_stays_at_its_commit(shop: Shop, spark: SparkSession) -> None:
    """Many DataFrames from one commit, read late, in turns with another pin and from threads, while it all goes on.

    It comes last, because it goes on with the warehouse of the others.
    """
    states = shop.states()
    with strobe.open(shop.folder, spark) as warehouse, warehouse.pin() as now, warehouse.pin(at=2) as then:
        early = now.table("lines")
        assert (now.commit, then.commit) == (6, 2)
        assert then.committed_at == START + timedelta(minutes=2)
        assert then.positions["lines"] == {"shop": "p2"}
        shop.append(7, lines=_bag(LINES, ("new", 1)), items=_bag(ITEMS, item(3), count=-1))
        shop.warehouse.fold()
        loaded = shop.warehouse.load(LINES, frame(spark, LINES, [("rebuilt", 1)]))
        shop.warehouse.cut_over([loaded], shop.commit(8))
        assert contents(early.toArrow()) == states[6]["lines"]
        for pin in (now, then):
            assert contents(pin.table("items").toArrow()) == states[pin.commit]["items"]
            assert contents(pin.sql("SELECT * FROM lines").toArrow()) == states[pin.commit]["lines"]
        both = "SELECT i.id FROM items i JOIN lines l ON i.id > 0"
        with ThreadPoolExecutor(4) as threads:
            sizes = list(threads.map(lambda pin: pin.sql(both).count(), [now, then] * 2))
        wanted = {c: states[c]["items"].total() * states[c]["lines"].total() for c in (6, 2)}
        assert sizes == [wanted[6], wanted[2]] * 2 and wanted[6] != wanted[2]
        assert contents(warehouse.table("lines").toArrow()) == Counter({("rebuilt", 1): 1})
