"""Transactions that are too large to hold, as every source has to read them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strobe.data.scratch import SPILLED, Scratch
from strobe.data.spilled import Spilled
from strobe.engine.recording import decode, encode
from strobe.messages import Position, Transaction
from strobe.sources.base import Source, Spill

STATEMENTS = [
    "UPDATE orders SET note = 'x' || id WHERE id % 3 = 0",
    "DELETE FROM orders WHERE id % 7 = 0",
    "INSERT INTO orders SELECT id + 100000, customer, note FROM orders WHERE id % 2 = 0",
    "UPDATE orders SET id = id + 1000000 WHERE id % 11 = 0",
    "DELETE FROM orders WHERE id > 1000000 AND id % 5 = 0",
]
"""All in one transaction, over some thousand rows."""


def spilled(transaction: Transaction) -> list[Spilled]:
    relations = (*transaction.changes.values(), *transaction.gone.values())
    return [relation for relation in relations if isinstance(relation, Spilled)]


def check_source(
    open_: Callable[[], Source],
    reading: Callable[[Source, Position], list[Transaction]],
    write: Callable[..., None],
    folder: Path,
) -> None:
    """A transaction reads the same through files as in memory, and can be recorded; files of one that nobody takes are
    removed."""
    source = open_()
    start = source.now()
    write(*STATEMENTS)
    (plain,) = reading(source, start)
    source.spill = Spill(Scratch(folder), rows=500)
    (found,) = reading(source, start)
    assert spilled(found) and not spilled(plain)
    for name in ("changes", "gone"):
        wanted, got = getattr(plain, name), getattr(found, name)
        assert {r: rows.collect() for r, rows in got.items()} == wanted
    assert decode(encode(found)) == plain
    for handle in spilled(found):
        handle.lease.release()
    assert list((folder / SPILLED).iterdir()) == []
    between = source.now()
    write("UPDATE orders SET customer = customer + 1")
    with contextlib.closing(source.transactions(start, [between], lambda: False)) as stream:  # type: ignore[type-var]
        taken = next(transaction for transaction in stream if transaction.changes)
        time.sleep(0.2)  # the next one is on its way, or here already: it is not taken
    assert list((folder / SPILLED).iterdir()) == [spilled(taken)[0].lease.folder]
    source.close()


MILLION = 1_000_000
MEGABYTES = 150
"""What reading a million rows may take on top of reading a few; in memory they take several hundred."""

MEASURE = """
import json, sys
from pathlib import Path
from pyarrow.parquet import read_metadata
from strobe.data.scratch import Scratch
from strobe.config.model import MariadbSource as Mariadb
from strobe.sources.base import Spill
from strobe.sources.mariadb.source import MariadbSource
from strobe.sources.postgres.source import PostgresSource
from strobe.sources.postgres.connection import ConnectionSettings, object_name
from strobe.sources.sqlite.source import SqliteSource

kind, where, after, through, folder = sys.argv[1:]
if kind == "sqlite":
    source = SqliteSource("shop", Path(where))
elif kind == "mariadb":
    source = MariadbSource("shop", Mariadb(type="mariadb", dsn=where))
else:
    source = PostgresSource(ConnectionSettings("shop", where, "public", object_name("test", "shop"), 3, 60.0))
source.spill = Spill(Scratch(Path(folder)))
end = source.position(through)
for transaction in source.transactions(source.position(after), [], lambda: False):
    changed = transaction.changes
    if changed or end <= transaction.position:
        break
rows = sum(read_metadata(file).num_rows for file in Path(folder).rglob("*.parquet"))
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"rows": rows, "peak": peak / 1024, "spilled": [type(r).__name__ for r in changed.values()]}))
"""


def measure(kind: str, where: str, after: Position, through: Position, folder: Path) -> dict[str, Any]:
    """Read one transaction in a process of its own; the highest memory that it ever had, in MB."""
    folder.mkdir()
    command = [sys.executable, "-c", MEASURE, kind, where, after.text, through.text, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare_memory(kind: str, where: str, source: Source, write: Callable[[int, int], None], folder: Path) -> None:
    """`write` makes rows from one number to another, in one transaction."""
    found = []
    for first, last in ((1, 10), (11, 10 + MILLION)):
        before = source.now()
        write(first, last)
        found.append(measure(kind, where, before, source.now(), folder / str(first)))
    few, many = found
    print(f"{kind}: {few['peak']:.0f} MB for ten rows, {many['peak']:.0f} MB for {MILLION}")
    assert (few["rows"], few["spilled"]) == (0, ["Bag"])
    assert (many["rows"], many["spilled"]) == (MILLION, ["Spilled"])
    assert many["peak"] < few["peak"] + MEGABYTES, (few, many)
