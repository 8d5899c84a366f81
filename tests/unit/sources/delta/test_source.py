"""Delta tables: what the conformance suite does not ask of every source. The tables are written without Spark."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_table import FEED, Table, ask, hold, read
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from patience import Writing

from strobe.algebra.bag import Bag
from strobe.config.load import load_project
from strobe.data.arrow import arrow_schema
from strobe.errors import LostGuarantee, SourceUnavailable, UserError
from strobe.planning.topology import assemble


@pytest.mark.parametrize("feed", [True, False])
@pytest.mark.parametrize("partitioned", [None, ["place"]])
def test_every_operation_is_reported_as_what_it_changed(
    tmp_path: Path, partitioned: list[str] | None, feed: bool
) -> None:
    """Appends, deletes of rows and of whole files, updates, merges, overwrites of everything and of a part, a restore:
    the sum is the table at every version, by the change data and by the files that came and went; what changes no row
    is a version without changes."""
    table = Table(tmp_path).create(partitioned)
    one, two, three = (1, "a", 1.5), (2, "b/ü %20=", None), (3, "a", -0.0)
    table.append(one, two, three)
    table.delta.delete("id = 1")
    table.delta.update(updates={"x": "9.0"}, predicate="id = 2")
    merge = table.delta.merge(table.rows((3, "c", 7.0), (4, None, 8.0)), "s.id = t.id", "s", "t")  # a partition moves
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    table.delta.delete()
    table.append(one, one, (None, None, None))
    table.append(two)
    write_deltalake(str(table.path), table.rows(one, three), mode="overwrite")
    table.append((9, "a", 1.0))
    quiet = [table.delta.version() + 1]
    table.delta.optimize.compact()
    table.delta.delete("id = 3")
    write_deltalake(str(table.path), table.rows((8, "a", 0.0)), mode="overwrite", predicate="place = 'a'")
    table.delta.restore(4)
    quiet.append(table.delta.version() + 1)
    table.delta.alter.set_table_properties({"delta.appendOnly": "false"})
    table.append(one)
    if feed:
        table.by_spark(*range(table.delta.version() + 1))
    found = hold(table, table.open(), ["id", "place", "x"])
    assert [t.position.order[0] for t in found if not t.changes] == quiet
    log = table.open().log
    compaction = log.after(log.position(quiet[0] - 1))
    assert compaction is not None and compaction.moved and not compaction.files, "no file is read in vain"
    update = found[2].changes["stock"]
    assert update == Bag(("id", "place", "x"), {two: -1, (2, "b/ü %20=", 9.0): 1})
    assert found[0].committed_at is not None
    assert abs(found[0].committed_at - datetime.now(timezone.utc)) < timedelta(minutes=1)


@pytest.mark.parametrize("feed", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_random_operations(tmp_path: Path, seed: int, feed: bool) -> None:
    """Random operations, by the change data or by files: the sum of the stream is the table at every version."""
    rng = random.Random(seed)
    table = Table(tmp_path, id="bigint", part="int").create(["part"] if seed % 2 else None)
    path = str(table.path)

    def rows() -> pa.Table:
        return table.rows(*((rng.randint(1, 6), rng.choice([1, 2, None])) for _ in range(rng.randint(1, 4))))

    def merge() -> None:
        new = table.rows(*((n, rng.randint(1, 2)) for n in rng.sample(range(1, 9), 3)))
        doing = table.delta.merge(new, "s.id = t.id", "s", "t").when_matched_update({"part": "s.part"}, "s.id < 5")
        doing.when_matched_delete().when_not_matched_insert_all().execute()

    def update() -> None:
        if not feed:  # see test_change_data_that_is_wrong_is_not_used
            table.delta.update(updates={"id": "id + 1"}, predicate=f"id < {rng.randint(1, 6)}")

    def switch() -> None:
        table.delta.alter.set_table_properties({"delta.enableChangeDataFeed": rng.choice(["true", "false"])})

    operations: list[Callable[[], object]] = [
        lambda: write_deltalake(path, rows(), mode="append"),
        lambda: write_deltalake(path, rows(), mode="append"),
        lambda: write_deltalake(path, rows(), mode="overwrite"),
        lambda: table.delta.delete(f"id = {rng.randint(1, 6)}"),
        lambda: table.delta.optimize.compact(),
        lambda: table.delta.restore(rng.randint(0, table.delta.version() - 1)),
        lambda: table.delta.create_checkpoint(),
        merge,
        update,
        switch,
    ]
    write_deltalake(path, rows(), mode="append")
    for _ in range(40):
        rng.choice(operations)()
    if feed:
        table.by_spark(*range(table.delta.version() + 1))
    hold(table, table.open(), ["id", "part"])


def test_a_file_that_is_removed_twice_goes_once(tmp_path: Path) -> None:
    """A writer that lost a race removes a file that another has compacted: the table keeps its rows, and so do we."""
    table = Table(tmp_path).create()
    table.append((1, "a", 1.0))
    (old,) = pa.table(table.delta.get_add_actions())["path"].to_pylist()
    table.append((2, "b", 2.0))
    table.delta.optimize.compact()
    (new,) = pa.table(table.delta.get_add_actions()).to_pylist()
    table.commit({"remove": {"path": old, "dataChange": True, "partitionValues": {}}})
    again = {"modificationTime": 1, "dataChange": True, "partitionValues": {}}
    table.commit({"add": {"path": new["path"], "size": new["size_bytes"], **again}})
    size = (table.path / old).stat().st_size
    rewritten = {"path": old, "size": size, **again, "dataChange": False}  # brings back rows that had gone
    table.commit({"remove": {"path": "nowhere.parquet", "dataChange": False}}, {"add": rewritten})
    found = hold(table, table.open(), ["id", "place", "x"])
    assert [bool(t.changes) for t in found] == [True, True, False, False, False, True]


def test_writers_that_race(tmp_path: Path) -> None:
    """Overwrites, merges and compactions at once, without a word between them."""
    table = Table(tmp_path, id="bigint", n="int").create()
    table.append((1, 1))
    writing = Writing(1, lambda: table.delta.version() > 5)

    def write(seed: int) -> None:
        rng = random.Random(seed)
        while writing.goes_on:
            try:
                if rng.random() < 0.3:
                    table.delta.optimize.compact()
                elif rng.random() < 0.3:
                    write_deltalake(table.delta, table.rows((rng.randint(1, 9), seed)), mode="overwrite")
                else:
                    merge = table.delta.merge(table.rows((rng.randint(1, 9), seed)), "s.id = t.id", "s", "t")
                    merge.when_matched_update_all().when_not_matched_insert_all().execute()
            except CommitFailedError:
                continue

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    hold(table, table.open(), ["id", "n"])


def test_change_data_that_is_wrong_is_not_used(tmp_path: Path) -> None:
    """`delta-rs` leaves a row out of an update's change data that equals one that was there: the files have it."""
    table = Table(tmp_path, n="bigint").create()
    table.append((1,), (1,), (2,))
    table.delta.update(updates={"n": "2"}, predicate="n = 1")
    written = DeltaTable(str(table.path), version=2).load_cdf(2, 2)
    kinds = pa.table(written)["_change_type"].to_pylist()
    assert kinds.count("update_preimage") != kinds.count("update_postimage"), "then it can be trusted again"
    assert read(table.open())[1].changes["stock"] == Bag(("n",), {(1,): -2, (2,): 2})


