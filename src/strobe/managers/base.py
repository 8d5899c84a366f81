"""What a view manager is: a pure state machine for one view.

Messages in, messages out; no clock, no thread, no randomness, no Spark. The live pipeline and the simulator drive the
very same objects. A manager is handed everything that is there for it at once, in order, and then decides what to do,
so that it never starts a batch before it has seen all that arrived together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from strobe.algebra.relation import Relation
from strobe.algebra.view import View
from strobe.messages import ActionList, Answer, Cut, Immutable, Lookup, Query, Update

Inbound = Update | Cut | Answer
Outbound = Query | ActionList


@dataclass(frozen=True)
class QueryTerm(Immutable):
    """A term of an open query: rows in the place of the known occurrences, which a source is to join with others."""

    known: tuple[int, ...]
    rows: Relation
    lookups: tuple[Lookup, ...]
    first: int = 0
    """Which of the query's look-ups is the first of these."""


class ViewManager(Protocol):
    view: View
    compensates: bool
    """Whether it takes answers that saw a later update without an earlier one, and sets each right by itself."""

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]: ...

    def describe(self) -> dict[str, Any]:
        """What it has in mind, for people to look at, in the words of its paper.

        `UQS`, the unanswered queries, has the terms (`QueryTerm`) of each by its number; `pending` the key-deletes;
        `COLLECT`, `AL` or `Δ` the action lists that are being made; `queue` the updates received and not taken up.
        """
        ...
