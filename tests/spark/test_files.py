"""Drops of files as a source: accepted whole or not at all, staged as versions, reported as differences."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strobe.algebra.bag import Bag, Row
from strobe.errors import LostGuarantee, UserError
from strobe.messages import Lookup, Position, Query, Transaction
from strobe.sources.files.limits import Timing
from strobe.sources.files.source import FilesSource
from strobe.sources.lookups import answer_on_driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@dataclass
class Config:
    path: str
    format: str = "csv"
    relation: str = "products"
    key: list[str] = field(default_factory=lambda: ["sku"])
    columns: dict[str, str] | None = None
    optional: bool = False


class Drops:
    """A folder that drops come into, and the source that watches it."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder = folder
        self.spark = spark
        self.ticks = 0

    def put(self, content: str | bytes, name: str = "products.csv") -> Path:
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.ticks += 1
        os.utime(path, (1_700_000_000 + self.ticks, 1_700_000_000 + self.ticks))
        return path

    def source(
        self, pattern: str = "products.csv", settle: float = 0.0, grace: float = 3600.0, **config: Any
    ) -> FilesSource:
        configuration = Config(str(self.folder / pattern), **config)
        return FilesSource(
            "catalog", configuration, self.folder / "warehouse", lambda: self.spark, Timing(settle=settle, grace=grace)
        )


@pytest.fixture
def drops(tmp_path: Path, spark: SparkSession) -> Drops:
    return Drops(tmp_path, spark)


def read(source: FilesSource, after: Position, through: Position) -> list[Transaction]:
    found: list[Transaction] = []
    for transaction in source.transactions(after, [], lambda: bool(found and found[-1].position == through)):
        found.append(transaction)  # noqa: PERF402  # the condition above reads it
    return found


def rows(source: FilesSource, *columns: str) -> list[Row]:
    reader = source.reader()
    reader.open()
    try:
        return sorted(reader.scan("products", columns), key=repr)
    finally:
        reader.close()


def test_the_difference_between_drops_is_a_transaction(drops: Drops) -> None:
    """A changed, a new and a gone row are one event, the same whenever it is read again; answers read one version."""
    drops.put('sku,unit price,note\na,1.50,\nb,2,""\nc,3," x"\n')
    source = drops.source(columns={"unit price": "decimal(10,2)"})
    (schema,) = source.schemas()
    assert [(c.name, c.type) for c in schema.columns] == [
        ("sku", "string"),
        ("unit price", "decimal(10,2)"),
        ("note", "string"),
    ]
    assert source.check([])[0].severity == "error"
    source.prepare([])
    assert source.check([]) == [] and source.schemas() == (schema,)
    start = source.now()
    assert start.order == (1,)
    expected = [("a", Decimal("1.50"), None), ("b", Decimal("2.00"), ""), ("c", Decimal("3.00"), " x")]
    assert rows(source, "sku", "unit price", "note") == expected
    reader = pickle.loads(pickle.dumps(source.reader()))
    seen = reader.open()

    drops.put("note,sku,more,unit price\n,a,1,1.5\n,b,2,2\nnew,d,3,4\n")
    assert source.now().order == (2,)
    (transaction,) = read(source, start, source.now())
    change = {("b", Decimal(2), ""): -1, ("b", Decimal(2), None): 1}
    change |= {("c", Decimal(3), " x"): -1, ("d", Decimal(4), "new"): 1}
    assert transaction.changes == {"products": Bag(("sku", "unit price", "note"), change)}
    assert transaction.committed_at == datetime.fromtimestamp(1_700_000_002, timezone.utc)
    assert read(drops.source(columns={"unit price": "decimal(10,2)"}), start, source.now()) == [transaction]

    assert seen.through == start
    assert list(reader.scan("products", ["sku"])) == [("a",), ("b",), ("c",)]
    lookup = Lookup(
        0, "products", ("sku",), ("unit price",), Bag.of(["k"], [(4,), (Decimal("1.500"),), (Decimal("0.001"),)])
    )
    (found,), now = answer_on_driver(source.reader(), Query("v", 1, "catalog", (lookup,)), 10)
    assert found == Bag.of(["sku"], [("a",), ("d",)]) and now.through == source.now()


def test_a_load_stages_the_first_drop(drops: Drops) -> None:
    """`strobe prepare` starts no Spark, so the drop waits for whoever loads; one that is refused stops the load, and a
    question that is not a load stages nothing."""
    path = drops.put("sku,price\na,one\n")
    config = Config(str(path), columns={"price": "bigint"})
    FilesSource("catalog", config, drops.folder / "warehouse", None).prepare([])
    source = drops.source(columns={"price": "bigint"})
    assert rows(source, "sku") == []
    with pytest.raises(UserError, match="is no bigint"):
        source.reader(at_a_position=True)
    drops.put("sku,price\na,1\nb,2\n")
    reader = source.reader(at_a_position=True)
    assert reader.open().through == source.now() and source.now().order == (1,)
    assert sorted(reader.scan("products", ["sku"])) == [("a",), ("b",)]
    drops.put("sku,price\na,1\n")
    reader = source.reader(at_a_position=True)
    assert reader.open().through.order == (1,)  # what comes later is a transaction