def test_without_a_key_rows_may_repeat(tmp_path: Path) -> None:
    """Equal rows count as often as they are there, NULLs too; none goes with the others."""
    table = Table(tmp_path, a="bigint", b="string").create()
    table.append((1, "duck"), (1, "duck"), (None, None), (None, None))
    source = table.open()
    (found,) = read(source)
    assert found.changes["stock"] == Bag(("a", "b"), {(1, "duck"): 2, (None, None): 2})
    assert ask(source, ["a", "b"], ["a"], [(1,)]) == Bag(("a", "b"), {(1, "duck"): 2})
    assert source.schemas()[0].key == ()


PARTITIONS: dict[str, list[Any]] = {
    "tinyint": [-128, 127],
    "bigint": [0, -(2**63), 2**63 - 1],
    "boolean": [True, False],
    "string": ["x", " ", "a/b=c", "ü%20", "__HIVE_DEFAULT_PARTITION"],
    "date": [date(1, 1, 1), date(9999, 12, 31)],
    "timestamp": [datetime(1, 1, 1, tzinfo=timezone.utc), datetime(2024, 2, 29, 1, 2, 3, 999999, tzinfo=timezone.utc)],
    "timestamp_ntz": [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)],
    "decimal(10,2)": [Decimal("0.10"), Decimal("99999999.99")],
    "double": [0.5, -1.5, 1e10],
}


