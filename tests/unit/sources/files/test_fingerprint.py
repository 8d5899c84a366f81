"""What is seen of a source of dropped files beside its drops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import CommitProperties, write_deltalake

from strobe.config import model
from strobe.data.arrow import to_arrow
from strobe.data.scratch import STAGING
from strobe.sources.files.source import FilesSource
from strobe.sources.files.versions import StagedTable

COLUMNS = {"sku": "string", "price": "decimal(10,2)"}


def opened(folder: Path, key: tuple[str, ...] = ("sku",), **columns: str) -> FilesSource:
    declared = columns or {"price": "decimal(10,2)"}
    settings = {"type": "files", "path": str(folder / "p.csv"), "format": "csv", "relation": "products"}
    config = model.FilesSource.model_validate({**settings, "key": list(key), "columns": declared})
    return FilesSource("catalog", config, folder / "warehouse", None)


def staged(folder: Path) -> StagedTable:
    table = StagedTable("catalog", folder / "warehouse" / STAGING / "files" / "catalog")
    table.create(COLUMNS)
    return table


def fingerprint(source: FilesSource) -> str:
    return source.fingerprints(["products"])["products"]


def test_drops_leave_the_fingerprint_as_it_was(tmp_path: Path) -> None:
    """They are in the log. Nothing of another relation is known."""
    table, source = staged(tmp_path), opened(tmp_path)
    before = fingerprint(source)
    note = CommitProperties(custom_metadata={"userMetadata": json.dumps({"name": "p.csv"})})
    rows = to_arrow(["c0", "c1"], list(COLUMNS.values()), [("x", None)])
    write_deltalake(str(table.path), rows, mode="overwrite", commit_properties=note)
    assert source.fingerprints(["products", "other"]) == {"products": before, "other": ""}
    assert source.changed("products", ["sku"], before, before) == ""


def test_a_table_staged_anew_is_another(tmp_path: Path) -> None:
    """Although it has the same columns and versions; and one that is not there any more has no fingerprint."""
    staged(tmp_path)
    source = opened(tmp_path)
    before = fingerprint(source)
    source.undo()
    assert fingerprint(source) == "" and source.changed("products", ["sku"], before, "")
    staged(tmp_path)
    assert "anew" in source.changed("products", ["sku"], before, fingerprint(source))


@pytest.mark.parametrize(
    ("key", "columns", "used", "harmful"),
    [
        (("sku",), {"price": "double"}, ["sku", "price"], True),
        (("sku",), {"price": "double"}, ["sku"], False),
        (("sku",), {"price": "DECIMAL(10, 2)"}, ["sku", "price"], False),
        (("sku", "price"), {"price": "decimal(10,2)"}, ["sku"], True),
    ],
)
def test_what_strobe_yml_says(
    tmp_path: Path, key: tuple[str, ...], columns: dict[str, str], used: list[str], harmful: bool
) -> None:
    """Another type of a used column, or another key, is another relation."""
    staged(tmp_path)
    before, source = fingerprint(opened(tmp_path)), opened(tmp_path, key, **columns)
    assert bool(source.changed("products", used, before, fingerprint(source))) == harmful
