"""SQLite databases, for the conformance suite."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest
from under_test import TEXTS, Change, SourceUnderTest, Table

from strobe.algebra.bag import Bag
from strobe.sources.base import Source


class SqliteUnderTest(SourceUnderTest):
    kind = "sqlite"
    values: ClassVar[dict[str, list[Any]]] = {
        "bigint": [0, -1, 2**63 - 1, -(2**63), 2**53 + 1],
        "decimal(10,2)": [
            Decimal("0.00"),
            Decimal("0.10"),
            Decimal("-12345678.90"),
            Decimal("99999999.99"),
            Decimal("7.00"),
        ],
        "decimal(18,0)": [Decimal(10**18 - 1), Decimal(-(10**17))],
        "double": [0.0, 0.1, -1.5e300, 5e-324, float("inf"), float("-inf"), 3.0],
        "string": [
            *TEXTS,
            "1",
            "1.0",
            "a\x00b",
            'it\'s "quoted"',
        ],
        "binary": [b"", b"\x00\xff", b"x"],
        "boolean": [True, False],
        "date": [date(1, 1, 1), date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
        "timestamp": [
            datetime(1970, 1, 1, tzinfo=timezone.utc),
            datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone.utc),
        ],
    }
    _DECLARED: ClassVar[dict[str, str]] = {
        "bigint": "INTEGER",
        "double": "REAL",
        "string": "TEXT",
        "binary": "BLOB",
        "boolean": "BOOLEAN",
        "date": "DATE",
        "timestamp": "TIMESTAMP",
    }

    columns: ClassVar[dict[str, str]] = {
        **{type_: type_ for type_ in (*_DECLARED, "decimal(10,2)", "decimal(18,0)", "decimal(20,0)", "decimal(38,10)")},
        "TEXT COLLATE NOCASE": "string",
        "TEXT COLLATE RTRIM": "string",
        "FLOATING POINT": "double",
    }

    def holds(self, declared: str, value: Any) -> bool:
        """A fraction is a binary one, of which 15 digits are known; NaN becomes NULL."""
        if isinstance(value, Decimal) and (value.as_tuple().exponent or abs(value) >= 2**63):
            return len("".join(map(str, value.as_tuple().digits)).strip("0")) <= 15
        return not isinstance(value, float) or value == value

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        self.path = folder / "it's 100% a.db"
        self.types: dict[str, dict[str, str]] = {}

    def create(self, tables: Mapping[str, Table]) -> None:
        self.path.unlink(missing_ok=True)
        for name, (types, key) in tables.items():
            self.types[name] = types
            columns = [
                f'"{c}" {self._DECLARED.get(type_, type_.upper())}{" NOT NULL" if c in key else ""}'
                for c, type_ in types.items()
            ]
            if key:
                columns.append("PRIMARY KEY ({})".format(", ".join(f'"{c}"' for c in key)))
            self.run([(f'CREATE TABLE "{name}" ({", ".join(columns)})', ())])

    def open(self) -> Source:
        from strobe.sources.sqlite.source import SqliteSource

        return SqliteSource("depot", self.path)

    def run(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> None:
        connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            for sql, parameters in statements:
                connection.execute(sql, parameters)
            connection.execute("COMMIT")
        finally:
            connection.close()

    def apply(self, changes: Sequence[Change]) -> None:
        statements: list[tuple[str, Sequence[Any]]] = []
        for relation, old, new in changes:
            names = [f'"{c}"' for c in self.types[relation]]
            going, coming = ([self._stored(v) for v in row or ()] for row in (old, new))
            same = " AND ".join(f"{n} IS ?" for n in names)
            one = f'WHERE rowid = (SELECT min(rowid) FROM "{relation}" WHERE {same})'
            if old is None:
                statements.append((f'INSERT INTO "{relation}" VALUES ({", ".join("?" * len(names))})', coming))
            elif new is None:
                statements.append((f'DELETE FROM "{relation}" {one}', going))
            else:
                setting = ", ".join(f"{n} = ?" for n in names)
                statements.append((f'UPDATE "{relation}" SET {setting} {one}', coming + going))
        self.run(statements)

    @staticmethod
    def _stored(value: Any) -> Any:
        if isinstance(value, Decimal):
            return str(value)
        if isinstance(value, datetime):
            return value.isoformat(" ")
        return value.isoformat() if isinstance(value, date) else value

    def contents(self, relation: str) -> Bag:
        types = self.types[relation]
        connection = sqlite3.connect(self.path)
        try:
            rows = connection.execute(f'SELECT * FROM "{relation}"').fetchall()
        finally:
            connection.close()
        return Bag.of(tuple(types), (tuple(map(self._canonical, r, types.values())) for r in rows))

    @staticmethod
    def _canonical(value: Any, type_: str) -> Any:
        if value is None:
            return None
        if type_.startswith("decimal"):
            return Decimal(str(value))
        by_type: dict[str, Callable[[Any], Any]] = {
            "boolean": bool,
            "date": date.fromisoformat,
            "timestamp": datetime.fromisoformat,
        }
        return by_type.get(type_, lambda v: v)(value)

    def backup(self) -> None:
        with sqlite3.connect(self.path) as source, sqlite3.connect(self.folder / "backup") as copy:
            source.backup(copy)
        source.close()
        copy.close()

    def restore(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        shutil.copy(self.folder / "backup", self.path)

    def prune(self) -> None:
        self.run([("DELETE FROM __strobe_log WHERE seq < (SELECT max(seq) FROM __strobe_log)", ())])

    def outage(self) -> None:
        self.path.rename(self.folder / "elsewhere")
