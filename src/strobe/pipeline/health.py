"""What is wrong with the sources at the moment, and what single views wait for though their sources can be read: one
report for each, whoever saw it. May be told and asked from any thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum

from strobe.errors import StrobeError
from strobe.messages import Query


class Failing(Enum):
    """In what a source fails."""

    STREAM = "its transactions are read"
    QUERIES = "questions are answered"
    PROOFS = "its definitions are proven"


@dataclass(frozen=True)
class Wait:
    """Why a view makes no progress, and since when."""

    why: str
    since: datetime


@dataclass(frozen=True)
class Refused:
    """A question that a source does not answer for a reason of one table, while it answers others."""

    query: Query
    relation: str
    error: StrobeError
    since: datetime

    @property
    def wait(self) -> Wait:
        source = self.query.source
        return Wait(f"table {source}.{self.relation} cannot be asked: {self.error}", self.since)


class Health:
    """A source that fails in one way is failing until it succeeds in the same way: one whose log cannot be read does
    not recover by answering questions."""

    def __init__(self) -> None:
        self._problems: dict[str, dict[Failing, tuple[StrobeError, datetime]]] = {}
        self._refused: dict[tuple[str, int], Refused] = {}
        self._unproven: dict[str, Wait] = {}
        self._lock = threading.Lock()

    def failed(self, source: str, what: Failing, error: StrobeError) -> None:
        """The source itself: nothing is known of its tables any more."""
        with self._lock:
            found = self._problems.setdefault(source, {})
            found[what] = error, found[what][1] if what in found else _now()
            self._refused = {open_: r for open_, r in self._refused.items() if r.query.source != source}

    def succeeded(self, source: str, what: Failing) -> None:
        with self._lock:
            self._problems.get(source, {}).pop(what, None)

    def problem(self, source: str) -> StrobeError | None:
        """Why it cannot be read, or if it can why it cannot be asked."""
        found = self._problem(source)
        return None if found is None else found[0]

    def _problem(self, source: str) -> tuple[StrobeError, datetime] | None:
        with self._lock:
            found = self._problems.get(source, {})
            return next((found[what] for what in Failing if what in found), None)

    def refused(self, query: Query, relation: str, error: StrobeError) -> None:
        """A question could not be answered for a reason of one table."""
        with self._lock:
            before = self._refused.get((query.view, query.id))
            since = before.since if before is not None else _now()
            self._refused[query.view, query.id] = Refused(query, relation, error, since)

    def answered(self, query: Query) -> None:
        with self._lock:
            self._refused.pop((query.view, query.id), None)

    @property
    def refusals(self) -> Mapping[str, Refused]:
        """By view, the question of it that has not been answered for longest."""
        with self._lock:
            longest = sorted(self._refused.values(), key=lambda refused: refused.since, reverse=True)
        return {refused.query.view: refused for refused in longest}

    def refuses(self, source: str, relations: Iterable[str]) -> bool:
        """Whether questions to one of these tables are not answered at the moment."""
        with self._lock:
            found = {refused.relation for refused in self._refused.values() if refused.query.source == source}
        return not found.isdisjoint(relations)

    def unproven(self, views: Mapping[str, str]) -> None:
        """The views whose commits wait, and why; all others' do not."""
        with self._lock:
            before = self._unproven
            self._unproven = {
                view: before[view] if view in before and before[view].why == why else Wait(why, _now())
                for view, why in views.items()
            }

    def wait(self, view: str, sources: Iterable[str]) -> Wait | None:
        """Why a view of these sources makes no progress, if there is a reason."""
        refused = self.refusals.get(view)
        if refused is not None:
            return refused.wait
        failing = filter(None, map(self._problem, sources))
        for error, since in failing:
            return Wait(str(error), since)
        with self._lock:
            return self._unproven.get(view)


def _now() -> datetime:
    return datetime.now(timezone.utc)
