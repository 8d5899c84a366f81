"""Bytes that are damaged on their way: of what real servers sent (`tests/unit/sources/corpus`, made by `recorded.py`).

Where there are checksums, what is read is what was sent, or it is found to be damaged. Where there are none, the
decoders may read another value, but they end with nothing else than `Damaged`, or with what a guarantee was lost for,
and in little memory.
"""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache

import pyarrow
import pymysql
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import Binlog, Walsender, whole

from strobe.data.byte_reader import ByteReader
from strobe.errors import Damaged, LostGuarantee
from strobe.messages import Transaction
from strobe.sources.mariadb.binlog import json, protocol
from strobe.sources.mariadb.binlog.events import payload, uncompressed
from strobe.sources.mariadb.binlog.protocol import Event
from strobe.sources.mariadb.binlog.rows import TableMap
from strobe.sources.mariadb.limits import Limits
from strobe.sources.postgres import pgoutput

Damage = Callable[[bytes], bytes]
SERVERS = ["mariadb", "mysql"]
MEMORY = 32 * 2**20
"""Bytes that reading a recording of some kilobytes may take at a time."""
ROWS = protocol.WRITES | protocol.UPDATES | protocol.DELETES


long = pytest.mark.parametrize("times", [1, pytest.param(50, marks=pytest.mark.slow)])


def examples(number: int) -> settings:
    return settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))


@cache
def binlog(name: str) -> Binlog:
    return Binlog.load(name)


@cache
def as_sent(name: str) -> Sequence[Transaction]:
    return whole(binlog(name).read())


@cache
def events(name: str) -> Sequence[Event]:
    found, incoming = list[Event](), binlog(name).incoming()
    with suppress(EOFError):
        while (event := incoming.next()) is not None:
            found.append(event)
    return found


@cache
def walsender() -> Walsender:
    return Walsender.load()


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


INTERESTING = [b"\0", b"\xff", b"\x7f", b"\x80", b"\xfe" * 9, b"\xff" * 4, b"\xff\xff\xff\x7f", bytes(8)]


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """One or a few bytes changed, put in, taken out or doubled, or the end cut off."""
    place, kind = (
        draw(st.floats(0, 1, exclude_max=True)),
        draw(st.sampled_from(["flip", "write", "insert", "remove", "double", "cut"])),
    )
    bit, some, size = draw(st.integers(0, 7)), draw(st.sampled_from(INTERESTING)), draw(st.integers(1, 12))

    def damage(data: bytes) -> bytes:
        at = int(place * len(data))
        if kind == "flip" and data:
            return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        if kind == "write":
            return data[:at] + some + data[at + len(some) :]
        if kind == "insert":
            return data[:at] + some + data[at:]
        if kind == "remove":
            return data[:at] + data[at + size :]
        return data[:at] + data[at : at + size] * 2 + data[at + size :] if kind == "double" else data[:at]

    return damage


@long
@pytest.mark.parametrize("name", SERVERS)
def test_a_damaged_binlog_is_noticed(name: str, times: int) -> None:
    """Every transaction that comes out is one that was sent, in its place."""

    @examples(150 * times)
    @given(damage=damages())
    def check(damage: Damage) -> None:
        found = list[Transaction]()
        with little_memory(), suppress(EOFError, Damaged, pymysql.err.OperationalError):
            found.extend(binlog(name).read(damage(binlog(name).stream)))
        assert found == as_sent(name)[: len(found)]

    check()


@pytest.mark.parametrize("name", SERVERS)
def test_the_beginning_of_a_binlog_that_is_damaged_loses_nothing(name: str) -> None:
    """What comes before it is known whether there are checksums: the name of the file, and its description."""
    sent = binlog(name).stream
    beginning = [event.size for event in events(name)][:2]
    for at in range(sum(beginning) + 20):
        for some in INTERESTING:
            for damaged in (sent[:at] + some + sent[at + len(some) :], sent[:at] + some + sent[at:]):
                found = list[Transaction]()
                with suppress(EOFError, Damaged, pymysql.err.OperationalError):
                    found.extend(binlog(name).read(damaged))
                assert found == as_sent(name)[: len(found)]


@long
@pytest.mark.parametrize("name", SERVERS)
def test_a_damaged_event_without_a_checksum_ends_as_damage(name: str, times: int) -> None:
    @examples(150 * times)
    @given(number=st.integers(0, 10**6), damage=damages())
    def check(number: int, damage: Damage) -> None:
        sent, builder = list(events(name)), binlog(name).builder()
        number %= len(sent)
        sent[number] = replace(sent[number], body=damage(sent[number].body))
        with little_memory(), suppress(Damaged, LostGuarantee):
            for event in sent:
                builder.take(event)

    check()


