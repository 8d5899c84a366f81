"""Temporary files have one owner: what is leased goes when it is released, when its scratch is closed, or when the next
process starts."""

from __future__ import annotations

from pathlib import Path

from strobe.data.scratch import JOINING, READS, SPILLED, Lease, Scratch


def filled(lease: Lease) -> Path:
    lease.folder.mkdir(parents=True)
    (lease.folder / "file").write_text("rows")
    return lease.folder


def test_a_lease_ends_once_and_takes_no_other_with_it(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    one, other = scratch.lease(SPILLED), scratch.lease(SPILLED)
    first, second = filled(one), filled(other)
    one.release()
    one.release()
    assert not first.exists() and second.exists()


def test_closing_releases_what_is_left(tmp_path: Path) -> None:
    """Of this one, not of another over the same folder."""
    scratch, beside = Scratch(tmp_path), Scratch(tmp_path)
    folders = [filled(scratch.lease(kind)) for kind in (SPILLED, READS)]
    kept = filled(beside.lease(READS))
    scratch.lease(READS)  # and nothing written
    scratch.close()
    scratch.close()
    assert not any(folder.exists() for folder in folders) and kept.exists()


def test_a_start_sweeps_away_what_another_process_left(tmp_path: Path) -> None:
    """But what is staged for good stays."""
    for kind in (SPILLED, READS, JOINING):
        filled(Scratch(tmp_path).lease(kind))
    (tmp_path / "files").mkdir()
    Scratch(tmp_path).sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["files"]
