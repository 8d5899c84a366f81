"""The rows of a query in the formats of `strobe sql`."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strobe.cli.results import MEASURED, Format, write
from strobe.client.query import Result
from strobe.errors import UserError
from strobe.warehouse.statement import Column

TYPES = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "decimal(10,2)": pa.decimal128(10, 2)}
TYPES |= {"double": pa.float64(), "timestamp": pa.timestamp("us", "UTC"), "array<bigint>": pa.list_(pa.int64())}


def result(columns: dict[str, str], *batches: list[tuple[Any, ...]], names: list[str] | None = None) -> Result:
    def arrow() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = [pa.array([row[i] for row in batch], TYPES[type_]) for i, type_ in enumerate(columns.values())]
            yield pa.RecordBatch.from_arrays(values, [f"c{i}" for i in range(len(columns))])

    listed = zip(names or list(columns), columns.values(), strict=True)
    return Result(7, tuple(Column(name, type_) for name, type_ in listed), arrow())


def text(found: Result, format_: Format) -> str:
    out = io.StringIO()
    write(found, format_, out, io.BytesIO)
    return out.getvalue()


MIXED = {"id": "bigint", "name": "string", "price": "decimal(10,2)"}
ROWS = [(1, "tea", Decimal("2.50")), (20, None, Decimal("10.00"))]


def test_a_table_aligns_numbers_to_the_right_and_shows_null() -> None:
    assert text(result(MIXED, ROWS), Format.table).splitlines() == [
        " id   name   price",
        "───────────────────",
        "  1   tea     2.50",
        " 20   NULL   10.00",
    ]


def test_a_table_shows_control_characters_escaped_and_wide_characters_aligned() -> None:
    shown = text(result({"a": "string", "b": "string"}, [("\x1b[31mred\n", "x"), ("茶", "y")]), Format.table)
    assert "\x1b" not in shown
    assert "\\x1b[31mred\\n   x" in shown
    assert shown.splitlines()[-1] == " 茶" + " " * (len("\\x1b[31mred\\n") - 2) + "   y"


def test_a_table_begins_before_the_last_rows_have_come() -> None:
    """Rows are written as they come: what follows the rows that are measured is not waited for."""
    out = io.StringIO()

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array(range(MEASURED + 1))], ["c0"])
        assert len(out.getvalue().splitlines()) >= MEASURED
        yield pa.RecordBatch.from_arrays([pa.array([10**12])], ["c0"])

    assert write(Result(1, (Column("n", "bigint"),), rows()), Format.table, out, io.BytesIO) == MEASURED + 2


def test_csv_leaves_null_empty_and_quotes_what_needs_it() -> None:
    found = result({"n": "int", "s": "string", "a": "array<bigint>"}, [(None, 'a "b", c', [1, 2])])
    assert text(found, Format.csv) == 'n,s,a\n,"a ""b"", c","[""1"", ""2""]"\n'


@pytest.mark.parametrize("rows", [[], [ROWS], [ROWS, ROWS]], ids=["none", "one batch", "two"])
def test_json_is_the_public_document(rows: list[list[tuple[Any, ...]]]) -> None:
    """Exact values are text; the document is whole however many batches come."""
    document = json.loads(text(result(MIXED, *rows), Format.json))
    assert (document["format"], document["commit"]) == (1, 7)
    assert document["columns"][2] == {"name": "price", "type": "decimal(10,2)"}
    assert document["rows"] == [["1", "tea", "2.50"], ["20", None, "10.00"]] * len(rows)


def test_json_lines_are_an_object_for_each_row() -> None:
    moment = datetime(2026, 3, 29, 1, 30, tzinfo=timezone.utc)
    found = text(result({"t": "timestamp", "f": "double"}, [(moment, float("nan"))]), Format.jsonl)
    assert json.loads(found) == {"t": "2026-03-29T01:30:00+00:00", "f": "NaN"}


def test_parquet_keeps_types_and_names() -> None:
    out = io.BytesIO()
    assert write(result(MIXED, ROWS, ROWS), Format.parquet, io.StringIO(), lambda: out) == 4
    table = pq.read_table(io.BytesIO(out.getvalue()))
    assert table.column_names == ["id", "name", "price"]
    assert table.schema.field("price").type == pa.decimal128(10, 2)


def test_parquet_refuses_names_that_repeat() -> None:
    with pytest.raises(UserError, match="two columns have the same name"):
        write(result(MIXED, ROWS, names=["a", "A", "b"]), Format.parquet, io.StringIO(), io.BytesIO)
