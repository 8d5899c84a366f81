"""Work that takes long, done in a thread of its own while the loop goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def aside(work: Callable[[], T], name: str) -> Generator[None, None, T]:
    """An errand that waits for it, returns what it returns and raises what it raises."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # raised in the loop
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    while not done.done():
        yield
    return done.result()