@pytest.mark.parametrize("type_", PARTITIONS)
def test_partition_columns_have_the_same_values_from_everywhere(tmp_path: Path, type_: str) -> None:
    """A value that stands only in the log comes out of the stream, a scan and a look-up alike; NULL too."""
    values = [*PARTITIONS[type_], None]
    table = Table(tmp_path, id="bigint", p=type_).create(["p"])
    table.append(*((n, value) for n, value in enumerate(values)))
    table.delta.update(updates={"id": "id + 10"})
    source = table.open()
    expected = Bag.of(("id", "p"), [(n + 10, value) for n, value in enumerate(values)])
    came, changed = read(source)
    assert repr(came.changes["stock"]) == repr(Bag.of(("id", "p"), list(enumerate(values))))
    assert isinstance(came.changes["stock"], Bag) and isinstance(changed.changes["stock"], Bag)
    assert repr(came.changes["stock"].add(changed.changes["stock"])) == repr(expected) == repr(ask(source, ["id", "p"]))
    assert source.schemas()[0].indexed("p") == source.schemas()[0].column("p").searchable
    for n, value in enumerate(values[:-1]):
        assert (n + 10,) in dict(ask(source, ["id"], ["p"], [(value,)]).items())


def test_utc_timestamps_of_partitions_as_spark_writes_them(tmp_path: Path) -> None:
    """Spark leaves NULLs out of a removed file's partition values, and gives instants a zone; no text is NULL too."""
    table = Table(tmp_path, id="bigint", p="timestamp").create(["p"])
    pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), table.path / "one.parquet")
    add = {"path": "one.parquet", "size": 1, "modificationTime": 1, "dataChange": True}
    table.commit({"add": {**add, "partitionValues": {"p": "2024-01-01T10:00:00.500000Z"}}})
    table.commit({"remove": {**add, "partitionValues": {}}})
    table.commit({"add": {**add, "partitionValues": {"p": ""}}})
    first, second, third = read(table.open())
    at = datetime(2024, 1, 1, 10, 0, 0, 500000, tzinfo=timezone.utc)
    assert first.changes["stock"] == Bag(("id", "p"), {(1, at): 1})
    assert second.changes["stock"] == Bag(("id", "p"), {(1, None): -1})
    assert third.changes["stock"] == Bag(("id", "p"), {(1, None): 1})


def test_timestamps_of_ninety_six_bits(tmp_path: Path) -> None:
    """Spark's INT96 instants are read for all years, and found."""
    table = Table(tmp_path, at="timestamp").create()
    instants = [datetime(1, 1, 1, tzinfo=timezone.utc), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc)]
    file = table.path / "old.parquet"
    pq.write_table(table.rows(*((at,) for at in instants)), file, use_deprecated_int96_timestamps=True)
    table.commit({"add": {"path": file.name, "size": file.stat().st_size, "modificationTime": 1, "dataChange": True,
                          "partitionValues": {}}})  # fmt: skip
    source = table.open()
    expected = Bag.of(("at",), [(at,) for at in instants])
    assert read(source)[0].changes["stock"] == expected == ask(source, ["at"])
    assert ask(source, ["at"], ["at"], [(instants[0],)]) == Bag.of(("at",), [(instants[0],)])


def test_statistics_that_are_no_bounds_hide_no_row(tmp_path: Path) -> None:
    """Spark cuts the statistics of timestamps to milliseconds: a look-up by the microsecond finds the row."""
    table = Table(tmp_path, id="bigint", at="timestamp").create()
    at = datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone.utc)
    table.append((1, at))
    actions = [json.loads(line) for line in table.log(1).read_text().splitlines()]
    for action in actions:
        if "add" in action:
            bounds = {"at": "2024-02-29T23:59:59.999Z"}
            action["add"]["stats"] = json.dumps({"numRecords": 1, "minValues": bounds, "maxValues": bounds})
    table.log(1).write_text("\n".join(map(json.dumps, actions)))
    assert ask(table.open(), ["id"], ["at"], [(at,)]) == Bag(("id",), {(1,): 1})


