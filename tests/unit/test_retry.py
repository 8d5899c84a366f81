"""How often and after which waits things are tried again: these decide how long an outage is borne."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strobe import retry
from strobe.apply import load
from strobe.errors import SourceUnavailable
from strobe.retry import UNBOUNDED, Policy, Retry

FOR_EVER = (UNBOUNDED, float("inf"))

POLICIES = {
    "READ_SOURCE": (*FOR_EVER, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]),
    "ASK_SOURCE": (*FOR_EVER, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]),
    "AUDIT": (3, float("inf"), [0.0, 0.1]),
    "LOAD_SOURCE": (4, float("inf"), [1, 2, 3]),
    "PROBE": (*FOR_EVER, [2.0, 2.0]),
    "VERIFY": (*FOR_EVER, [60, 120, 240, 480, 960, 1920, 3600, 3600]),
    "APPEND": (5, float("inf"), [1, 2, 3, 4]),
    "START_SPARK": (3, float("inf"), [0, 0]),
    "FENCE": (50, float("inf"), [0, 0]),
    "REBUILD": (*FOR_EVER, [30.0, 30.0]),
    "REBUILD_WITHIN_LIMIT": (3, float("inf"), [0, 0]),
    "CATCH_UP": (5, float("inf"), [0, 0]),
    "PG_SLOT_IN_USE": (UNBOUNDED, 10.0, [0.05, 0.05]),
    "PG_DROP_SLOT": (50, float("inf"), [0.1, 0.1]),
    "PG_FLUSH": (200, float("inf"), [0.002, 0.002, 0.002, 0.002, 0.002, 0.02, 0.02]),
    "PG_EXACT_SNAPSHOT": (20, float("inf"), [0.01, 0.02, 0.03, 0.04, 0.05]),
    "PG_VISIBLE": (*FOR_EVER, [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.1, 0.1]),
    "PG_WRITERS": (UNBOUNDED, 60.0, [0.1, 0.1]),
    "MYSQL_SETTLE": (UNBOUNDED, 5.0, [0.0002, 0.0004, 0.0008, 0.0016, 0.0032, 0.0064, 0.0128, 0.0256, 0.05, 0.05]),
    "MYSQL_PLACE": (UNBOUNDED, 10.0, [0.01, 0.01]),
}


class Clock:
    """Time passes only by waiting."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return False

    def now(self) -> float:
        return sum(self.waits)


def test_every_policy_is_pinned() -> None:
    named = {name: policy for name, policy in vars(retry).items() if isinstance(policy, Policy)}
    assert named.keys() == POLICIES.keys()
    for name, (attempts, seconds, waits) in POLICIES.items():
        policy = replace(named[name], jitter=False)
        assert (policy.attempts, policy.seconds) == (attempts, seconds), name
        assert [policy.wait(failures) for failures in range(1, len(waits) + 1)] == pytest.approx(waits), name


def test_waits_start_again_after_a_success() -> None:
    clock = Clock()
    attempts = Retry(retry.READ_SOURCE, clock.sleep, clock.now)
    assert all(attempts.again() for _ in range(9))
    assert clock.waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0])
    attempts.reset()
    attempts.again()
    assert clock.waits[-1] == pytest.approx(0.1)


def test_attempts_end_by_number_by_time_and_when_the_process_does() -> None:
    clock = Clock()
    three = Retry(Policy((1.0,), attempts=3), clock.sleep, clock.now)
    assert [three.again() for _ in range(3)] == [True, True, False]
    seconds = Retry(Policy((1.0,), seconds=1.5), clock.sleep, clock.now)
    assert [seconds.again() for _ in range(3)] == [True, True, False]
    assert not Retry(retry.READ_SOURCE, lambda _: True).again()


def test_jitter_waits_at_most_as_long() -> None:
    waits = {Policy((0.5,), jitter=True).wait(1) for _ in range(20)}
    assert len(waits) > 1 and all(0 <= wait <= 0.5 for wait in waits)


def test_a_load_reads_a_source_four_times() -> None:
    clock, reads = Clock(), list[int]()

    def read() -> None:
        reads.append(1)
        raise SourceUnavailable("gone")

    with pytest.raises(SourceUnavailable):
        load.read_again(read, Retry(retry.LOAD_SOURCE, clock.sleep, clock.now))  # type: ignore[arg-type]
    assert (len(reads), clock.waits) == (4, [1, 2, 3])
