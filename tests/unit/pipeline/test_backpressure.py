"""One budget for all that is in memory."""

from __future__ import annotations

from datetime import datetime, timezone

from strobe.algebra.bag import Bag
from strobe.messages import ActionList, Answer, Position, Seen, Transaction, WarehouseTransaction
from strobe.pipeline.backpressure import Backpressure, Limits

AT = [Position(str(n), (n,)) for n in range(10)]
TWO = Bag.of(("n",), [(1,), (2,)])


class World:
    """What a run would report."""

    def __init__(self, limits: Limits) -> None:
        self.backlog = self.queued = self.appends = self.ahead = self.burden = 0
        self.budget = Backpressure(
            limits,
            backlog=lambda: self.backlog,
            queued=lambda: self.queued,
            appends=lambda: self.appends,
            ahead=lambda _source: self.ahead,
            burden=lambda source: self.burden if source == "a" else 0,
        )

    def room(self, source: str = "a", position: Position = AT[0]) -> bool:
        return self.budget.room(source, position)

    def may_read(self, source: str = "a", position: Position = AT[0]) -> bool:
        return self.budget.may_read(source, position)


def test_rows_of_every_kind_are_counted_until_they_are_not_needed() -> None:
    """Of transactions until they are committed, of answers until all is that had come in by then, of action lists until
    they are."""
    budget = World(Limits()).budget
    budget.arrived(Transaction("a", AT[1], changes={"t": TWO}, committed_at=datetime.now(timezone.utc)))
    budget.arrived(Transaction("b", AT[2], gone={"t": TWO}))
    assert budget.rows == 4
    budget.answered(Answer("v", 1, "a", (TWO, TWO), Seen(AT[1])), {"a", "b"})
    assert budget.rows == 8
    budget.arrived(Transaction("a", AT[3]))
    budget.submitted(WarehouseTransaction((1,), (ActionList("v", (1,), TWO),), {"a": AT[1]}))
    assert budget.rows == 10
    budget.committed(lambda source: AT[1])
    assert budget.rows == 6, "b's transaction, and the answer, which it may be needed for"
    budget.committed(lambda source: AT[2])
    assert budget.rows == 0


def test_updates_hold_sources_back_at_the_limit() -> None:
    world = World(Limits(updates=3, queued=2))
    assert world.room() and world.may_read()
    world.backlog = 3
    assert not world.room() and not world.may_read()
    world.backlog, world.queued = 2, 1
    assert world.room() and world.may_read()
    world.queued = 2
    assert not world.may_read(), "the loop has enough to do"


def test_where_every_update_is_a_burden_fewer_come_in() -> None:
    world = World(Limits(burdened=2))
    world.backlog, world.burden = 2, 1
    assert world.room()
    world.burden = 2
    assert not world.room() and not world.may_read() and world.room("b")


def test_rows_hold_sources_back_only_where_some_will_go_by_themselves() -> None:
    world = World(Limits(rows=2))
    world.budget.arrived(Transaction("a", AT[1], changes={"t": TWO}))
    world.budget.look({}, {}, ())
    assert world.room(), "they wait for the end of their block"
    for waiting in ("backlog", "appends"):
        setattr(world, waiting, 1)
        world.budget.look({}, {}, ())
        assert not world.room()
        setattr(world, waiting, 0)
    world.appends = 1
    world.budget.look({}, {}, {"b"})
    assert world.room(), "rows wait for a part of a global transaction"
    world.budget.look({}, {}, ())
    world.budget.committed(lambda source: AT[1])
    world.budget.look({}, {}, ())
    assert world.room()


def test_what_is_waited_for_always_comes_in() -> None:
    """For an answer that can be brought back, it is read; for one that cannot, and for a part of a global transaction,
    it is taken in, too."""
    world = World(Limits(updates=1))
    world.backlog = 5
    world.budget.look({"a": AT[3]}, {"a": AT[2]}, {"b"})
    assert world.may_read("a", AT[2]) and not world.may_read("a", AT[3])
    assert world.room("a", AT[1]) and not world.room("a", AT[2])
    assert world.may_read("b", AT[9]) and world.room("b", AT[9])
    assert not world.may_read("c") and not world.room("c")


def test_what_was_read_ahead_is_taken_in_before_more_is_read() -> None:
    world = World(Limits())
    world.ahead = 1
    assert world.room() and not world.may_read()


def test_a_long_text_counts_as_many_rows() -> None:
    budget = World(Limits()).budget
    budget.arrived(Transaction("a", AT[1], changes={"t": Bag.of(("n", "text"), [(1, "x" * 10_000), (2, None)])}))
    assert budget.rows == 2 + 10_000 // 500
    budget.committed(lambda source: AT[1])
    assert budget.rows == 0
