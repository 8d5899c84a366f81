"""Answers that have seen more than has been taken in, until they can be used.

An answer that has come too early waits until the log of its source has been read up to everything that it had seen.
What of that cannot be taken in now is read ahead, and the answer brought back by it (see `read_ahead`). One that cannot
be brought back waits until all of it has been taken in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from strobe.messages import Answer, Position, Query
from strobe.pipeline.read_ahead import ReadAhead


class EarlyAnswers:
    def __init__(self, ahead: Mapping[str, ReadAhead], floors: Mapping[str, Mapping[str, Position]]) -> None:
        """`floors` is what each view reflected of each source at the start: its manager knows nothing of the updates
        before that, so an answer must show them."""
        self._ahead, self._floors = ahead, floors
        self._asked: dict[tuple[str, int], tuple[Query, int]] = {}
        """Open questions, each with what had been shown of the log read ahead when it was asked."""
        self._waiting: list[Answer] = []
        self.wanted: dict[str, Position] = {}
        """Up to where sources must be read for answers that wait."""
        self.needed: dict[str, Position] = {}
        """Up to where they must be taken in for those that cannot be brought back."""

    def asked(self, query: Query) -> None:
        """From any thread, before it can be answered."""
        self._asked[query.view, query.id] = query, self._ahead[query.source].shown

    def add(self, answer: Answer) -> None:
        self._waiting.append(answer)

    def usable(self, come: Mapping[str, Position]) -> Iterator[Answer]:
        """Those that managers can be given now that the sources have been taken in up to `come`."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        self.wanted = {}
        needed: dict[str, Position] = {}
        for answer in waiting:
            source, through = answer.source, answer.seen.through
            query, since = self._asked.get((answer.view, answer.id), (None, 0))
            found: Answer | None = answer
            if query is not None and not query.at_home and not through <= come[source]:
                found = self._brought_back(query, answer, come[source], since)
            if found is not None:
                self._asked.pop((answer.view, answer.id), None)
                yield found
                continue
            self._waiting.append(answer)
            self.wanted[source] = _later(self.wanted.get(source, through), through)
            ahead = self._ahead[source].position
            if ahead is not None and through <= ahead:
                needed[source] = _later(needed.get(source, through), through)
        self.needed = needed

    def _brought_back(self, query: Query, answer: Answer, come: Position, since: int) -> Answer | None:
        ahead = self._ahead[answer.source]
        read = ahead.position is not None and answer.seen.through <= ahead.position
        if not read or come < self._floors[answer.view][answer.source]:
            return None
        needed = self.needed.get(answer.source)
        if needed is not None and answer.seen.through <= needed:
            return None  # it could not be before, and what it needs is being taken in
        return ahead.brought_back(query, answer, come, since)


def _later(one: Position, other: Position) -> Position:
    return max(one, other, key=lambda position: position.order)
