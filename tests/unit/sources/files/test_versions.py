"""The staged table without a JVM: its names, its positions, and which drop a version is made of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from deltalake import CommitProperties, write_deltalake

from strobe.data.arrow import to_arrow
from strobe.errors import LostGuarantee, UserError
from strobe.sources.files.versions import StagedTable, identity_of, names_of, position_at

COLUMNS = {"a; b": "string", "n": "bigint"}


@pytest.fixture
def table(tmp_path: Path) -> StagedTable:
    made = StagedTable("catalog", tmp_path / "staged")
    made.create(COLUMNS)
    return made


def stage(table: StagedTable, *rows: tuple[str, int]) -> None:
    """As Spark does."""
    note = CommitProperties(custom_metadata={"userMetadata": json.dumps({"name": f"{len(rows)}.csv"})})
    content = to_arrow(["c0", "c1"], list(COLUMNS.values()), rows)
    write_deltalake(str(table.path), content, mode="overwrite", commit_properties=note)


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    table = StagedTable("catalog", tmp_path / "staged")
    assert not table.exists
    with pytest.raises(UserError, match="no drop has been staged"):
        table.open()


def test_columns_keep_any_name(table: StagedTable) -> None:
    """Version 0 is empty, and of no drop. Who makes the table again finds it as it was."""
    assert table.columns() == COLUMNS and names_of(table.open()) == list(COLUMNS)
    identity = identity_of(table.open())
    table.create({"other": "int"})
    assert table.columns() == COLUMNS and identity_of(table.open()) == identity
    assert table.open().version() == 0 and table.drop(0) is None and table.files(0) == []


def test_a_version_knows_its_drop(table: StagedTable) -> None:
    stage(table, ("x", 1))
    stage(table, ("x", 1), ("y", 2))
    assert [table.drop(v) for v in (1, 2)] == [{"name": "1.csv"}, {"name": "2.csv"}]
    assert not set(table.files(1)) & set(table.files(2))
    assert table.superseded_at(1) > 0


def test_a_position_is_of_one_table_and_needs_its_files(table: StagedTable) -> None:
    """A version that waits to be staged is a position as well."""
    stage(table, ("x", 1))
    identity = identity_of(table.open())
    for version in (0, 1, 2):
        table.verify(position_at(identity, version), last=2)
    for lost in (position_at(identity, 3), position_at("files:another", 1)):
        with pytest.raises(LostGuarantee):
            table.verify(lost, last=2)
    for file in table.files(1):
        file.unlink()
    with pytest.raises(LostGuarantee):
        table.verify(position_at(identity, 1), last=2)
    shutil.rmtree(table.path)
    assert not table.exists
