"""`${NAME}` and `${file:path}`: where the values of a project file come from that it must not hold itself.

What a reference may name is limited by an allow list outside the project, if there is one: `STROBE_ALLOW`, or else the
file `~/.config/strobe/allow`. A secret file has to be a plain file that others cannot read, by libpq's rule for keys.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path, PurePosixPath

from strobe.config.files import Unreadable, read_text

ALLOW = "STROBE_ALLOW"
_FILE = "file:"
_LONGEST = 64 * 1024
"""Bytes of a secret file; of a project's own text there may be more."""


class MissingError(Exception):
    """What is wrong with a reference, and what to do."""

    def __init__(self, message: str, fix: str) -> None:
        self.message, self.fix = message, fix


@dataclass(frozen=True)
class Allowed:
    """The references that a project may use: names of variables and `file:` paths, with `*` for any characters of a
    name."""

    patterns: tuple[str, ...]
    origin: str

    @staticmethod
    def here() -> Allowed | None:
        """The allow list of this user; None if there is none, and then a project may use any."""
        if ALLOW in os.environ:
            return Allowed(tuple(os.environ[ALLOW].split()), f"the environment variable {ALLOW}")
        file = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "strobe" / "allow"
        try:
            text = read_text(file, _LONGEST, written_by_others=False)
        except Unreadable as problem:
            if problem.missing:
                return None
            raise MissingError(f"the allow list {file} cannot be used: {problem}", problem.fix) from None
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        return Allowed(tuple(line for line in lines if line), str(file))

    def variable(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def file(self, path: Path, directory: Path) -> bool:
        """Whether a file may be read, wherever links lead; a pattern that is no absolute path begins at the project."""
        real = PurePosixPath(os.path.realpath(path))
        given = (pattern.removeprefix(_FILE) for pattern in self.patterns if pattern.startswith(_FILE))
        wanted = (PurePosixPath(escape(os.path.realpath(directory)), pattern) for pattern in given)
        return any(len(each.parts) == len(real.parts) and real.match(str(each)) for each in wanted)


@dataclass(frozen=True)
class References:
    """Looks references up for the project in a folder."""

    directory: Path
    allowed: Allowed | None

    def value(self, reference: str) -> str:
        return self._file(reference.removeprefix(_FILE)) if reference.startswith(_FILE) else self._variable(reference)

    def _variable(self, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise MissingError(
                f"${{{name}}} names nothing", "Write ${NAME} for an environment variable or ${file:path}."
            )
        if self.allowed and not self.allowed.variable(name):
            raise _not_allowed(name, self.allowed)
        if name not in os.environ:
            raise MissingError(f"the environment variable {name} is not set", f"Set {name} before you start Strobe.")
        return os.environ[name]

    def _file(self, written: str) -> str:
        path = self.directory / Path(written).expanduser()
        if self.allowed and not self.allowed.file(path, self.directory):
            raise _not_allowed(_FILE + written, self.allowed)
        try:
            return read_text(path, _LONGEST, read_by_others=False).rstrip("\r\n")
        except Unreadable as problem:
            fix = problem.fix or f"Put the secret into {written}."
            raise MissingError(f"the secret file {written} cannot be read: {problem}", fix) from None


def _not_allowed(reference: str, allowed: Allowed) -> MissingError:
    fix = f"Add {reference} to {allowed.origin} if you trust this project with it."
    return MissingError(f"${{{reference}}} is not on the allow list of {allowed.origin}", fix)