def test_only_used_columns_are_read(tmp_path: Path) -> None:
    """Columns that no view uses are not in the changes, and a change of these alone is none."""
    table = Table(tmp_path).create()
    source = table.open()
    source.focus({"stock": {"id"}})
    table.append((1, "a", 1.0))
    table.delta.update(updates={"x": "2.0"})
    first, second = read(source)
    assert first.changes["stock"] == Bag(("id",), {(1,): 1})
    assert second.changes == {}


def test_a_column_that_nobody_uses_may_come_and_go(tmp_path: Path) -> None:
    """Another column changes nothing, in a running stream and in a new one."""
    table = Table(tmp_path).create()
    source = table.open()
    source.focus({"stock": {"id", "place"}})
    source.schemas()
    start = source.now()
    running = source.transactions(start, [], lambda: False)
    table.append((2, "b", 1.0))
    found = [next(running)]
    more = table.rows((1, "a", 1.0)).append_column("y", pa.array([[1]], pa.list_(pa.int32())))
    write_deltalake(str(table.path), more, mode="append", schema_mode="merge")
    write_deltalake(str(table.path), more.drop_columns(["x", "y"]), mode="overwrite", schema_mode="overwrite")
    found += [next(running), next(running)]
    assert found == read(source, start)
    assert found[2].changes["stock"] == Bag(("id", "place"), {(2, "b"): -1})
    assert ask(source, ["id", "place"]) == Bag(("id", "place"), {(1, "a"): 1})


@pytest.mark.parametrize("schema", [{"id": "bigint", "x": "double"}, {"id": "bigint", "place": "int", "x": "double"}])
def test_a_used_column_that_changes_stops_its_views(tmp_path: Path, schema: dict[str, str]) -> None:
    """Dropped or of another type: streams stop at the version before, and readers at once."""
    table = Table(tmp_path).create()
    source = table.open()
    source.focus({"stock": {"id", "place"}})
    source.schemas()
    start = source.now()
    running = source.transactions(start, [], lambda: False)
    table.append((1, "a", 1.0))
    new = pa.table([pa.nulls(1, t) for t in arrow_schema(list(schema), list(schema.values())).types], list(schema))
    write_deltalake(str(table.path), new, mode="overwrite", schema_mode="overwrite")
    assert next(running).changes["stock"] == Bag(("id", "place"), {(1, "a"): 1})
    with pytest.raises(LostGuarantee, match="column place, which a view uses") as caught:
        next(running)
    assert "rebuild" in caught.value.fix
    with pytest.raises(LostGuarantee, match="column place"):
        ask(source, ["id", "place"])
    again = source.transactions(start, [], lambda: False)
    assert next(again).position.order == (1,)
    with pytest.raises(LostGuarantee, match="column place"):
        next(again)


def test_a_replaced_table_is_another(tmp_path: Path) -> None:
    """CREATE OR REPLACE TABLE goes on in the same log with another id: recognised, not taken for a change."""
    table = Table(tmp_path).create()
    source = table.open()
    table.append((1, "a", 1.0))
    before, start = source.identity(), source.now()
    metadata = table.metadata()
    metadata["metaData"]["id"] = "another"
    table.commit(metadata)
    with pytest.raises(LostGuarantee, match="another table"):
        read(source, start)
    assert source.identity() != before


@pytest.mark.parametrize("what", ["change data", "data", "log"])
def test_what_was_vacuumed_away_is_missed(tmp_path: Path, what: str) -> None:
    """A version whose files are gone is never reported in part: the stream stops there and says what to raise."""
    table = Table(tmp_path).create()
    table.append((1, "a", 1.0), (2, "b", 1.0))
    start = table.open().now()
    if what == "change data":
        table.delta.update(updates={"x": "2.0"}, predicate="id = 1")
        table.by_spark(2)
        shutil.rmtree(table.path / "_change_data")
    elif what == "data":
        table.delta.delete()
        for file in table.path.glob("*.parquet"):
            file.unlink()
    else:
        table.delta.delete("id = 1")
        table.delta.delete("id = 2")
        table.log(2).unlink()
    with pytest.raises(LostGuarantee) as caught:
        read(table.open(), start)
    assert "ebuild" in caught.value.fix


def test_a_version_that_cannot_be_opened_any_more_is_lost(tmp_path: Path) -> None:
    """Its commit is there, but nothing says what the table was before it; later versions have a checkpoint."""
    table = Table(tmp_path).create()
    table.append((1, "a", 1.0))
    start = table.open().now()
    table.append((2, "a", 1.0))
    table.delta.create_checkpoint()
    table.log(0).unlink()
    with pytest.raises(LostGuarantee, match="version 1 can no longer be opened"):
        read(table.open(), start)


