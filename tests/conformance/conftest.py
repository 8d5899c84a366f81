"""The sources that the conformance suite runs over: a new one adds a class here and itself to `SOURCES`."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest
from deltalake import DeltaTable
from postgres_server import PostgresServer

from strobe.algebra.bag import NAN, Bag, Row
from strobe.dataplane.arrow import arrow_schema, from_arrow, to_arrow
from strobe.errors import UserError
from strobe.messages import Position, Transaction
from strobe.sources.base import Source

Table = tuple[dict[str, str], tuple[str, ...]]
"""A relation to make: columns with Spark types, and the key, whose columns are never NULL."""

Change = tuple[str, Row | None, Row | None]
"""In this relation, the first row goes and the second comes; None where there is no such row."""


class SourceUnderTest(ABC):
    """One kind of source, as the suite handles it. All but `open` goes past Strobe, by the source's own means."""

    kind: ClassVar[str]
    marks: ClassVar[tuple[pytest.MarkDecorator, ...]] = ()
    lacks: ClassVar[dict[str, str]] = {}
    """Capabilities it does not have, each with the reason: `several relations`, `duplicates`, `without key`, `restore`,
    `prune`, `outage`, `prepare`, `many transactions`."""
    values: ClassVar[dict[str, list[Any]]]
    """For every Spark type it offers: canonical values that must survive."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self.folder = folder

    @abstractmethod
    def create(self, tables: Mapping[str, Table]) -> None:
        """A fresh source with these relations, empty, not prepared."""

    @abstractmethod
    def open(self) -> Source:
        """As a new process would open it."""

    @abstractmethod
    def apply(self, changes: Sequence[Change]) -> None:
        """One transaction."""

    @abstractmethod
    def contents(self, relation: str) -> Bag: ...

    def backup(self) -> None:
        """Remember the whole state of the source."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the backup, as an operator would."""
        raise NotImplementedError

    def prune(self) -> None:
        """Take away the log behind Strobe's back."""
        raise NotImplementedError

    def outage(self) -> None:
        """From now on the source does not answer."""
        raise NotImplementedError

    def prepared(self, tables: Mapping[str, Table]) -> Source:
        self.create(tables)
        source = self.open()
        source.prepare(list(tables))
        return source


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
            "",
            " ",
            "x",
            "X",
            "x ",
            "Ünïcødé",
            "日本語",
            "🦆",
            "e\u0301",
            "\u00e9",
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
        from strobe.sources.sqlite import SqliteSource

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

    def open(self) -> Source:
        from strobe.config import FilesSource as Config
        from strobe.sources.files import FilesSource

        config = Config(
            type="files",
            path=str(self.base / "drop.csv"),
            format="csv",
            relation=self.name,
            key=list(self.key),
            columns=self.types,
        )
        return FilesSource("depot", config, self.base / "warehouse", lambda: self.spark, settle=0.0)

    def apply(self, changes: Sequence[Change]) -> None:
        for _, old, new in changes:
            for row, count in ((old, -1), (new, 1)):
                self.rows = self.rows if row is None else self.rows.add(Bag.of(self.rows.attributes, [row], count))
        self._drop()
        self.open().prepare([self.name])

    def _drop(self) -> None:
        lines = [",".join(self.types), *(",".join(map(self._written, row)) for row in self.rows.expand())]
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


