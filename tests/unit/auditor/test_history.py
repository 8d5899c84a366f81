"""Histories as files: what is written comes back, what is wrong is named with its line, what is right is judged."""

from __future__ import annotations

import io
import json
import math
import re
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import ROOT

from strobe.algebra.bag import Bag
from strobe.algebra.schema import Column, RelationSchema
from strobe.auditor.history import History, HistoryState, HistoryView
from strobe.auditor.history_file import read, write
from strobe.auditor.levels import HistoryTransaction
from strobe.auditor.values import decode, encode, normal_type
from strobe.cli.main import main
from strobe.errors import Unfit, UserError

DOCS = ROOT / "docs" / "histories.md"


def documented() -> tuple[str, str]:
    """The example in the documentation, and what it says that the verdict is."""
    blocks = re.findall(r"```(?:json)?\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    return blocks[0], blocks[1]


EXAMPLE = documented()[0].splitlines()


def stored(tmp_path: Path, *lines: Any) -> Path:
    file = tmp_path / "history.jsonl"
    file.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n", encoding="utf-8")
    return file


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(arguments)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_documented_example_is_judged_as_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File and output are in docs/histories.md, word for word."""
    example, verdict = documented()
    code, out, err = run(capsys, "audit", "--history", str(stored(tmp_path, example)))
    assert (code, err) == (1, "")
    assert [line.rstrip() for line in out.splitlines() if line.strip()] == [v for v in verdict.splitlines() if v]


def test_the_document_has_the_contracts_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same with --json, and 0 for a level that did hold."""
    file = str(stored(tmp_path, *EXAMPLE))
    code, out, _ = run(capsys, "audit", "--history", file, "--json")
    found = json.loads(out)
    assert code == 1
    assert list(found) == ["format", "verdict", "level", "because", "witness", "wanted", "views"]
    assert set(found["views"]["v"]) == {"verdict", "level", "because", "witness"}
    assert (found["format"], found["verdict"], found["level"], found["wanted"]) == (1, "invalid", "weak", "strong")
    code, out, _ = run(capsys, "audit", "--history", file, "--level", "weak", "v", "--json")
    assert (code, json.loads(out)["views"]["v"]["witness"]) == (0, None)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--level", "strong"], "--level is for histories"),
        (["--history", "nowhere.jsonl"], "the history cannot be read"),
        (["--history", "FILE", "--level", "best"], "no level 'best'"),
        (["--history", "FILE", "w"], "no view 'w'"),
    ],
)
def test_mistakes_of_the_command_end_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], part: str
) -> None:
    """One message, also as JSON, and no project is needed."""
    file = str(stored(tmp_path, *EXAMPLE))
    arguments = ["audit", *(file if argument == "FILE" else argument for argument in arguments)]
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "") and part in err
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 2 and part in json.loads(out)["error"]["message"]


