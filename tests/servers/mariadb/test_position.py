"""Positions in a binlog, and logs that have the same places and another past."""

from __future__ import annotations

import pickle
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from mariadb_server import Server, belongs_to_mysql, own_folder, running
from mariadb_shop import Shop, read
from patience import eventually
from postgres_server import without_server

from strobe.errors import Damaged, LostGuarantee, SourceUnavailable, UserError
from strobe.messages import Position
from strobe.sources.mariadb.binlog.events import gtid
from strobe.sources.mariadb.binlog.protocol import Event
from strobe.sources.mariadb.limits import Limits
from strobe.sources.mariadb.position import LogFingerprint, Whereabouts
from strobe.sources.mariadb.source import MariadbSource

UUID = "5d7c567a-e1e1-11f1-a0b2-02fc00000001"
HEADER = struct.Struct("<IBIIIH")


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("binlog.000004:3456@1763300000", (4, 3456)),
        ("binlog.000004:3456@1763300000/0-1-17@3321:1763300042", (4, 3456)),
        (f"a@b:c.1000000:5000000000@7/{UUID}:23@4:8", (1000000, 5000000000)),
        (f"binlog.000001:900@7/{UUID}:a_tag:1@4:8", (1, 900)),
    ],
)
def test_positions_are_read_as_they_are_written(text: str, order: tuple[int, int]) -> None:
    position = Whereabouts.parse(text).position
    assert (position.text, position.order) == (text, order)


@pytest.mark.parametrize(
    "text", ["", "0/1", "binlog:4@7", "binlog.1:4", "binlog.1:x@7", "b.1:4@7/0-1-17", "b.1:4@7/@3:4"]
)
def test_what_is_not_a_position(text: str) -> None:
    with pytest.raises(ValueError):
        Whereabouts.parse(text)


def test_a_mark_does_not_change_the_order() -> None:
    """What stood before a position is no part of where it is."""
    with_fingerprint = Whereabouts("binlog.000004", 90, 7, LogFingerprint("0-1-17", 4, 8)).position
    assert with_fingerprint == Whereabouts("binlog.000004", 90, 7).position


@pytest.mark.parametrize(
    ("type_", "body", "name"),
    [
        (162, "1100000000000000030000000c", "3-7-17"),
        (33, "005d7c567ae1e111f1a0b202fc0000000106000000000000000205", f"{UUID}:6"),
        (42, "026e00000002baf8acf48503850322c5038102c90204f1030000000204040606746167081408", f"{UUID}:tag:1"),
        (
            42,
            "028000000002baf8acf48503850322c5038102c90204f1030000000204290406146c6f6e6765725f74616708140a69040c7f",
            f"{UUID}:longer_tag:133",
        ),
        (34, "005d7c567ae1e111f1a0b202fc0000000106000000000000000205", None),
        (2, "1100000000000000030000000c", None),
    ],
)
def test_transactions_are_named_as_the_server_names_them(type_: int, body: str, name: str | None) -> None:
    assert gtid(Event(type_, 0, 0, 99, 50, bytes.fromhex(body), server=7)) == name


@pytest.mark.parametrize(("type_", "body"), [(42, "026e00000002baf8"), (33, "005d7c"), (162, "1100")])
def test_a_name_that_is_cut_short_is_none(type_: int, body: str) -> None:
    with pytest.raises(Damaged):
        gtid(Event(type_, 0, 0, 99, 50, bytes.fromhex(body), server=7))


