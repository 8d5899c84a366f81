"""How many warehouse transactions share an append (BWT; multiple view consistency, 4.3): from what appends took so far.

An append costs something whatever is in it (a Spark job, a Delta commit) and something for every transaction. Both are
estimated from the appends so far, the newest counting most. Under a long queue the next append takes as many
transactions as keep its fixed part small and do not make readers wait much longer than a small one would; where the
queue is shorter it takes them all.
"""

from __future__ import annotations

MOST = 1000
"""Transactions in one append, at the most."""

FORGET = 0.8
"""What an append counts less with every later one."""

LONGEST = 2.0
"""Seconds that an append may take, or `TIMES` its fixed part if that is longer."""

TIMES = 4


class Batching:
    def __init__(self) -> None:
        self._sums: tuple[float, ...] = (0.0,) * 5
        self._proven = 0
        """How many transactions the last append held, if it was short enough."""

    def took(self, transactions: int, seconds: float) -> None:
        """An append of so many transactions took so long."""
        n = float(transactions)
        self._proven = transactions if seconds < LONGEST else 0
        latest = (1.0, n, n * n, seconds, n * seconds)
        self._sums = tuple(FORGET * old + new for old, new in zip(self._sums, latest, strict=True))

    @property
    def size(self) -> int:
        """How many transactions the next append should hold at the most.

        Twice as many as the last one, if that was short: one slow append must not keep batches small for long.
        """
        fixed, each = self._estimates()
        if each <= 0:
            return MOST
        estimated = int((max(LONGEST, TIMES * fixed) - fixed) / each)
        return min(MOST, max(1, estimated, 2 * self._proven))

    def _estimates(self) -> tuple[float, float]:
        """The fixed seconds of an append and those for each transaction, by least squares."""
        weight, n, nn, s, ns = self._sums
        spread = weight * nn - n * n
        if spread <= 1e-9 * nn:
            return 0.0, 0.0  # nothing to tell the two apart by
        each = (weight * ns - n * s) / spread
        return max(0.0, (s - each * n) / weight), max(0.0, each)
