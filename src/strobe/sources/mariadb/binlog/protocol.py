"""The replication protocol: one connection to which the server sends its binlog from a position, event by event.

Reading waits in short steps, so that whoever reads can be told to stop; a connection on which not even the server's
heartbeat arrives is given up.
"""

from __future__ import annotations

import random
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pymysql

from strobe.data.byte_reader import ByteReader
from strobe.errors import Damaged
from strobe.sources.mariadb.connection import ConnectionSettings, rows

QUERY, STOP, ROTATE, FORMAT, XID, TABLE_MAP, INCIDENT, HEARTBEAT = 2, 3, 4, 15, 16, 19, 26, 27
XA_PREPARE, ANNOTATE, CHECKPOINT, GTID, GTID_LIST = 38, 160, 161, 162, 163
QUERY_COMPRESSED = 165
MYSQL_GTID, MYSQL_ANONYMOUS, PARTIAL_UPDATE, PAYLOAD, MYSQL_TAGGED_GTID = 33, 34, 39, 40, 42
MYSQL_GTIDS = {MYSQL_GTID, MYSQL_ANONYMOUS, MYSQL_TAGGED_GTID}
ARTIFICIAL, IGNORABLE = 0x20, 0x80
HARMLESS = {STOP, ANNOTATE, CHECKPOINT, GTID_LIST, 5, 13, 14, 29, 35, 36, 37, 164}
"""Events that change nothing by themselves."""
WRITES, UPDATES, DELETES = {23, 30, 166, 169}, {24, 31, 167, 170}, {25, 32, 168, 171}
SECOND_VERSION = {30, 31, 32, 169, 170, 171}
COMPRESSED = {166, 167, 168, 169, 170, 171}

OLD_AND_NEW = ("master", "source")
"""MySQL has renamed what a reader of its log sets."""
_CHUNK = 1 << 16
_HEADER = struct.Struct("<IBIIIH")
_BEGINNING = 1 + _HEADER.size
"""Bytes of a packet that say what event it has."""
_FLAGS, IN_USE = 17, 1
"""The byte of an event's flags, and the one of a file that was not closed."""
_BIGGEST_PACKET = 0xFFFFFF


class Broken(Exception):
    """The connection ended, for whatever reason: the same position can be asked for again."""


@dataclass(frozen=True)
class Event:
    type: int
    timestamp: int
    flags: int
    end: int
    """The offset after it in its file, modulo 2**32; 0 in events made up for the stream."""
    size: int
    body: bytes
    server: int = 0
    """The number of the server on which it first happened."""


class Incoming:
    """Takes apart what the server sends: packets, in order, and the events in them."""

    def __init__(self, receive: Callable[[int], bytes | None], sequence: int, most: int) -> None:
        """`receive` returns some bytes, at most so many, or None if none came for a moment; the first packet has this
        number, and no event has more bytes than `most`."""
        self._receive, self._sequence, self._most = receive, sequence, most
        self._buffer = bytearray()
        self._described = self._checksum = self._made_up_too = False
        """Whether the file that is read has been described; whether its events have a checksum at their end, and those
        that are made up for the stream."""

    def next(self) -> Event | None:
        """The next event, or None when none came for a moment. Raises `EOFError` at the end of what was asked for."""
        packet = self._packet()
        return None if packet is None else self._event(packet)

    def _packet(self) -> bytes | None:
        whole = bytearray()
        while True:
            if not self._fill(4):
                if whole:
                    continue
                return None
            size = int.from_bytes(self._buffer[:3], "little")
            if self._buffer[3] != self._sequence:
                raise Damaged(f"packet {self._sequence} should follow, and {self._buffer[3]} does", 3)
            if len(whole) + size > self._most:
                raise Damaged(f"it has more than {self._most} bytes", 0)
            if not self._fill(4 + min(size, _BEGINNING)):
                continue
            if not whole and size >= _BEGINNING:
                self._check_size(size)
            if not self._fill(4 + size):
                continue
            whole += self._buffer[4 : 4 + size]
            del self._buffer[: 4 + size]
            self._sequence = (self._sequence + 1) % 256
            if size < _BIGGEST_PACKET:
                return bytes(whole)

    def _check_size(self, size: int) -> None:
        """That an event is as long as its packet says, as soon as it begins: nobody waits for bytes that are none."""
        if self._buffer[4]:
            return  # no event
        found = int.from_bytes(self._buffer[14:18], "little") + 1
        if found > self._most:
            raise Damaged(f"it claims to have {found} bytes", 9)
        if found != size and not found >= size == _BIGGEST_PACKET:
            raise Damaged(f"it claims to have {found} bytes, and its packet {size}", 9)

    def _fill(self, size: int) -> bool:
        """Whether so many bytes are here, after waiting for a moment if need be."""
        while len(self._buffer) < size:
            received = self._receive(max(_CHUNK, size - len(self._buffer)))
            if not received:
                return False
            self._buffer += received
        return True

    def _event(self, packet: bytes) -> Event:
        reader = ByteReader(packet)
        kind = reader.byte()
        if kind == 0xFE and len(packet) < 9:
            raise EOFError
        if kind == 0xFF:
            code, text = reader.number(2), reader.rest().decode("utf-8", "replace")
            raise pymysql.err.OperationalError(code, text[6:] if text.startswith("#") else text)
        if kind:
            raise Damaged(f"a packet begins with {kind}", 0)
        timestamp, type_, server, size, end, flags = reader.unpack(_HEADER)
        if size != len(packet) - 1:
            raise Damaged(f"it claims to have {size} bytes, and has {len(packet) - 1}", 0)
        if not self._described and type_ not in (ROTATE, FORMAT, HEARTBEAT):
            raise Damaged(f"an event of type {type_} comes before the description of its file", 5)
        self._described |= type_ == FORMAT
        checksum = self._has_checksum(type_, packet)
        if type_ == FORMAT:  # says of itself how those after it are checked, and always has a checksum of its own
            self._checksum = packet[-5:-4] == b"\1"
        body = reader.take(reader.left - 4) if checksum else reader.rest()
        changed = type_ == FORMAT and not end and not self._checksum  # by the server, which adds no new checksum then
        if checksum and not changed and not _checked(type_, packet):
            raise Damaged(f"the event that ends at offset {end} has the wrong checksum", 0)
        return Event(type_, timestamp, flags, end, size, body, server)

    def _has_checksum(self, type_: int, packet: bytes) -> bool:
        """Events made up for the stream have one or not, as the server's version has it: all, or none."""
        if type_ in (ROTATE, HEARTBEAT):
            self._made_up_too = self._made_up_too or _checked(type_, packet)
            return self._made_up_too
        return self._checksum or type_ == FORMAT


