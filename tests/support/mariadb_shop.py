"""A database of the tests' MariaDB server, with its source, for tests of what is special to MariaDB."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from patience import PATIENCE

from strobe.algebra.bag import Bag, Row
from strobe.config.model import Limits as Load
from strobe.config.model import MariadbSource as Config
from strobe.messages import Lookup, Position, Transaction
from strobe.sources.mariadb.limits import Limits, Timing
from strobe.sources.mariadb.source import MariadbSource

if TYPE_CHECKING:
    from mariadb_server import Server

_numbers = count(1)


def use_timing(monkeypatch: pytest.MonkeyPatch, timing: Timing) -> None:
    """For the sources of projects that are opened from now on."""
    monkeypatch.setattr(MariadbSource, "from_config", partial(MariadbSource.from_config, timing=timing))


class Shop:
    """A database of its own, written to as root and read as `strobe`."""

    def __init__(self, server: Server) -> None:
        self.server, self.name = server, f"shop{next(_numbers)}"
        self.dsn = server.database(self.name)
        self.mysql = server.mysql
        self.version = server.version()
        self.vectors = self.mysql and self.version >= (9,)
        self.early = self.mysql and self.version < (8, 0, 29)

    def run(self, *statements: str) -> None:
        self.server.run(*statements, database=self.name)

    def source(
        self,
        global_transactions: str | None = None,
        xa_prefix: str | None = None,
        timing: Timing | None = None,
        limits: Limits | None = None,
        **load: Any,
    ) -> MariadbSource:
        """`load` is what strobe.yml calls limits."""
        named = {"global_transactions": global_transactions, "xa_prefix": xa_prefix}
        given = Config(type="mariadb", dsn=self.dsn, limits=Load(**load), **named)
        return MariadbSource("billing", given, timing, limits)

    def numbers(self, last: int) -> str:
        """What to select `seq` from, 1 to the last."""
        if not self.mysql:
            return f"seq_1_to_{last}"
        steps = f"SELECT 1 AS seq UNION ALL SELECT seq + 1 FROM s WHERE seq < {last}"
        return f"(WITH RECURSIVE s AS ({steps}) SELECT seq FROM s) numbers"

    @contextlib.contextmanager
    def session(self) -> Iterator[Callable[[str], None]]:
        """One connection, with `BEGIN` and `COMMIT` as one says them."""
        with contextlib.closing(self.server.connect(self.name, autocommit=True)) as connection:
            with connection.cursor() as cursor:
                yield lambda sql: cursor.execute(sql)


def read(
    source: MariadbSource,
    after: Position,
    through: Position | None = None,
    stops: Sequence[Position] = (),
    relevant: Callable[[Transaction], bool] = lambda transaction: bool(transaction.changes),
) -> list[Transaction]:
    """The transactions between two positions, those without changes left out."""
    end, deadline = through or source.now(), time.monotonic() + PATIENCE
    found: list[Transaction] = []
    position = after
    stream = source.transactions(after, stops, lambda: end <= position or time.monotonic() > deadline)
    for transaction in stream:
        position = transaction.position
        found.append(transaction)
    assert end <= position, "the stream did not come to its end in time"
    return [t for t in found if relevant(t)]


def rows_of(source: MariadbSource, relation: str, columns: Sequence[str]) -> Bag:
    reader = source.reader()
    reader.open()
    try:
        return Bag.of(tuple(columns), reader.scan(relation, columns))
    finally:
        reader.close()


def find(source: MariadbSource, relation: str, columns: Sequence[str], on: Sequence[str], keys: list[Row]) -> list[Row]:
    reader = source.reader()
    reader.open()
    try:
        return list(reader.lookup(Lookup(0, relation, tuple(columns), tuple(on)), keys))
    finally:
        reader.close()