class PostgresUnderTest(SourceUnderTest):
    """A database of a server of our own, read with the least privileges that are documented."""

    kind = "postgres"
    lacks: ClassVar[dict[str, str]] = {
        "restore": "it takes a server of its own: see tests/unit/test_faults.py",
    }
    values: ClassVar[dict[str, list[Any]]] = {
        "smallint": [0, -1, 32767, -32768],
        "int": [0, -1, 2**31 - 1, -(2**31)],
        "bigint": [0, -1, 2**63 - 1, -(2**63), 2**53 + 1],
        "decimal(10,2)": [Decimal("0.00"), Decimal("0.10"), Decimal("-12345678.90"), Decimal("99999999.99")],
        "decimal(38,10)": [Decimal("0E-10"), Decimal("1234567890123456789012345678.0123456789")],
        "decimal(38,18)": [Decimal("0E-18"), Decimal("1.500000000000000000"), Decimal("-0.000000000000000001")],
        "decimal(18,0)": [Decimal(10**18 - 1), Decimal(-(10**17))],
        "float": [0.0, 0.10000000149011612, -1.5, float("inf"), float("-inf"), float("nan")],
        "double": [0.0, 0.1, -1.5e300, 5e-324, float("inf"), float("-inf"), 3.0, float("nan")],
        "string": [
            "",
            " ",
            "x",
            "X",
            "x ",
            "Ünïcødé",
            "日本語",
            "🦆",
            "e\u0301",
            "\u00e9",
            "1.0",
            'it\'s "quoted"',
            "a\\b",
            "{a,b}",
            "NULL",
            "%s",
        ],
        "binary": [b"", b"\x00\xff", b"x"],
        "boolean": [True, False],
        "date": [date(1, 1, 1), date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
        "timestamp": [
            datetime(1, 1, 1, tzinfo=timezone.utc),
            datetime(1970, 1, 1, tzinfo=timezone.utc),
            datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone.utc),
        ],
        "timestamp_ntz": [datetime(1970, 1, 1), datetime(2024, 2, 29, 23, 59, 59, 999999), datetime(9999, 12, 31)],
        "array<int>": [(), (1,), (2, None, -1), (None,)],
        "array<string>": [(), ("",), ('a "b" \\ {c},d', None, "NULL", "null", " x ", "line\nline"), ("日本語",)],
        "array<double>": [(0.0, NAN, float("-inf")), (0.1,)],
        "array<decimal(10,2)>": [(Decimal("0.00"), Decimal("-1.50")), ()],
        "array<timestamp>": [(datetime(2024, 2, 29, 23, 59, 59, 1, tzinfo=timezone.utc), None)],
        "array<binary>": [(b"", b"\x00\xff")],
        "array<boolean>": [(True, False, None)],
    }
    _DECLARED: ClassVar[dict[str, str]] = {
        "array<int>": "int[]",
        "array<string>": "text[]",
        "array<double>": "double precision[]",
        "array<decimal(10,2)>": "numeric(10,2)[]",
        "array<timestamp>": "timestamptz[]",
        "array<binary>": "bytea[]",
        "array<boolean>": "boolean[]",
        "float": "real",
        "double": "double precision",
        "string": "text",
        "binary": "bytea",
        "timestamp": "timestamptz",
        "timestamp_ntz": "timestamp",
        "decimal(38,18)": "numeric",
    }

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        self.server: PostgresServer = request.getfixturevalue("postgres")
        self.database = ""
        self.types: dict[str, dict[str, str]] = {}
        self.sources: list[Source] = []
        self.connections: dict[int, psycopg.Connection[Any]] = {}
        request.addfinalizer(self.remove)

    def remove(self) -> None:
        for source in self.sources:
            source.close()
        for connection in self.connections.values():
            connection.close()
        self.connections = {}
        if self.database:
            self.server.execute("postgres", f"ALTER DATABASE {self.database} ALLOW_CONNECTIONS true")
            self.server.drop(self.database)
            self.database = ""

    def create(self, tables: Mapping[str, Table]) -> None:
        self.remove()
        self.database = self.server.database()
        for name, (types, key) in tables.items():
            self.types[name] = types
            columns = [f'"{c}" {self._DECLARED.get(t, t)}' for c, t in types.items()]
            if key:
                columns.append("PRIMARY KEY ({})".format(", ".join(f'"{c}"' for c in key)))
            self.run([(f'CREATE TABLE "{name}" ({", ".join(columns)})', ())])
            self.run([(f'ALTER TABLE "{name}" REPLICA IDENTITY FULL', ())])

    def open(self) -> Source:
        from strobe.sources.postgres import PostgresSource
        from strobe.sources.postgres_place import Place, object_name

        source = PostgresSource(Place("depot", self.server.dsn(self.database), "public", object_name("test", "depot")))
        self.sources.append(source)
        return _WithOwner(source, self)

    def run(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> None:
        me = threading.get_ident()
        if me not in self.connections:
            self.connections[me] = psycopg.connect(self.server.admin_dsn(self.database))
        with self.connections[me].transaction():
            for statement, parameters in statements:
                self.connections[me].execute(statement, parameters or None)

    def apply(self, changes: Sequence[Change]) -> None:
        statements: list[tuple[str, Sequence[Any]]] = []
        for relation, old, new in changes:
            names = [f'"{c}"' for c in self.types[relation]]
            casts = [f"%s::{self._DECLARED.get(t, t)}" for t in self.types[relation].values()]
            same = " AND ".join(f"{n} IS NOT DISTINCT FROM {c}" for n, c in zip(names, casts, strict=True))
            one = f'WHERE ctid = (SELECT min(ctid) FROM "{relation}" WHERE {same})'
            going, coming = (
                [list(v) if isinstance(v, tuple) else v for v in row or ()] for row in (old, new)
            )  # a tuple would be a composite value
            if old is None:
                statements.append((f'INSERT INTO "{relation}" VALUES ({", ".join(casts)})', coming))
            elif new is None:
                statements.append((f'DELETE FROM "{relation}" {one}', going))
            else:
                setting = ", ".join(f"{n} = {c}" for n, c in zip(names, casts, strict=True))
                statements.append((f'UPDATE "{relation}" SET {setting} {one}', coming + going))
        self.run(statements)

    def contents(self, relation: str) -> Bag:
        rows = self.server.execute(self.database, f'SELECT * FROM "{relation}"')
        return Bag.of(tuple(self.types[relation]), rows)

    def prune(self) -> None:
        name = "strobe_test_depot"
        self.server.execute(self.database, "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", name)

    def outage(self) -> None:
        self.server.execute("postgres", f"ALTER DATABASE {self.database} ALLOW_CONNECTIONS false")
        self.server.execute(
            "postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", self.database
        )


class _WithOwner:
    """A source whose publication is made and dropped by the tables' owner, as its role may not."""

    def __init__(self, source: Source, under_test: PostgresUnderTest) -> None:
        self._source, self._test = source, under_test

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def prepare(self, relations: Sequence[str]) -> None:
        self._test.server.publish(self._test.database, self._source.prepare_script(relations))
        self._source.prepare(relations)

    def undo(self) -> list[str]:
        try:
            return self._source.undo()
        except UserError as error:
            self._test.server.execute(self._test.database, "DROP PUBLICATION strobe_test_depot")
            return [*error.message.split(), *self._source.undo()]


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
            "",
            " ",
            "x",
            "X",
            "x ",
            "Ünïcødé",
            "日本語",
            "🦆",
            "e\u0301",
            "\u00e9",
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
        "string": "VARCHAR(100) COLLATE utf8mb4_general_ci",
        "binary": "VARBINARY(100)",
        "boolean": "BIT(1)",
        "timestamp": "TIMESTAMP(6) NULL",
        "timestamp_ntz": "DATETIME(6)",
    }
    _made = 0

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        from mariadb_server import Server

        super().__init__(folder, request)
        needs = request.node.get_closest_marker("needs")
        self.server = request.getfixturevalue("mariadb")
        if needs and {"restore", "outage"} & set(needs.args):
            self.server = Server(request.getfixturevalue("mariadb_template"))
            request.addfinalizer(self.server.close)
        self.types: dict[str, dict[str, str]] = {}
        self.database = ""

    def create(self, tables: Mapping[str, Table]) -> None:
        if self.database:
            self.server.run("RESET MASTER")
        MariadbUnderTest._made += 1
        self.database = f"it's `{MariadbUnderTest._made}` 100%"
        self.server.run(
            "CREATE DATABASE " + self._quote(self.database),
            f"GRANT SELECT ON {self._quote(self.database)}.* TO strobe@'127.0.0.1'".replace("%", r"\%"),
        )
        for name, (types, key) in tables.items():
            self.types[name] = types
            columns = [
                f"{self._quote(c)} {self._DECLARED.get(t, t.upper())}{' NOT NULL' if c in key else ''}"
                for c, t in types.items()
            ]
            if key:
                columns.append(f"PRIMARY KEY ({', '.join(map(self._quote, key))})")
            self.server.run(f"CREATE TABLE {self._quote(name)} ({', '.join(columns)})", database=self.database)

    @staticmethod
    def _quote(name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def open(self) -> Source:
        from urllib.parse import quote

        from strobe.config import Limits
        from strobe.config import MariadbSource as Config
        from strobe.sources.mariadb import MariadbSource

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
        for _ in range(100):  # the server keeps files as long as it may need them to recover
            self.server.run(f"PURGE BINARY LOGS TO '{newest}'")
            if len(self.server.rows("SHOW BINARY LOGS")) == 1:
                return
            time.sleep(0.1)
        raise TimeoutError("the binlog was not purged")

    def outage(self) -> None:
        self.server.stop(kill=True)


class DeltaUnderTest(SourceUnderTest):
    """A Delta table that is written without Spark; each transaction is a merge with its change data."""

    kind = "delta"
    lacks: ClassVar[dict[str, str]] = {
        "several relations": "Delta has no transaction over several tables, so a source is one",
        "duplicates": "they are in tests/unit/test_delta_source.py, with one relation",
        "prepare": "nothing is put into the table; the feed is its owner's to turn on",
    }
    values: ClassVar[dict[str, list[Any]]] = {**PostgresUnderTest.values, "tinyint": [0, -128, 127]}

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        self.path = folder / "it's a table"

    def create(self, tables: Mapping[str, Table]) -> None:
        ((self.name, (self.types, self.key)),) = tables.items()
        shutil.rmtree(self.path, ignore_errors=True)
        schema = arrow_schema(list(self.types), list(self.types.values()))
        DeltaTable.create(str(self.path), schema, configuration={"delta.enableChangeDataFeed": "true"})

    def open(self) -> Source:
        from strobe.config import DeltaSource as Config
        from strobe.sources.delta import DeltaSource

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


SOURCES: list[type[SourceUnderTest]] = [
    SqliteUnderTest,
    FilesUnderTest,
    PostgresUnderTest,
    MariadbUnderTest,
    DeltaUnderTest,
]


@pytest.fixture(params=[pytest.param(s, marks=s.marks, id=s.kind) for s in SOURCES])
def under_test(request: pytest.FixtureRequest, tmp_path: Path) -> SourceUnderTest:
    kind: type[SourceUnderTest] = request.param
    needs = request.node.get_closest_marker("needs")
    for capability in needs.args if needs else ():
        if capability in kind.lacks:
            pytest.skip(f"{kind.kind}: {kind.lacks[capability]}")
    return kind(tmp_path, request)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(*capabilities): what a source must be capable of; see SourceUnderTest.lacks"
    )


