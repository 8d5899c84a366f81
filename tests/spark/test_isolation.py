"""What other users of the machine can get out of a running Spark: nothing."""

from __future__ import annotations

import pickle
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from leaks import forms
from patience import PATIENCE
from pyspark import cloudpickle
from pyspark.serializers import CloudPickleSerializer

from strobe.algebra.bag import Row
from strobe.algebra.schema import Column, RelationSchema
from strobe.data.scratch import Scratch
from strobe.messages import Lookup, Position, Seen
from strobe.sources.base import Reader
from strobe.spark import staging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SECRET = "tr0ub4dor & 3/ü"
STOCK = RelationSchema("depot", "stock", (Column("id", "bigint"),))


def text(value: str) -> bytes:
    return struct.pack(">i", len(value.encode())) + value.encode()


class Stranger:
    """Speaks Spark's protocol, and knows no secret."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)

    def fetch(self, application: str, block: str) -> bytes | None:
        """A block of the driver's; None if it is refused."""
        asked = b"\0" + text(application) + text("driver") + struct.pack(">i", 1) + text(block)
        kind, reply = self._ask(b"\3" + struct.pack(">qi", 1, len(asked)) + asked)
        if kind != 4:
            return None
        (stream,) = struct.unpack(">q", reply[13:21])  # after the request, the size, and what kind of answer it is
        kind, chunk = self._ask(b"\0" + struct.pack(">qi", stream, 0))
        return chunk[12:] if kind == 1 else None

    def _ask(self, message: bytes) -> tuple[int, bytes]:
        self._socket.sendall(struct.pack(">q", 8 + len(message)) + message)
        size = self._read(8)
        if not size:
            return -1, b""
        reply = self._read(struct.unpack(">q", size)[0] - 8)
        return reply[0], reply[1:]

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size and (more := self._socket.recv(size - len(found))):
            found += more
        return found


def test_nobody_fetches_a_block_without_the_secret(spark: SparkSession) -> None:
    """Broadcasts and shuffled rows are at a port of loopback, which every user of the machine can reach."""
    context = spark.sparkContext
    broadcast = context._jsc.broadcast("what is in the broadcast")
    manager = spark._jvm.org.apache.spark.SparkEnv.get().blockManager()
    block = f"broadcast_{broadcast.id()}_piece0"
    fetched = Stranger(manager.blockManagerId().port()).fetch(context.applicationId, block)
    broadcast.destroy()
    assert fetched is None, f"{fetched!r} was fetched"


class Knowing(Reader):
    """Reads only where its secret has arrived."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def open(self) -> Seen:
        assert SECRET in self.dsn
        return Seen(Position("1", (1,)))

    def lookup(self, lookup: Lookup, keys: Iterable[Row] | None) -> Iterator[Row]:
        return iter(keys or ())

    def scan(self, relation: str, columns: Sequence[str]) -> Iterator[Row]:
        yield from ((n,) for n in range(3))

    def close(self) -> None:
        self.dsn = ""


def test_what_spark_is_given_for_a_task_holds_no_password(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark keeps it in broadcasts. The task has the password all the same, and nothing is left of it."""
    given: list[bytes] = []
    dumps = CloudPickleSerializer.dumps

    def recorded(self: CloudPickleSerializer, value: Any) -> bytes:
        given.append(dumps(self, value))
        return given[-1]

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack it
    monkeypatch.setattr(CloudPickleSerializer, "dumps", recorded)
    assert SECRET.encode() in pickle.dumps(Knowing(SECRET).__dict__)
    staged = staging.snapshot(spark, Knowing(SECRET), [(STOCK, ("id",))], Scratch(tmp_path))
    assert staged.dataframe(STOCK).count() == 3
    assert any(b"_task" in task for task in given)
    kept = [*given, *(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())]
    assert not [form for form in forms(SECRET) for found in kept if form in found]
    assert all(path.is_dir() for path in staged.lease.folder.iterdir())
