"""The socket at which a coordinator answers queries."""

from __future__ import annotations

import socket
import stat
import threading
from pathlib import Path

import pytest

from strobe.warehouse.control import query_socket
from strobe.warehouse.control.query_socket import HEAD, LONGEST_QUERY, QUERY
from strobe.warehouse.control.store import ControlStore


def test_nobody_answers_where_no_coordinator_listens(tmp_path: Path) -> None:
    assert query_socket.connect(ControlStore(tmp_path)) is None


def test_only_this_user_can_connect(tmp_path: Path) -> None:
    """The socket and its folder are closed to others, and both ends know each other for the same user."""
    store = ControlStore(tmp_path)
    listener = query_socket.listen(store)
    assert listener is not None
    with listener:
        address = query_socket.address(store)
        assert stat.S_IMODE(address.stat().st_mode) == 0o600
        assert stat.S_IMODE(address.parent.stat().st_mode) == 0o700
        connection = query_socket.connect(store)
        assert connection is not None
        with connection, listener.accept()[0] as other:
            assert query_socket.is_ours(other)
    address.unlink()


def test_a_socket_that_a_killed_coordinator_left_is_replaced(tmp_path: Path) -> None:
    store = ControlStore(tmp_path)
    first = query_socket.listen(store)
    assert first is not None
    first.close()
    assert query_socket.connect(store) is None
    second = query_socket.listen(store)
    assert second is not None
    with second, query_socket.connect(store) or pytest.fail("nobody answers"):
        pass
    query_socket.address(store).unlink()


def test_frames_of_any_size_arrive_whole_and_long_ones_can_be_refused() -> None:
    here, there = socket.socketpair()
    with here, there:
        content = bytes(range(256)) * 20_000
        sender = threading.Thread(target=query_socket.send, args=[here, HEAD, content])
        sender.start()
        assert query_socket.receive(there) == (HEAD, content)
        sender.join()
        query_socket.send(here, QUERY, {"query": "SELECT 1"})
        assert query_socket.receive(there) == (QUERY, b'{"query": "SELECT 1"}')
        here.sendall(QUERY + (LONGEST_QUERY + 1).to_bytes(8, "big"))
        with pytest.raises(ValueError, match="bytes"):
            query_socket.receive(there, LONGEST_QUERY)


def test_half_a_frame_is_the_end() -> None:
    here, there = socket.socketpair()
    with there:
        with here:
            here.sendall(HEAD + (10).to_bytes(8, "big") + b"half")
        assert query_socket.receive(there) is None
