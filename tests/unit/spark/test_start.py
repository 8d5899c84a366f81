"""How a JVM is started, as far as that needs none."""

from __future__ import annotations

import threading

from strobe.spark.session import starting_alone


def test_one_jvm_starts_at_a_time() -> None:
    """Two that fetch Spark's packages into one cache at the same moment would make each other's start fail."""
    inside, most = 0, 0
    count = threading.Lock()

    def start() -> None:
        nonlocal inside, most
        with starting_alone():
            with count:
                inside, most = inside + 1, max(most, inside + 1)
            threading.Event().wait(0.01)
            with count:
                inside -= 1

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