@pytest.mark.parametrize("name", SERVERS)
def test_rows_that_are_cut_short_are_none(name: str) -> None:
    """Wherever an event is cut: what comes out are whole rows, or nothing."""
    builder, cut = binlog(name).builder(), 0
    for event in events(name):
        if event.type in ROWS and builder._group is not None:
            rows = _rows(name, event, builder)
            for size in range(8, len(event.body)):
                with suppress(Damaged, LostGuarantee):
                    found = _rows(name, replace(event, body=event.body[:size]), builder)
                    assert found == rows[: len(found)]
                cut += 1
        builder.take(event)
    assert cut > 500


def _rows(name: str, event: Event, builder: object) -> list[object]:
    table_map = builder._maps[int.from_bytes(event.body[:6], "little")]  # type: ignore[attr-defined]
    plan = builder._plan(table_map)  # type: ignore[attr-defined]
    return [row for _, row, _ in builder._images(event, table_map.table, plan)]  # type: ignore[attr-defined]


@long
def test_a_damaged_message_of_pgoutput_ends_as_damage(times: int) -> None:
    @examples(300 * times)
    @given(number=st.integers(0, 10**6), damage=damages())
    def check(number: int, damage: Damage) -> None:
        frames = list(walsender().frames)
        number %= len(frames)
        frames[number] = damage(frames[number])
        with little_memory(), suppress(Damaged, LostGuarantee):
            for _ in walsender().read(frames):
                pass

    check()


LIBPQ = struct.Struct(">cI")
PAST = 10
"""Bytes of log after a commit that a keep-alive names, before the next transaction begins."""


def connection() -> tuple[bytes, list[int], Sequence[Transaction], list[int]]:
    """What a connection carries: the frames, with keep-alives after each commit; where frames begin; the transactions,
    and up to where all has come that there is before each of them, and in the end."""
    sent, begins, limits, whole_log = bytearray(), list[int](), list[int](), list(walsender().read())
    for frame in walsender().frames:
        parts, clock = [frame], struct.unpack_from(">q", frame, 17)[0]
        if frame[25:26] == b"B":
            limits.append(struct.unpack_from(">Q", frame, 26)[0])
        elif frame[25:26] == b"C":
            end = struct.unpack_from(">Q", frame, 1)[0]
            parts += [b"k" + struct.pack(">QqB", end + past, clock, 0) for past in (0, PAST - 1, PAST, PAST)]
            last = end + PAST
        for part in parts:
            begins.append(len(sent))
            sent += LIBPQ.pack(b"d", 4 + len(part)) + part
    return bytes(sent), begins, whole_log, [*limits, last]


def as_libpq_takes_it_apart(stream: bytes) -> Iterator[bytes]:
    at = 0
    while at + LIBPQ.size <= len(stream):
        kind, size = LIBPQ.unpack_from(stream, at)
        if kind != b"d" or size < 4 or at + 1 + size > len(stream):
            return
        yield stream[at + LIBPQ.size : at + 1 + size]
        at += 1 + size


def place_in(stream: bytes) -> Iterator[int]:
    """Each of its bytes; of a text that repeats itself only some."""
    repeated, at = b"long " * 3, 0
    while at < len(stream):
        yield at
        at += 251 if stream.startswith(repeated, at) else 1


@pytest.mark.parametrize("size", [1, *(pytest.param(size, marks=pytest.mark.slow) for size in range(2, 10))])
def test_bytes_that_postgresql_sent_and_that_are_lost_or_doubled_are_noticed(size: int) -> None:
    """Wherever they are: the transactions that come out are those that were sent, and nothing is ever said to have come
    that has not."""
    sent, begins, transactions, limits = connection()
    assert limits == sorted(limits)
    wrong = list[int]()
    for at in place_in(sent):
        for damaged in (sent[:at] + sent[at + size :], sent[:at] + sent[at : at + size] + sent[at:]):
            incoming, found = walsender().incoming(), list[Transaction]()
            with suppress(Damaged, LostGuarantee):
                for transaction in walsender().read(as_libpq_takes_it_apart(damaged), incoming):
                    found.append(transaction)
            if found != transactions[: len(found)] or incoming.reached > limits[len(found)]:
                wrong.append(at)
    assert not wrong
    assert len(begins) > 30


def test_messages_of_pgoutput_that_are_cut_short_are_none() -> None:
    for frame in walsender().frames:
        for size in range(len(frame)):
            with pytest.raises(Damaged):
                pgoutput.decode(pgoutput.frame(frame[:size]).payload)  # type: ignore[union-attr]


