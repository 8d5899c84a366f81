"""A clock that jumps from one thing that is to happen to the next: hours pass in a moment, always in the same way."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """What is planned for one moment happens in the order in which it was planned."""
        self._count += 1
        heapq.heappush(self._planned, (self.now + seconds, self._count, do))

    def step(self) -> None:
        """To the next thing that happens."""
        self.now, _, do = heapq.heappop(self._planned)
        do()

    def run(self, until: float, enough: Callable[[], bool] = lambda: False) -> None:
        while self._planned and self._planned[0][0] <= until and not enough():
            self.step()
