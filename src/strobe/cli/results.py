"""The rows of a query in the formats of `strobe sql`, written as they come."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain, islice
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.cells import cell_len

from strobe.client.query import Result
from strobe.errors import UserError
from strobe.report.document import FORMAT
from strobe.report.rows import columns, rows


class Format(str, Enum):
    table = "table"
    csv = "csv"
    json = "json"
    jsonl = "jsonl"
    parquet = "parquet"


MEASURED = 1000
"""Rows by which the widths of a table's columns are chosen; a longer value further down moves its line only."""

_NUMBERS = ("tinyint", "smallint", "int", "bigint", "decimal", "double", "float")


def write(result: Result, format_: Format, out: IO[str], binary: Callable[[], IO[bytes]]) -> int:
    """Write the rows; returns how many. `binary` is where bytes go instead, if the format has them."""
    if format_ is Format.parquet:
        return _parquet(result, binary())
    return _TEXT[format_](result, out)


def _table(result: Result, out: IO[str]) -> int:
    names = [_cell(column.name) for column in result.columns]
    right = [column.type.startswith(_NUMBERS) for column in result.columns]
    found = ([_cell(value) for value in row] for row in rows(result))
    first = list(islice(found, MEASURED))
    widths = [max(cell_len(row[i]) for row in (names, *first)) for i in range(len(names))]
    print(_line(names, widths, right), file=out)
    print("─" * (sum(widths) + 3 * (len(widths) - 1) + 2), file=out)
    return _written(chain(first, found), lambda row: print(_line(row, widths, right), file=out))


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        " " * (width - cell_len(cell)) + cell if to_right else cell + " " * (width - cell_len(cell))
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    )
    return f" {'   '.join(padded)}".rstrip()


def _cell(value: Any) -> str:
    """A value on one line; what could move the cursor is shown escaped."""
    text = "NULL" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _csv(result: Result, out: IO[str]) -> int:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(column.name for column in result.columns)
    return _written(rows(result), lambda row: writer.writerow(map(_field, row)))


def _field(value: Any) -> Any:
    """NULL is an empty field, whatever is no single value is JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list, bool)) else value


def _json(result: Result, out: IO[str]) -> int:
    """The public document, a row to a line."""
    head = json.dumps({"format": FORMAT, "commit": result.commit, "columns": columns(result)}, ensure_ascii=False)
    out.write(head.removesuffix("}") + ', "rows": [')
    before = iter(("\n",))
    count = _written(rows(result), lambda row: out.write(next(before, ",\n") + json.dumps(row, ensure_ascii=False)))
    out.write("]}\n" if not count else "\n]}\n")
    return count


def _jsonl(result: Result, out: IO[str]) -> int:
    names = [column.name for column in result.columns]
    return _written(
        rows(result), lambda row: print(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False), file=out)
    )


def _parquet(result: Result, out: IO[bytes]) -> int:
    names = [column.name for column in result.columns]
    if len({name.lower() for name in names}) < len(names):
        raise UserError(
            "two columns have the same name", where="SQL", fix="Give each column a name of its own with AS."
        )
    count, writer = 0, None
    for batch in result.batches:
        named = pa.table(batch.columns, names=names)
        writer = writer or pq.ParquetWriter(out, named.schema)
        writer.write_table(named)
        count += named.num_rows
    if writer is None:
        raise UserError("there are no rows, so no Parquet file was written", where="SQL")
    writer.close()
    return count


def _written(found: Iterable[Any] | Iterator[Any], write_row: Callable[[Any], object]) -> int:
    count = 0
    for row in found:
        write_row(row)
        count += 1
    return count


_TEXT: dict[Format, Callable[[Result, IO[str]], int]] = {
    Format.table: _table,
    Format.csv: _csv,
    Format.json: _json,
    Format.jsonl: _jsonl,
}
