"""What changes a Delta table's definition: seen in its log at its exact place, and in fingerprints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_table import Table, hold, read
from deltalake import write_deltalake

from strobe.errors import LostGuarantee

USED = ("id", "place")


def add_a_column(table: Table) -> None:
    more = table.rows((5, "e", 1.0)).append_column("y", pa.array([1]))
    write_deltalake(str(table.path), more, mode="append", schema_mode="merge")


def drop_columns(*names: str) -> Callable[[Table], None]:
    def drop(table: Table) -> None:
        rows = table.rows((6, "f", 1.0)).drop_columns(list(names))
        write_deltalake(str(table.path), rows, mode="overwrite", schema_mode="overwrite")

    return drop


def overwrite(partitioned: list[str] | None) -> Callable[[Table], None]:
    def write(table: Table) -> None:
        rows = table.rows((7, "g", 1.0))
        write_deltalake(str(table.path), rows, mode="overwrite", schema_mode="overwrite", partition_by=partitioned)

    return write


def set_property(name: str, *values: str) -> Callable[[Table], None]:
    def write(table: Table) -> None:
        for value in values:
            metadata = table.metadata()
            metadata["metaData"]["configuration"][name] = value
            table.commit(metadata)

    return write


def replace(table: Table) -> None:
    metadata = table.metadata()
    metadata["metaData"]["id"] = "another"
    table.commit(metadata)


def make_anew(table: Table) -> None:
    versions = table.delta.version()
    shutil.rmtree(table.path)
    table.create()
    for n in range(versions):
        table.append((n, "z", 1.0))


def there_and_back(change: Callable[[Table], None]) -> Callable[[Table], None]:
    def both(table: Table) -> None:
        before = table.metadata()
        change(table)
        table.commit(before)

    return both


HARMLESS: dict[str, Callable[[Table], Any]] = {
    "a column more": add_a_column,
    "an unused column less": drop_columns("x"),
    "compaction": lambda table: table.delta.optimize.compact(),
    "vacuum": lambda table: table.delta.vacuum(dry_run=False),
    "restore": lambda table: table.delta.restore(1),
    "rows": lambda table: table.delta.delete("id = 1"),
    "a property": set_property("delta.appendOnly", "false"),
    "the feed off and on": set_property("delta.enableChangeDataFeed", "false", "true"),
    "other partitions": overwrite(["place"]),
    "a checkpoint": lambda table: table.delta.create_checkpoint(),
}
HARMFUL: dict[str, Callable[[Table], None]] = {
    "a used column less": drop_columns("place"),
    "another table": replace,
    "a table made anew": make_anew,
    "mapped columns": set_property("delta.columnMapping.mode", "name"),
}
SEEN_IN_THE_LOG: dict[str, Callable[[Table], None]] = {
    "a used column less, and back": there_and_back(drop_columns("place")),
    "another table, and back": there_and_back(replace),
    "mapped columns, and back": set_property("delta.columnMapping.mode", "name", "none"),
}


def filled(folder: Path) -> Table:
    table = Table(folder).create()
    table.append((1, "a", 1.0), (2, "b", 2.0))
    table.append((3, "c", 3.0))
    return table


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_what_alters_nothing_that_is_used_goes_on(tmp_path: Path, change: Callable[[Table], Any]) -> None:
    """The fingerprints say so, and the stream goes on, exactly."""
    table = filled(tmp_path)
    source = table.open()
    source.focus({"stock": USED})
    source.schemas()
    before = source.fingerprints(["stock"])["stock"]
    change(table)
    after = source.fingerprints(["stock"])["stock"]
    assert source.changed("stock", USED, before, after) == ""
    rows = table.rows((4, "d", None)).select(list(USED))
    write_deltalake(str(table.path), rows, mode="append", schema_mode="merge")
    hold(table, source, list(USED))


@pytest.mark.parametrize("change", HARMFUL.values(), ids=HARMFUL)
def test_what_may_alter_something_stops(tmp_path: Path, change: Callable[[Table], None]) -> None:
    """The fingerprints differ, in a process that has seen the table before and in a new one."""
    table = filled(tmp_path)
    source = table.open()
    before = source.fingerprints(["stock"])["stock"]
    assert table.open().fingerprints(["stock"])["stock"] == before
    change(table)
    for looking in (source, table.open()):
        after = looking.fingerprints(["stock"])["stock"]
        assert source.changed("stock", USED, before, after)


@pytest.mark.parametrize("change", [*HARMFUL.values(), *SEEN_IN_THE_LOG.values()], ids=[*HARMFUL, *SEEN_IN_THE_LOG])
def test_the_stream_stops_where_it_happened(tmp_path: Path, change: Callable[[Table], None]) -> None:
    """Also if it was changed back since: each version is read, and none is passed over."""
    table = filled(tmp_path)
    source = table.open()
    source.focus({"stock": USED})
    source.schemas()
    start = source.now()
    change(table)
    with pytest.raises(LostGuarantee):
        read(source, start)


@pytest.mark.parametrize("was", [None, ["place"], ["id"]], ids=str)
@pytest.mark.parametrize("becomes", [None, ["place"], ["id"]], ids=str)
def test_partitioned_by_other_columns(tmp_path: Path, was: list[str] | None, becomes: list[str] | None) -> None:
    """The rows that go have the values that their partitions had; the new partitions say nothing of them."""
    table = Table(tmp_path).create(was)
    table.append((1, "a", 1.0), (2, None, 2.0))
    overwrite(becomes)(table)
    hold(table, table.open("id"), ["id", "place", "x"])


def test_a_commit_written_over_is_noticed(tmp_path: Path) -> None:
    """The newest one, in the same place, of the same length."""
    table = filled(tmp_path)
    source = table.open()
    before = source.fingerprints(["stock"])["stock"]
    replace(table)
    source.fingerprints(["stock"])
    log = table.log(table.delta.version())
    log.write_text(log.read_text().replace("another", "changed"))
    after = json.loads(source.fingerprints(["stock"])["stock"])
    assert after["table"] == "changed" != json.loads(before)["table"]


def test_a_fingerprint_reads_no_data(tmp_path: Path) -> None:
    """It says the same when all files with rows are gone, and of other relations nothing."""
    table = filled(tmp_path)
    before = table.open().fingerprints(["stock"])["stock"]
    for file in table.path.glob("*.parquet"):
        file.unlink()
    assert table.open().fingerprints(["stock", "other"]) == {"stock": before, "other": ""}
