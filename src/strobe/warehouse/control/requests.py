"""Requests to a running coordinator, as files in `<warehouse>/_strobe/requests`.

A command that needs the coordinator's help (an audit wants a commit at an exact vector, a rebuild wants a view swapped)
writes `<id>.request.json`; the coordinator answers in `<id>.reply.json`. Files work wherever the warehouse does, need
no port, and have the permissions of the warehouse.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from strobe.client.wait import hear
from strobe.errors import LostGuarantee, NotNow, StrobeError, UserError

Document = dict[str, Any]


def _folder(warehouse: Path) -> Path:
    return warehouse / "_strobe" / "requests"


def _write(path: Path, document: Document) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(document))
    temporary.replace(path)


def post(warehouse: Path, document: Document) -> str:
    """Ask the running coordinator for something; its reply will carry the number returned."""
    number = uuid.uuid4().hex
    _write(_folder(warehouse) / f"{number}.request.json", document)
    return number


def put_back(warehouse: Path, number: str, document: Document) -> None:
    """What was taken up is to be taken up again, by the next one who looks."""
    _write(_folder(warehouse) / f"{number}.request.json", document)


def request(
    warehouse: Path, document: Document, timeout: float, say: Callable[[str], None] = lambda _: None
) -> Document:
    """Ask the running coordinator for something and wait for its reply, which may be an error.

    `say` is told how far it is.
    """
    number = post(warehouse, document)
    progress, told = _folder(warehouse) / f"{number}.progress.json", ""
    asked = _folder(warehouse) / f"{number}.request.json"
    reply = _folder(warehouse) / f"{number}.reply.json"
    deadline = time.monotonic() + timeout
    next_look = time.monotonic() + 1.0
    try:
        while time.monotonic() < deadline:
            if reply.exists():
                found: Document = json.loads(reply.read_text())
                return _answered(found)
            if progress.exists():
                text = str(json.loads(progress.read_text())["text"])
                if text != told:
                    say(text)
                told = text
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + 1.0
                if not hear(warehouse).alive and not reply.exists():
                    raise NotNow("the coordinator ended before it answered", where=str(warehouse), fix="Try again.")
            time.sleep(0.05)
    finally:
        asked.unlink(missing_ok=True)
        reply.unlink(missing_ok=True)
        progress.unlink(missing_ok=True)
    raise NotNow(
        f"the coordinator did not answer within {timeout:.0f} s",
        where=str(warehouse),
        fix="Look at `strobe status`: it may be busy or have stopped.",
    )


def _answered(reply: Document) -> Document:
    """The reply, or the error that it carries."""
    if "error" not in reply:
        return reply
    error = reply["error"]
    kinds: dict[str, type[StrobeError]] = {kind.code: kind for kind in (UserError, LostGuarantee, NotNow)}
    kind = kinds.get(error["code"], StrobeError)
    raise kind(error["message"], where=error["where"], fix=error["fix"])


def requests(warehouse: Path) -> Iterator[tuple[str, Document]]:
    """What has been asked for and not been taken up yet; taking one removes it."""
    folder = _folder(warehouse)
    if not folder.is_dir():
        return
    for path in sorted(folder.glob("*.request.json")):
        try:
            document: Document = json.loads(path.read_text())
            path.unlink()
        except (OSError, ValueError):
            continue
        yield path.name.removesuffix(".request.json"), document


def reply(warehouse: Path, number: str, document: Document) -> None:
    _write(_folder(warehouse) / f"{number}.reply.json", document)


def tell(warehouse: Path, number: str, text: str) -> None:
    """Say how far a request is."""
    _write(_folder(warehouse) / f"{number}.progress.json", {"text": text})


def clear(warehouse: Path) -> None:
    """A new coordinator starts with an empty mailbox: what was asked of another one is asked again."""
    folder = _folder(warehouse)
    for path in folder.glob("*.json") if folder.is_dir() else ():
        path.unlink(missing_ok=True)
