"""Folders at names that can be guessed: only this user's own are used."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from strobe.data import private
from strobe.data.scratch import user_folder
from strobe.errors import UserError

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to another user")


def link(path: Path) -> None:
    path.with_name("elsewhere").mkdir(mode=0o700)
    path.symlink_to("elsewhere")


def wide(path: Path) -> None:
    path.mkdir()
    path.chmod(0o770)


def foreign(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, NOBODY, -1)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (link, "this is a link or a file"),
        (Path.touch, "this is a link or a file"),
        (wide, r"other users may enter this folder \(mode 770\)"),
        pytest.param(foreign, "this folder belongs to user ", marks=AS_ROOT),
    ],
)
def test_what_another_user_could_have_put_there_is_refused(
    own_tmp: Path, made: Callable[[Path], None], why: str
) -> None:
    """By its name, and with what to do, instead of what Spark is given being put into it."""
    folder = own_tmp / f"strobe-{os.geteuid()}"
    made(folder)
    with pytest.raises(UserError, match=f"{re.escape(str(folder))}: {why}[^$]*TMPDIR") as refused:
        user_folder()
    assert refused.value.exit_code == 2


def test_a_folder_in_which_others_may_replace_things_is_refused(own_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sticky bit, as /tmp has it, keeps them from doing so."""
    shared = own_tmp / "shared"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    shared.chmod(0o777)
    with pytest.raises(UserError, match=f"{shared}: other users may replace"):
        user_folder()
    for mode in (0o1777, 0o775):  # by a umask of 002 a group is its user's own
        shared.chmod(mode)
        assert user_folder() == user_folder() == shared / f"strobe-{os.geteuid()}"


def test_modes_do_not_depend_on_the_umask(own_tmp: Path) -> None:
    before = os.umask(0)
    try:
        found = private.own_folder(own_tmp / "folder")
        os.close(private.create(found / "new"))
        os.close(private.append_to(found / "log"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in found.iterdir()} == {0o600}


def test_a_log_follows_no_link_and_waits_for_no_pipe(own_tmp: Path) -> None:
    (own_tmp / "link").symlink_to(own_tmp / "target")
    os.mkfifo(own_tmp / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=name):
            private.append_to(own_tmp / name)
    with pytest.raises(OSError, match="not a file of this user"):
        private.open_own(own_tmp / "pipe")
    assert not (own_tmp / "target").exists()
