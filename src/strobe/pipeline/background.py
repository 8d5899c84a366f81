"""Work that takes long, done in a thread of its own while the loop goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begin(work: Callable[[], T], name: str) -> Future[T]:
    """Done as soon as the work is, with what it returned or raised."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # raised where the result is asked for
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


def aside(work: Callable[[], T], name: str) -> Generator[None, None, T]:
    """An operation that waits for it, returns what it returns and raises what it raises."""
    done = begin(work, name)
    while not done.done():
        yield
    return done.result()
