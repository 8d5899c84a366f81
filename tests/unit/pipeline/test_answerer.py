"""Questions of several views to one source: pooled, answered in one snapshot, each row read once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

import pytest
from patience import PATIENCE, eventually

from strobe.algebra.bag import Bag, Row
from strobe.errors import SourceUnavailable
from strobe.messages import Answer, Lookup, Position, Query, Seen
from strobe.pipeline.answerer import Answerer
from strobe.pipeline.health import Health
from strobe.sources.base import Reader

ROWS = [(1, "a", 10), (2, "b", 20), (3, "c", 30)]
COLUMNS = ("id", "name", "price")


class Shelf(Reader):
    """A reader over three rows that can be made to wait, or to break."""

    def __init__(self, source: Shop) -> None:
        self._source = source

    def open(self) -> Seen:
        self._source.opened += 1
        self._source.busy.set()
        self._source.gate.wait(PATIENCE)
        if self._source.broken:
            self._source.broken -= 1
            raise SourceUnavailable("gone for a moment", where="source shop")
        return Seen(Position(str(self._source.opened), (self._source.opened,)))

    def lookup(self, lookup: Lookup, keys: Iterable[Row] | None) -> Iterator[Row]:
        if lookup.relation == "cursed" and not self._source.lifted.is_set():
            raise SourceUnavailable("statement timeout", where="source shop")
        if lookup.relation == "strange" and not self._source.lifted.is_set():
            int("no number, but a secret")
        self._source.read.append((lookup.on, keys is None))
        wanted = None if keys is None else set(keys)
        for row in ROWS:
            values = dict(zip(COLUMNS, row, strict=True))
            if wanted is None or tuple(values[c] for c in lookup.on) in wanted:
                yield tuple(values[c] for c in lookup.columns)

    def scan(self, relation: str, columns: Sequence[str]) -> Iterator[Row]:
        raise NotImplementedError

    def close(self) -> None: ...


class Shop:
    name = "shop"

    def __init__(self) -> None:
        self.opened = self.broken = 0
        self.read: list[tuple[tuple[str, ...], bool]] = []
        self.busy, self.gate = threading.Event(), threading.Event()
        self.lifted = threading.Event()
        """Set when the cursed table can be read."""

    def reader(self) -> Shelf:
        return Shelf(self)


class Asking:
    """An answerer whose connection is kept busy until all questions have been asked."""

    def __init__(self, connections: int = 1) -> None:
        self.shop = Shop()
        self.answers: list[Answer] = []
        self._arrived = threading.Semaphore(0)
        self.health = Health()
        self.answerer = Answerer(
            {"shop": self.shop},  # type: ignore[dict-item]  # all that the answerer needs of a source
            deliver=self._deliver,
            fail=self._fail,
            through_spark=lambda *_: self._fail(AssertionError("nothing here is large")),  # type: ignore[arg-type]
            from_copy=lambda *_: self._fail(AssertionError("there are no copies")),  # type: ignore[arg-type]
            evaluate="auto",
            most=100,
            health=self.health,
            connections=connections,
        )

    def ask(self, *lookups: Lookup, lost: int = 0) -> list[Answer]:
        """The first question is on its way when the others are asked; so many are never answered."""
        for number, lookup in enumerate(lookups):
            self.answerer.ask(Query(f"v{number}", 0, "shop", (lookup,)))
            self.shop.busy.wait(PATIENCE)
        self.shop.gate.set()
        for _ in lookups[lost:]:
            assert self._arrived.acquire(timeout=PATIENCE), "an answer is missing"
        self.answerer.stop()
        return self.answers

    def _deliver(self, answer: Answer) -> None:
        self.answers.append(answer)
        self._arrived.release()

    def _fail(self, error: BaseException) -> None:
        raise error


def by_id(columns: tuple[str, ...], *ids: int) -> Lookup:
    return Lookup(0, "goods", columns, ("id",), Bag.of(("id",), [(i,) for i in ids]))


def test_what_waits_is_answered_in_one_snapshot() -> None:
    """One snapshot for the question that found the source free, one for all that waited meanwhile."""
    asking = Asking()
    answers = asking.ask(by_id(("name",), 1), by_id(("name",), 2), by_id(("price", "id"), 3), by_id(("price",), 1))
    assert [dict(a.relations[0].items()) for a in answers] == [{("a",): 1}, {("b",): 1}, {(30, 3): 1}, {(10,): 1}]
    assert [a.seen.through.text for a in answers] == ["1", "2", "2", "2"]
    assert asking.answerer.asked["shop"].queries == 4
    assert asking.answerer.asked["shop"].snapshots == 2


def test_what_several_views_ask_for_is_read_once() -> None:
    """The same rows by the same keys, of which the views use different columns."""
    asking = Asking()
    answers = asking.ask(by_id(("id",), 1), by_id(("name",), 2, 3), by_id(("price",), 3, 2), by_id(("name",), 2))
    assert [len(a.relations[0]) for a in answers] == [1, 2, 2, 1]  # type: ignore[arg-type]  # bags
    assert dict(answers[2].relations[0].items()) == {(20,): 1, (30,): 1}  # type: ignore[attr-defined]
    assert len(asking.shop.read) == 3


def test_a_whole_relation_is_read_alone() -> None:
    """Nobody waits for a question that may take long in a snapshot that it shares."""
    asking = Asking()
    answers = asking.ask(by_id(("id",), 1), by_id(("id",), 2), Lookup(0, "goods", ("id",)), by_id(("id",), 3))
    assert [a.seen.through.text for a in answers] == ["1", "2", "3", "4"]


def test_after_a_failure_only_the_rest_is_asked_again() -> None:
    """A source that breaks is asked again, and every view gets its answer once."""
    asking = Asking()
    asking.shop.broken = 2
    answers = asking.ask(by_id(("id",), 1), by_id(("id",), 2), by_id(("id",), 3))
    assert sorted(a.view for a in answers) == ["v0", "v1", "v2"]
    assert asking.health.problem("shop") is None


@pytest.mark.parametrize(
    ("table", "why"),
    [("cursed", "source shop: statement timeout"), ("strange", "failed in a way that nobody expected: ValueError in")],
)
def test_a_table_that_does_not_answer_holds_up_no_question_of_another(table: str, why: str) -> None:
    """More questions fail than there are connections: the others are answered, the source is well, and each view that
    waits says for what. When the table answers, so are its questions."""
    asking = Asking(connections=2)
    cursed = [Lookup(0, table, ("id",), ("id",), Bag.of(("id",), [(i,)])) for i in (1, 2, 3, 1)]
    for number, lookup in enumerate(cursed):
        asking.answerer.ask(Query(f"c{number}", 0, "shop", (lookup,)))
    asking.shop.gate.set()
    eventually(lambda: len(asking.health.refusals) == 4)
    for number in range(6):
        asking.answerer.ask(Query(f"v{number}", 0, "shop", (by_id(("id",), 1),)))
    eventually(lambda: len(asking.answers) == 6)
    assert asking.health.problem("shop") is None and asking.health.wait("v0", ["shop"]) is None
    wait = asking.health.wait("c3", ["shop"])
    assert wait is not None and wait.why.startswith(f"table shop.{table} cannot be asked: source shop: ")
    assert why in wait.why and "secret" not in wait.why
    asking.shop.lifted.set()
    eventually(lambda: len(asking.answers) == 10)
    assert not asking.health.refusals
    asking.answerer.stop()


def test_a_question_that_fails_holds_up_no_other() -> None:
    """One view's question always runs into a timeout: those that were pooled with it are answered all the same."""
    asking = Asking(connections=2)
    cursed = Lookup(0, "cursed", ("id",), ("id",), Bag.of(("id",), [(1,)]))
    answers = asking.ask(by_id(("id",), 1), cursed, *(by_id(("id",), i % 3 + 1) for i in range(10)), lost=1)
    assert len(answers) == 11
