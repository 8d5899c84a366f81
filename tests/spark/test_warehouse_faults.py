"""Faults of the disk under the warehouse: it is full, files are missing or damaged, or the folder was copied."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from service_shop import DOWN, Notes, Shop, wait_for

from strobe.apply import first
from strobe.coordinator.timing import Timing
from strobe.errors import Fenced, LostGuarantee, NotNow, StrobeError, UserError
from strobe.events import Event, Loading
from strobe.retry import APPEND
from strobe.warehouse import inspect, reader, storage
from strobe.warehouse.layout import Layout

pytestmark = [pytest.mark.spark, pytest.mark.live]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Take all the room that is left."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def test_a_full_disk(tmp_path: Path, small_disk: Path, spark: SparkSession) -> None:
    """Appends fail, and say why; with room again the run goes on by itself, and if there is none it ends with what to
    do. Nothing of what failed is there, and nothing is missing afterwards."""
    shop = Shop(tmp_path, spark, DOWN + f"warehouse: {small_disk / 'warehouse'}\n")
    shop.timing = Timing(append=replace(APPEND, attempts=3))
    shop.warehouse = small_disk / "warehouse"
    shop.coordinator().run(until_idle=True)
    with shop.running():
        ballast = fill(small_disk)
        shop.write("sales", "INSERT INTO orders VALUES (30, 1, 'full')")
        wait_for(lambda: any("No space left" in line for line in shop.notes.said))
        ballast.unlink()
        wait_for(lambda: (30, "full") in shop.rows("orders"))
    before = shop.rows("orders")
    fill(small_disk)
    shop.write("sales", "INSERT INTO orders VALUES (31, 1, 'later')")
    with pytest.raises(StrobeError, match="No space left") as caught:
        shop.coordinator().run(until_idle=True)
    assert caught.value.fix
    assert shop.rows("orders") == before
    ballast.unlink()
    shop.coordinator().run(until_idle=True)
    assert shop.rows("orders") == sorted([*before, (31, "later")])


class AtLoading(Notes):
    """Something happens when the first load begins."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self._happens = happens

    def tell(self, event: Event) -> None:
        super().tell(event)
        if isinstance(event, Loading):
            self._happens()


def test_a_disk_that_is_full_during_a_load(tmp_path: Path, small_disk: Path, spark: SparkSession) -> None:
    """Before the first table is made, and after: the load fails as a whole, with what to do, and is done again."""
    shop = Shop(tmp_path, spark, DOWN + f"warehouse: {small_disk / 'warehouse'}\n")
    shop.warehouse = small_disk / "warehouse"
    ballast = fill(small_disk)
    for happens in (lambda: None, lambda: fill(small_disk)):
        shop.notes = AtLoading(happens)
        with pytest.raises(StrobeError, match="No space left") as caught:
            shop.coordinator().run(until_idle=True)
        assert "Make room" in caught.value.fix
        assert not storage.exists(Layout(shop.warehouse).log) or inspect.last_header(Layout(shop.warehouse)) is None
        ballast.unlink()
    shop.notes = Notes()
    shop.coordinator().run(until_idle=True)
    assert shop.rows("orders") == [(10, "open"), (11, "open"), (12, "shut")]
    assert shop.rows("paid") == [(10, 500), (12, 700)]


def test_two_coordinators_during_a_load(tmp_path: Path, spark: SparkSession) -> None:
    """The second is refused; if it takes over, its load counts, and the first brings nothing in any more."""
    shop = Shop(tmp_path, spark, DOWN)

    def rivals() -> None:
        shop.notes = Notes()
        with pytest.raises(NotNow, match="another coordinator"):
            shop.coordinator().run(until_idle=True)
        shop.coordinator().run(until_idle=True, take_over=True)
        shop.write("sales", "INSERT INTO orders VALUES (13, 2, 'later')")

    shop.notes = AtLoading(rivals)
    with pytest.raises(Fenced, match="taken over"):
        shop.coordinator().run(until_idle=True)
    shop.notes = Notes()
    shop.coordinator().run(until_idle=True)
    assert shop.rows("orders") == [(10, "open"), (11, "open"), (12, "shut"), (13, "later")]
    assert [past.header.number for past in inspect.history(Layout(shop.warehouse), 100)] == [2, 1]


