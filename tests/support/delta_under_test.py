"""Delta tables, for the conformance suite."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from deltalake import DeltaTable
from postgres_under_test import PostgresUnderTest
from under_test import Change, SourceUnderTest, Table

from strobe.algebra.bag import Bag
from strobe.data.arrow import arrow_schema, from_arrow, to_arrow
from strobe.sources.base import Source


class DeltaUnderTest(SourceUnderTest):
    """A Delta table that is written without Spark; each transaction is a merge with its change data."""

    kind = "delta"
    lacks: ClassVar[dict[str, str]] = {
        "several relations": "Delta has no transaction over several tables, so a source is one",
        "duplicates": "they are in tests/unit/sources/delta/test_source.py, with one relation",
        "prepare": "nothing is put into the table; the feed is its owner's to turn on",
    }
    values: ClassVar[dict[str, list[Any]]] = {
        **PostgresUnderTest.values,
        "tinyint": [0, -128, 127],
    }

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        self.path = folder / "it's a table"

    def create(self, tables: Mapping[str, Table]) -> None:
        ((self.name, (self.types, self.key)),) = tables.items()
        shutil.rmtree(self.path, ignore_errors=True)
        schema = arrow_schema(list(self.types), list(self.types.values()))
        DeltaTable.create(str(self.path), schema, configuration={"delta.enableChangeDataFeed": "true"})

    def open(self) -> Source:
        from strobe.config.model import DeltaSource as Config
        from strobe.sources.delta.source import DeltaSource

        config = Config(type="delta", path=str(self.path), relation=self.name, key=list(self.key))
        return DeltaSource("depot", config, None)

    def apply(self, changes: Sequence[Change]) -> None:
        """What goes is deleted by key, what comes with the same key is an update of it, the rest is inserted."""
        going = {old[0] for _, old, _ in changes if old}
        coming = {new[0]: new for _, _, new in changes if new}
        empty = (None,) * (len(self.types) - 1)
        rows = [(*row, False) for row in coming.values()]
        rows += [(key, *empty, True) for key in going if key not in coming]
        source = to_arrow([*self.types, "_goes"], [*self.types.values(), "boolean"], rows)
        own = {f"`{c}`": f"s.`{c}`" for c in self.types}
        merge = DeltaTable(str(self.path)).merge(source, "s.id = t.id", source_alias="s", target_alias="t")
        merge = merge.when_matched_delete("s._goes").when_matched_update(own)
        merge.when_not_matched_insert(own, "s._goes = false").execute()

    def contents(self, relation: str) -> Bag:
        return Bag.of(tuple(self.types), from_arrow(DeltaTable(str(self.path)).to_pyarrow_table()))

    def backup(self) -> None:
        shutil.copytree(self.path, self.folder / "backup")

    def restore(self) -> None:
        shutil.rmtree(self.path)
        shutil.copytree(self.folder / "backup", self.path)

    def prune(self) -> None:
        DeltaTable(str(self.path)).create_checkpoint()
        for file in sorted((self.path / "_delta_log").glob("*.json"))[:-1]:
            file.unlink()

    def outage(self) -> None:
        self.path.rename(self.folder / "elsewhere")