def test_unknown_ends_with_3_and_names_the_expression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the live audit does for what is neither valid nor invalid. The other view is judged."""
    other = {"view": {"name": "w", "sql": "SELECT upper(s.t) AS t, s.n / 2 AS h FROM z.s WHERE s.n > 0"}}
    relation = {"relation": {"source": "z", "name": "s", "columns": columns("t string", "n int"), "rows": [["a", 1]]}}
    first, *rest = [line for line in EXAMPLE if "state" in line]
    state = json.loads(first)
    state["state"]["views"]["w"] = {"rows": [["A", 0.5]]}
    lines = [EXAMPLE[0], relation, *EXAMPLE[1:4], other, *EXAMPLE[5:7], state]
    code, out, _ = run(capsys, "audit", "--history", str(stored(tmp_path, *lines, EXAMPLE[8])), "--json")
    assert code == 1
    code, out, _ = run(capsys, "audit", "--history", str(stored(tmp_path, *lines, *rest)), "--level", "weak", "--json")
    found = json.loads(out)
    assert (code, found["verdict"]) == (3, "unknown")
    assert found["because"] == "view w has an expression that only Spark can evaluate: upper(s.t)"
    assert (found["views"]["v"]["verdict"], found["views"]["w"]["verdict"]) == ("valid", "unknown")


# ── files with mistakes ──────────────────────────────────────────────────────────────────────────────────────────────


def columns(*texts: str) -> list[dict[str, str]]:
    return [{"name": text.split()[0], "type": text.split()[1]} for text in texts]


HEADER: dict[str, Any] = {"strobe": "history", "format": 1}
R: dict[str, Any] = {"relation": {"source": "x", "name": "r", "columns": columns("a bigint", "b string")}}
V: dict[str, Any] = {"view": {"name": "v", "sql": "SELECT r.a, r.b FROM x.r"}}
S: dict[str, Any] = {"state": {"views": {"v": {"rows": []}}}}


def t(changes: Any, **more: Any) -> dict[str, Any]:
    return {"transaction": {"id": "T1", "changes": changes, **more}}


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        ([R, V, S], 1, "does not begin as a history does"),
        ([{"strobe": "history", "format": 2}], 1, "has format 2"),
        ([{**HEADER, "more": 1}], 1, "unknown field 'more'"),
        ([{**HEADER, "positions": {"z": "0"}}, R, V, S], 1, "no source 'z'"),
        ([HEADER, "{"], 2, "not JSON"),
        ([HEADER, "[1]"], 2, "not an object"),
        ([HEADER, '{"relation": {"source": "x", "source": "y"}}'], 2, "'source' stands twice"),
        ([HEADER, R, V, '{"state": {"views": {"v": {"rows": [[NaN, "a"]]}}}}'], 4, "NaN is not JSON"),
        ([HEADER, {"sources": {}}], 2, "none of relation, view, transaction and state"),
        ([HEADER, {"relation": {"source": "x", "name": "r"}}], 2, "no 'columns'"),
        ([HEADER, {"relation": {"source": "x", "name": "r", "columns": []}}], 2, "no columns"),
        ([HEADER, {"relation": {**R["relation"], "columns": columns("a int", "A int")}}], 2, "column A is there twice"),
        ([HEADER, {"relation": {**R["relation"], "columns": columns("a array<int>")}}], 2, "the type 'array<int>'"),
        ([HEADER, {"relation": {**R["relation"], "key": ["z"]}}], 2, "key column 'z'"),
        ([HEADER, {"relation": {**R["relation"], "rows": [["1"]]}}], 2, "has 1 values, not 2"),
        ([HEADER, {"relation": {**R["relation"], "rows": [["one", "a"]]}}], 2, "x.r, column a: 'one' is not a whole"),
        ([HEADER, {"relation": {**R["relation"], "rows": [[1.0, "a"]]}}], 2, "not a whole number"),
        ([HEADER, {"relation": {**R["relation"], "rows": [[2**63, "a"]]}}], 2, "does not fit into bigint"),
        ([HEADER, {"relation": {**R["relation"], "source": ""}}], 2, "source is not a text"),
        ([HEADER, R, R], 3, "x.r is there twice"),
        ([HEADER, R, V, {"relation": {**R["relation"], "name": "s"}}], 4, "a relation comes after"),
        ([HEADER, R, V, V], 4, "view v is there twice"),
        ([HEADER, R, V, S, {"view": {**V["view"], "name": "w"}}], 5, "a view comes after states"),
        ([HEADER, R, {"view": {"name": "v", "sql": "SELECT a FROM x.s"}}], 3, "source x has no table s"),
        ([HEADER, R, {"view": {**V["view"], "columns": columns("a int")}}], 3, "yields the columns a, b"),
        ([HEADER, R, t({})], 3, "no source"),
        ([HEADER, R, t({"z": {}})], 3, "no source 'z'"),
        ([HEADER, R, t({"x": {"s": []}})], 3, "no relation x.s"),
        ([HEADER, R, t({"x": {"r": [["1", "a"]]}})], 3, "not a count and a row"),
        ([HEADER, R, t({"x": {"r": [[0, ["1", "a"]]]}})], 3, "not a count and a row"),
        ([HEADER, R, t({"x": {"r": [[-1, ["1", "a"]]]}})], 3, "taken out of x.r, but is not there"),
        ([HEADER, R, t({"x": {}}), t({"x": {}})], 4, "T1 is there twice"),
        ([HEADER, R, t({"x": {}}, positions={"y": "1"})], 3, "a position of 'y', but no part"),
        ([HEADER, R, t({"x": {}}, position="1", positions={"x": "1"})], 3, "`position` is for one source"),
        ([HEADER, R, t({"x": {}}, at=5)], 3, "at is not a text"),
        ([HEADER, R, V], 3, "no state"),
        ([HEADER, R], 2, "no view"),
        ([HEADER, R, V, {"state": {"views": {}}}], 4, "the first state has no rows of v"),
        ([HEADER, R, V, {"state": {"views": {"w": {"rows": []}}}}], 4, "no view 'w'"),
        ([HEADER, R, V, {"state": {"views": {"v": {}}}}], 4, "both or neither"),
        ([HEADER, R, V, {"state": {"views": {"v": {"rows": {}}}}}], 4, "rows is not a list"),
        ([HEADER, R, V, {"state": {**S["state"], "positions": {"w": {}}}}], 4, "no view 'w'"),
        ([HEADER, R, V, {"state": {**S["state"], "positions": {"v": {}}}}], 4, "claims no position of x"),
        ([HEADER, R, V, {"state": {**S["state"], "positions": {"v": {"x": 1}}}}, S], 4, "no position 1 of x"),
        ([HEADER, R, V, {"state": {**S["state"], "positions": {"v": {"x": "7"}}}}, S], 4, "no position '7' of x"),
        ([HEADER, R, V, {"state": {**S["state"], "positions": {"v": {"x": True}}}}, S], 4, "is neither"),
        ([HEADER, R, V, {"state": {**S["state"], "positions": {"v": {"x": 0, "z": 0}}}}, S], 4, "no source 'z'"),
    ],
)
def test_a_mistake_names_its_line(tmp_path: Path, lines: list[Any], line: int, message: str) -> None:
    """And what to change."""
    file = stored(tmp_path, *lines)
    with pytest.raises(UserError) as error:
        read(file)
    assert message in error.value.message
    assert f"{file}, line {line}" in error.value.where
    assert error.value.fix


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8, an empty file, and JSON that is nested without end."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        read(tmp_path / "bytes")
    (tmp_path / "empty").write_text("")
    with pytest.raises(UserError, match="no view"):
        read(tmp_path / "empty")
    (tmp_path / "deep").write_text("[" * 100_000)
    with pytest.raises(UserError, match="not JSON"):
        read(tmp_path / "deep")


# ── round trips ──────────────────────────────────────────────────────────────────────────────────────────────────────

MOMENTS = st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "decimal(38,10)": st.decimals(-(10**27), 10**27, allow_nan=False, places=10),
    "float": st.floats(width=32),
    "double": st.floats(),
    "string": st.text(max_size=5),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": MOMENTS.map(lambda moment: moment.replace(tzinfo=timezone.utc)),
    "timestamp_ntz": MOMENTS,
    "binary": st.binary(max_size=5),
}
SCHEMA = RelationSchema("x", "r", tuple(Column(f"c{i}", type_) for i, type_ in enumerate(VALUES)), ("c0",))
NAMES = [column.name for column in SCHEMA.columns]
ROWS = st.lists(st.tuples(*(values | st.none() for values in VALUES.values())), max_size=3)
CLAIMS = (
    st.none()
    | st.integers(0, 2).map(lambda n: {"v": {"x": n}})
    | st.sampled_from(["s", "p"]).map(lambda p: {"v": {"x": p}})
)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """All types, transactions that put rows in and take some out again, states in full and as changes."""
    rows = Bag.of(NAMES, draw(ROWS))
    first = Bag.of(NAMES, draw(ROWS))
    second = Bag.of(NAMES, draw(ROWS)).add(first.negate())
    transactions = (
        HistoryTransaction("T1", {"x": {"r": first}}, {"x": "p"}),
        HistoryTransaction("T2", {"x": {"r": second}, "y": {}}),
    )
    states = [HistoryState({"v": Bag.of(NAMES, draw(ROWS))}, {}, draw(CLAIMS))]
    for _ in range(draw(st.integers(0, 2))):
        shown = Bag.of(NAMES, draw(ROWS))
        views = draw(st.sampled_from([({}, {}), ({"v": shown}, {}), ({}, {"v": shown}), ({}, {"v": shown.negate()})]))
        states.append(HistoryState(*views, draw(CLAIMS)))
    other = RelationSchema("y", "s", (Column("a", "int"),))
    view = HistoryView("v", "SELECT * FROM x.r", draw(st.sampled_from([(), SCHEMA.columns])))
    return History(((SCHEMA, rows), (other, Bag(["a"]))), (view,), transactions, tuple(states), {"x": "s"})


@settings(max_examples=60, deadline=None)
@given(histories())
def test_what_is_written_comes_back(tmp_path_factory: pytest.TempPathFactory, history: History) -> None:
    """Every value of every type, NULL included, and everything else; and it is judged alike."""
    file = tmp_path_factory.mktemp("history") / "history.jsonl"
    with file.open("w", encoding="utf-8", newline="\n") as opened:
        write(history, opened)
    again = read(file)
    assert again == history
    assert again.verdict() == history.verdict()


@pytest.mark.parametrize("type_", VALUES)
def test_values_keep_their_type_and_digits(type_: str) -> None:
    """What comes back is the same value, not only an equal one."""

    @settings(max_examples=50, deadline=None)
    @given(VALUES[type_])
    def check(value: Any) -> None:
        found = decode(json.loads(json.dumps(encode(value, type_), allow_nan=False)), type_)
        if isinstance(value, float) and math.isnan(value):
            assert math.isnan(found)
        else:
            assert (type(found), found) == (type(value), value)

    check()


def test_exact_values_are_strings_and_other_spellings_are_read() -> None:
    """64-bit integers and decimals; offsets become UTC; a float is a 32-bit one."""
    assert encode(2**62, "bigint") == "4611686018427387904"
    assert encode(Decimal("1.50"), "decimal(5,2)") == "1.50"
    assert encode(datetime(2024, 5, 1, tzinfo=timezone.utc), "timestamp") == "2024-05-01T00:00:00Z"
    assert encode(b"\x00\xff", "binary") == "00ff"
    assert decode("2024-05-01 02:00:00.5+02:00", "timestamp") == datetime(2024, 5, 1, 0, 0, 0, 500_000, timezone.utc)
    assert decode(7, "decimal(5,2)") == 7 and decode("7", "int") == 7
    assert decode(0.1, "float") == pytest.approx(0.1) and decode(0.1, "float") != 0.1
    assert str(decode("-0.00", "decimal(5,2)")) == "0.00" and str(decode(-0.0, "double")) == "0.0"
    assert normal_type("DECIMAL(5, 2)") == "decimal(5,2)" and normal_type("decimal") == "decimal(10,0)"


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        *((True, type_) for type_ in VALUES if type_ != "boolean"),
        *(([], type_) for type_ in VALUES),
        *[(128, "tinyint"), ("1.0", "int"), ("١", "int"), (1.5, "decimal(5,2)"), ("1.234", "decimal(5,2)")],
        *[("1234", "decimal(5,2)"), ("NaN", "decimal(5,2)"), ("1e3", "double"), (1e39, "float"), (1, "boolean")],
        *[("2024-02-30", "date"), ("20240201", "date"), ("2024-02-01T00:00:00", "timestamp"), ("0g", "binary")],
        *[("2024-02-01T00:00:00Z", "timestamp_ntz"), ("2024-02-01T25:00:00Z", "timestamp"), ("abc", "binary")],
        *[("0001-01-01T00:00:00+10:00", "timestamp"), (1, "void"), (10**400, "double")],
    ],
)
def test_values_that_do_not_fit_are_refused(value: Any, type_: str) -> None:
    """Rather than read as something near."""
    with pytest.raises(Unfit):
        decode(value, type_)


@pytest.mark.parametrize("type_", ["array<int>", "decimal(39,0)", "decimal(2,3)", "decimal(0,0)", "text", "void"])
def test_types_that_cannot_stand_in_a_history_are_refused(type_: str) -> None:
    """Decimals have at most 38 digits."""
    with pytest.raises(Unfit):
        normal_type(type_)


def test_values_that_would_not_come_back_are_not_written() -> None:
    """A row that does not fit its relation is an error when it is written."""
    relation = RelationSchema("x", "r", (Column("a", "int"),))
    history = History(((relation, Bag.of(["a"], [(2**40,)])),), (), (), ())
    with pytest.raises(UserError, match="cannot be written"):
        write(history, io.StringIO())


# ── views by SQL ─────────────────────────────────────────────────────────────────────────────────────────────────────

TYPED = columns(
    "n int", "big bigint", "d decimal(6,2)", "s string", "f boolean", "day date", "x double", "ts timestamp"
)
A_ROW = [5, "7", "1.50", "abc", True, "2024-05-01", 0.5, "2024-05-01T00:00:00Z"]
NULLS = [None] * 8


def computed(tmp_path: Path, sql: str) -> Any:
    """The rows of a view over one typed row and one of NULLs, as the judge computes them: from the witness's side, the
    rows it says are missing from an empty state."""
    history = history_of(tmp_path, sql)
    verdict = history.verdict("convergent")
    return "unknown" if verdict.verdict == "unknown" else verdict.together.witness


def history_of(tmp_path: Path, sql: str) -> History:
    relation = {"relation": {"source": "x", "name": "r", "columns": TYPED, "rows": [A_ROW, NULLS]}}
    view = {"view": {"name": "v", "sql": sql}}
    return read(stored(tmp_path, HEADER, relation, view, S))


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        *[("n = 5", True), ("n <> 5", False), ("n >= 5 AND n < 6", True), ("n > 5 OR s = 'abc'", True)],
        *[("NOT n = 4", True), ("n != 4", True), ("n IN (1, 5, NULL)", True), ("n NOT IN (1, 2)", True)],
        *[("n NOT IN (1, NULL)", False), ("n BETWEEN 5 AND 7", True), ("n NOT BETWEEN 6 AND 7", True)],
        *[("s IS NULL", "null"), ("s IS NOT NULL", True), ("f", True), ("NOT f", False), ("f IS TRUE", True)],
        *[("f IS NOT TRUE", "null"), ("n <=> NULL", "null"), ("n <=> 5", True), ("n IS DISTINCT FROM 5", "null")],
        *[("n = NULL", False), ("n = NULL OR f", True), ("NOT (n = NULL AND f)", False), ("NULL", False)],
        *[("n + 1 = 6", True), ("n - 6 = -1", True), ("d * 2 = 3", True), ("d + n = 6.5", True), ("big = 7L", True)],
        *[
            ("-n = -5", True),
            ("d = 1.5", True),
            ("n = 5.0", True),
            ("day = DATE '2024-05-01'", True),
            ("s < 'abd'", True),
        ],
        *[("day > DATE '2024-05-01'", False), ("ts = ts", True), ("(n + 1) * 2 = 12", True), ("n = 5 AND true", True)],
    ],
)
def test_conditions_have_three_values(tmp_path: Path, condition: str, kept: Any) -> None:
    """A row stays where the condition is true: not where it is false, nor where it is unknown."""
    rows = computed(tmp_path, f"SELECT n FROM x.r WHERE {condition}")
    wanted = {True: ["(5)"], False: [], "null": ["(NULL)"]}[kept]
    assert [line.removesuffix(" is missing from state 0") for line in rows[1:]] == wanted


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("n", "5"),
        ("big * 2", "14"),
        ("d * d", "2.2500"),
        ("d - 1", "0.50"),
        ("d + 0.001", "1.501"),
        ("n = 5", "True"),
        ("'x'", "'x'"),
        ("NULL", "NULL"),
        ("day", "2024-05-01"),
        ("x", "0.5"),
        ("-d", "-1.50"),
        ("1.50", "1.50"),
        ("9223372036854775808", "9223372036854775808"),
        ("2147483648 * 2", "4294967296"),
    ],
)
def test_outputs_are_computed_exactly(tmp_path: Path, expression: str, shown: str) -> None:
    """Over integers and decimals; everything else as it is."""
    rows = computed(tmp_path, f"SELECT {expression} AS o FROM x.r WHERE n = 5")
    assert rows[1] == f"({shown}) is missing from state 0"


@pytest.mark.parametrize(
    "expression",
    [
        *["upper(s)", "n / 2", "n % 2", "x + 1", "x > 0", "s = 5", "n = '5'", "s || 'a'", "CAST(n AS STRING)", "1e3"],
        *[
            "s = 'it''s'",
            r"s = 'a\nb'",
            "s = 'a' 'b'",
            "day = '2024-05-01'",
            "TIMESTAMP '2024-05-01 00:00:00'",
        ],
        *["n + d * CAST(1 AS DECIMAL(38,0))", "s LIKE 'a%'", "CASE WHEN f THEN 1 END", "f + 1", "(n, n) = (5, 5)"],
        *["n = 1e0", "DATE '2024-5-1' = day", "DATE '2024-02-31' = day", "ts = day", "NOT (n)", "n AND f", "n IS TRUE"],
        *["d * 1.00000000000000000000000000000000001", "d = 0.0000000000000000000000000000000000001", "200Y", "5BD"],
    ],
)
def test_what_only_spark_can_say_is_unknown(tmp_path: Path, expression: str) -> None:
    """And the reason names it, in the user's words."""
    verdict = history_of(tmp_path, f"SELECT {expression} AS o FROM x.r").verdict()
    assert (verdict.verdict, verdict.level) == ("unknown", "unknown")
    assert verdict.together.because.startswith("view v has an expression that only Spark can evaluate: ")
    assert "r0c" not in verdict.together.because


