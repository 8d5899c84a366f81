"""Folders and files of this user alone, wherever others could have made them first.

A folder at a name that can be guessed is made, or else looked at before anything in it is trusted: it is no link, it
belongs to this user (or to root, or to whom the caller names), and nobody else may write there. What is in such a
folder then needs no more care. Files that others may have put into a wider folder are opened so that a link leads
nowhere and a pipe does not block, and looked at when they are open.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from strobe.errors import UserError

WRITE = stat.S_IWGRP | stat.S_IWOTH
"""By others. Where each user has a group, as most systems have it, the group of this user's own folders is no other."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""No link is followed, no pipe is waited for, no child inherits it."""


def own_folder(path: Path, fix: str = "Move it away.") -> Path:
    """This folder, made if it is not there, and closed to all other users. `UserError` if it is any other folder."""
    parent = path.parent.stat()
    own_group = stat.S_IWGRP if (parent.st_uid, parent.st_gid) == (os.geteuid(), os.getegid()) else 0
    if parent.st_mode & WRITE & ~own_group and not parent.st_mode & stat.S_ISVTX:
        raise UserError("other users may replace what is in this folder", where=str(path.parent), fix=fix)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = look(path, fix)
    if found.st_uid != os.geteuid():
        raise UserError(f"this folder belongs to {user(found.st_uid)}", where=str(path), fix=fix)
    if mode := found.st_mode & 0o077:
        raise UserError(f"other users may enter this folder (mode {0o700 | mode:o})", where=str(path), fix=fix)
    return path


def look(path: Path, fix: str) -> os.stat_result:
    """Whose folder this is, and who may do what with it; `UserError` if it is a link or a file."""
    try:
        folder = os.open(path, FOLDER)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise UserError("this is a link or a file where a folder has to be", where=str(path), fix=fix) from None
    try:
        return os.fstat(folder)
    finally:
        os.close(folder)


def append_to(path: Path) -> int:
    """A log, open at its end, which this user alone can read if it is made now."""
    return _owned(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | SAFELY, 0o600), path)


def open_own(path: Path) -> int:
    """A file of this user's, open for reading; `OSError` for anything else that has its name."""
    return _owned(os.open(path, os.O_RDONLY | SAFELY), path)


def create(path: Path) -> int:
    """A new file for this user alone, open for writing; `FileExistsError` if anything has its name."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _owned(handle: int, path: Path) -> int:
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(handle)
        raise OSError(errno.EPERM, "this is not a file of this user", str(path))
    return handle


def user(number: int) -> str:
    """Who a user id is, for messages."""
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"
