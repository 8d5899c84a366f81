"""Transactions built from the binlog's events, without a server."""

from __future__ import annotations

import struct

import pytest

from strobe.algebra.bag import Bag
from strobe.errors import UNREADABLE, LostGuarantee, RowUnfit
from strobe.messages import Transaction
from strobe.sources.mariadb.binlog import protocol as binlog
from strobe.sources.mariadb.binlog.protocol import Event
from strobe.sources.mariadb.connection import Address, ConnectionSettings
from strobe.sources.mariadb.position import Log, Whereabouts
from strobe.sources.mariadb.transaction_builder import PREPARED, EventGroup, TransactionBuilder
from strobe.sources.mariadb.values import Kind

FILE, SECOND, SIZE = "binlog.000001", 1_700_000_000, 10
WRITE, DELETE = 23, 25
TABLE = 7
TABLE_MAP = (
    TABLE.to_bytes(6, "little")
    + bytes(2)
    + b"\x04shop\0\x01t\0"
    + b"\x01\x03\0\0"  # one column, an INT that is never NULL
    + b"\x01\x01\0"  # signed
    + b"\x04\x03\x02id"
)


class Server:
    """Writes events one after the other, each ten bytes long."""

    def __init__(self, xa_prefix: str | None = None) -> None:
        settings = ConnectionSettings("shop", Address("localhost", 3306, "strobe", "shop"), xa_prefix=xa_prefix)
        self.asked: list[tuple[str, tuple[str, int]]] = []

        def first_phase(name: str, end: tuple[str, int]) -> EventGroup:
            self.asked.append((name, end))
            return EventGroup(standalone=False)

        watched = {"t": {"id": Kind("int", "number")}}
        self.builder = TransactionBuilder(settings, Log(settings), watched, first_phase=first_phase)
        self.builder.begin(Whereabouts(FILE, 4, SECOND), {})
        self.end = 4

    def event(self, type_: int, body: bytes = b"", flags: int = 0) -> Transaction | None:
        self.end += SIZE
        return self.builder.take(Event(type_, SECOND, flags, self.end, SIZE, body, 1))

    def begin(self, number: int, flags: int = 0) -> None:
        assert self.event(binlog.GTID, struct.pack("<QIB", number, 0, flags)) is None

    def rows(self, type_: int, *values: int) -> None:
        assert self.event(binlog.TABLE_MAP, TABLE_MAP) is None
        images = b"".join(b"\0" + struct.pack("<i", value) for value in values)
        assert self.event(type_, TABLE.to_bytes(6, "little") + bytes(2) + b"\x01\x01" + images) is None

    def statement(self, sql: str) -> Transaction | None:
        body = struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0" + sql.encode()
        return self.event(binlog.QUERY, body)

    def commit(self) -> Transaction:
        done = self.event(binlog.XID, bytes(8))
        assert done is not None
        return done


def test_a_transaction_is_what_its_rows_come_to() -> None:
    """A row that comes and goes is no change; the position names the transaction that ended there."""
    server = Server()
    server.begin(17)
    server.rows(WRITE, 1, 2, 3)
    server.rows(DELETE, 2, 9)
    done = server.commit()
    assert done.changes == {"t": Bag(("id",), {(1,): 1, (3,): 1, (9,): -1})}
    assert done.position.text == f"{FILE}:{server.end}@{SECOND}/0-1-17@4:{SECOND}"
    server.begin(18)
    assert server.commit().changes == {}


def test_what_goes_back_to_a_savepoint_is_no_change() -> None:
    server = Server()
    server.begin(1)
    server.rows(WRITE, 1)
    assert server.statement("SAVEPOINT `s`") is None
    server.rows(WRITE, 2)
    assert server.statement("ROLLBACK TO `s`") is None
    assert server.commit().changes == {"t": Bag.of(("id",), [(1,)])}
    server.begin(2)
    server.rows(WRITE, 5)
    done = server.statement("ROLLBACK")
    assert done is not None and done.changes == {}


