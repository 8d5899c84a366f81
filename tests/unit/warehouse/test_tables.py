"""What is left of a warehouse that was deleted while it was in use, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from strobe.errors import UserError
from strobe.warehouse import tables
from strobe.warehouse.layout import HEADER_COLUMNS, Layout

LOG = pa.table({name: [1] for name in HEADER_COLUMNS})


def written(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    return file


def test_what_was_being_written_is_removed(tmp_path: Path) -> None:
    """Files of a commit that came too late, and a log that it began as a new table: then the folder is free."""
    layout = Layout(tmp_path / "w")
    for name in ("published/part-1.parquet", "definitions/_delta_log/.7.json.tmp", "views/v/.part-1.parquet.crc"):
        written(layout.root / name)
    write_deltalake(layout.log, LOG)
    with pytest.raises(UserError, match="not empty"):
        tables.refuse_foreign(layout)
    tables.remove_remains(layout, ["v"])
    assert not layout.root.exists()


def test_what_others_have_put_there_stays(tmp_path: Path) -> None:
    """Another table in its place, or files of other names."""
    layout = Layout(tmp_path / "w")
    write_deltalake(layout.log, pa.table({"line": ["not ours"]}))
    mine = [written(layout.root / "views" / "v" / "mine.csv"), written(layout.root / "notes.txt")]
    before = set(layout.root.rglob("*"))
    written(layout.root / "views" / "v" / "part-1.parquet")
    tables.remove_remains(layout, ["v"])
    assert set(layout.root.rglob("*")) == before and all(file.exists() for file in mine)
