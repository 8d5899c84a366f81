"""The replay of a warehouse: every state that its readers were shown, from its files alone."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from handwritten import POSITIONS, ROW, START, bag, write, write_warehouse

from strobe.auditor.replay import states
from strobe.errors import BrokenInvariant, UserError


def test_replay_yields_every_state(tmp_path: Path) -> None:
    """The table as loaded, then the log's signed rows commit by commit; duplicates and NULLs are kept."""
    changes: list[Any] = [({"s": "1"}, {}), ({"s": "2"}, {"v": {(1, "x"): -1, (2, None): 2}}), ({"s": "3"}, {})]
    write_warehouse(tmp_path, {"v": [(1, "x"), (1, "x")]}, changes)
    first, second, third = states(tmp_path)
    assert first.views == {"v": bag((1, "x"), (1, "x"))}
    assert second.views == {"v": bag((1, "x"), (2, None), (2, None))} == third.views
    assert [s.commit for s in (first, second, third)] == [1, 2, 3]
    assert second.committed_at == START + timedelta(seconds=2)
    assert third.positions == {"v": {"s": "3"}}


def test_replay_follows_a_view_loaded_anew(tmp_path: Path) -> None:
    """From the commit that brings a new generation in, its table and its own rows of the log count."""
    write_warehouse(tmp_path, {"v": [(1, "x")]}, [({"s": "1"}, {}), ({"s": "2"}, {"v": {(2, "y"): 1}})])
    write(
        tmp_path / "views" / "v", [{"a": 5, "b": "new"}], pa.schema([*ROW]), mode="overwrite", schema_mode="overwrite"
    )
    renewed = {"view": "v", "generation": 2, "from_commit": 3, "to_commit": None, "version": 1}
    write_deltalake(str(tmp_path / "definitions"), pa.Table.from_pylist([renewed]), mode="append")
    positions = pa.array([[("v", [("s", "3")])], [("v", [("s", "4")])], None], POSITIONS)
    rows = pa.array(
        [None, None, {"v_g1": None, "v_g2": {"a": 5, "b": "new"}}], pa.struct([("v_g1", ROW), ("v_g2", ROW)])
    )
    log = {
        "commit": [3, 4, 4],
        "positions": positions,
        "view": [None, None, "v"],
        "count": [None, None, 2],
        "rows": rows,
    }
    write_deltalake(str(tmp_path / "log"), pa.table(log), mode="append", schema_mode="merge")
    assert [state.views["v"] for state in states(tmp_path)] == [
        bag((1, "x")),
        bag((1, "x"), (2, "y")),
        bag((5, "new")),
        bag((5, "new"), (5, "new"), (5, "new")),
    ]


def test_replay_begins_where_retention_left_off(tmp_path: Path) -> None:
    """Commits before the oldest readable one are passed over, and the tables published with it are the beginning."""
    changes: list[Any] = [({"s": "1"}, {}), ({"s": "2"}, {"v": {(2, "y"): 1}}), ({"s": "3"}, {"v": {(1, "x"): -1}})]
    write_warehouse(tmp_path, {"v": [(1, "x")]}, changes)
    folded = [{"a": 1, "b": "x", "_copy": 1}, {"a": 2, "b": "y", "_copy": 1}]
    write(tmp_path / "views" / "v", folded, pa.schema([*ROW, ("_copy", pa.int64())]), mode="overwrite")
    views = pa.array([[("v", 1)]], pa.map_(pa.string(), pa.int64()))
    published = pa.table(
        {"commit": [2], "published_at": pa.array([START], pa.timestamp("us", tz="UTC")), "views": views}
    )
    write_deltalake(str(tmp_path / "published"), published, mode="append")
    DeltaTable(str(tmp_path / "published")).alter.set_table_properties(
        {"strobe.oldest": "2"}, raise_if_not_exists=False
    )
    assert [(state.commit, state.views["v"]) for state in states(tmp_path)] == [
        (2, bag((1, "x"), (2, "y"))),
        (3, bag((2, "y"))),
    ]


def test_replay_refuses_a_row_taken_away_that_is_not_there(tmp_path: Path) -> None:
    """A negative count is an error with the row's values, unless it is to be expected of the view."""
    write_warehouse(tmp_path, {"v": []}, [({"s": "1"}, {}), ({"s": "2"}, {"v": {(7, "x"): -1}})])
    with pytest.raises(BrokenInvariant, match=r"view v: commit 2 takes away .*'a': 7"):
        list(states(tmp_path))
    *_, last = states(tmp_path, tolerate={"v"})
    assert dict(last.views["v"].items()) == {(7, "x"): -1}


def test_replay_of_no_warehouse(tmp_path: Path) -> None:
    """A folder without a warehouse is said to be none."""
    with pytest.raises(UserError, match="cannot be read"):
        list(states(tmp_path))
