"""Runs a service so that signals stop it cleanly.

The service works in a thread of its own: Spark takes Ctrl-C for itself where it is started in the main thread, and the
main thread stays free to hear signals at once. The first signal lets the commit at hand finish, folds and ends; the
second ends hard, which the next start recovers from. While Spark starts or views are being loaded nothing is at hand
that would have to be finished, so there the first signal ends at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from strobe.events import StopRequested

if TYPE_CHECKING:
    from strobe.coordinator.coordinator import Coordinator
    from strobe.coordinator.status import Reporter

_HARD = 130


def serve(coordinator: Coordinator, reporter: Reporter, work: Callable[[], None]) -> bool:
    """Do the service's work to its end; True if a signal ended it."""
    failed: list[BaseException] = []

    def attempt() -> None:
        try:
            work()
        except BaseException as error:  # told to the main thread
            failed.append(error)

    thread = threading.Thread(target=attempt, name="service", daemon=True)
    with _stopping(coordinator, reporter) as stopped:
        thread.start()
        at_work = False
        while thread.is_alive() and (at_work or not stopped.is_set()):
            at_work = at_work or coordinator.pipeline is not None
            thread.join(0.1)
    if failed:
        raise failed[0]
    return stopped.is_set()


@contextmanager
def _stopping(coordinator: Coordinator, reporter: Reporter) -> Iterator[threading.Event]:
    asked = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            os._exit(_HARD)
        asked.set()
        reporter.tell(StopRequested())
        coordinator.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