def test_streams_name_the_last_transaction_of_the_file(either: Shop) -> None:
    """Against what the server itself says is at that offset; with domains, and with tags."""
    either.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source = either.source()
    start = source.now()
    assert last(start) is None
    with either.session() as do:
        do("INSERT INTO t VALUES (1)")
        if not either.mysql:
            do("SET gtid_domain_id = 3")
        elif either.version >= (8, 3):
            do("SET gtid_next = 'AUTOMATIC:tag'")
        do("INSERT INTO t VALUES (2)")
        do("CREATE TABLE other (id INT)")
    found = read(source, start, relevant=lambda _: True)
    names = [names_at(either, t.position) for t in found]
    assert all(name and name[0] == name[1] for name in names)
    assert len({name[0] for name in names}) == len([t for t in found if t.changes]) + 1 == 3
    if not either.mysql:
        assert {name[0].split("-")[0] for name in names} == {"0", "3"}
    again = read(source, found[0].position, relevant=lambda _: True)
    assert [t.position.text for t in again if t.changes] == [t.position.text for t in found if t.changes][1:]
    assert again[-1].position.text == found[-1].position.text
    either.run("FLUSH BINARY LOGS")
    (*_, rotated) = read(source, found[-1].position, relevant=lambda _: True)
    assert last(rotated.position) is None, "there is none in the new file"
    for position in (start, *(t.position for t in found), rotated.position):
        source.verify(source.position(position.text))


def last(position: Position) -> LogFingerprint | None:
    return Whereabouts.parse(position.text).last


def names_at(shop: Shop, position: Position) -> tuple[str, str]:
    """The name of the last transaction as the position has it, and as the server has it."""
    at = Whereabouts.parse(position.text)
    assert at.last is not None
    (event,) = shop.server.rows(f"SHOW BINLOG EVENTS IN '{at.file}' FROM {at.last.began} LIMIT 1")
    found = re.search(r"GTID (\S+)|GTID_NEXT= '(.+)'", event[5])
    assert found
    return at.last.gtid, found[1] or found[2]


