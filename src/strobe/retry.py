"""How often, and after which waits, Strobe tries again: every policy by name, and the one way to carry them out.

A policy is bounded by attempts, by seconds, or by nothing: then it is tried for as long as the process runs. What is
not here is not tried again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

UNBOUNDED = 2**62


@dataclass(frozen=True)
class Policy:
    waits: tuple[float, ...] = (0.0,)
    """Seconds to wait after the first failure in a row, after the second, …; the last one counts for all others."""
    attempts: int = UNBOUNDED
    """In a row, the first one included."""
    seconds: float = float("inf")
    """After the first attempt: nothing is tried again that fails later."""
    jitter: bool = False
    """Waits are random, up to these."""

    def wait(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row."""
        longest = self.waits[min(failures, len(self.waits)) - 1]
        return random.uniform(0, longest) if self.jitter else longest

    def exhausted(self, failures: int) -> bool:
        """Whether this many failures in a row are enough."""
        return failures >= self.attempts


def doubling(first: float, longest: float) -> tuple[float, ...]:
    waits = [first]
    while waits[-1] < longest:
        waits.append(min(2 * waits[-1], longest))
    return tuple(waits)


def growing(step: float, attempts: int) -> tuple[float, ...]:
    """`step`, twice, three times as long, …"""
    return tuple(step * n for n in range(1, attempts))


# Sources, by everybody.

READ_SOURCE = Policy(doubling(0.1, 10.0))
"""A source whose transactions cannot be read is read again from where it was."""

ASK_SOURCE = Policy(doubling(0.1, 10.0))
"""A question that a source did not answer is asked again."""

AUDIT = Policy((0.0, 0.1), attempts=3)
"""A part of a view whose rows change while they are read, in a way that cannot be taken back, is read again."""

LOAD_SOURCE = Policy(growing(1.0, 4), attempts=4)
"""A source whose connection breaks while views are loaded is read again, all of it."""

PROBE = Policy((2.0,))
"""Whether a source that is down is back."""

VERIFY = Policy(doubling(60.0, 3600.0))
"""Whether a source that was lost is the old one again: less often each time that it seemed so, since it may have been
lost by something that verifying does not find."""

# The run.

APPEND = Policy(growing(1.0, 5), attempts=5)
"""Appends with an unknown outcome, without a commit in between, before the run ends."""

START_SPARK = Policy(attempts=3)
"""Times that Spark may end, without a commit in between, before the run does."""

FENCE = Policy(attempts=50)
"""To fence off a coordinator that is committing meanwhile."""

# Views that come and change.

REBUILD = Policy((30.0,))
"""Views that are rebuilt unasked."""

REBUILD_WITHIN_LIMIT = Policy(attempts=3)
"""Rebuilds in whose course a source reaches its limit of log again."""

CATCH_UP = Policy(attempts=5)
"""How often new views come to where the others are, before they join however far behind they are."""

# PostgreSQL.

PG_SLOT_IN_USE = Policy((0.05,), seconds=10.0)
"""A connection that broke may not have been noticed by the server yet: then its slot is still in use."""

PG_DROP_SLOT = Policy((0.1,), attempts=50)
"""To drop a slot, whose last reader may need a moment to end."""

PG_FLUSH = Policy((0.002,) * 5 + (0.02,), attempts=200)
"""Looks whether the server has flushed its log."""

PG_EXACT_SNAPSHOT = Policy(growing(0.01, 21), attempts=20)
"""To find a snapshot that is a state of the log."""

PG_VISIBLE = Policy(doubling(0.0005, 0.1))
"""Looks whether a transaction that is in the log is visible."""

PG_WRITERS = Policy((0.1,), seconds=60.0)
"""Looks whether transactions have ended that wrote to a table before it was published."""

# MySQL.

MYSQL_SETTLE = Policy(doubling(0.0002, 0.05), seconds=5.0)
"""Looks whether commits that are on their way are visible."""

MYSQL_PLACE = Policy((0.01,), seconds=10.0, jitter=True)
"""To find a snapshot whose place in the log can be told."""


class Retry:
    """Attempts at one thing, in a row."""

    def __init__(
        self,
        policy: Policy,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sleep` returns true if the process is to stop instead of trying again, as `Event.wait` does."""
        self._policy, self._sleep, self._clock = policy, sleep, clock
        self._until = clock() + policy.seconds
        self.failures = 0

    def reset(self) -> None:
        """It has succeeded."""
        self.failures = 0

    def again(self) -> bool:
        """After a failure: wait; False if it is not to be tried again."""
        self.failures += 1
        if self._policy.exhausted(self.failures) or self._clock() > self._until:
            return False
        return not self._sleep(self._policy.wait(self.failures))
