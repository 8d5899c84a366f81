"""The inbox rebuilds the order that the papers assume, from what each answer had seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worlds import VIEWS

from strobe.algebra.bag import Bag
from strobe.managers.base import Inbound, Outbound
from strobe.managers.inbox import Inbox
from strobe.messages import Answer, Position, Query, Seen, Transaction, Update


class Scribe:
    """A manager that writes down what it gets, and asks `y` a question about every update of `x`."""

    compensates = True

    def __init__(self) -> None:
        self.view = VIEWS["chain"]
        self.got: list[str] = []
        self.asked = 0

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]:
        out: list[Outbound] = []
        for message in messages:
            if isinstance(message, Update):
                self.got.append(f"{message.source}{message.transaction.position}")
                if message.source == "x":
                    out.append(Query("chain", self.asked, "y", ()))
                    self.asked += 1
            elif isinstance(message, Answer):
                self.got.append(f"answer {message.id}")
        return out


def at(n: int) -> Position:
    return Position(str(n), (n,))


def update(number: int, source: str, n: int) -> Update:
    return Update(number, Transaction(source, at(n), changes={"s": Bag(("b", "c"))}))


def answer(number: int, through: int) -> Answer:
    return Answer("chain", number, "y", (), Seen(at(through)))


def fresh() -> tuple[Scribe, Inbox]:
    scribe = Scribe()
    return scribe, Inbox(scribe, {"x": at(0), "y": at(0)})


def test_an_answer_waits_for_what_it_had_seen() -> None:
    """It overtook two updates that its snapshot had seen: they come first, and the one it had not seen comes after."""
    scribe, inbox = fresh()
    inbox.update(update(1, "x", 1))
    assert inbox.answer(answer(0, through=2)) == []
    for n in (1, 2, 3):
        inbox.update(update(n + 1, "y", n))
        inbox.progress("y", at(n))
    assert scribe.got == ["x1", "y1", "y2", "answer 0", "y3"]


def test_updates_after_the_snapshot_are_held_back() -> None:
    """An update that the open question's snapshot had not seen is delivered behind the answer."""
    scribe, inbox = fresh()
    inbox.update(update(1, "x", 1))
    inbox.update(update(2, "y", 1))
    inbox.progress("y", at(1))
    assert scribe.got == ["x1"]
    inbox.answer(answer(0, through=0))
    assert scribe.got == ["x1", "answer 0", "y1"]


def test_an_answer_that_has_not_seen_a_delivered_update_is_asked_again() -> None:
    """A log may deliver a commit before snapshots show it: believing such an answer would lose the commit."""
    scribe, inbox = fresh()
    inbox.update(update(1, "y", 1))
    inbox.progress("y", at(1))
    (question,) = inbox.update(update(2, "x", 1))
    assert inbox.answer(answer(0, through=0)) == [question]
    assert scribe.got == ["y1", "x1"]
    inbox.answer(answer(0, through=1))
    assert scribe.got == ["y1", "x1", "answer 0"]


def test_other_sources_are_not_held_back() -> None:
    """Only the asked source's updates wait for its answer."""
    scribe, inbox = fresh()
    inbox.update(update(1, "x", 1))
    inbox.update(update(2, "x", 2))
    assert scribe.got == ["x1", "x2"]


@dataclass(frozen=True)
class SawOnly(Seen):
    """A snapshot that saw some transactions and not others, whatever their order in the log."""

    numbers: frozenset[int] = frozenset()

    def saw(self, transaction: Transaction) -> bool:
        return transaction.position.order[0] in self.numbers


def test_a_snapshot_that_saw_a_later_update_without_an_earlier_one() -> None:
    """Both are delivered before the answer; which of them it had seen, the answer itself says."""
    scribe, inbox = fresh()
    inbox.update(update(1, "x", 1))
    inbox.answer(Answer("chain", 0, "y", (), SawOnly(at(2), frozenset({2}))))
    for n in (1, 2):
        inbox.update(update(n + 1, "y", n))
        inbox.progress("y", at(n))
    assert scribe.got == ["x1", "y1", "y2", "answer 0"]


def test_a_stale_answer_is_recognised_behind_two_that_are_not() -> None:
    """Three questions are open at once, evaluated in any order: what two answers have shown the third had not seen."""
    scribe, inbox = fresh()
    for number in (1, 2, 3):
        inbox.update(update(number, "x", number))
    inbox.update(update(4, "y", 1))
    inbox.progress("y", at(1))
    assert inbox.answer(answer(1, through=1)) == []
    assert inbox.answer(answer(2, through=1)) == []
    stale = inbox.answer(answer(0, through=0))
    assert [query.id for query in stale if isinstance(query, Query)] == [0], "it is asked again"
    assert scribe.got == ["x1", "x2", "x3", "y1", "answer 1", "answer 2"]
    assert inbox.answer(answer(0, through=1)) == []
    assert scribe.got[-1] == "answer 0"
