"""Servers that answer in place of the right one, and write down whatever they are sent."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

Conversation = Callable[[socket.socket], None]


class Impostor:
    """Listens on the loopback interface while the `with` statement lasts; each connection has the same conversation."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.heard = bytearray()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Impostor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._socket.accept()
                with caller, contextlib.suppress(OSError):
                    caller.settimeout(5)
                    self._conversation(Heard(caller, self.heard))  # type: ignore[arg-type]  # all that it needs
                    caller.shutdown(socket.SHUT_WR)
                    while more := caller.recv(4096):  # whatever else is sent
                        self.heard += more


class Heard:
    """A socket of which everything is written down that comes in."""

    def __init__(self, caller: socket.socket, heard: bytearray) -> None:
        self._caller, self._heard = caller, heard

    def recv(self, size: int) -> bytes:
        found = self._caller.recv(size)
        if not found:
            raise OSError("the caller has gone")
        self._heard += found
        return found

    def sendall(self, data: bytes) -> None:
        self._caller.sendall(data)


# PostgreSQL.


def postgres(*answers: bytes) -> Conversation:
    """Refuses encryption, and gives these answers to whoever wants to log in, one after each message."""

    def talk(caller: socket.socket) -> None:
        while True:
            size, code = struct.unpack("!II", _exactly(caller, 8))
            _exactly(caller, size - 8)
            if code not in (80877103, 80877104):  # TLS, GSSAPI
                break
            caller.sendall(b"N")
        for answer in answers:
            caller.sendall(answer)
            _, size = struct.unpack("!cI", _exactly(caller, 5))
            _exactly(caller, size - 4)

    return talk


def asks(code: int, more: bytes = b"") -> bytes:
    """An authentication request."""
    return b"R" + struct.pack("!II", 8 + len(more), code) + more


LET_IN = asks(0) + b"Z" + struct.pack("!Ic", 5, b"I")
CLEAR, MD5 = asks(3), asks(5, b"salt")


def _exactly(caller: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += caller.recv(size - len(found))
    return found


# MySQL.

TLS, PLUGINS = 0x800, 0x80000
CAPABILITIES = 0x1 | 0x8 | 0x200 | 0x2000 | 0x8000 | 0x10000 | 0x20000 | PLUGINS
SALT = b"12345678", b"abcdefghijkl"


def mysql(plugin: bytes, *answers: bytes, tls: bool = False) -> Conversation:
    """Greets with an authentication plugin, and gives these answers to whoever logs in, one after each packet."""

    def talk(caller: socket.socket) -> None:
        flags = CAPABILITIES | (TLS if tls else 0)
        greeting = b"\x0a8.0.99\0" + struct.pack("<I", 1) + SALT[0] + b"\0"
        greeting += struct.pack("<HBHHB", flags & 0xFFFF, 45, 2, flags >> 16, 21) + bytes(10) + SALT[1] + b"\0"
        _packet(caller, 0, greeting + plugin + b"\0")
        number = _read(caller)
        for answer in answers:
            _packet(caller, number + 1, answer)
            number = _read(caller)

    return talk


def switch(plugin: bytes) -> bytes:
    """A request to authenticate in another way."""
    return b"\xfe" + plugin + b"\0" + SALT[0] + SALT[1] + b"\0"


def _packet(caller: socket.socket, number: int, body: bytes) -> None:
    caller.sendall(len(body).to_bytes(3, "little") + bytes([number]) + body)


def _read(caller: socket.socket) -> int:
    head = _exactly(caller, 4)
    _exactly(caller, int.from_bytes(head[:3], "little"))
    return head[3]
