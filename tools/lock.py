"""Writes the hashes of all files that may be installed into the lock files.

    python tools/lock.py            # of the versions that requirements.lock and requirements-build.lock name

The versions are what the files say already (CONTRIBUTING.md, "Dependencies", says how they come to be). The hashes are
the index's own, of every wheel for a supported Python on Linux and macOS, and of the source; pip installs nothing else
with `--require-hashes`. The index is the one that `PIP_INDEX_URL` names, or PyPI.
"""

from __future__ import annotations

import os
import re
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

ROOT = Path(__file__).parent.parent
LOCKS = (ROOT / "requirements.lock", ROOT / "requirements-build.lock")
PYTHONS = ("310", "311", "312", "313")
PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)\s*(?:;\s*(?P<marker>[^\\]*[^\\\s]))?\s*\\?")


class _Links(HTMLParser):
    """The files of a project as the index lists them: (name, SHA-256)."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href") or ""
        found = re.search(r"([^/#]+)#sha256=([0-9a-f]{64})", address)
        if tag == "a" and found:
            self.files.append((found[1], found[2]))


def main() -> int:
    for lock in LOCKS:
        lines = lock.read_text(encoding="utf-8").splitlines()
        head = [line for line in lines if line.startswith("#")]
        pins = list(pinned(lines))
        with ThreadPoolExecutor(4) as pool:
            hashes = list(pool.map(lambda pin: fetch(pin[0], pin[1]), pins))
        blocks = [block(*pin, found) for pin, found in zip(pins, hashes, strict=True)]
        lock.write_text("\n".join([*head, *blocks]) + "\n", encoding="utf-8")
        print(f"{lock.name}: {len(pins)} packages, {sum(map(len, hashes))} files")
    return 0


def pinned(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Name, version and marker of each package in a lock."""
    for line in lines:
        found = PINNED.fullmatch(line.strip())
        if found and not line.startswith(("#", " ")):
            yield found["name"], found["version"], found["marker"] or ""


def block(name: str, version: str, marker: str, hashes: list[str]) -> str:
    if not hashes:
        raise SystemExit(f"the index has no file of {name} {version} that a supported Python could use")
    head = f"{name}=={version}{f'; {marker}' if marker else ''}"
    return " \\\n".join([head, *(f"    --hash=sha256:{each}" for each in hashes)])


def fetch(name: str, version: str) -> list[str]:
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    links = _Links()
    with urllib.request.urlopen(f"{index}/{canonicalize_name(name)}/", timeout=60) as answer:
        links.feed(answer.read().decode())
    return sorted({digest for file, digest in links.files if usable(file, version)})


def usable(file: str, version: str) -> bool:
    """Whether a file is this version's, and something that a supported Python could be asked to install."""
    try:
        if not file.endswith(".whl"):
            return str(parse_sdist_filename(file)[1]) == version
        _, found, _, tags = parse_wheel_filename(file)
    except (InvalidSdistFilename, InvalidWheelFilename):
        return False
    return str(found) == version and any(
        _fits(tag.interpreter, tag.abi) and not tag.platform.startswith(("win", "ios", "android")) for tag in tags
    )


def _fits(interpreter: str, abi: str) -> bool:
    if interpreter in ("py3", *(f"cp{each}" for each in PYTHONS)):
        return not abi.endswith("t")  # the free-threaded builds are others
    minor = re.fullmatch(r"cp3(\d+)", interpreter)
    return abi == "abi3" and minor is not None and int(minor[1]) <= max(int(each[1:]) for each in PYTHONS)


if __name__ == "__main__":
    sys.exit(main())