def test_a_commit_that_was_read_may_be_cleaned_away(tmp_path: Path) -> None:
    """A stream that stands at the end of a log goes on when Delta cleans up behind it."""
    table = Table(tmp_path).create()
    source = table.open()
    running = source.transactions(source.now(), [], lambda: False)
    table.append((1, "a", 1.0))
    next(running)
    table.append((2, "a", 1.0))
    table.delta.create_checkpoint()
    table.log(0).unlink()
    table.log(1).unlink()
    assert next(running).changes["stock"] == Bag(("id", "place", "x"), {(2, "a", 1.0): 1})


def test_a_removed_file_of_an_untold_partition_is_not_guessed(tmp_path: Path) -> None:
    """Some writers leave a removed file's partition values out: NULL would be wrong."""
    table = Table(tmp_path).create(["place"])
    table.append((1, "a", 1.0))
    start = table.open().now()
    (path,) = pa.table(table.delta.get_add_actions())["path"].to_pylist()
    table.commit({"remove": {"path": path, "dataChange": True}})
    with pytest.raises(LostGuarantee, match="partitions"):
        read(table.open(), start)


def test_a_vacuum_within_its_retention_takes_nothing_that_is_needed(tmp_path: Path) -> None:
    """VACUUM as Delta allows it by default leaves all that the stream has yet to read."""
    table = Table(tmp_path).create()
    table.append((1, "a", 1.0))
    table.delta.update(updates={"x": "2.0"})
    table.delta.vacuum(dry_run=False)
    hold(table, table.open(), ["id", "place", "x"])


def test_a_commit_that_is_not_whole_is_waited_for(tmp_path: Path) -> None:
    """A file system that shows half a commit is asked again."""
    table = Table(tmp_path).create()
    table.append((1, "a", 1.0))
    whole = table.log(1).read_bytes()
    table.log(1).write_bytes(whole[:-20])
    source = table.open()
    start = source.log.position(0)
    with pytest.raises(SourceUnavailable, match="not whole"):
        next(source.transactions(start, [], lambda: False))
    table.log(1).write_bytes(whole)
    assert next(source.transactions(start, [], lambda: False)).changes


def test_a_key_is_held_against_every_version(tmp_path: Path) -> None:
    """A key that comes twice, or NULL, is found where it happens; an update of a row keeps it."""
    table = Table(tmp_path).create()
    source = table.open("id")
    table.append((1, "a", 1.0), (2, "b", 1.0))
    table.delta.update(updates={"x": "2.0"})
    table.append((7, "c", 1.0))
    table.delta.optimize.compact()
    table.delta.update(updates={"id": "id + 1"})
    good = source.now()
    assert len(read(source)) == 5
    table.append((3, "again", 1.0))
    with pytest.raises(LostGuarantee, match=r"version 6 a key .* id=3") as caught:
        read(source, good)
    assert "take `key` out" in caught.value.fix
    assert ["id=3" in f.message for f in source.check(["stock"])] == [True]
    table.delta.delete("id = 3")
    assert source.check(["stock"]) == []
    fine = source.now()
    table.append((None, "nothing", 1.0))
    with pytest.raises(LostGuarantee, match="id=None"):
        read(source, fine)


@pytest.mark.parametrize(("key", "message"), [("nothing", "no column"), ("x", "cannot be a key")])
def test_a_key_that_cannot_be_one_is_found(tmp_path: Path, key: str, message: str) -> None:
    """`check` says so before anything starts."""
    table = Table(tmp_path).create()
    (finding,) = table.open(key).check(["stock"])
    assert finding.severity == "error" and message in finding.message


def test_the_feed_is_its_owners_to_turn_on(tmp_path: Path) -> None:
    """A table without the feed is refused with the statement that mends it, and Strobe writes nothing."""
    table = Table(tmp_path).create(properties={})
    source = table.open()
    statement = f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    (finding,) = source.check(["stock"])
    assert finding.severity == "error" and statement in finding.fix
    assert source.prepare_script(["stock"]) == [statement]
    with pytest.raises(UserError, match="feed is off") as caught:
        source.prepare(["stock"])
    assert statement in caught.value.fix
    table.delta.alter.set_table_properties(FEED)
    before = sorted(table.path.rglob("*"))
    source.prepare(["stock"])
    assert (source.check(["stock"]), source.prepare_script(["stock"]), source.undo()) == ([], [], [])
    source.discard(source.now())
    assert sorted(table.path.rglob("*")) == before


