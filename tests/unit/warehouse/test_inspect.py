"""Looking at a warehouse without a JVM, on tables that another writer made."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from strobe.errors import UserError
from strobe.warehouse import inspect
from strobe.warehouse.claim import Fence, fences
from strobe.warehouse.layout import Layout

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
_TEXTS = pa.map_(pa.string(), pa.string())
_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("commit", pa.int64()),
        ("committed_at", _TIME),
        ("epoch", pa.int64()),
        ("positions", pa.map_(pa.string(), _TEXTS)),
        ("as_of", pa.map_(pa.string(), pa.map_(pa.string(), _TIME))),
        ("identity", _TEXTS),
        ("view", pa.string()),
        ("count", pa.int64()),
        ("generations", pa.map_(pa.string(), pa.int64())),
        ("range", pa.int64()),
    ]
)


def append(path: Path, *numbers: int, format_: str = "1") -> None:
    rows: list[dict[str, object]] = []
    for number in numbers:
        at = START + timedelta(seconds=number)
        rows.append(
            {
                "commit": number,
                "committed_at": at,
                "epoch": 1,
                "positions": [("v", [("s", str(number))])],
                "as_of": [("v", [("s", at)])],
                "identity": [("s", "server")],
                "generations": [("v", 1)],
                "range": number // 10_000,
            }
        )
        rows.append({"commit": number, "epoch": 1, "view": "v", "count": 1, "range": number // 10_000})
    write_deltalake(
        str(path / "log"),
        pa.Table.from_pylist(rows, schema=SCHEMA),
        mode="append",
        partition_by=["range"],
    )
    if numbers[0] == 1:
        give_format(path / "log", format_)


def give_format(table: Path, format_: str) -> None:
    """Put the format number into the properties, as Spark does when it creates the table."""
    first = table / "_delta_log" / f"{0:020d}.json"
    first.write_text(first.read_text().replace('"configuration":{', f'"configuration":{{"strobe.format":"{format_}"'))


def test_the_log_is_read_by_its_newest_files_only(tmp_path: Path) -> None:
    """Header, history and times come from the few files that matter; the others need not even be there."""
    append(tmp_path, *range(1, 5000))
    for number in range(5000, 5060):
        append(tmp_path, number)
    old = [path for path in (tmp_path / "log").rglob("*.parquet") if pq.read_metadata(path).num_rows > 1000]
    for path in old:
        path.rename(path.with_suffix(".away"))
    last = inspect.last_header(Layout(tmp_path))
    past = inspect.history(Layout(tmp_path), 3)
    for path in old:
        path.with_suffix(".away").rename(path)
    assert last is not None and last.number == 5059 and last.positions == {"v": {"s": "5059"}}
    assert last.as_of == {"v": {"s": START + timedelta(seconds=5059)}} and last.generations == {"v": 1}
    assert [p.header.number for p in past] == [5059, 5058, 5057] and past[0].changed == ("v",)
    assert old
    log = inspect.open_log(Layout(tmp_path))
    at = inspect.header_at(log, START + timedelta(seconds=4321.5))
    assert at is not None and at.number == 4321
    assert inspect.header_at(log, START) is None
    assert inspect.changes(log, 4990, 5001) == {"v": (5001, 11)}
    assert inspect.header_of(log, 5060) is None


def test_what_is_no_warehouse_is_refused(tmp_path: Path) -> None:
    """An absent one, a newer format, and a table that is something else."""
    with pytest.raises(UserError, match="no table"):
        inspect.last_header(Layout(tmp_path))
    append(tmp_path / "new", 1, format_="99")
    with pytest.raises(UserError, match="format 99"):
        inspect.last_header(Layout(tmp_path / "new"))
    write_deltalake(str(tmp_path / "other" / "log"), pa.table({"a": [1]}))
    with pytest.raises(UserError, match="something else"):
        inspect.history(Layout(tmp_path / "other"), 5)


def test_fences_are_read_from_the_properties() -> None:
    """Oldest first, slack before exact, other constraints left alone."""
    found = fences(
        {
            "delta.constraints.fence_7": "(epoch >= 7) OR (commit <= 1234)",
            "delta.constraints.fence_7_slack": "epoch >= 7 OR commit <= 1254",
            "delta.constraints.fence_2": "epoch >= 2 OR commit <= 9",
            "delta.constraints.other": "commit <= 5",
        }
    )
    assert found == [
        Fence("fence_2", 2, 9, False),
        Fence("fence_7_slack", 7, 1254, True),
        Fence("fence_7", 7, 1234, False),
    ]
