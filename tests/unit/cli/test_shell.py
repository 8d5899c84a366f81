"""The shell of `strobe sql`, with lines from a pipe."""

from __future__ import annotations

import io
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from strobe.cli.results import Format
from strobe.cli.shell import Shell
from strobe.client.query import Result
from strobe.errors import StrobeError, UserError
from strobe.warehouse.statement import Column


class Asked:
    """Answers every query with one row, and remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int | datetime | None, int | None]] = []

    def ask(self, text: str, at: int | datetime | None = None, limit: int | None = None) -> Result:
        self.asked.append((text, at, limit))
        if "wrong" in text:
            raise UserError("no such column")
        return Result(3, (Column("n", "int"),), iter([pa.RecordBatch.from_arrays([pa.array([1])], ["c0"])]))

    def views(self) -> dict[str, tuple[Column, ...]]:
        return {"orders": (Column("id", "bigint"), Column("note", "string"))}


def typed(monkeypatch: pytest.MonkeyPatch, lines: str) -> tuple[Asked, str, list[str]]:
    queries: Any = Asked()
    out, failed = io.StringIO(), list[str]()

    def fail(error: StrobeError) -> None:
        failed.append(error.message)

    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    Shell(queries, out, Format.table, None, None, fail).run()
    return queries, out.getvalue(), failed


def test_a_statement_goes_on_to_its_semicolon(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, out, _ = typed(monkeypatch, "SELECT n\nFROM orders;\nSELECT 2;\nSELECT 3")
    assert [text for text, _, _ in queries.asked] == ["SELECT n\nFROM orders", "SELECT 2", "SELECT 3"]
    assert "1 row at commit 3" in out


def test_settings_hold_for_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, out, _ = typed(
        monkeypatch, "\\at 12\n\\limit 5\n\\format csv\nSELECT 1;\n\\at now\n\\limit all\nSELECT 2;"
    )
    assert queries.asked == [("SELECT 1", 12, 5), ("SELECT 2", None, None)]
    assert out == "n\n1\nn\n1\n"


def test_views_and_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    _, out, failed = typed(monkeypatch, "\\d\n\\d orders\n\\d nothing\n")
    assert out.splitlines() == ["orders", "id  bigint", "note  string"]
    assert failed == ["there is no view 'nothing'"]


@pytest.mark.parametrize("line", ["\\nonsense", "\\limit many", "\\format parquet", "\\at yesterday"])
def test_a_command_that_is_not_known_is_refused_and_nothing_else(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    queries, _, failed = typed(monkeypatch, f"{line}\nSELECT wrong;\nSELECT 1;")
    assert len(failed) == 2
    assert [text for text, _, _ in queries.asked] == ["SELECT wrong", "SELECT 1"]


@pytest.mark.parametrize("line", ["\\q", "exit", "quit;"])
def test_it_can_be_left(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    queries, _, _ = typed(monkeypatch, f"{line}\nSELECT 1;")
    assert queries.asked == []