BROKEN: dict[str, tuple[str | bytes, str]] = {
    "missing column": ("sku,name\na,x\n", "'price' is missing"),
    "too few fields": ("sku,price\na,1\nb\n", "a broken record of 1 characters"),
    "too many fields": ("sku,price\na,1\nb,2,3\n", "a broken record of 5 characters"),
    "value": (
        "sku,price\na,1\nb,two\n",
        "price: a value of 3 characters",
    ),
    "rounded": ("sku,price\na,1.234\n", "a value of 5 characters"),
    "overflow": (
        "sku,price\na,123456789.00\n",
        "(STROBE_SHOW_VALUES=1 shows it) is no decimal(10,2)",
    ),
    "duplicate key": ("sku,price\na,1\na,2\n", "a key comes 2 times: sku=a"),
    "empty key": ("sku,price\n,1\n", "a key is empty"),
    "open quote": ('sku,price\na,1\n"b,2\n', "never closed"),
    "not UTF-8": (b"sku,price\n\xff,1\n", "line 2: the text is not UTF-8"),
    "no header": ("", "must name every column"),
}


def test_a_bad_drop_is_refused_and_the_last_good_one_stays(drops: Drops) -> None:
    """Each mistake is one message that names the file and the place; nothing changes until a better drop comes."""
    drops.put("sku,price\na,1\n")
    source = drops.source(columns={"price": "decimal(10,2)"})
    source.prepare([])
    start = source.now()
    for content, message in BROKEN.values():
        path = drops.put(content)
        for _ in range(2):
            with pytest.raises(UserError) as refused:
                next(source.transactions(start, [], lambda: False))
            assert message in str(refused.value) and str(path) in str(refused.value)
        assert rows(source, "sku", "price") == [("a", Decimal(1))]
    drops.put("sku,price\na,2\n")
    (transaction,) = read(source, start, source.now())
    assert transaction.changes["products"] == Bag(("sku", "price"), {("a", Decimal(1)): -1, ("a", Decimal(2)): 1})
    leftovers = [p.name for p in (drops.folder / "warehouse" / "staging" / "files").iterdir()]
    assert leftovers == ["catalog"]


def test_a_drop_that_is_still_being_written_waits(drops: Drops) -> None:
    """Only what looks the same over two looks is read."""
    drops.put("sku,n\na,1\n")
    drops.source().prepare([])
    source = drops.source(settle=0.5)
    start, half = source.now(), "sku,n\na,2\n"
    drops.put(half)
    growing: Iterator[str] = iter([half + "b,3\n", half + "b,3\nc,4\n"])

    looks = 0

    def stopped() -> bool:
        nonlocal looks
        looks += 1
        if looks % 2 == 0 and (content := next(growing, None)):
            drops.put(content)
        return False

    transaction = next(source.transactions(start, [], stopped))
    expected = {("a", "1"): -1, ("a", "2"): 1, ("b", "3"): 1, ("c", "4"): 1}
    assert transaction.changes["products"] == Bag(("sku", "n"), expected)


def test_files_in_name_order_are_states_in_that_order(drops: Drops) -> None:
    """Several files that wait are several positions, without a JVM, and come one by one."""
    drops.put("sku,n\na,1\n", "products-1.csv")
    source = drops.source("products-*.csv")
    source.prepare([])
    start = source.now()
    drops.put("sku,n\na,3\n", "products-3.csv")
    drops.put("sku,n\na,2\n", "products-2.csv")
    assert source.now().order == (3,)
    first, second = read(source, start, source.now())
    assert first.changes["products"] == Bag(("sku", "n"), {("a", "1"): -1, ("a", "2"): 1})
    assert second.changes["products"] == Bag(("sku", "n"), {("a", "2"): -1, ("a", "3"): 1})
    assert source.now() == second.position


JSON = """{"sku": "a", "n": 1.50, "at": "2024-02-29T12:00:00+02:00", "ok": true, "more": [1]}
{"ok": null, "sku": "b", "n": 9007199254740993}
"""


def test_json_lines(drops: Drops) -> None:
    """Numbers are taken as written, a property that is not there is NULL, a broken line is refused."""
    drops.put(JSON, "p.jsonl")
    source = drops.source("p.jsonl", format="jsonl", columns={"n": "decimal(20,2)", "at": "timestamp", "ok": "boolean"})
    source.prepare([])
    noon = datetime(2024, 2, 29, 10, tzinfo=timezone.utc)
    assert rows(source, "sku", "n", "at", "ok") == [
        ("a", Decimal("1.50"), noon, True),
        ("b", Decimal("9007199254740993"), None, None),
    ]
    drops.put(JSON + '{"sku": "c', "p.jsonl")
    with pytest.raises(UserError, match=r"a broken record of \d+ characters"):
        next(source.transactions(source.position(source.now().text), [], lambda: False))


