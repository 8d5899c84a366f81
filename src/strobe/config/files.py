"""Reads the small text files that a project consists of, whatever lies in their place: only plain files, only up to a
size, and on demand only those that other users cannot read or write."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path


class Unreadable(Exception):
    """Why a file cannot be read or must not be."""

    def __init__(self, reason: str, fix: str = "", *, missing: bool = False) -> None:
        super().__init__(reason)
        self.fix = fix
        self.missing = missing


def read_text(file: Path, most: int, *, read_by_others: bool = True, written_by_others: bool = True) -> str:
    """A file's text, of at most so many bytes; `Unreadable` if it is anything but a plain file of UTF-8 text."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        raise Unreadable("No such file or directory", missing=True) from None
    except OSError as error:
        raise Unreadable(error.strerror or "it cannot be opened") from None
    except ValueError:  # a NUL in the name, or half of a character
        raise Unreadable("it is not the name of a file") from None
    try:
        _check(os.fstat(handle), file, most, read_by_others, written_by_others)
        with os.fdopen(handle, "rb", closefd=False) as opened:
            content = opened.read(most + 1)
    finally:
        os.close(handle)
    if len(content) > most:
        raise Unreadable(f"it has more than {most:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable("it is not UTF-8 text") from None


def _check(found: os.stat_result, file: Path, most: int, read_by_others: bool, written_by_others: bool) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise Unreadable("Is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise Unreadable("it is not a plain file")
    if found.st_size > most:
        raise Unreadable(f"it has more than {most:,} bytes")
    if read_by_others and written_by_others:
        return
    own = os.geteuid()
    if found.st_uid not in (0, own):
        raise Unreadable("it belongs to another user", f"Run: chown {own} {shlex.quote(str(file))}")
    # As libpq has it for keys: a file of root's may be readable by a group.
    forbidden, what, change = (0o077 if found.st_uid == own else 0o027, "open to", "600")
    if read_by_others:
        forbidden, what, change = (0o022, "writable by", "go-w")
    if found.st_mode & forbidden:
        mode = stat.S_IMODE(found.st_mode)
        raise Unreadable(f"it is {what} other users (mode {mode:04o})", f"Run: chmod {change} {shlex.quote(str(file))}")