def test_an_unfinished_transaction_is_forgotten_with_its_file() -> None:
    """A server that crashed begins a new file; what it had not committed never was."""
    server = Server()
    server.begin(1)
    server.rows(WRITE, 1)
    assert server.event(binlog.ROTATE, bytes(8) + b"binlog.000002", binlog.ARTIFICIAL) is None
    server.end = 4
    server.begin(2)
    done = server.commit()
    assert done.changes == {} and done.position.text.startswith("binlog.000002:24@")


def test_xa_counts_from_its_second_phase() -> None:
    """Whether its first phase was read before, or has to be looked for."""
    name = struct.pack("<BIII", 0, 1, 1, 0) + b"a"
    server = Server()
    server.begin(1, PREPARED)
    server.rows(WRITE, 1)
    prepared = server.event(binlog.XA_PREPARE, name)
    assert prepared is not None and prepared.changes == {} and list(server.builder.prepared) == ["61  1"]
    server.begin(2)
    done = server.statement("XA COMMIT X'61',X'',1")
    assert done is not None and done.changes == {"t": Bag.of(("id",), [(1,)])} and not server.asked
    before = server.end
    server.begin(3)
    done = server.statement("XA COMMIT X'62',X'',1")
    assert done is not None and done.changes == {} and server.asked == [("62  1", (FILE, before))]


@pytest.mark.parametrize(
    ("prefix", "identifier", "named", "warned"),
    [
        (None, b"strobe:g shop,billing", [], False),
        ("strobe:", b"strobe:g shop,billing", ["g"], False),
        ("strobe:", b"strobe:g", [], True),
        ("strobe:", b"other:g", [], False),
    ],
)
def test_an_xa_transaction_is_a_part_where_its_prefix_is_configured(
    prefix: str | None, identifier: bytes, named: list[str], warned: bool
) -> None:
    """One whose identifier names nothing usable is an ordinary one, with a warning."""
    server = Server(prefix)
    server.begin(1, PREPARED)
    server.rows(WRITE, 1)
    server.event(binlog.XA_PREPARE, struct.pack("<BIII", 0, 1, len(identifier), 0) + identifier)
    server.begin(2)
    done = server.statement(f"XA COMMIT X'{identifier.hex()}',X'',1")
    assert done is not None and done.changes == {"t": Bag.of(("id",), [(1,)])}
    assert [part.id for part in done.part_of] == named and bool(server.builder.warning) is warned


def test_what_cannot_be_read_stops() -> None:
    server = Server()
    with pytest.raises(LostGuarantee, match="changes are missing"):
        server.event(binlog.INCIDENT)
    with pytest.raises(LostGuarantee, match="type 99"):
        server.event(99)
    server.begin(1)
    with pytest.raises(LostGuarantee, match="table that it does not name"):
        server.event(WRITE, bytes(8) + b"\x01\x01")
    assert server.event(99, flags=binlog.IGNORABLE) is None


def test_a_value_that_spark_cannot_hold_is_named_by_the_key_of_its_row() -> None:
    """What follows it in the row is read all the same: the key may be there. Without a key the row is not named."""
    dated = TABLE_MAP[:-5].replace(b"\x01\x03\0\0", b"\x02\x0a\x03\0\0") + b"\x04\x07\x03day\x02id"
    for keys, rows in (({"t": ("id",)}, ["shop.t (id=7)"]), ({}, [])):
        server = Server()
        server.builder._watched = {"t": {"day": Kind("date", "date"), "id": Kind("int", "number")}}
        server.builder._keys = keys
        server.begin(1)
        server.event(binlog.TABLE_MAP, dated)
        image = b"\0" + bytes(3) + struct.pack("<i", 7)
        with pytest.raises(RowUnfit, match="there is no date 0000-00-00") as caught:
            server.event(WRITE, TABLE.to_bytes(6, "little") + bytes(2) + b"\x02\x03" + image)
        assert list(map(str, caught.value.rows)) == rows and caught.value.relations == {"t"}
        assert [row.values for row in caught.value.rows] == [(UNREADABLE, 7) for _ in rows]
