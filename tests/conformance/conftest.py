"""The sources that the conformance suite runs over: a new one adds a class here and itself to `SOURCES`."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest

from strobe.algebra.bag import Bag, Row
from strobe.messages import Position, Transaction
from strobe.sources.base import Source

Table = tuple[dict[str, str], tuple[str, ...]]
"""A relation to make: columns with Spark types, and the key, whose columns are never NULL."""

Change = tuple[str, Row | None, Row | None]
"""In this relation, the first row goes and the second comes; None where there is no such row."""


class SourceUnderTest(ABC):
    """One kind of source, as the suite handles it. All but `open` goes past Strobe, by the source's own means."""

    kind: ClassVar[str]
    marks: ClassVar[tuple[pytest.MarkDecorator, ...]] = ()
    lacks: ClassVar[dict[str, str]] = {}
    """Capabilities it does not have, each with the reason: `several relations`, `duplicates`, `without key`, `restore`,
    `prune`, `outage`, `prepare`, `many transactions`."""
    values: ClassVar[dict[str, list[Any]]]
    """For every Spark type it offers: canonical values that must survive."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self.folder = folder

    @abstractmethod
    def create(self, tables: Mapping[str, Table]) -> None:
        """A fresh source with these relations, empty, not prepared."""

    @abstractmethod
    def open(self) -> Source:
        """As a new process would open it."""

    @abstractmethod
    def apply(self, changes: Sequence[Change]) -> None:
        """One transaction."""

    @abstractmethod
    def contents(self, relation: str) -> Bag: ...

    def backup(self) -> None:
        """Remember the whole state of the source."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the backup, as an operator would."""
        raise NotImplementedError

    def prune(self) -> None:
        """Take away the log behind Strobe's back."""
        raise NotImplementedError

    def outage(self) -> None:
        """From now on the source does not answer."""
        raise NotImplementedError

    def prepared(self, tables: Mapping[str, Table]) -> Source:
        self.create(tables)
        source = self.open()
        source.prepare(list(tables))
        return source


