"""The size of a batch follows from what appends took."""

from __future__ import annotations

from strobe.pipeline.batching import LONGEST, MOST, TIMES, Batching


def taught(fixed: float, each: float, sizes: list[int]) -> Batching:
    batching = Batching()
    for size in sizes:
        batching.took(size, fixed + each * size)
    return batching


def test_what_waits_is_taken_as_long_as_appends_are_short() -> None:
    """At the start, and where transactions cost nothing, there is no bound but the largest."""
    assert Batching().size == MOST
    assert taught(0.5, 0.0, [1, 5, 20]).size == MOST
    assert taught(0.5, 0.1, [7, 7, 7]).size == MOST  # nothing tells the two parts apart


def test_costly_transactions_make_small_batches() -> None:
    """An append stays within its bound, or within a few times its fixed part where that alone is long."""
    assert taught(0.5, 0.1, [9, 1, 2]).size in (14, 15)  # 0.5 s + 15 × 0.1 s = LONGEST
    assert taught(3.0, 0.5, [1, 4, 2]).size in (17, 18)  # (TIMES - 1) × 3 s
    assert taught(0.1, 50.0, [1, 2, 3]).size == 1
    assert LONGEST == 2.0 and TIMES == 4


def test_the_newest_appends_count_most() -> None:
    """When a warehouse gets slower, batches get smaller within a few appends."""
    batching = taught(0.2, 0.01, [1, 10, 100] * 5)
    before = batching.size
    for size in [5, 50, 20, 80, 10, 40]:
        batching.took(size, 0.2 + 0.1 * size)
    assert batching.size < before / 2


def test_one_slow_append_does_not_keep_batches_small() -> None:
    """A stall looks as if transactions were costly; a few short appends show that they are not."""
    batching = Batching()
    for size, seconds in ((3, 4.0), (1, 0.25)):
        batching.took(size, seconds)
    appends, waiting = 0, 1000
    while waiting:
        size = min(waiting, batching.size)
        batching.took(size, 0.25 + size / 1000)
        waiting, appends = waiting - size, appends + 1
    assert appends < 12