def test_a_clock_that_is_moved_during_a_load(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forth by two days while views are loaded and back before the first change: the times of commits never go back,
    and what a view is at a time is found by them."""

    class Moved(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(days=2)

    shop = Shop(tmp_path, spark, DOWN)
    with monkeypatch.context() as forth:
        forth.setattr(first, "datetime", Moved)
        shop.coordinator().run(until_idle=True)
    shop.write("sales", "INSERT INTO orders VALUES (13, 2, 'later')")
    shop.coordinator().run(until_idle=True)
    later, loaded = [past.header for past in inspect.history(Layout(shop.warehouse), 100)]
    assert later.committed_at > loaded.committed_at > datetime.now(timezone.utc) + timedelta(days=1)
    assert (13, "later") in shop.rows("orders")
    assert reader.commit_at(Layout(shop.warehouse), loaded.committed_at) == loaded.number


def test_a_warehouse_that_is_deleted_while_it_is_kept(tmp_path: Path, spark: SparkSession) -> None:
    """The run ends and says so, and what it was writing keeps nobody from making another warehouse there."""
    shop = Shop(tmp_path, spark, DOWN)
    ended = pytest.raises(UserError, match=r"deleted, or replaced by another one(?s:.*)start again")
    writing = shop.written("sales", lambda n: f"INSERT INTO orders VALUES ({100 + n}, 1, 'more')")
    with ended, shop.running() as coordinator, writing:
        wait_for(lambda: "more" in str(shop.rows("orders")))
        while shop.warehouse.exists():
            shutil.rmtree(shop.warehouse, ignore_errors=True)
        wait_for(lambda: coordinator.pipeline is None)
    shop.coordinator().run(until_idle=True)
    with closing(sqlite3.connect(tmp_path / "sales.db")) as connection:
        there = connection.execute("SELECT count(*) FROM orders").fetchone()[0]
    assert len(shop.rows("orders")) == there


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.rglob(pattern), key=lambda path: path.stat().st_mtime)


def test_files_of_the_log_that_are_missing_or_truncated(tmp_path: Path, spark: SparkSession) -> None:
    """Whoever opens the warehouse is told that it is damaged and what to do, in one message; with the file back, all is
    as it was. A log that has lost its end does not begin a second past."""
    shop = Shop(tmp_path, spark, DOWN)
    shop.coordinator().run(until_idle=True)
    shop.write("sales", "INSERT INTO orders VALUES (40, 1, 'new')")
    shop.coordinator().run(until_idle=True)
    log, kept = shop.warehouse / "log", tmp_path / "kept"
    data, version = newest(log, "*.parquet"), newest(log, "*.json")
    for path, size in ((data, None), (data, 100), (version, 20), (version, None)):
        shutil.copy2(path, kept)
        if size is None:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(UserError, match=r"cannot be read|are missing") as caught:
            shop.coordinator().run(until_idle=True)
        assert "Restore" in caught.value.fix
        shutil.copy2(kept, path)
    for checksum in log.rglob("*.crc"):
        checksum.unlink()
    shop.write("sales", "INSERT INTO orders VALUES (41, 1, 'newer')")
    shop.coordinator().run(until_idle=True)
    assert {(40, "new"), (41, "newer")} <= set(shop.rows("orders"))


@pytest.mark.slow
def test_a_copied_warehouse_is_not_kept_beside_the_original(tmp_path: Path, spark: SparkSession) -> None:
    """What the original has read and discarded is gone for the copy, which stops with the views to rebuild."""
    shop = Shop(tmp_path, spark, DOWN)
    shop.coordinator().run(until_idle=True)
    shutil.copytree(shop.warehouse, tmp_path / "copied")
    shop.write("sales", "INSERT INTO orders VALUES (50, 1, 'a')")
    shop.coordinator().run(until_idle=True)
    (tmp_path / "strobe.yml").write_text(DOWN + "warehouse: copied\n")
    before = inspect.last_header(Layout(tmp_path / "copied"))
    with pytest.raises(LostGuarantee, match="sales") as caught:
        shop.coordinator().run(until_idle=True)
    assert "rebuild" in caught.value.fix.lower()
    assert inspect.last_header(Layout(tmp_path / "copied")) == before
