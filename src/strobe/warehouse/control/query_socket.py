"""The socket at which a coordinator answers queries, and what goes over it.

A Unix socket in this user's own folder, so that nobody else can connect; both sides also ask the kernel who the other
one is. A connection carries one query after another. Everything is a frame: a kind, a length, and so many bytes. A
query is a QUERY frame with a JSON document; its answer is HEAD (JSON), any number of BATCH (an Arrow stream each), and
END, or at any point ERROR (JSON) instead of the rest.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from strobe.warehouse.control.store import ControlStore
from strobe.warehouse.control.wakeup import socket_path

QUERY, HEAD, BATCH, END, ERROR = b"Q", b"H", b"B", b"E", b"X"

LONGEST_QUERY = 1 << 20
_HEADER = struct.Struct(">cQ")
_CREDENTIALS = struct.Struct("3i")


def address(store: ControlStore) -> Path:
    return socket_path(store, "query")


def listen(store: ControlStore) -> socket.socket | None:
    """The coordinator's end; None where there can be none (a folder whose name is too long for a socket)."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        address(store).unlink(missing_ok=True)  # of a coordinator that was killed
        listener.bind(str(address(store)))
        address(store).chmod(0o600)
        listener.listen()
    except OSError:
        listener.close()
        return None
    return listener


def connect(store: ControlStore) -> socket.socket | None:
    """A reader's end; None if no coordinator of this user answers on this machine."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(address(store)))
        if is_ours(connection):
            return connection
    except OSError:
        pass
    connection.close()
    return None


def is_ours(connection: socket.socket) -> bool:
    """Whether a process of this user, or of root, is at the other end."""
    with suppress(OSError):
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return _CREDENTIALS.unpack(found)[1] in (os.getuid(), 0)
    return False


def send(connection: socket.socket, kind: bytes, content: bytes | dict[str, Any] = b"") -> None:
    if isinstance(content, dict):
        content = json.dumps(content, default=str).encode()
    connection.sendall(_HEADER.pack(kind, len(content)))
    connection.sendall(content)


def receive(connection: socket.socket, longest: int | None = None) -> tuple[bytes, bytes] | None:
    """The next frame; None at the end of the connection. `ValueError` for one that is too long."""
    head = _exactly(connection, _HEADER.size)
    if head is None:
        return None
    kind, length = _HEADER.unpack(head)
    if longest is not None and length > longest:
        raise ValueError(f"a frame of {length} bytes")
    content = _exactly(connection, length)
    return None if content is None else (kind, content)


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(min(size - len(found), 1 << 20))
        if not part:
            return None
        found += part
    return bytes(found)
