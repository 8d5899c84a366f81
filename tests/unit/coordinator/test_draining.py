"""How far a backlog has been committed, and when that will be done."""

from __future__ import annotations

from collections.abc import Iterable

from strobe.coordinator.draining import WINDOW, Course, Draining, Sample


def course(samples: Iterable[tuple[float, int, int]]) -> Draining | None:
    found = Course("bytes of log")
    for sample in samples:
        found.add(Sample(*sample))
    return found.now


def test_what_is_left_divided_by_the_rate() -> None:
    found = course([(0.0, 0, 1000), (10.0, 250, 750)])
    assert found == Draining(25.0, 750, "bytes of log", 25.0, 30.0)


def test_a_log_that_grows_meanwhile_takes_longer() -> None:
    found = course([(0.0, 0, 1000), (10.0, 250, 900)])
    assert found is not None and (found.per_second, found.seconds) == (25.0, 90.0)


def test_nobody_knows_when_a_log_is_caught_up_that_grows_faster() -> None:
    found = course([(0.0, 0, 1000), (10.0, 250, 1100)])
    assert found is not None and found.seconds is None


def test_only_the_last_moments_count_for_the_rate() -> None:
    slow = [(float(n), n, 100_000 - n) for n in range(100)]
    fast = [(100.0 + n, 1000 * (n + 1), 100_000 - 1000 * (n + 1)) for n in range(int(WINDOW) + 2)]
    found = course([*slow, *fast])
    assert found is not None and found.per_second == 1000.0


def test_little_is_not_worth_telling() -> None:
    assert course([]) is None
    assert course([(0.0, 0, 1000)]) is None, "no rate yet"
    assert course([(0.0, 0, 1000), (10.0, 1000, 0)]) is None
    assert course([(0.0, 0, 1000), (10.0, 900, 100)]) is None, "done in a second"
