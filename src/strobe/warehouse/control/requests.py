"""Requests to a running coordinator, as documents in `requests`.

A command that needs the coordinator's help (an audit wants a commit at an exact vector, a rebuild wants a view swapped)
writes `<number>.request.json`; the coordinator answers in `<number>.reply.json`, and says in `<number>.progress.json`
how far it is.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from strobe.errors import NotNow, UserError, raised
from strobe.warehouse.control.documents import PROGRESS, REPLY, REQUEST
from strobe.warehouse.control.heartbeat import hear
from strobe.warehouse.control.store import Bad, ControlStore, Document, Malformed
from strobe.warehouse.control.wakeup import wake

_FOLDER, _REQUEST = "requests", ".request.json"
_AT_A_TIME = 100


def _request(number: str) -> str:
    return f"{_FOLDER}/{number}{_REQUEST}"


def _reply(number: str) -> str:
    return f"{_FOLDER}/{number}.reply.json"


def _progress(number: str) -> str:
    return f"{_FOLDER}/{number}.progress.json"


def post(store: ControlStore, document: Document) -> str:
    """Ask the running coordinator for something; its reply will carry the number returned."""
    number = uuid.uuid4().hex
    store.put(_request(number), document)
    wake(store)
    return number


def put_back(store: ControlStore, number: str, document: Document) -> None:
    """What was taken up is to be taken up again, by the next one who looks."""
    with suppress(OSError):
        store.put(_request(number), document)


def request(
    store: ControlStore, document: Document, timeout: float, say: Callable[[Document], None] = lambda _: None
) -> Document:
    """Ask the running coordinator for something and wait for its reply, which may be an error.

    `say` is told how far it is: a `text`, or `rows` by source, each as how many were read and of about how many.
    """
    number, told = post(store, document), None
    where = str(store.folder.parent)
    deadline = time.monotonic() + timeout
    next_look = time.monotonic() + 1.0
    try:
        while time.monotonic() < deadline:
            found = store.get(_reply(number), REPLY)
            if found is not None:
                return _answered(found)
            progress = store.get(_progress(number), PROGRESS)
            if progress is not None and progress != told:
                say(progress)
                told = progress
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + 1.0
                if not hear(store).alive and store.get(_reply(number), REPLY) is None:
                    raise NotNow("the coordinator ended before it answered", where=where, fix="Try again.")
            time.sleep(0.05)
    finally:
        for name in (_request(number), _reply(number), _progress(number)):
            store.delete(name)
    raise NotNow(
        f"the coordinator did not answer within {timeout:.0f} s",
        where=where,
        fix="Look at `strobe status`: it may be busy or have stopped.",
    )


def _answered(reply: Document) -> Document:
    """The reply, or the error that it carries."""
    if "error" not in reply:
        return reply
    raise raised(reply["error"])


def requests(store: ControlStore) -> Iterator[tuple[str, Document]]:
    """What has been asked for and not been taken up yet; taking one removes it. What is no request is put out of the
    way, and whoever has written it is answered."""
    for name in store.list(_FOLDER, _REQUEST)[:_AT_A_TIME]:
        number = name.removeprefix(f"{_FOLDER}/").removesuffix(_REQUEST)
        try:
            document = store.read(name, REQUEST)
        except Bad as bad:
            store.refuse(name, str(bad))
            if isinstance(bad, Malformed):
                reply(store, number, UserError(f"this is no request: {bad}").document())
            continue
        if document is not None and _taken(store, name):
            yield number, document


def _taken(store: ControlStore, name: str) -> bool:
    """Whether it is ours to answer; not if whoever asks has a folder that we may not write to."""
    try:
        return store.delete(name)
    except OSError:
        return False


def reply(store: ControlStore, number: str, document: Document) -> None:
    """Answer; where that cannot be written, whoever asked gives up after a while."""
    with suppress(OSError):
        store.put(_reply(number), document)


def tell(store: ControlStore, number: str, text: str) -> None:
    """Say how far a request is."""
    with suppress(OSError):
        store.put(_progress(number), {"text": text})


def tell_rows(store: ControlStore, number: str, rows: Mapping[str, tuple[int, int | None]]) -> None:
    """Say how far the loading of a request is."""
    with suppress(OSError):
        store.put(_progress(number), {"rows": {source: list(read) for source, read in rows.items()}})


def clear(store: ControlStore) -> None:
    """A new coordinator starts with no requests: what was asked of another one is asked again."""
    for name in store.list(_FOLDER, ".json"):
        with suppress(OSError):
            store.delete(name)