@pytest.mark.parametrize(
    ("feature", "statement"),
    [
        ("deletionVectors", "APPLY (PURGE)"),
        ("columnMapping", "DROP FEATURE columnMapping"),
        ("sorcery", "DROP FEATURE"),
    ],
)
def test_features_that_cannot_be_read_are_refused(tmp_path: Path, feature: str, statement: str) -> None:
    """By `check` with the statements that take them out, and by a stream that meets the version that brings them in."""
    table = Table(tmp_path).create()
    source = table.open()
    running = source.transactions(source.now(), [], lambda: False)
    table.commit({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [feature],
                               "writerFeatures": [feature]}})  # fmt: skip
    with pytest.raises(LostGuarantee, match=feature):
        next(running)
    if feature != "sorcery":  # nor can `deltalake`
        (finding,) = source.check(["stock"])
        assert finding.severity == "error" and statement in finding.fix
        with pytest.raises(UserError):
            source.reader().open()
    assert [f.severity for f in source.check(["stock"])] == ["error"]


def test_mapped_columns_are_refused(tmp_path: Path) -> None:
    """Columns whose names in the files differ would read as NULL."""
    table = Table(tmp_path).create()
    source = table.open()
    running = source.transactions(source.now(), [], lambda: False)
    metadata = table.metadata()
    metadata["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"
    table.commit(metadata, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}})
    with pytest.raises(LostGuarantee, match="column mapping"):
        next(running)
    with pytest.raises((UserError, SourceUnavailable)):
        source.reader().open()
    assert [f.severity for f in source.check(["stock"])] == ["error"]


def test_types_that_are_not_supported_are_left_out(tmp_path: Path) -> None:
    """Nested columns, padded and collated text, and binary partitions are not offered; the rest is."""
    path = str(tmp_path / "stock")
    schema = pa.schema(
        [("id", pa.int64()), ("many", pa.list_(pa.list_(pa.int64()))), ("raw", pa.binary()), ("p", pa.binary())]
    )
    for column, text in (("c", '{"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}'), ("k", '{"__COLLATIONS": "{}"}')):
        schema = schema.append(pa.field(column, pa.string(), metadata=json.loads(text)))
    DeltaTable.create(path, schema, partition_by=["p"], configuration=FEED)
    source = Table(tmp_path).open()
    assert {c.name: c.type for c in source.schemas()[0].columns} == {"id": "bigint", "raw": "binary"}
    row = pa.table(
        {"id": [1], "many": [[[1, 2]]], "raw": [b"\x00"], "p": [b"x"], "c": ["a"], "k": ["a"]}, schema=schema
    )
    write_deltalake(path, row, mode="append")
    assert read(source)[0].changes["stock"] == Bag(("id", "raw"), {(1, b"\x00"): 1}) == ask(source, ["id", "raw"])


def test_there_is_no_table(tmp_path: Path) -> None:
    """A wrong path, or one that is not mounted, is said to be one."""
    source = Table(tmp_path).open()
    (finding,) = source.check(["stock"])
    assert "no Delta table" in finding.message and "mounted" in finding.fix
    with pytest.raises(SourceUnavailable):
        source.schemas()


def test_in_strobe_yml(tmp_path: Path) -> None:
    """A table is a source, by a path relative to the project; its relation has the folder's name or its own."""
    Table(tmp_path).create()
    text = (
        "version: 1\nproject: shop\nsources:\n  depot: {type: delta, path: stock, key: [id]}\n"
        "  again: {type: delta, path: ./stock, relation: things}\n"
        "views:\n  v:\n    sql: SELECT s.id AS a, t.id FROM depot.stock s JOIN again.things t ON s.place = t.place\n"
    )
    (tmp_path / "strobe.yml").write_text(text)
    topology = assemble(load_project(tmp_path))
    assert {r.id: r.key for r in topology.schemas.values()} == {"depot.stock": ("id",), "again.things": ()}
    (tmp_path / "strobe.yml").write_text(text.replace("[id]", "[id, id]"))
    with pytest.raises(UserError, match="twice"):
        load_project(tmp_path)
