"""Work that takes long, done in a thread of its own while the loop goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator


def aside(work: Callable[[], object], name: str) -> Iterator[None]:
    """An errand that waits for it, and raises what it raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised in the loop
            errors.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    while thread.is_alive():
        yield
    if errors:
        raise errors[0]
