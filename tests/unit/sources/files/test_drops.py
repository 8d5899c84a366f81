"""Drops before Spark sees them: which ones wait, and what they have to be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strobe.errors import UserError
from strobe.sources.files.drops import Drop, columns_of, copy_whole, require_columns, waiting_drops


def put(path: Path, content: str = "a,b\n1,2\n", second: int = 1_700_000_000) -> Path:
    path.write_text(content)
    os.utime(path, (second, second))
    return path


def test_one_file_waits_whenever_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    assert waiting_drops(str(path), None) == []
    (drop,) = waiting_drops(str(put(path)), None)
    assert waiting_drops(str(path), drop.identity) == []
    put(path, second=1_700_000_001)
    assert waiting_drops(str(path), drop.identity) == [Drop.of(path)]


def test_a_file_that_looks_the_same_waits_all_the_same(tmp_path: Path) -> None:
    """Another content of the same size, with the time of modification set back; written over, or put in its place."""
    path, other = tmp_path / "p.csv", tmp_path / "other"
    drop = Drop.of(put(path))
    put(path, "a,b\n3,4\n")
    assert waiting_drops(str(path), drop.identity) == [Drop.of(path)]
    drop = Drop.of(path)
    put(other, "a,b\n5,6\n").rename(path)
    assert waiting_drops(str(path), drop.identity) == [Drop.of(path)]


def test_several_files_wait_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Those after the last one; it again, if it has changed since. Hidden files never do."""
    for name in ("c.csv", "a.csv", "b.csv", ".d.csv"):
        put(tmp_path / name)
    pattern = str(tmp_path / "*.csv")
    assert [drop.path.name for drop in waiting_drops(pattern, None)] == ["a.csv", "b.csv", "c.csv"]
    last = Drop.of(tmp_path / "b.csv").identity
    assert [drop.path.name for drop in waiting_drops(pattern, last)] == ["c.csv"]
    put(tmp_path / "b.csv", second=1_700_000_009)
    assert [drop.path.name for drop in waiting_drops(pattern, last)] == ["b.csv", "c.csv"]


@pytest.mark.parametrize(
    ("format_", "content", "columns"),
    [("csv", '\ufeffa,"b c"\n1,2\n', ["a", "b c"]), ("jsonl", '{"a": 1, "b c": null}\n', ["a", "b c"])],
)
def test_text_has_columns_without_types(tmp_path: Path, format_: str, content: str, columns: list[str]) -> None:
    path = put(tmp_path / "p", content)
    assert columns_of(path, format_, path) == dict.fromkeys(columns, "string")
    require_columns(columns, columns, path)
    with pytest.raises(UserError, match="'x' is missing"):
        require_columns(["x"], columns, path)


@pytest.mark.parametrize(
    ("content", "message"), [(b"a\n\xff\n", "not UTF-8"), (b'a,b\n"1,2\n', "never closed"), (b"a,b\n1,2\n", "")]
)
def test_a_copy_is_whole_text(tmp_path: Path, content: bytes, message: str) -> None:
    path, copy = tmp_path / "p.csv", tmp_path / "copies" / "p"
    path.write_bytes(content)
    if message:
        with pytest.raises(UserError, match=message):
            copy_whole(Drop.of(path), copy, "csv")
    else:
        copy_whole(Drop.of(path), copy, "csv")
        assert copy.read_bytes() == content


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_a_first_record_without_an_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    """However large the file is, and however deep the record."""
    monkeypatch.setattr("strobe.sources.files.drops.LONGEST", 1000)
    path = put(tmp_path / "p", '{"a": "' + "x," * 1000)
    with pytest.raises(UserError, match="more than 1,000 bytes"):
        columns_of(path, format_, path)
    monkeypatch.undo()
    if format_ == "jsonl":
        with pytest.raises(UserError, match="no JSON"):
            columns_of(put(path, '{"a":' + "[" * 200_000), format_, path)