@pytest.fixture(params=["mariadb", "mysql"])
def own(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """On a server of its own, whose log may be changed while it is down."""
    shared: Server = request.getfixturevalue(request.param)
    with closing(type(shared)(request.getfixturevalue(f"{request.param}_template"))) as server:
        yield Shop(server)


class Log:
    """The file that a position is in, behind the server's back."""

    def __init__(self, shop: Shop, position: Position) -> None:
        self.at = Whereabouts.parse(position.text)
        self.path: Path = shop.server.data / self.at.file
        self._server = shop.server

    def put(self, data: bytes) -> None:
        """While the server is down."""
        self._server.stop()
        self.path.write_bytes(data)
        self._server.start()

    def begin_again(self) -> None:
        """In the same second, as it seems, and without what was in it."""
        self._server.stop()
        self.path.unlink()
        index = self.path.with_suffix(".index")
        index.write_text("".join(line for line in index.read_text().splitlines(True) if self.path.name not in line))
        self._server.start()
        with self.path.open("r+b") as file:
            file.seek(4)
            file.write(struct.pack("<I", self.at.created))

    def with_event(self, second: int = 0, more: int = 0, checked: bool = True) -> bytes:
        """With the last transaction's first event another one: some seconds later, or a later number; and what it says
        of itself to check it by."""
        data, began = bytearray(self.path.read_bytes()), self.at.last.began if self.at.last else 0
        timestamp, type_, server, size, end, flags = HEADER.unpack_from(data, began)
        HEADER.pack_into(data, began, timestamp + second, type_, server, size, end, flags)
        number = began + HEADER.size + (0 if type_ == 162 else 17)
        data[number] += more
        if checked:
            data[began + size - 4 : began + size] = zlib.crc32(data[began : began + size - 4]).to_bytes(4, "little")
        return bytes(data)


def marked(shop: Shop, source: MariadbSource) -> Position:
    """Where the stream is behind a transaction."""
    start = source.now()
    shop.run("INSERT INTO t VALUES (1)")
    (transaction,) = read(source, start)
    assert last(transaction.position) is not None
    return transaction.position


def test_a_log_with_another_transaction_at_the_place_is_another_one(own: Shop) -> None:
    """Though it has the same file, made in the same second, and is as long: a machine that was put back to what its
    disk and memory were, and went on."""
    own.run("CREATE TABLE t (id INT PRIMARY KEY)")
    position = marked(own, own.source())
    log = Log(own, position)
    original = log.path.read_bytes()
    for data in (log.with_event(second=1), log.with_event(more=1), log.with_event(more=1, checked=False)):
        log.put(data)
        unmarked = own.source().position(position.text.partition("/")[0])
        own.source().verify(unmarked)  # all else is the same
        for reads in (
            lambda: own.source().verify(position),
            lambda: next(own.source().transactions(position, [], bool)),
        ):
            with pytest.raises(LostGuarantee, match="restored") as caught:
                reads()
            assert position.text in caught.value.message and "rebuild" in caught.value.fix
    log.put(original)
    own.run("INSERT INTO t VALUES (2)")
    ((row, _),) = [item for t in read(own.source(), position) for item in t.changes["t"].items()]
    assert row == (2,)


def test_another_log_is_not_asked_for_answers(own: Shop) -> None:
    """Not even before the stream is opened again, which says what is the matter: an answer from a place that the stream
    has passed would be believed at once."""
    own.run("CREATE TABLE t (id INT PRIMARY KEY)")
    own.server.stop()
    own.server.start()
    source = own.source()
    position = marked(own, source)
    reader = source.reader()
    reader.open()
    reader.close()
    sent = pickle.dumps(reader)
    begun, stops = own.source(), iter([False])
    assert not list(begun.transactions(position, [], lambda: next(stops, True)))
    Log(own, position).begin_again()
    own.run("INSERT INTO t VALUES (2)")
    for asking in (reader, source.reader(), begun.reader(), pickle.loads(sent)):
        with pytest.raises(SourceUnavailable, match="restored"):
            asking.open()
    with pytest.raises(SourceUnavailable, match="restored"):
        source.now()
    with pytest.raises(LostGuarantee, match="restored"):
        next(source.transactions(position, [], lambda: False))


def test_a_file_that_is_purged_behind_a_stream_is_no_other_log(either: Shop) -> None:
    """A stream that is ahead of whoever takes its transactions goes on, and so do answers, which wait for it."""
    either.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source = either.source()
    position = source.now()
    either.run("INSERT INTO t VALUES (1)")
    stream = source.transactions(position, [], lambda: False)
    while not (transaction := next(stream)).changes:
        pass
    either.run("FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)")
    ((newest, *_),) = either.server.rows("SHOW BINARY LOGS")[-1:]
    eventually(lambda: (either.run(f"PURGE BINARY LOGS TO '{newest}'"), purged(either, newest))[1])
    source.server.connections.made += 1
    reader = source.reader()
    assert transaction.position < reader.open().through
    assert sorted(reader.scan("t", ["id"])) == [(1,), (2,)]
    reader.close()
    while not (transaction := next(stream)).changes:
        pass
    stream.close()
    assert [row for row, _ in transaction.changes["t"].items()] == [(2,)]


@pytest.mark.parametrize("checksum", ["CRC32", "NONE"])
def test_a_log_with_no_transaction_at_the_place_is_another_one(either: Shop, checksum: str) -> None:
    """Where there is the middle of an event. An answer that ends too early proves nothing."""
    either.run("CREATE TABLE t (id INT PRIMARY KEY)", f"SET GLOBAL binlog_checksum = {checksum}")
    source = either.source()
    try:
        position = marked(either, source)
        at = Whereabouts.parse(position.text)
        assert at.last is not None
        places = [at.last.began + n for n in (1, 2, 5, 9, 13, 17, 30)]
        for began in places:
            with pytest.raises(LostGuarantee, match="restored"):
                source.verify(moved(position, began))
        with pytest.raises(SourceUnavailable, match="cannot be read"):  # so ends an answer that somebody killed, too
            source.verify(moved(position, at.offset))
        source.verify(position)
        later = Whereabouts(at.file, at.offset, at.created + 1, at.last)
        with pytest.raises(LostGuarantee, match="restored"):
            source.verify(later.position)
    finally:
        either.run("SET GLOBAL binlog_checksum = CRC32")


def moved(position: Position, began: int) -> Position:
    at = Whereabouts.parse(position.text)
    assert at.last is not None
    return Whereabouts(at.file, at.offset, at.created, LogFingerprint(at.last.gtid, began, at.last.second)).position


def purged(shop: Shop, newest: str) -> bool:
    return [file for file, *_ in shop.server.rows("SHOW BINARY LOGS")] == [newest]


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_log_that_lost_what_a_snapshot_saw_is_another_one(own: Shop, where: str) -> None:
    """Also where the stream had not read so far, and where another process took the snapshot. Who begins anew, and has
    no such answer in hand, goes on."""
    own.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source = own.source()
    position = marked(own, source)
    own.run("INSERT INTO t VALUES (2)")
    reader = source.reader() if where == "here" else pickle.loads(pickle.dumps(source.reader()))
    with source.elsewhere() as taken:
        seen = reader.open()
        if where == "elsewhere":
            taken(seen)
    reader.close()
    assert position < seen.through
    log = Log(own, position)
    own.server.stop()
    log.put(log.path.read_bytes()[: log.at.offset])
    with pytest.raises(LostGuarantee, match="restored"):
        next(source.transactions(position, [], lambda: False))
    own.run("INSERT INTO t VALUES (3)")
    ((row, _),) = [item for t in read(source, position) for item in t.changes["t"].items()]
    assert row == (3,)


def test_a_stream_beyond_what_the_protocol_can_ask_for(shop: Shop) -> None:
    """In a file of more than 4 GiB, while it is read: answers go on, and the file is still told by its second."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source = shop.source()
    position = marked(shop, source)
    at = Whereabouts.parse(position.text)
    assert at.last is not None
    far = LogFingerprint(at.last.gtid, 2**32 + 5, at.last.second)
    source.server.log.stream_at = Whereabouts(at.file, 2**32 + 99, at.created, far).position
    source.server.connections.made += 1
    assert position <= source.now()
    source.server.log.stream_at = Whereabouts(at.file, 2**32 + 99, at.created + 1, far).position
    source.server.connections.made += 1
    with pytest.raises(SourceUnavailable, match="restored"):
        source.now()


def test_a_snapshot_beyond_where_a_stream_can_begin(shop: Shop) -> None:
    """Behind a transaction of more than 4 GiB: a stream before it can be opened again."""
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
    position = marked(shop, shop.source())
    shop.run("INSERT INTO t VALUES (2)")
    reader = shop.source().reader()
    seen = reader.open()
    reader.close()
    source = shop.source(limits=Limits(offset=seen.through.order[1]))
    with source.elsewhere() as taken:
        taken(seen)
    ((row, _),) = [item for t in read(source, position) for item in t.changes["t"].items()]
    assert row == (2,)
    with pytest.raises(LostGuarantee, match="beyond 4 GiB"):
        source.verify(seen.through)


def test_an_encrypted_log(mariadb_template: Path, tmp_path: Path) -> None:
    """The server reads it to others as it was before. Its name, which is in messages of the server, is no matter."""
    there = any(Path("/usr").glob("lib*/**/file_key_management.so"))
    without_server("" if there else "MariaDB has no plugin for keys in a file here")
    key = own_folder() / "keys"
    key.write_text(f"1;{'5' * 32}")
    belongs_to_mysql(key.parent)
    settings = {"plugin-load-add": "file_key_management", "file-key-management-filename": str(key)}
    with running(mariadb_template, {**settings, "encrypt-binlog": "ON", "log-bin": "open-log"}) as server:
        shop = Shop(server)
        shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
        source = shop.source()
        position = marked(shop, source)
        source.verify(position)
        with pytest.raises(LostGuarantee, match="restored"):
            source.verify(moved(position, 5))
        shop.run("INSERT INTO t VALUES (2)")
        ((row, _),) = [item for t in read(shop.source(), position) for item in t.changes["t"].items()]
        assert row == (2,)


def test_a_position_of_another_kind_is_refused(shop: Shop) -> None:
    with pytest.raises(UserError, match="not a position in a binlog"):
        shop.source().position("0/16B3748@0/16B3700:7")