def _checked(type_: int, packet: bytes) -> bool:
    """Whether an event is what its checksum says. The flag of a file that is being written is not covered by it."""
    event = packet[1:-4]
    if type_ == FORMAT:
        event = event[:_FLAGS] + bytes([event[_FLAGS] & ~IN_USE]) + event[_FLAGS + 1 :]
    return zlib.crc32(event) == int.from_bytes(packet[-4:], "little")


class Dump:
    """The binlog from a place on."""

    def __init__(self, settings: ConnectionSettings, file: str, offset: int, forever: bool) -> None:
        self._settings = settings
        self._heard = time.monotonic()
        self._connection = settings.connect()
        try:
            with settings.errors():
                self._ask(file, offset, forever)
        except BaseException:
            self.close()
            raise

    def _ask(self, file: str, offset: int, forever: bool) -> None:
        connection = self._connection
        checksum, period = "@@global.binlog_checksum", int(self._settings.timing.heartbeat * 10**9)
        names = [f"@{who}_binlog_checksum = {checksum}, @{who}_heartbeat_period = {period}" for who in OLD_AND_NEW]
        rows(connection, f"SET {', '.join(names)}, @mariadb_slave_capability = 4")
        # A number of one's own: the server ends a reader when another one comes with the same.
        number = random.SystemRandom().randrange(1 << 31, 1 << 32) if forever else 0
        request = struct.pack("<IHI", offset, 0 if forever else 1, number) + file.encode("utf-8")
        connection._execute_command(0x12, request)
        self._incoming = Incoming(self._receive, int(connection._next_seq_id), self._settings.limits.event)
        self._socket = connection._sock
        self._socket.settimeout(self._settings.timing.step)

    @property
    def thread(self) -> int:
        """The server's number for this connection."""
        return int(self._connection.thread_id())

    def close(self) -> None:
        self._connection._force_close()

    def next(self) -> Event | None:
        """The next event, or None when none came for a moment. Raises `EOFError` at the end of what was asked for."""
        try:
            return self._incoming.next()
        except Damaged as error:
            raise error.of("what the server sent of its binlog", self._settings.where) from None

    def _receive(self, size: int) -> bytes | None:
        try:
            received: bytes = self._socket.recv(size)
        except TimeoutError:
            if time.monotonic() - self._heard > self._settings.timing.silence:
                raise Broken("the server fell silent") from None
            return None
        except OSError as error:
            raise Broken(str(error)) from error
        if not received:
            raise Broken("the server ended the connection")
        self._heard = time.monotonic()
        return received


@contextmanager
def dump(settings: ConnectionSettings, file: str, offset: int, forever: bool = True) -> Iterator[Dump]:
    connection = Dump(settings, file, offset, forever)
    try:
        yield connection
    finally:
        connection.close()
