"""What servers really sent, for tests that damage it: one file for each kind in `tests/unit/sources/corpus`.

python tests/support/recorded.py      # records all of them again; needs the servers
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from strobe.messages import Transaction
from strobe.sources.mariadb.binlog.protocol import Incoming
from strobe.sources.mariadb.connection import Address, ConnectionSettings
from strobe.sources.mariadb.position import Log, Whereabouts
from strobe.sources.mariadb.transaction_builder import TransactionBuilder
from strobe.sources.mariadb.values import Kind
from strobe.sources.postgres import connection as postgres
from strobe.sources.postgres import pgoutput
from strobe.sources.postgres.transaction_builder import TransactionBuilder as PostgresBuilder
from strobe.sources.postgres.transaction_builder import Watched
from strobe.sources.postgres.values import PgType
from strobe.sources.postgres.walsender import Arrived
from strobe.sources.postgres.walsender import Incoming as Frames

CORPUS = Path(__file__).parents[1] / "unit" / "sources" / "corpus"
MOST = 1 << 24
"""Bytes of one event."""


@dataclass(frozen=True)
class Binlog:
    """What a MariaDB or MySQL server sent from a place on."""

    stream: bytes
    sequence: int
    """The number of its first packet."""
    begin: str
    database: str
    tables: Mapping[str, Mapping[str, Kind]]
    charsets: Mapping[int, str]

    @classmethod
    def load(cls, name: str) -> Binlog:
        found = json.loads((CORPUS / f"{name}.json").read_text())
        tables = {t: {c: Kind(**kind) for c, kind in columns.items()} for t, columns in found["tables"].items()}
        charsets = {int(number): name for number, name in found["charsets"].items()}
        return cls(
            bytes.fromhex("".join(found["stream"])),
            found["sequence"],
            found["begin"],
            found["database"],
            tables,
            charsets,
        )

    def save(self, name: str) -> None:
        tables = {t: {c: asdict(kind) for c, kind in columns.items()} for t, columns in self.tables.items()}
        stream = [self.stream[i : i + 60].hex() for i in range(0, len(self.stream), 60)]
        _save(name, {**vars(self), "stream": stream, "tables": tables})

    def incoming(self, stream: bytes | None = None) -> Incoming:
        """Of what was sent, or of something else; `EOFError` behind its end."""
        rest = iter([self.stream if stream is None else stream])

        def receive(_: int) -> bytes:
            if (found := next(rest, b"")) == b"":
                raise EOFError
            return found

        return Incoming(receive, self.sequence, MOST)

    def builder(self) -> TransactionBuilder:
        settings = ConnectionSettings("billing", Address("127.0.0.1", 1, "strobe", self.database))
        made = TransactionBuilder(settings, Log(settings), self.tables, first_phase=_no_first_phase)
        made.begin(Whereabouts.parse(self.begin), self.charsets)
        return made

    def read(self, stream: bytes | None = None) -> Iterator[Transaction]:
        incoming, builder = self.incoming(stream), self.builder()
        while True:
            event = incoming.next()
            if event is not None and (done := builder.take(event)) is not None:
                yield done


def _no_first_phase(name: str, end: tuple[str, int]) -> Any:
    raise AssertionError(f"{name}: the first phase is in the recording")


ITEMS = {
    "id": "int4",
    "big": "int8",
    "small": "int2",
    "name": "text",
    "price": "numeric",
    "ok": "bool",
    "at": "timestamp",
    "seen": "timestamptz",
    "day": "date",
    "f": "float8",
    "g": "float4",
    "raw": "bytea",
    "u": "uuid",
    "list": "_int4",
}
KEYED = {"id": "int4", "at": "timestamp", "name": "text"}
"""A table whose old rows the log names by their key."""
TYPES = {
    16: PgType("bool"),
    17: PgType("bytea"),
    20: PgType("int8"),
    21: PgType("int2"),
    23: PgType("int4"),
    25: PgType("text"),
    700: PgType("float4"),
    701: PgType("float8"),
    1007: PgType("_int4", element=PgType("int4")),
    1082: PgType("date"),
    1114: PgType("timestamp"),
    1184: PgType("timestamptz"),
    1700: PgType("numeric"),
    2950: PgType("uuid"),
}
BY_NAME = {type_.name: type_ for type_ in TYPES.values()}


class Catalog:
    def __init__(self, tables: Mapping[int, Watched]) -> None:
        self._tables = tables

    def types(self, wanted: set[tuple[int, int]]) -> Mapping[tuple[int, int], PgType]:
        return {(oid, modifier): TYPES.get(oid, PgType("record")) for oid, modifier in wanted}

    def numbers(self, table: int) -> Sequence[tuple[int, str]]:
        return [(number, name) for name, number in self._tables[table].numbers.items()]


@dataclass(frozen=True)
class Walsender:
    """The frames that a PostgreSQL server sent."""

    frames: Sequence[bytes]
    ids: Mapping[str, int]
    """Of the tables."""

    @classmethod
    def load(cls) -> Walsender:
        found = json.loads((CORPUS / "postgres.json").read_text())
        return cls([bytes.fromhex(frame) for frame in found["frames"]], found["ids"])

    def save(self) -> None:
        _save("postgres", {**vars(self), "frames": [frame.hex() for frame in self.frames]})

    def builder(self) -> PostgresBuilder:
        settings = postgres.ConnectionSettings("shop", "host=127.0.0.1 dbname=shop", "public", "strobe")
        tables = {self.ids[name]: self._watched(name, columns) for name, columns in _TABLES.items()}
        return PostgresBuilder(settings, tables, Catalog(tables), lambda xid: xid)

    def _watched(self, name: str, columns: Mapping[str, str]) -> Watched:
        types = {column: BY_NAME[type_] for column, type_ in columns.items()}
        numbers = {column: number for number, column in enumerate(columns, 1)}
        key, images = (("id",), True) if name == "items" else (("id", "at"), False)
        return Watched(name, types, key, images, f"public.{name}", ("public", name), numbers)

    def incoming(self) -> Frames:
        """With the clock of the server as it was then."""
        first = pgoutput.frame(self.frames[0])
        return Frames(0, lambda: first.sent_at)

    def read(self, frames: Iterable[bytes] | None = None, incoming: Frames | None = None) -> Iterator[Transaction]:
        incoming, builder = incoming or self.incoming(), self.builder()
        for data in self.frames if frames is None else frames:
            found = incoming.read(data)
            if isinstance(found, Arrived) and (done := builder.receive(found.message, found.size)) is not None:
                yield done


_TABLES = {"items": ITEMS, "keyed": KEYED}


def _save(name: str, found: Mapping[str, Any]) -> None:
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


# Recording


def record_binlog(name: str, server: Any) -> None:
    from mariadb_shop import Shop, read

    from strobe.sources.mariadb.catalog import charsets

    shop = Shop(server)
    documents = "JSON" if shop.mysql else "LONGTEXT"
    shop.run(
        "CREATE TABLE t (id INT PRIMARY KEY, a TINYINT UNSIGNED, b SMALLINT, c MEDIUMINT, d BIGINT UNSIGNED, "
        "e DECIMAL(20,6), f FLOAT, g DOUBLE, h BIT(9), i YEAR, j DATE, k DATETIME(3), l TIMESTAMP(6) NULL, m TIME(2), "
        "n CHAR(5), o VARCHAR(300), p VARCHAR(20) CHARACTER SET latin1, q BLOB, r BINARY(4), s ENUM('x', 'y'), "
        f"u SET('a', 'b', 'c'), v {documents})",
        "CREATE TABLE w (id INT PRIMARY KEY)",
    )
    source = shop.source()
    with source.server.connections.session() as connection:
        sets = {number: name for number, name in charsets(connection).items() if name in ("utf8mb4", "latin1")}
    start, heard = source.now(), list[tuple[int, bytearray]]()
    made = Incoming.__init__

    def listen(incoming: Incoming, receive: Any, sequence: int, most: int) -> None:
        sent = bytearray()
        heard.append((sequence, sent))

        def hear(size: int) -> bytes | None:
            found: bytes | None = receive(size)
            sent.extend(found or b"")
            return found

        made(incoming, hear, sequence, most)

    row = (
        "200, -3, 70000, 18446744073709551615, -12345.678901, 1.5, 2.5e300, b'101', 2024, '2024-02-29', "
        "'2024-02-29 12:34:56.789', '2024-02-29 12:34:56.789012', '-12:34:56.78', 'ab', 'grün', 'é', "
        "x'00ff', x'01', 'y', 'a,c'"
    )
    json_ = """'{"a": [1, -2, 3000000000, 1.5, true, null, "text"], "b": {"c": {"d": []}}, "e": "x"}'"""
    with shop.session() as do:
        do("BEGIN")
        do(f"INSERT INTO t VALUES (1, {row}, {json_}), (2, {row}, '[]')")
        do("SAVEPOINT s")
        do("UPDATE t SET b = NULL, o = 'other' WHERE id = 2")
        do("ROLLBACK TO s")
        do("INSERT INTO w VALUES (1), (2), (3)")
        do("COMMIT")
        do("UPDATE t SET v = '[[], {}, [{\"k\": 1e100}]]', k = NULL WHERE id = 1")
        if shop.mysql:
            do("SET binlog_transaction_compression = ON")
            opaque = "JSON_OBJECT('d', CAST(1.25 AS DECIMAL(10,2)), 't', CAST('12:34:56' AS TIME))"
            do(f"UPDATE t SET v = {opaque} WHERE id = 2")
            do(f"INSERT INTO w SELECT 100 + seq FROM {shop.numbers(40)}")
            do("SET binlog_transaction_compression = OFF")
        else:
            do("SET GLOBAL log_bin_compress = ON, log_bin_compress_min_len = 10")
            do("INSERT INTO w SELECT 100 + seq FROM seq_1_to_40")
            do("SET GLOBAL log_bin_compress = OFF")
        do("XA START 'strobe:x', 'b', 7")
        do("INSERT INTO w VALUES (7)")
        do("XA END 'strobe:x', 'b', 7")
        do("XA PREPARE 'strobe:x', 'b', 7")
        do("XA ROLLBACK 'strobe:x', 'b', 7")
        do("DELETE FROM t WHERE id = 1")
    watched = source._watched()
    with mock.patch.object(Incoming, "__init__", listen):
        expected = read(source, start)
    tables = {table: dict(columns) for table, columns in watched.items()}
    recorded = [Binlog(bytes(sent), sequence, start.text, shop.name, tables, sets) for sequence, sent in heard]
    changes = [t.changes for t in expected]
    found = next(one for one in recorded if [t.changes for t in whole(one.read()) if t.changes] == changes)
    found.save(name)


def whole(transactions: Iterator[Transaction]) -> list[Transaction]:
    """All of a recording."""
    found = list[Transaction]()
    with suppress(EOFError):
        found.extend(transactions)
    return found


def record_postgres(server: Any) -> None:
    from postgres_database import Database, read

    database, declared = Database(server), {"_int4": "int[]"}
    script = []
    for name, columns in _TABLES.items():
        key = "id" if name == "items" else "id, at"
        spelled = ", ".join(f"{c} {declared.get(t, t)}" for c, t in columns.items())
        script.append(f"CREATE TABLE {name} ({spelled}, PRIMARY KEY ({key}))")
    script += ["ALTER TABLE items REPLICA IDENTITY FULL", "ALTER TABLE items ALTER name SET STORAGE EXTERNAL"]
    source = database.make("; ".join(script), *_TABLES)
    start, frames = source.now(), list[bytes]()
    row = (
        "-9000000000000000000, -3, repeat('long ', 500), -12345.678901, true, '2024-02-29 12:34:56.789', "
        "'2024-02-29 12:34:56.789012Z', '2024-02-29', 2.5e300, 1.5, '\\x00ff', "
        "'123e4567-e89b-12d3-a456-426614174000', '{1,NULL,3}'"
    )
    database.run(
        f"INSERT INTO items VALUES (1, {row}), (2, {row})", "UPDATE items SET price = 7, list = NULL WHERE id = 1"
    )
    database.run("INSERT INTO keyed VALUES (1, '2024-02-29', 'a'), (2, '2024-03-01', NULL)")
    database.run(
        "UPDATE keyed SET name = 'b'", "UPDATE keyed SET id = 9 WHERE id = 2", "DELETE FROM keyed WHERE id = 1"
    )
    database.run("SELECT pg_logical_emit_message(true, 'other', 'a message')", "DELETE FROM items WHERE id = 2")
    frame = pgoutput.frame

    def hear(data: bytes) -> Any:
        frames.append(data)
        return frame(data)

    with mock.patch.object(pgoutput, "frame", hear):
        expected = read(source, start)
    ids = {name: server.execute(database.name, f"SELECT '{name}'::regclass::oid")[0][0] for name in _TABLES}
    found = Walsender([data for data in frames if data[:1] == b"w"], ids)
    changes = [(t.changes, t.gone) for t in found.read() if t.changes or t.gone]
    assert changes == [(t.changes, t.gone) for t in expected]
    found.save()
    database.source.close()


def main() -> None:
    import mariadb_server
    import mysql_server
    import postgres_server

    with postgres_server.running() as server:
        record_postgres(server)
    with mariadb_server.new_template() as template, mariadb_server.running(template) as server:
        record_binlog("mariadb", server)
    with mysql_server.new_template(mysql_server.newest()) as template:
        server = mysql_server.MysqlServer(template)
        try:
            record_binlog("mysql", server)
        finally:
            server.close()


if __name__ == "__main__":
    main()
