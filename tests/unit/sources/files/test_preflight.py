"""A drop that has never been there is a mistake, unless it is said to come later."""

from __future__ import annotations

from pathlib import Path

import pytest

from strobe.config.model import FilesSource as Config
from strobe.errors import UserError
from strobe.sources.files.source import FilesSource


def source(folder: Path, name: str, *, optional: bool = False, columns: dict[str, str] | None = None) -> FilesSource:
    path = str(folder / name)
    config = Config(
        type="files", path=path, format="csv", relation="r", key=["sku"], columns=columns, optional=optional
    )
    return FilesSource("catalog", config, folder / "warehouse", None)


def test_a_misspelt_path_is_an_error_with_the_name_that_was_meant(tmp_path: Path) -> None:
    """In `check`, and in `prepare` too if all columns are declared."""
    (tmp_path / "products.csv").write_text("sku\n1\n")
    misspelt = source(tmp_path, "product.csv", columns={"sku": "string"})
    (finding,) = [f for f in misspelt.check(["r"]) if "never was a drop" in f.message]
    assert (finding.severity, finding.where) == ("error", "source catalog")
    assert f"Did you mean {tmp_path / 'products.csv'}?" in finding.fix
    with pytest.raises(UserError, match="never was a drop"):
        misspelt.prepare(["r"])


def test_a_drop_that_waits_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "products.csv").write_text("sku\n1\n")
    found = source(tmp_path, "products.csv").check(["r"])
    assert [finding.message for finding in found] == ["no drop has been staged yet"]


def test_without_spark_prepare_makes_the_table_and_stages_nothing(tmp_path: Path) -> None:
    """Its columns are those of the first drop; how many rows there will be is not known yet."""
    (tmp_path / "products.csv").write_text("sku,title\n1,Lamp\n")
    prepared = source(tmp_path, "products.csv", columns={"sku": "bigint"})
    prepared.prepare(["r"])
    assert prepared.check(["r"]) == []
    assert [(c.name, c.type) for c in prepared.schemas()[0].columns] == [("sku", "bigint"), ("title", "string")]
    reader = prepared.reader(at_a_position=True)
    assert reader.open().through.order == (0,)
    assert (reader.rows("r"), prepared.now().order) == (None, (1,))


def test_an_optional_drop_may_come_later(tmp_path: Path) -> None:
    """Its relation is there, and empty; the columns have to be declared."""
    later = source(tmp_path, "later.csv", optional=True, columns={"sku": "string", "price": "decimal(10,2)"})
    later.prepare(["r"])
    assert later.check(["r"]) == []
    assert [column.name for column in later.schemas()[0].columns] == ["sku", "price"]
    with pytest.raises(UserError, match="has to declare its columns"):
        source(tmp_path / "other", "later.csv", optional=True).prepare(["r"])


def test_a_drop_that_was_staged_may_go(tmp_path: Path) -> None:
    """Writers that remove the file once it has been read are no mistake."""
    later = source(tmp_path, "later.csv", optional=True, columns={"sku": "string"})
    later.prepare(["r"])
    required = source(tmp_path, "later.csv", columns={"sku": "string"})
    assert len(required.check(["r"])) == 1
