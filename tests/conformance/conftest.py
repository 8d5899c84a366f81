"""The sources that the conformance suite runs over: a new one adds a module and itself to `SOURCES`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from delta_under_test import DeltaUnderTest
from files_under_test import FilesUnderTest
from mariadb_under_test import MariadbUnderTest, Mysql8UnderTest, MysqlUnderTest
from patience import PATIENCE
from postgres_under_test import PostgresUnderTest
from sqlite_under_test import SqliteUnderTest
from under_test import SourceUnderTest

from strobe.algebra.bag import Bag
from strobe.messages import Position, Transaction
from strobe.sources.base import Source

SOURCES: list[type[SourceUnderTest]] = [
    SqliteUnderTest,
    FilesUnderTest,
    PostgresUnderTest,
    MariadbUnderTest,
    MysqlUnderTest,
    Mysql8UnderTest,
    DeltaUnderTest,
]


@pytest.fixture(params=[pytest.param(s, marks=s.marks, id=s.kind) for s in SOURCES])
def under_test(request: pytest.FixtureRequest, tmp_path: Path) -> SourceUnderTest:
    kind: type[SourceUnderTest] = request.param
    needs = request.node.get_closest_marker("needs")
    for capability in needs.args if needs else ():
        if capability in kind.lacks:
            pytest.skip(f"{kind.kind}: {kind.lacks[capability]}")
    return kind(tmp_path, request)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(*capabilities): what a source must be capable of; see SourceUnderTest.lacks"
    )


class Stream:
    """Reads transactions with a bound on time."""

    def __init__(self, source: Source, after: Position, stops: Sequence[Position] = ()) -> None:
        self.position = after
        self.seen: list[Transaction] = []
        self._end = False
        self._deadline = time.monotonic() + 2 * PATIENCE
        self.iterator = source.transactions(after, stops, lambda: self._end or time.monotonic() > self._deadline)

    def until(self, position: Position) -> list[Transaction]:
        """The next transactions, up to this position, which must be one of theirs."""
        found = []
        while self.position < position:
            transaction = next(self.iterator)
            assert self.position < transaction.position, "positions go forward"
            self.position = transaction.position
            found.append(transaction)
        self.seen += found
        return found

    def stop(self) -> None:
        self._end = True
        for _ in self.iterator:
            pass


@pytest.fixture
def stream() -> type[Stream]:
    return Stream


@pytest.fixture
def read() -> Callable[..., list[Transaction]]:
    """`read(source, after, through, stops=())`: the transactions between two positions."""

    def transactions(
        source: Source, after: Position, through: Position, stops: Sequence[Position] = ()
    ) -> list[Transaction]:
        reading = Stream(source, after, stops)
        found = reading.until(through)
        reading.stop()
        return found

    return transactions


@pytest.fixture
def total() -> Callable[[Sequence[Transaction], str, Bag], Bag]:
    """`total(transactions, relation, start)`: the start plus all changes of the relation."""

    def add_up(transactions: Sequence[Transaction], relation: str, start: Bag) -> Bag:
        for transaction in transactions:
            if relation in transaction.changes:
                change = transaction.changes[relation]
                assert isinstance(change, Bag)
                start = start.add(change)
        return start

    return add_up


@pytest.fixture
def in_background() -> Iterator[Callable[[Callable[[int], None]], None]]:
    """`in_background(step)` calls step(0), step(1), … in a thread until the test ends; a failed step fails the test."""
    stop, threads, failures = threading.Event(), list[threading.Thread](), list[BaseException]()

    def start(step: Callable[[int], None]) -> None:
        def loop() -> None:
            n = 0
            try:
                while not stop.is_set():
                    step(n)
                    n += 1
            except BaseException as error:  # reported below, in the test's own thread
                failures.append(error)

        threads.append(threading.Thread(target=loop))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
