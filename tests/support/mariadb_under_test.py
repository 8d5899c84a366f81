"""Databases of a MariaDB and of two MySQL servers, for the conformance suite."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest
from patience import eventually
from under_test import TEXTS, Change, SourceUnderTest, Table

from strobe.algebra.bag import Bag, Row
from strobe.sources.base import Source
from strobe.sources.mariadb.values import LATIN1


class MariadbUnderTest(SourceUnderTest):
    """A database of a server that all tests share; one of their own where the server itself has to suffer."""

    kind = "mariadb"
    lacks: ClassVar[dict[str, str]] = {"prepare": "nothing is put into the database, and so nothing can be missing"}
    values: ClassVar[dict[str, list[Any]]] = {
        "tinyint": [0, -128, 127],
        "smallint": [0, -(2**15), 2**15 - 1],
        "int": [0, -(2**31), 2**31 - 1],
        "bigint": [0, -1, 2**63 - 1, -(2**63), 2**53 + 1],
        "decimal(10,2)": [Decimal("0.00"), Decimal("0.10"), Decimal("-12345678.90"), Decimal("99999999.99")],
        "decimal(38,20)": [Decimal("-0.00000000000000000001"), Decimal("123456789012345678.12345678901234567890")],
        "decimal(18,0)": [Decimal(10**18 - 1), Decimal(-(10**17))],
        "float": [0.0, 0.10000000149011612, -1.5, 3.4028234663852886e38, 16777216.0],
        "double": [0.0, 0.1, -1.5e300, 5e-324, 3.0, 123456789.123456789],
        "boolean": [True, False],
        "string": [
            *TEXTS,
            "1",
            "a\x00b",
            'it\'s "q\\"',
        ],
        "binary": [b"", b"\x00\xff", b"x", b"x\x00", b"'\\"],
        "date": [date(1, 1, 1), date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
        "timestamp_ntz": [datetime(1, 1, 1), datetime(2024, 2, 29, 23, 59, 59, 999999), datetime(9999, 12, 31, 1, 2)],
        "timestamp": [
            datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc),
            datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone.utc),
            datetime(2038, 1, 19, 3, 14, 7, 999999, tzinfo=timezone.utc),
        ],
    }
    _DECLARED: ClassVar[dict[str, str]] = {
        "string": "VARCHAR(600) COLLATE utf8mb4_general_ci",
        "binary": "VARBINARY(600)",
        "boolean": "BIT(1)",
        "timestamp": "TIMESTAMP(6) NULL",
        "timestamp_ntz": "DATETIME(6)",
        "enum": "ENUM('', 'X', '1', '2', '0', 'a', '\u00df', 'NULL')",
        "set": "SET('a', 'b', '1')",
    }
    columns: ClassVar[dict[str, str]] = {
        **{type_: type_ for type_ in values if type_ != "decimal(38,20)"},
        "decimal(38,0)": "decimal(38,0)",
        "decimal(38,30)": "decimal(38,30)",
        "tinyint unsigned": "smallint",
        "mediumint": "int",
        "int unsigned": "bigint",
        "bigint unsigned": "decimal(20,0)",
        "bit(8)": "bigint",
        "bit(63)": "bigint",
        "bit(64)": "decimal(20,0)",
        "year": "smallint",
        "varchar(600) character set latin1": "string",
        "varchar(600) character set ascii": "string",
        "varchar(600) character set utf8mb3": "string",
        "varchar(600) collate utf8mb4_bin": "string",
        "varchar(600) collate utf8mb4_unicode_520_ci": "string",
        "varchar(600) collate latin1_german2_ci": "string",
        "char(5)": "string",
        "text": "string",
        "enum": "string",
        "set": "string",
        "time": "string",
        "json": "string",
        "binary(5)": "binary",
        "blob": "binary",
        "datetime": "timestamp_ntz",
    }
    _RANGES: ClassVar[dict[str, tuple[int, int]]] = {
        "tinyint unsigned": (0, 2**8),
        "mediumint": (-(2**23), 2**23),
        "int unsigned": (0, 2**32),
        "bigint unsigned": (0, 2**64),
        "bit(8)": (0, 2**8),
        "bit(63)": (0, 2**63),
        "bit(64)": (0, 2**64),
        "year": (1901, 2156),
    }
    _HELD: ClassVar[dict[str, str]] = {
        "enum": r"|X|1|2|0|a|\u00df|NULL",
        "set": r"|a|b|1|a,b",
        "time": r"\d\d:\d\d:\d\d",
        "json": r'[01]|null|"x"|{}|{.*:.*}',
        "char(5)": r".{,5}",
        "varchar(600) character set ascii": r"[\0-\x7f]*",
        "varchar(600) character set utf8mb3": r"[\0-\uffff]*",
    }
    _made = 0

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        needs = request.node.get_closest_marker("needs")
        self.server = request.getfixturevalue(self.kind)
        if needs and {"restore", "outage"} & set(needs.args):
            self.server = type(self.server)(request.getfixturevalue(f"{self.kind}_template"))
            request.addfinalizer(self.server.close)
        self.types: dict[str, dict[str, str]] = {}
        self.database = ""

    def create(self, tables: Mapping[str, Table]) -> None:
        if self.database:
            self.server.reset()
        MariadbUnderTest._made += 1
        self.database = f"it's `{MariadbUnderTest._made}` 100%"
        self.server.run(
            "CREATE DATABASE " + self._quote(self.database),
            f"GRANT SELECT ON {self._quote(self.database)}.* TO strobe@'127.0.0.1'".replace("%", r"\%"),
        )
        for name, (types, key) in tables.items():
            self.types[name] = types
            columns = [
                f"{self._quote(c)} {self._DECLARED.get(t, t.upper())}".removesuffix(" NULL")
                + (" NOT NULL" if c in key else " NULL")
                for c, t in types.items()
            ]
            if key:
                columns.append(f"PRIMARY KEY ({', '.join(map(self._quote, key))})")
            self.server.run(f"CREATE TABLE {self._quote(name)} ({', '.join(columns)})", database=self.database)

    def holds(self, declared: str, value: Any) -> bool:
        """As a strict server that stores what it is given says."""
        if isinstance(value, float):
            return math.isfinite(value)
        if isinstance(value, str):
            latin1 = "latin1" in declared
            held = re.fullmatch(self._HELD.get(declared, ".*"), value, re.DOTALL) is not None
            return held and (not latin1 or all(character in LATIN1 for character in value))
        if isinstance(value, bytes):
            return declared != "binary(5)" or len(value) <= 5
        if isinstance(value, datetime):
            first, last = datetime(1970, 1, 1, 0, 0, 1), datetime(2038, 1, 19, 3, 14, 7)
            fits = value.tzinfo is None or first <= value.replace(tzinfo=None) <= last
            return fits and (declared != "datetime" or not value.microsecond)
        low, high = self._RANGES.get(declared, (-math.inf, math.inf))
        return not isinstance(value, (int, Decimal)) or low <= value < high

    def indexable(self, declared: str) -> bool:
        return declared not in ("text", "blob", "json")

    @staticmethod
    def _quote(name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def open(self) -> Source:
        from urllib.parse import quote

        from strobe.config.model import Limits
        from strobe.config.model import MariadbSource as Config
        from strobe.sources.mariadb.source import MariadbSource

        dsn = self.server.dsn(quote(self.database, safe=""))
        return MariadbSource("depot", Config(type="mariadb", dsn=dsn, limits=Limits()))

    def apply(self, changes: Sequence[Change]) -> None:
        connection = self.server.connect(self.database, autocommit=False)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET time_zone = '+00:00'")
                for relation, old, new in changes:
                    self._change(cursor, relation, old, new)
            connection.commit()
        finally:
            connection.close()

    def _change(self, cursor: Any, relation: str, old: Row | None, new: Row | None) -> None:
        table, names = self._quote(relation), [self._quote(c) for c in self.types[relation]]
        going, coming = ([self._stored(v) for v in row or ()] for row in (old, new))
        same = " AND ".join(f"{n} <=> %s" for n in names)
        if old is None:
            cursor.execute(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(names))})", coming)
        elif new is None:
            cursor.execute(f"DELETE FROM {table} WHERE {same} LIMIT 1", going)
        else:
            setting = ", ".join(f"{n} = %s" for n in names)
            cursor.execute(f"UPDATE {table} SET {setting} WHERE {same} LIMIT 1", coming + going)

    @staticmethod
    def _stored(value: Any) -> Any:
        return value.replace(tzinfo=None).isoformat(" ") if isinstance(value, datetime) else value

    def contents(self, relation: str) -> Bag:
        types = self.types[relation]
        return Bag.of(tuple(types), self.server.rows(f"SELECT * FROM {self._quote(relation)}", database=self.database))

    def backup(self) -> None:
        self.server.stop()
        shutil.copytree(self.server.data, self.folder / "backup")
        self.server.start()

    def restore(self) -> None:
        self.server.stop()
        shutil.rmtree(self.server.data)
        shutil.copytree(self.folder / "backup", self.server.data)
        time.sleep(1.1)  # binlog files of one name are told apart by the second in which they were created
        self.server.start()

    def prune(self) -> None:
        self.server.run("FLUSH BINARY LOGS")
        newest = self.server.rows("SHOW BINARY LOGS")[-1][0]

        def purged() -> bool:  # the server keeps files as long as it may need them to recover
            self.server.run(f"PURGE BINARY LOGS TO '{newest}'")
            return len(self.server.rows("SHOW BINARY LOGS")) == 1

        eventually(purged)

    def outage(self) -> None:
        self.server.stop(kill=True)


class MysqlUnderTest(MariadbUnderTest):
    """The same on a MySQL server."""

    kind = "mysql"


class Mysql8UnderTest(MariadbUnderTest):
    """And on an early MySQL 8.0."""

    kind = "mysql8"
    marks = (pytest.mark.slow,)
