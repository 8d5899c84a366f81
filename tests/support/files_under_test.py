"""Dropped files, for the conformance suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest
from bags import expanded
from under_test import Change, SourceUnderTest, Table

from strobe.algebra.bag import Bag
from strobe.sources.base import Source


class FilesUnderTest(SourceUnderTest):
    """CSV drops of one relation. Each transaction is a drop, which Spark stages."""

    kind = "files"
    marks = (pytest.mark.spark,)
    lacks: ClassVar[dict[str, str]] = {
        "several relations": "a source of files is one relation",
        "duplicates": "a key is declared, and verified in every drop",
        "without key": "a key is declared, and verified in every drop",
        "many transactions": "each is a Spark job of a second; tests/spark/test_files.py has what is special to files",
        "restore": "the staged versions are in the warehouse, and go back with it",
        "prune": "the staged versions are in the warehouse, and nobody else takes them away",
        "outage": "a file that is not there is a drop that has not come yet",
        "prepare": "preparing stages the first drop; without one there is nothing to undo",
    }
    values: ClassVar[dict[str, list[Any]]] = {
        "bigint": [0, -1, 2**63 - 1, -(2**63)],
        "decimal(10,2)": [Decimal("0.00"), Decimal("0.10"), Decimal("-12345678.90"), Decimal("99999999.99")],
        "double": [0.0, 0.1, -1.5e300, 3.0],
        "string": ["", " ", "x ", "Ünïcødé", "日本語", "🦆", "e\u0301", "1.0", 'it\'s "quoted"', "a,b"],
        "boolean": [True, False],
        "date": [date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
        "timestamp": [datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone.utc)],
    }

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        self.spark = request.getfixturevalue("spark")
        self.made = 0

    def create(self, tables: Mapping[str, Table]) -> None:
        ((self.name, (self.types, self.key)),) = tables.items()
        self.made += 1
        self.base = self.folder / f"number {self.made}"
        self.base.mkdir()
        self.rows = Bag(tuple(self.types))
        self._drop()

    def holds(self, declared: str, value: Any) -> bool:
        return value in self.values[declared] or isinstance(value, datetime)

    def indexable(self, declared: str) -> bool:
        return False

    def open(self) -> Source:
        from strobe.config.model import FilesSource as Config
        from strobe.sources.files.limits import Timing
        from strobe.sources.files.source import FilesSource

        config = Config(
            type="files",
            path=str(self.base / "drop.csv"),
            format="csv",
            relation=self.name,
            key=list(self.key),
            columns=self.types,
        )
        return FilesSource("depot", config, self.base / "warehouse", lambda: self.spark, Timing(settle=0.0))

    def apply(self, changes: Sequence[Change]) -> None:
        for _, old, new in changes:
            for row, count in ((old, -1), (new, 1)):
                self.rows = self.rows if row is None else self.rows.add(Bag.of(self.rows.attributes, [row], count))
        self._drop()
        self.open().prepare([self.name])

    def _drop(self) -> None:
        lines = [",".join(self.types), *(",".join(map(self._written, row)) for row in expanded(self.rows))]
        draft = self.base / "drop.draft"
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
        draft.replace(self.base / "drop.csv")

    @staticmethod
    def _written(value: Any) -> str:
        if isinstance(value, str):
            return '"' + value.replace('"', '""') + '"'
        return "" if value is None else str(value)

    def contents(self, relation: str) -> Bag:
        return self.rows
