"""What a stream holds between the thread that reads the log and whoever takes the transactions."""

from __future__ import annotations

import threading
import time

import pytest
from patience import PATIENCE

from strobe.algebra.bag import Bag
from strobe.errors import SourceUnavailable
from strobe.messages import Transaction
from strobe.sources.postgres.position import position_at
from strobe.sources.postgres.stream import Arrivals


def transaction(end: int, rows: int = 0) -> Transaction:
    changes = {"t": Bag.of(("a",), [(n,) for n in range(rows)])} if rows else {}
    return Transaction("shop", position_at(end), changes=changes)


def test_they_come_in_order_and_the_error_after_the_last() -> None:
    """An error is raised as often as one asks."""
    arrivals, error = Arrivals(10, 10), SourceUnavailable("gone")
    assert arrivals.take(0) is None
    assert all(arrivals.put(transaction(n), 0) for n in range(3))
    arrivals.fail(error)
    assert [arrivals.take(0) for _ in range(3)] == [transaction(n) for n in range(3)]
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="gone"):
            arrivals.take(0)


def test_there_is_room_for_few_and_for_few_rows() -> None:
    """One of any size fits as long as the rows are below the bound; one without rows always, up to the number."""
    arrivals = Arrivals(3, 5)
    assert arrivals.put(transaction(1, rows=9), 0)
    assert not arrivals.put(transaction(2, rows=1), 0)
    assert arrivals.put(transaction(2), 0) and arrivals.put(transaction(3), 0)
    assert not arrivals.put(transaction(4), 0)
    assert arrivals.take(0) == transaction(1, rows=9)
    assert arrivals.put(transaction(4, rows=1), 0)


def test_whoever_waits_is_woken() -> None:
    """By a transaction, by room, and by the end, each at once."""
    arrivals = Arrivals(1, 5)
    waits = [
        (lambda: arrivals.take(PATIENCE), lambda: arrivals.put(transaction(1), 0)),
        (lambda: arrivals.put(transaction(2), PATIENCE), lambda: arrivals.take(0)),
        (lambda: arrivals.put(transaction(3), PATIENCE), arrivals.close),
    ]
    arrived: list[object] = []
    for wait, wake in waits:
        if len(arrived) == 1:
            arrivals.put(transaction(1), 0)
        waiting = threading.Thread(target=lambda wait=wait: arrived.append(wait()))
        waiting.start()
        time.sleep(0.01)
        wake()
        waiting.join(PATIENCE / 2)
        assert not waiting.is_alive()
    assert arrived == [transaction(1), True, True]
    assert arrivals.take(0) is None
