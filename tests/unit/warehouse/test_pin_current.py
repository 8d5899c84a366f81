"""`strobe pin --current` in engines that need no JVM: real Delta tables, real DuckDB, real Polars."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from strobe.warehouse.pinning import Pinned, PinnedTable, Statements, duckdb_current, polars_current

PUBLISHED = pa.schema(
    [
        ("commit", pa.int64()),
        ("published_at", pa.timestamp("us", tz="UTC")),
        ("views", pa.map_(pa.string(), pa.int64())),
    ]
)
START = datetime(2026, 1, 1, tzinfo=timezone.utc)

Rows = list[tuple[Any, ...]]


class Folded:
    """A folder with two view tables, one of which has copies, and the table `published`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows = 0
        self.fold("o'rders", [1], [])
        self.fold("paid", [10], [0])

    def fold(self, view: str, ids: list[int], copies: list[int]) -> None:
        columns = {"id": ids, **({"_copy": copies} if copies else {})}
        write_deltalake(str(self.folder / view), pa.table(columns), mode="overwrite", schema_mode="overwrite")

    def publish(self, commit: int, *views: str) -> None:
        """The tables as they are now."""
        self._rows += 1
        versions = [(view, DeltaTable(str(self.folder / view)).version()) for view in views or ("o'rders", "paid")]
        row = {"commit": commit, "published_at": START + timedelta(seconds=self._rows), "views": versions}
        write_deltalake(self.published, pa.Table.from_pylist([row], schema=PUBLISHED), mode="append")

    @property
    def published(self) -> str:
        return str(self.folder / "published")

    @property
    def pinned(self) -> Pinned:
        columns = {"o'rders": ("id",), "paid": ("id",)}
        return Pinned(1, {v: PinnedTable(str(self.folder / v), 0, c) for v, c in columns.items()})


@pytest.fixture
def folded(tmp_path: Path) -> Folded:
    made = Folded(tmp_path)
    made.publish(1)
    return made


class Duck:
    def __init__(self, written: Statements) -> None:
        duckdb = pytest.importorskip("duckdb")
        package = find_spec("duckdb_extension_delta")
        if package is None or package.origin is None:
            pytest.skip("DuckDB's delta extension is not here")
        self.connection = duckdb.connect()
        extension = Path(package.origin).parent / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension"
        self.connection.execute(f"LOAD '{extension}'")
        self.written = written
        for statement in written.once:
            self.connection.execute(statement)

    def refresh(self) -> Callable[[str], Rows]:
        for statement in self.written.statements:
            self.connection.execute(statement)
        return lambda view: self.connection.execute(f'SELECT * FROM "{view}"()').fetchall()


class Pole:
    def __init__(self, written: Statements) -> None:
        pytest.importorskip("polars")
        self.names: dict[str, Any] = {}
        self.written = written
        exec("\n".join(written.once), self.names)

    def refresh(self) -> Callable[[str], Rows]:
        exec("\n".join(self.written.statements), self.names)
        views = self.names["views"]
        return lambda view: views[view].collect().rows()


def both(folded: Folded) -> list[Duck | Pole]:
    where = folded.published
    return [Duck(duckdb_current(folded.pinned, where)), Pole(polars_current(folded.pinned, where))]


def test_all_views_are_at_the_newest_published_commit(folded: Folded) -> None:
    """Across folds, one view at a time: nothing moves before it is published, and then only when it is refreshed; a
    table that was published again for the same commit is read at its newer version."""
    for engine in both(folded):
        read = engine.refresh()
        assert (read("o'rders"), read("paid")) == ([(1,)], [(10,)])
    engines = both(folded)
    earlier = [engine.refresh() for engine in engines]
    folded.fold("o'rders", [2], [])
    for engine in engines:
        read = engine.refresh()
        assert (read("o'rders"), read("paid")) == ([(1,)], [(10,)]), "half a fold"
    folded.fold("paid", [20], [0])
    folded.publish(2)
    for read in earlier:
        assert (read("o'rders"), read("paid")) == ([(1,)], [(10,)]), "until it is refreshed"
    for engine in engines:
        read = engine.refresh()
        assert (read("o'rders"), read("paid")) == ([(2,)], [(20,)])
    folded.fold("paid", [20, 21], [0, 0])
    folded.publish(2)
    for engine in engines:
        assert engine.refresh()("paid") == [(20,), (21,)]


def test_a_view_that_is_not_published_is_an_error(folded: Folded) -> None:
    """And so is one that is read before anything was refreshed; its last table is not read instead."""
    duck, pole = both(folded)
    assert isinstance(duck, Duck)
    read = duck.refresh()
    folded.publish(3, "paid")
    duck.refresh()
    assert read("paid") == [(10,)]
    with pytest.raises(Exception, match="view o'rders is not in the published commit"):
        read("o'rders")
    with pytest.raises(KeyError):
        pole.refresh()
    duck.connection.execute("RESET VARIABLE strobe_versions")
    with pytest.raises(Exception, match="strobe_versions is not set"):
        read("paid")