def test_messages_of_pgoutput_that_come_twice_or_not_at_all() -> None:
    """A transaction has its beginning and its end, and a table is described before its rows come."""
    frames = walsender().frames
    kinds = [frame[25:26] for frame in frames]
    for kind in (b"B", b"C"):
        place = kinds.index(kind)
        for wrong in ([*frames[: place + 1], *frames[place:]], [*frames[:place], *frames[place + 1 :]]):
            with pytest.raises(Damaged):
                list(walsender().read(wrong))
    without = [frame for frame in frames if frame[25:26] != b"R"]
    with pytest.raises(Damaged, match="not described"):
        list(walsender().read(without))


BOMB = b"\x00\xff\xff\x02\x00\x00"
"""An object of 65,535 elements, each of which would be that object: this took 3 GB."""
NESTED = b"\x02" + b"".join(struct.pack("<HHBH", 1, 7 * (200 - level) + 4, 2, 7) for level in range(200))
NESTED += struct.pack("<HH", 0, 4)
"""Arrays in arrays, deeper than a server makes them."""
SHARED = b"\x02" + b"".join(
    struct.pack("<HH", 3, 13 * (14 - level) + 4) + (b"\x02" + struct.pack("<H", 13)) * 3 for level in range(14)
)
SHARED += struct.pack("<HH", 0, 4)
"""Arrays of three elements, all of which are the next array."""
DOCUMENTS = [
    b"\x00\x01\x00\x0d\x00\x0b\x00\x01\x00\x05\x07\x00a",
    b"\x02\x02\x00\x12\x00\x0c\x0a\x00\x05\x01\x00\x07text..." + b"\0",
    bytes.fromhex("0f070800000000800000000000000000"),
]


@long
def test_damaged_json_ends_as_damage(times: int) -> None:
    """However its parts point at one another."""

    @examples(200 * times)
    @given(document=st.sampled_from(DOCUMENTS) | st.binary(max_size=40), damage=damages())
    def check(document: bytes, damage: Damage) -> None:
        with little_memory(), suppress(Damaged):
            json.text(damage(document))

    check()


@pytest.mark.parametrize("document", [BOMB, NESTED, SHARED])
def test_json_that_claims_more_than_it_has(document: bytes) -> None:
    with pytest.raises(Damaged):
        json.text(document)


def test_what_is_packed_may_not_be_more_than_it_claims() -> None:
    """Little that would become much is not unpacked to its end; what claims to become too much, not at all."""
    limits, much = Limits(event=2**24, unpacked=2**24), bytes(2**28)
    packed = zlib.compress(much, 9)
    zstd = pyarrow.compress(struct.pack("<IBIIIH", 7, 16, 1, 2**24, 0, 0) + much, codec="zstd", asbytes=True)
    del much
    with little_memory():
        for claim in (100, 2**24 + 1, 2**31 - 1):
            with pytest.raises(Damaged):
                uncompressed(ByteReader(b"\x84" + claim.to_bytes(4, "big") + packed), limits)
        for claim in (100, 2**24 - 1, 2**40):
            fields = b"\x01\x09\xfe" + struct.pack("<Q", len(zstd)) + b"\x02\x01\x00"
            fields += b"\x03\x09\xfe" + struct.pack("<Q", claim) + b"\x00"
            with pytest.raises(Damaged):
                list(payload(Event(40, 0, 0, 0, 0, fields + zstd), limits))


def test_what_claims_to_be_much_takes_no_room() -> None:
    """Tables of more columns than there can be, truncations of more tables than are named."""
    with little_memory():
        with pytest.raises(Damaged):
            TableMap.parse(bytes(8) + b"\x01s\0\x01t\0" + b"\xfd\xff\xff\xff" + bytes(100), False).columns()
        with pytest.raises(Damaged):
            pgoutput.decode(b"T" + b"\xff" * 4 + b"\0" + bytes(8))
        relation = b"R" + bytes(4) + b"public\0t\0f" + b"\xff\xff" + (b"\0c\0" + bytes(8)) * 10
        with pytest.raises(Damaged):
            pgoutput.decode(relation)


@pytest.mark.parametrize("claimed", [2**25, 100])
def test_bytes_that_will_not_come_are_not_waited_for(claimed: int) -> None:
    """An event that is too large, or not as long as its packet, is noticed when it begins."""
    packets = iter([b"\xff\xff\xff\x00\x00" + struct.pack("<IBIIIH", 0, 16, 1, claimed, 0, 0)])
    with pytest.raises(Damaged, match="claims to have"):
        protocol.Incoming(lambda _: next(packets), 0, 2**24).next()


def test_an_event_in_more_packets_than_it_may_have_is_not_collected() -> None:
    begin = b"\x00" + struct.pack("<IBIIIH", 0, 16, 1, 2**24, 0, 0)
    packets = iter([b"\xff\xff\xff\x00" + begin + bytes(0xFFFFFF - len(begin)), b"\xff\xff\xff\x01" + bytes(100)])
    with pytest.raises(Damaged, match="more than"):
        protocol.Incoming(lambda _: next(packets), 0, 2**24 + 1).next()
