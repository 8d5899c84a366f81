"""Views whose questions a table does not answer, while its source answers others: after a while they are detached, and
the others go on. No threads, no clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from strobe.pipeline.health import Refused


class Refusals:
    def __init__(self) -> None:
        self.detached: dict[str, Refused] = {}
        """By view, the question that was not answered."""
        self._since: dict[str, float] = {}

    def begin(self, views: Collection[str]) -> None:
        """A run begins, and only these views are what they were."""
        self.detached = {name: refused for name, refused in self.detached.items() if name in views}
        self._since = {}

    def late(self, now: float, seen: Mapping[str, Refused], views: Collection[str], patience: float) -> list[str]:
        """Which of the `views` that are kept to detach: a table has not answered them for long, or not at all and
        others are detached because of it. None if no view would be left."""
        self._since = {name: self._since.get(name, now) for name in seen}
        known = {_table(refused) for refused in self.detached.values()}
        late = [name for name in seen if now - self._since[name] > patience or _table(seen[name]) in known]
        return late if set(views) - set(late) else []

    def detach(self, refused: Mapping[str, Refused]) -> None:
        self.detached |= refused

    def answered(self, views: Collection[str]) -> None:
        """These need not wait any more."""
        self.detached = {name: refused for name, refused in self.detached.items() if name not in views}


def _table(refused: Refused) -> tuple[str, str]:
    return refused.query.source, refused.relation
