"""A view's worker gives its manager room for what it joins, anew with every message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any

import pytest
from patience import PATIENCE, eventually

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.room import Room
from strobe.managers.inbox import Inbox
from strobe.messages import Answer, Departed, GlobalTransaction, Position, Query, Seen, Transaction, Update
from strobe.pipeline.view_worker import ViewWorker

ROWS = Bag.of(["a"], [(1,), (2,), (3,)])


class Elsewhere(Bag):
    """Has no limit."""

    def join(self, other: Relation, on: Sequence[tuple[str, str]]) -> Relation:
        return super().join(Bag(other.attributes, dict(other.collect().items())), on)


class Squares:
    """A manager that joins what it is given with itself, and asks one question."""

    compensates = True

    class view:  # noqa: N801  # all that the inbox and the worker need of it
        name = "v"
        occurrences = ()

    def __init__(self) -> None:
        self.given: list[Any] = []

    def receive(self, messages: Sequence[Any]) -> list[Query]:
        for message in messages:
            relations = message.relations if isinstance(message, Answer) else message.transaction.changes.values()
            for rows in relations:
                rows.join(rows.rename({"a": "b"}), [])
        first = not self.given
        self.given += messages
        return [Query("v", 0, "s", ())] if first else []


@pytest.mark.parametrize(("rows", "lifts"), [(9, 0), (8, 3)])
def test_a_manager_has_room_for_the_joins_of_every_message(rows: int, lifts: int) -> None:
    """As much as there is for one is there for the next; beyond it joins go elsewhere, of updates and of answers."""
    lifted: list[Bag] = []

    def lift(bag: Bag) -> Relation:
        lifted.append(bag)
        return Elsewhere(bag.attributes, dict(bag.items()))

    update = Update(
        7,
        Transaction(
            *("s", Position("1", (1,)), datetime(2026, 1, 1, tzinfo=timezone.utc)),
            *((GlobalTransaction("g", frozenset({"s"})),), 5, {"r": ROWS}, {"q": ROWS}, {"r": (Departed("gone"),)}),
        ),
    )
    assert all(getattr(update.transaction, field.name) for field in fields(Transaction))
    manager, failed = Squares(), list[BaseException]()
    worker = ViewWorker(
        Inbox(manager, {"s": Position("0", (0,))}),  # type: ignore[arg-type]
        Room(rows, lift),
        send=lambda _: None,
        fail=failed.append,
        changed=lambda: None,
    )
    worker.update(update)
    worker.progress("s", update.transaction.position)
    worker.answer(Answer("v", 0, "s", (ROWS,), Seen(update.transaction.position)))
    worker.update(update)
    worker.start()
    eventually(lambda: failed or len(manager.given) == 3)
    worker.stop()
    worker.join(PATIENCE)
    assert failed == [] and len(lifted) == lifts
    assert [message for message in manager.given if isinstance(message, Update)] == [update, update]