@pytest.mark.parametrize("expression", ["n * 1000000000", "n + 2147483647", "big * 9223372036854775807", "100Y + 100Y"])
def test_an_overflow_is_unknown(tmp_path: Path, expression: str) -> None:
    """Spark would stop there."""
    verdict = history_of(tmp_path, f"SELECT {expression} AS o FROM x.r").verdict()
    assert verdict.verdict == "unknown"
    assert verdict.together.because.endswith("(it overflows)")


def test_joins_self_joins_and_cross_products(tmp_path: Path) -> None:
    """Rows are counted; NULL joins with nothing; a relation may be there twice."""
    r = {"source": "x", "name": "r", "columns": columns("a int", "b int"), "rows": [[1, 2], [1, 2], [None, 3], [2, 1]]}
    s = {"source": "y", "name": "s", "columns": columns("c int"), "rows": [[7]]}
    sql = {
        "pairs": "SELECT p.a, q.b FROM x.r AS p JOIN x.r AS q ON p.b = q.a",
        "cross": "SELECT r.b, s.c FROM x.r, y.s WHERE r.b + s.c > 8",
        "chain": "SELECT p.b FROM y.s JOIN x.r p ON p.a < s.c JOIN x.r q ON q.b = p.a WHERE p.a IS NOT NULL",
    }
    wanted = {
        "pairs": [[1, 1], [1, 1], [2, 2], [2, 2]],
        "cross": [[2, 7], [2, 7], [3, 7]],
        "chain": [[2], [2], [1], [1]],
    }
    views = [{"view": {"name": name, "sql": text}} for name, text in sql.items()]
    state = {"state": {"views": {name: {"rows": rows} for name, rows in wanted.items()}}}
    history = read(stored(tmp_path, HEADER, {"relation": r}, {"relation": s}, *views, state))
    assert history.verdict("complete").verdict == "valid"


