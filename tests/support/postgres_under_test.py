"""Databases of a PostgreSQL server, for the conformance suite."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest
from postgres_server import PostgresServer
from under_test import TEXTS, Change, SourceUnderTest, Table

from strobe.algebra.bag import NAN, Bag
from strobe.errors import UserError
from strobe.sources.base import Source


class PostgresUnderTest(SourceUnderTest):
    """A database of a server of our own, read with the least privileges that are documented."""

    kind = "postgres"
    lacks: ClassVar[dict[str, str]] = {
        "restore": "it takes a server of its own: see tests/servers/test_faults_past.py",
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
            *TEXTS,
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

    columns: ClassVar[dict[str, str]] = {
        **{type_: type_ for type_ in values if not type_.startswith("array")},
        "decimal(38,0)": "decimal(38,0)",
        'text COLLATE "ci"': "string",
        "varchar(700)": "string",
        "char(5)": "string",
        "citext": "string",
        "mood": "string",
        "uuid": "string",
        "positive": "int",
        "json": "string",
        "jsonb": "string",
        "interval": "string",
        "inet": "string",
        "time": "string",
        "bit varying(64)": "string",
    }
    _PREPARED: ClassVar[tuple[str, ...]] = (
        "CREATE EXTENSION citext",
        "CREATE COLLATION \"ci\" (provider = icu, locale = 'und-u-ks-level1', deterministic = false)",
        "CREATE TYPE mood AS ENUM ('', ' ', 'x', 'X', 'x ', '1', 'a,b', 'é', 'é')",
        "CREATE DOMAIN positive AS int CHECK (value >= 0)",
    )
    _HELD: ClassVar[dict[str, str]] = {
        "mood": "|".join(map(re.escape, ("", " ", "x", "X", "x ", "1", "a,b", "é", "é"))),
        "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
        "json": r"""[01]|null|"x"|{}|{.*:.*}""",
        "jsonb": r"""[01]|null|"x"|{}|{.*:.*}""",
        "interval": "1 day|1[0-9]:.*|24:.*",
        "inet": "192.*",
        "time": "12:.*|24:.*",
        "bit varying(64)": "[01]*",
        "char(5)": ".{,5}",
    }

    def holds(self, declared: str, value: Any) -> bool:
        if declared == "positive":
            return bool(value >= 0)
        if isinstance(value, str):
            return "\0" not in value and re.fullmatch(self._HELD.get(declared, ".*"), value, re.DOTALL) is not None
        return True

    def indexable(self, declared: str) -> bool:
        return declared != "json"

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
        declared = {declared for types, _ in tables.values() for declared in types.values()}
        if declared - self.values.keys():
            self.run([(statement, ()) for statement in self._PREPARED])
        for name, (types, key) in tables.items():
            self.types[name] = types
            columns = [f'"{c}" {self._DECLARED.get(t, t)}' for c, t in types.items()]
            if key:
                columns.append("PRIMARY KEY ({})".format(", ".join(f'"{c}"' for c in key)))
            self.run([(f'CREATE TABLE "{name}" ({", ".join(columns)})', ())])
            self.run([(f'ALTER TABLE "{name}" REPLICA IDENTITY FULL', ())])

    def open(self) -> Source:
        from strobe.sources.postgres.connection import ConnectionSettings, object_name
        from strobe.sources.postgres.source import PostgresSource

        source = PostgresSource(
            ConnectionSettings("depot", self.server.dsn(self.database), "public", object_name("test", "depot"))
        )
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
