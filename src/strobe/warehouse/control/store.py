"""Small documents beside the tables, each under a name: all that lock, heartbeat, requests and notes are made of.

They have the permissions of their folder. Where that lets others write, nothing they put there can do harm: a document
counts only if it is a plain file, not too large, of the user who owns the folder (or of this one, or root), and what
its schema says. No link is followed and no pipe waited for, neither to read nor to write.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from strobe.data.private import FOLDER, SAFELY, user
from strobe.redaction import redacted
from strobe.warehouse.control.documents import LARGEST, Schema

Document = dict[str, Any]

Refused = Callable[[str, str], None]
"""Is told of a document that was refused: its name, and why."""


_MOST_TOLD = 1000


class Bad(OSError):
    """There is something under a document's name that is not to be read."""


class Malformed(Bad):
    """There is a document that does not say what its schema asks for."""


def unheard(name: str, why: str) -> None:
    """Nobody is told."""


class Once:
    """Tells of each document once."""

    def __init__(self, refused: Refused) -> None:
        self._refused = refused
        self._told: set[tuple[str, str]] = set()

    def __call__(self, name: str, why: str) -> None:
        if (name, why) not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add((name, why))
            self._refused(name, why)


class ControlStore:
    """Files in a folder. They work wherever the warehouse does, and need no port."""

    def __init__(self, folder: Path, refused: Refused = unheard) -> None:
        self.folder = folder
        self._refused = refused

    def put(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a document, atomically: whoever reads finds the old one or this one, never half of one."""
        with self._within(name, make=True) as (folder, file):
            draft = f".{file}.{secrets.token_hex(8)}"
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFELY, 0o600, dir_fd=folder)
            try:
                with os.fdopen(handle, "w") as text:
                    os.fchmod(handle, 0o600 | os.fstat(folder).st_mode & 0o044)
                    json.dump(redacted(dict(document)), text, default=lambda value: redacted(str(value)))
                _replace(draft, file, folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(draft, dir_fd=folder)
                raise

    def get(self, name: str, schema: Schema) -> Document | None:
        """None if there is none, or none that can be trusted."""
        try:
            return self.read(name, schema)
        except Bad as bad:
            self._refused(name, str(bad))
            return None

    def read(self, name: str, schema: Schema) -> Document | None:
        """None if there is none; `Bad` if there is something else."""
        try:
            with self._within(name) as (folder, file), open(_document(folder, file), "rb") as found:
                text = found.read(LARGEST + 1)
        except FileNotFoundError:
            return None
        except Bad:
            raise
        except OSError as error:
            raise Bad(error.strerror or str(error)) from None
        if len(text) > LARGEST:
            raise Malformed(f"it is larger than {LARGEST} bytes")
        try:
            checked: Document = schema.validate_python(json.loads(text))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(map(str, first["loc"][:3]))
            raise Malformed(f"{place + ': ' if place else ''}{first['msg']}"[:200]) from None
        except (ValueError, RecursionError):
            raise Malformed("it is not JSON") from None
        return checked

    def list(self, under: str, ending: str) -> list[str]:
        """The names in a part of the store that end like this, in order."""
        try:
            with self._within(f"{under}/*") as (folder, _):
                found = os.listdir(folder)  # noqa: PTH208  # a folder that is open has no path
        except OSError:
            return []
        return sorted(f"{under}/{file}" for file in found if file.endswith(ending) and not file.startswith("."))

    def age(self, name: str) -> float | None:
        """Seconds since a document was written; None if there is none."""
        try:
            with self._within(name) as (folder, file):
                return max(0.0, time.time() - os.stat(file, dir_fd=folder, follow_symlinks=False).st_mtime)
        except OSError:
            return None

    def delete(self, name: str) -> bool:
        """Whether it was there."""
        try:
            with self._within(name) as (folder, file):
                os.unlink(file, dir_fd=folder)
        except FileNotFoundError:
            return False
        return True

    def open(self, name: str) -> int:
        """A document that is changed where it is, open to read and write, and made if need be; `Bad` if there is
        something else."""
        with self._within(name, make=True) as (folder, file):
            try:
                return _plain(os.open(file, os.O_RDWR | os.O_CREAT | SAFELY, 0o600, dir_fd=folder), folder)
            except Bad:
                raise
            except OSError as error:
                raise Bad(error.strerror or str(error)) from None

    def refuse(self, name: str, why: str) -> None:
        """Say that there is something under this name which is no document, and put it out of the way."""
        self._refused(name, why)
        with suppress(OSError), self._within(name) as (folder, file):
            _set_aside(file, folder)

    @contextmanager
    def _within(self, name: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """The folder in which a document is, open, and its name there."""
        if make:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        under, _, file = name.rpartition("/")
        with _folder(self.folder) as folder:
            if not under:
                yield folder, file
                return
            if make:
                with suppress(FileExistsError):
                    os.mkdir(under, 0o700, dir_fd=folder)
                    os.chmod(under, 0o700 | os.fstat(folder).st_mode & 0o055, dir_fd=folder)
            with _folder(under, folder) as part:
                yield part, file


@contextmanager
def _folder(path: Path | str, under: int | None = None) -> Iterator[int]:
    folder = os.open(path, FOLDER, dir_fd=under)
    try:
        yield folder
    finally:
        os.close(folder)


def _document(folder: int, file: str) -> int:
    return _plain(os.open(file, os.O_RDONLY | SAFELY, dir_fd=folder), folder)


def _plain(handle: int, folder: int) -> int:
    """The file that is open, if it is a plain one, under one name, of somebody who may write here."""
    found = os.fstat(handle)
    why = ""
    if not stat.S_ISREG(found.st_mode):
        why = "it is not a plain file"
    elif found.st_uid not in (os.geteuid(), os.fstat(folder).st_uid, 0):
        why = f"it belongs to {user(found.st_uid)}"
    elif found.st_nlink > 1:
        why = "it has another name too"
    if why:
        os.close(handle)
        raise Bad(why)
    return handle


def _replace(draft: str, file: str, folder: int) -> None:
    try:
        os.replace(draft, file, src_dir_fd=folder, dst_dir_fd=folder)
    except IsADirectoryError:  # nothing of Strobe's
        _set_aside(file, folder)
        os.replace(draft, file, src_dir_fd=folder, dst_dir_fd=folder)


def _set_aside(file: str, folder: int) -> None:
    """Remove what is no document; a folder is only given a name that nobody looks for."""
    try:
        os.unlink(file, dir_fd=folder)
    except OSError:
        os.rename(file, f".{file}.{secrets.token_hex(8)}", src_dir_fd=folder, dst_dir_fd=folder)