def test_parquet_brings_its_own_types(drops: Drops) -> None:
    """Types and values are the file's, from stream, scan and look-up alike; nested ones are refused."""
    values = {
        "sku": pa.array([1, 2], pa.int32()),
        "d": pa.array([date(1, 1, 1), None], pa.date32()),
        "t": pa.array([datetime(1, 1, 1, tzinfo=timezone.utc), datetime(9999, 12, 31, tzinfo=timezone.utc)]),
        "x": pa.array([float("nan"), -0.0]),
        "b": pa.array([b"\x00", b""]),
        "m": pa.array([Decimal("1.50"), Decimal("-0.01")], pa.decimal128(38, 18)),
    }
    path = drops.folder / "p.parquet"
    pq.write_table(
        pa.table({"sku": pa.array([7], pa.int32()), **{k: v[:1] for k, v in values.items() if k != "sku"}}), path
    )
    source = drops.source("p.parquet", format="parquet")
    source.prepare([])
    start = source.now()
    pq.write_table(pa.table(values), path)
    (transaction,) = read(source, start, source.now())
    types = {c.name: c.type for c in source.schemas()[0].columns}
    assert types == {
        "sku": "int",
        "d": "date",
        "t": "timestamp",
        "x": "double",
        "b": "binary",
        "m": "decimal(38,18)",
    }
    scanned = Bag.of(tuple(types), rows(source, *types))
    old = Bag(tuple(types), {r: n for r, n in transaction.changes["products"].items() if n < 0})  # type: ignore[attr-defined]
    assert transaction.changes["products"] == scanned.add(old)
    for column in types:
        keys = scanned.keys([column])
        lookup = Lookup(0, "products", tuple(types), (column,), keys)
        (found,), _ = answer_on_driver(source.reader(), Query("v", 1, "catalog", (lookup,)), 10)
        assert found.key_delete(keys.rename({column: "k"}), [(column, "k")]) == Bag(
            tuple(types), {r: n for r, n in found.items() if r[list(types).index(column)] is None}
        )
        assert found.keys([column]) == keys
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match="no complete Parquet file"):
        next(source.transactions(source.position(transaction.position.text), [], lambda: False))


def test_positions_belong_to_one_log(drops: Drops) -> None:
    """After undo and prepare the versions are others, though they look alike; a lost version is noticed."""
    drops.put("sku,n\na,1\n")
    source = drops.source()
    source.prepare([])
    old, identity = source.now(), source.identity()
    assert drops.source().identity() == identity and source.position(old.text) == old
    source.verify(old)
    assert source.undo() and not source.undo()
    source.prepare([])
    assert source.identity() != identity
    with pytest.raises(LostGuarantee):
        source.verify(old)
    now = source.now()
    source.verify(now)
    for file in (drops.folder / "warehouse" / "staging" / "files" / "catalog").glob("*.parquet"):
        file.unlink()
    with pytest.raises(LostGuarantee):
        source.verify(now)
    with pytest.raises(UserError):
        source.position("7")


def test_old_versions_go_and_needed_ones_stay(drops: Drops) -> None:
    """What was discarded is removed, but not at once; from the oldest needed version on all can be read again."""
    drops.put("sku,n\na,0\n")
    source = drops.source()
    source.prepare([])
    first = source.now()
    for n in range(1, 4):
        drops.put(f"sku,n\na,{n}\n")
        source.prepare([])
    needed = source.position(first.text.replace("1@", "3@"))
    source.discard(needed)
    source.verify(first)
    for _ in range(2):
        drops.source(grace=0.0).discard(needed)
    with pytest.raises(LostGuarantee):
        source.verify(first)
    with pytest.raises(LostGuarantee):
        next(source.transactions(first, [], lambda: False))
    source.verify(needed)
    assert [t.position.order for t in read(source, needed, source.now())] == [(4,)]


def test_the_same_rows_again_are_a_position_too(drops: Drops) -> None:
    """A drop without a row, and one that changes nothing, move the position on and report no change."""
    drops.put("sku,n\n")
    source = drops.source()
    source.prepare([])
    start = source.now()
    drops.put("sku,n\n")
    (transaction,) = read(source, start, source.now())
    assert transaction.changes == {} and transaction.position == source.now()


def looks_only() -> Callable[[], SparkSession]:
    def never() -> SparkSession:
        raise AssertionError("a JVM was wanted")

    return never


def test_looking_needs_no_jvm(drops: Drops) -> None:
    """Schemas, positions, look-ups and checks are answered without Spark."""
    drops.put("\ufeffsku,n\na,1\n".encode())
    drops.source().prepare([])
    source = FilesSource(
        "catalog", Config(str(drops.folder / "products.csv")), drops.folder / "warehouse", looks_only()
    )
    drops.put("sku,n\na,2\n")
    assert source.now().order == (2,)
    assert [c.name for c in source.schemas()[0].columns] == ["sku", "n"]
    assert source.check([]) == [] and source.identity().startswith("files:")
    assert rows(source, "sku", "n") == [("a", "1")]