def test_claims_in_a_file_are_checked(tmp_path: Path) -> None:
    """By count and by position; a view that a state does not mention is as it was."""

    def lines(claimed: Any) -> list[Any]:
        def claims(x: Any) -> dict[str, Any]:
            return {"positions": {"v": {"x": x}}}

        return [
            {**HEADER, "positions": {"x": "p0"}},
            R,
            V,
            {"state": {**S["state"], **claims("p0")}},
            t({"x": {"r": [[1, ["1", "a"]]]}}, position="p1", at="2024-05-01T00:00:00Z"),
            {"state": {"views": {"v": {"changes": [[1, ["1", "a"]]]}}, **claims(claimed), "at": "later"}},
            {"state": {"views": {}, **claims(1)}},
        ]

    assert read(stored(tmp_path, *lines("p1"))).verdict("complete").verdict == "valid"
    wrong = read(stored(tmp_path, *lines("p0"))).verdict()
    assert (wrong.verdict, wrong.level) == ("invalid", "convergent")
    assert wrong.together.witness[0] == (
        "state 1 claims x at the start, but is the sources at x after T1: x's T1 (+r[1, 'a']) seen too early"
    )


def test_a_view_that_claims_nothing_is_searched_for(tmp_path: Path) -> None:
    """Beside one that does."""
    w = {"view": {"name": "w", "sql": "SELECT r.a FROM x.r"}}
    first = {"state": {"views": {"v": {"rows": []}, "w": {"rows": []}}, "positions": {"v": {"x": 0}}}}

    def verdict(rows: list[Any]) -> Any:
        views = {"v": {"rows": [["1", "a"]]}, "w": {"rows": rows}}
        last = {"state": {"views": views, "positions": {"v": {"x": 1}}}}
        change = t({"x": {"r": [[1, ["1", "a"]]]}})
        return read(stored(tmp_path, HEADER, R, V, w, first, change, last)).verdict("complete")

    assert verdict([["1"]]).verdict == "valid"
    behind = verdict([])
    assert (behind.verdict, behind.views["v"].level, behind.views["w"].level) == ("invalid", "complete", "consistent")


def test_dates_and_the_like_are_shown_as_they_are(tmp_path: Path) -> None:
    """A witness is for people."""
    rows = computed(tmp_path, "SELECT day, d, s FROM x.r WHERE n = 5")
    assert rows == (
        "compared with the sources at the start:",
        "(2024-05-01, 1.50, 'abc') is missing from state 0",
    )
