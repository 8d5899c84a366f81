"""Conditions for Arrow leave out no row that has one of the keys, whatever a Delta table's log says of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from strobe.data.arrow import from_arrow, matching

VALUES: dict[str, list[Any]] = {"boolean": [True, False], "text": ["a", "b"], "number": [1, 2]}


@pytest.mark.parametrize("column", VALUES)
def test_a_log_that_knows_the_number_of_nulls_but_no_bounds(tmp_path: Path, column: str) -> None:
    """As Spark writes it for booleans, and for text that has no upper bound of 32 characters."""
    write_deltalake(tmp_path, pa.table(VALUES))
    without_bounds(tmp_path, column)
    rows = DeltaTable(tmp_path).to_pyarrow_dataset()
    for keys in ([(VALUES[column][0],)], [(value,) for value in VALUES[column]]):
        found = rows.to_table(columns=[column], filter=matching(rows, (column,), keys))
        assert sorted(from_arrow(found)) == sorted(keys)


@pytest.mark.parametrize("column", VALUES)
def test_null_is_found_by_statistics_and_without_them(tmp_path: Path, column: str) -> None:
    """In files with NULLs and values, with NULLs alone, and in one of which the log has no bounds; alone and among
    others. Files without NULL are left out."""
    whole = pa.table(VALUES)
    write_deltalake(tmp_path, whole)
    without_bounds(tmp_path, column)
    for values in ([VALUES[column][0], None], [None, None], VALUES[column]):
        others = {c: v for c, v in VALUES.items() if c != column}
        table = pa.table({**others, column: pa.array(values, whole[column].type)})
        write_deltalake(tmp_path, table, mode="append")
    rows = DeltaTable(tmp_path).to_pyarrow_dataset()
    for keys, count in (([(None,)], 3), ([(None,), (VALUES[column][0],)], 6)):
        found = rows.to_table(columns=[column], filter=matching(rows, (column,), keys))
        assert len(found) == count and set(from_arrow(found)) == set(keys)


def test_statistics_are_used_where_they_are_whole(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"number": [1]}))
    write_deltalake(tmp_path, pa.table({"number": [9]}), mode="append")
    write_deltalake(tmp_path, pa.table({"number": [5, None]}), mode="append")
    rows = DeltaTable(tmp_path).to_pyarrow_dataset()
    for keys in ([(9,)], [(None,)], [(None,), (5,)]):
        assert len(list(rows.get_fragments(filter=matching(rows, ("number",), keys)))) == 1


def without_bounds(table: Path, column: str) -> None:
    log = table / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    for added in (action["add"] for action in actions if "add" in action):
        stats = json.loads(added["stats"])
        assert stats["nullCount"][column] == 0
        del stats["minValues"][column], stats["maxValues"][column]
        added["stats"] = json.dumps(stats)
    log.write_text("".join(json.dumps(action) + "\n" for action in actions), encoding="utf-8")