class SqliteUnderTest(SourceUnderTest):
    kind = "sqlite"
    values: ClassVar[dict[str, list[Any]]] = {
        "bigint": [0, -1, 2**63 - 1, -(2**63), 2**53 + 1],
        "decimal(10,2)": [
            Decimal("0.00"),
            Decimal("0.10"),
            Decimal("-12345678.90"),
            Decimal("99999999.99"),
            Decimal("7.00"),
        ],
        "decimal(18,0)": [Decimal(10**18 - 1), Decimal(-(10**17))],
        "double": [0.0, 0.1, -1.5e300, 5e-324, float("inf"), float("-inf"), 3.0],
        "string": [
            "",
            " ",
            "x",
            "X",
            "x ",
            "Ünïcødé",
            "日本語",
            "🦆",
            "e\u0301",
            "\u00e9",
            "1",
            "1.0",
            "a\x00b",
            'it\'s "quoted"',
        ],
        "binary": [b"", b"\x00\xff", b"x"],
        "boolean": [True, False],
        "date": [date(1, 1, 1), date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
        "timestamp": [
            datetime(1970, 1, 1, tzinfo=timezone.utc),
            datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone.utc),
        ],
    }
    _DECLARED: ClassVar[dict[str, str]] = {
        "bigint": "INTEGER",
        "double": "REAL",
        "string": "TEXT",
        "binary": "BLOB",
        "boolean": "BOOLEAN",
        "date": "DATE",
        "timestamp": "TIMESTAMP",
    }

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        self.path = folder / "it's 100% a.db"
        self.types: dict[str, dict[str, str]] = {}

    def create(self, tables: Mapping[str, Table]) -> None:
        self.path.unlink(missing_ok=True)
        for name, (types, key) in tables.items():
            self.types[name] = types
            columns = [
                f'"{c}" {self._DECLARED.get(type_, type_.upper())}{" NOT NULL" if c in key else ""}'
                for c, type_ in types.items()
            ]
            if key:
                columns.append("PRIMARY KEY ({})".format(", ".join(f'"{c}"' for c in key)))
            self.run([(f'CREATE TABLE "{name}" ({", ".join(columns)})', ())])

    def open(self) -> Source:
        from strobe.sources.sqlite import SqliteSource

        return SqliteSource("depot", self.path)

    def run(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> None:
        connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            for sql, parameters in statements:
                connection.execute(sql, parameters)
            connection.execute("COMMIT")
        finally:
            connection.close()

    def apply(self, changes: Sequence[Change]) -> None:
        statements: list[tuple[str, Sequence[Any]]] = []
        for relation, old, new in changes:
            names = [f'"{c}"' for c in self.types[relation]]
            going, coming = ([self._stored(v) for v in row or ()] for row in (old, new))
            same = " AND ".join(f"{n} IS ?" for n in names)
            one = f'WHERE rowid = (SELECT min(rowid) FROM "{relation}" WHERE {same})'
            if old is None:
                statements.append((f'INSERT INTO "{relation}" VALUES ({", ".join("?" * len(names))})', coming))
            elif new is None:
                statements.append((f'DELETE FROM "{relation}" {one}', going))
            else:
                setting = ", ".join(f"{n} = ?" for n in names)
                statements.append((f'UPDATE "{relation}" SET {setting} {one}', coming + going))
        self.run(statements)

    @staticmethod
    def _stored(value: Any) -> Any:
        if isinstance(value, Decimal):
            return str(value)
        if isinstance(value, datetime):
            return value.isoformat(" ")
        return value.isoformat() if isinstance(value, date) else value

    def contents(self, relation: str) -> Bag:
        types = self.types[relation]
        connection = sqlite3.connect(self.path)
        try:
            rows = connection.execute(f'SELECT * FROM "{relation}"').fetchall()
        finally:
            connection.close()
        return Bag.of(tuple(types), (tuple(map(self._canonical, r, types.values())) for r in rows))

    @staticmethod
    def _canonical(value: Any, type_: str) -> Any:
        if value is None:
            return None
        if type_.startswith("decimal"):
            return Decimal(str(value))
        by_type: dict[str, Callable[[Any], Any]] = {
            "boolean": bool,
            "date": date.fromisoformat,
            "timestamp": datetime.fromisoformat,
        }
        return by_type.get(type_, lambda v: v)(value)

    def backup(self) -> None:
        with sqlite3.connect(self.path) as source, sqlite3.connect(self.folder / "backup") as copy:
            source.backup(copy)
        source.close()
        copy.close()

    def restore(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        shutil.copy(self.folder / "backup", self.path)

    def prune(self) -> None:
        self.run([("DELETE FROM __strobe_log WHERE seq < (SELECT max(seq) FROM __strobe_log)", ())])

    def outage(self) -> None:
        self.path.rename(self.folder / "elsewhere")


class FilesUnderTest(SourceUnderTest):
    """CSV drops of one relation. Each transaction is a drop, which Spark stages."""

    kind = "files"
    marks = (pytest.mark.spark,)
    lacks: ClassVar[dict[str, str]] = {
        "several relations": "a source of files is one relation",
        "duplicates": "a key is declared, and verified in every drop",
        "without key": "a key is declared, and verified in every drop",
        "many transactions": "each is a Spark job of a second; tests/spark/test_files.py has what is special to files",
        "restore": "the staged versions are in the warehouse, and go back with it",
        "prune": "the staged versions are in the warehouse, and nobody else takes them away",
        "outage": "a file that is not there is a drop that has not come yet",
        "prepare": "preparing stages the first drop; without one there is nothing to undo",
    }
    values: ClassVar[dict[str, list[Any]]] = {
        "bigint": [0, -1, 2**63 - 1, -(2**63)],
        "decimal(10,2)": [Decimal("0.00"), Decimal("0.10"), Decimal("-12345678.90"), Decimal("99999999.99")],
        "double": [0.0, 0.1, -1.5e300, 3.0],
        "string": ["", " ", "x ", "Ünïcødé", "日本語", "🦆", "e\u0301", "1.0", 'it\'s "quoted"', "a,b"],
        "boolean": [True, False],
        "date": [date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
        "timestamp": [datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone.utc)],
    }

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(folder, request)
        self.spark = request.getfixturevalue("spark")
        self.made = 0

    def create(self, tables: Mapping[str, Table]) -> None:
        ((self.name, (self.types, self.key)),) = tables.items()
        self.made += 1
        self.base = self.folder / f"number {self.made}"
        self.base.mkdir()
        self.rows = Bag(tuple(self.types))
        self._drop()

    def open(self) -> Source:
        from strobe.config import FilesSource as Config
        from strobe.sources.files import FilesSource

        config = Config(
            type="files",
            path=str(self.base / "drop.csv"),
            format="csv",
            relation=self.name,
            key=list(self.key),
            columns=self.types,
        )
        return FilesSource("depot", config, self.base / "warehouse", lambda: self.spark, settle=0.0)

    def apply(self, changes: Sequence[Change]) -> None:
        for _, old, new in changes:
            for row, count in ((old, -1), (new, 1)):
                self.rows = self.rows if row is None else self.rows.add(Bag.of(self.rows.attributes, [row], count))
        self._drop()
        self.open().prepare([self.name])

    def _drop(self) -> None:
        lines = [",".join(self.types), *(",".join(map(self._written, row)) for row in self.rows.expand())]
        draft = self.base / "drop.draft"
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
        draft.replace(self.base / "drop.csv")

    @staticmethod
    def _written(value: Any) -> str:
        if isinstance(value, str):
            return '"' + value.replace('"', '""') + '"'
        return "" if value is None else str(value)

    def contents(self, relation: str) -> Bag:
        return self.rows


SOURCES: list[type[SourceUnderTest]] = [SqliteUnderTest, FilesUnderTest]


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

    def __init__(self, source: Source, after: Position, stops: Sequence[Position] = (), seconds: float = 30) -> None:
        self.position = after
        self.seen: list[Transaction] = []
        self._end = False
        self._deadline = time.monotonic() + seconds
        self._iterator = source.transactions(after, stops, lambda: self._end or time.monotonic() > self._deadline)

    def until(self, position: Position) -> list[Transaction]:
        """The next transactions, up to this position, which must be one of theirs."""
        found = []
        while self.position < position:
            transaction = next(self._iterator)
            assert self.position < transaction.position, "positions go forward"
            self.position = transaction.position
            found.append(transaction)
        self.seen += found
        return found

    def stop(self) -> None:
        self._end = True
        for _ in self._iterator:
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