class Stream:
    """Reads transactions with a bound on time."""

    def __init__(self, source: Source, after: Position, stops: Sequence[Position] = (), seconds: float = 30) -> None:
        self.position = after
        self.seen: list[Transaction] = []
        self._end = False
        self._deadline = time.monotonic() + seconds
        self._iterator = source.transactions(after, stops, lambda: self._end or time.monotonic() > self._deadline)

    def until(self, position: Position) -> list[Transaction]:
        """The next transactions, up to this position, which must be one of theirs."""
        found = []
        while self.position < position:
            transaction = next(self._iterator)
            assert self.position < transaction.position, "positions go forward"
            self.position = transaction.position
            found.append(transaction)
        self.seen += found
        return found

    def stop(self) -> None:
        self._end = True
        for _ in self._iterator:
            pass


@pytest.fixture
def stream() -> type[Stream]:
    return Stream


@pytest.fixture
def read() -> Callable[..., list[Transaction]]:
    """`read(source, after, through, stops=())`: the transactions between two positions."""

    def transactions(
        source: Source, after: Position, through: Position, stops: Sequence[Position] = ()
    ) -> list[Transaction]:
        reading = Stream(source, after, stops)
        found = reading.until(through)
        reading.stop()
        return found

    return transactions


@pytest.fixture
def total() -> Callable[[Sequence[Transaction], str, Bag], Bag]:
    """`total(transactions, relation, start)`: the start plus all changes of the relation."""

    def add_up(transactions: Sequence[Transaction], relation: str, start: Bag) -> Bag:
        for transaction in transactions:
            if relation in transaction.changes:
                change = transaction.changes[relation]
                assert isinstance(change, Bag)
                start = start.add(change)
        return start

    return add_up


@pytest.fixture
def in_background() -> Iterator[Callable[[Callable[[int], None]], None]]:
    """`in_background(step)` calls step(0), step(1), … in a thread until the test ends; a failed step fails the test."""
    stop, threads, failures = threading.Event(), list[threading.Thread](), list[BaseException]()

    def start(step: Callable[[int], None]) -> None:
        def loop() -> None:
            n = 0
            try:
                while not stop.is_set():
                    step(n)
                    n += 1
            except BaseException as error:  # reported below, in the test's own thread
                failures.append(error)

        threads.append(threading.Thread(target=loop))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
