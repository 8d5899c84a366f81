"""A monitor: when it reads, and how it says that it cannot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from patience import PATIENCE, eventually

from strobe.errors import BrokenInvariant, LostGuarantee, SourceLost, SourceUnavailable
from strobe.messages import GlobalTransaction, Position, Transaction
from strobe.pipeline.health import Failing, Health
from strobe.pipeline.monitor import Monitor
from strobe.pipeline.states import Reading


def at(number: int) -> Position:
    return Position(str(number), (number,))


class Log:
    """A source with one transaction after another, up to where it is told."""

    name = "log"

    def __init__(self) -> None:
        self.end, self.down = 0, False
        self.broken: BaseException | None = None
        self.parts: dict[int, tuple[GlobalTransaction, ...]] = {}

    def transactions(
        self, after: Position, _stops: Sequence[Position], interrupted: Callable[[], bool]
    ) -> Iterator[Transaction]:
        position = after.order[0]
        while not interrupted():
            if self.down:
                raise SourceUnavailable("it is down")
            if self.broken is not None:
                raise self.broken
            if position < self.end:
                position += 1
                yield Transaction("log", at(position), part_of=self.parts.get(position, ()))
            else:
                time.sleep(0.001)


class Watch:
    """A monitor of such a source, and what it has delivered."""

    def __init__(self, fail: Callable[[BaseException], None] = lambda error: pytest.fail(str(error))) -> None:
        self.log, self.health = Log(), Health()
        self.room: Callable[[Position], bool] = lambda _: True
        self.come: list[int] = []
        source: Any = self.log
        self.monitor = Monitor(
            source,
            at(0),
            [],
            deliver=lambda transaction: self.come.append(transaction.position.order[0]),
            fail=fail,
            room=lambda position: self.room(position),
            health=self.health,
        )
        self.monitor.start()

    def reads_to(self, number: int) -> None:
        self.log.end = number
        eventually(lambda: len(self.come) == number)
        assert self.come == list(range(1, number + 1))

    def end(self) -> None:
        self.monitor.stop()
        self.monitor.join(PATIENCE)
        assert self.monitor not in threading.enumerate()


def test_a_pause_a_position_and_on() -> None:
    """Paused, it delivers nothing; sent to a position it stops exactly there; then it reads on."""
    watch = Watch()
    monitor = watch.monitor
    watch.reads_to(3)
    assert monitor.state is Reading.READING and not monitor.paused
    monitor.pause()
    assert monitor.paused
    eventually(lambda: monitor.at_rest)
    watch.log.end = 9
    time.sleep(0.1)  # it would have read them by now
    assert watch.come == [1, 2, 3]
    monitor.pause()
    assert monitor.at_rest, "it is at rest already"
    monitor.hold_at(at(6))
    assert monitor.state in (Reading.READING_TO, Reading.AT)
    eventually(lambda: monitor.holds)
    assert monitor.state is Reading.AT and monitor.paused and watch.come == [1, 2, 3, 4, 5, 6]
    monitor.resume()
    watch.reads_to(9)
    assert not monitor.holds
    watch.end()


def test_a_position_where_it_is_already() -> None:
    watch = Watch()
    watch.reads_to(2)
    watch.monitor.pause()
    eventually(lambda: watch.monitor.at_rest)
    watch.monitor.hold_at(at(2))
    eventually(lambda: watch.monitor.holds)
    watch.monitor.resume()
    watch.reads_to(4)
    watch.end()


def test_up_to_the_part_of_a_global_transaction() -> None:
    """It stops right behind the first of those that are missing; the next one is looked for from there."""
    watch = Watch()
    for number, name in ((4, "other"), (6, "g"), (8, "h")):
        watch.log.parts[number] = (GlobalTransaction(name, frozenset({"log", "elsewhere"})),)
    watch.reads_to(2)
    watch.monitor.pause()
    eventually(lambda: watch.monitor.at_rest)
    watch.log.end = 10
    watch.monitor.hold_behind({"h", "g"})
    eventually(lambda: watch.monitor.at_rest)
    assert watch.come[-1] == 6 and watch.monitor.state is Reading.AT
    watch.monitor.hold_behind({"h"})
    eventually(lambda: watch.monitor.at_rest)
    assert watch.come[-1] == 8 and watch.monitor.position == at(8)
    watch.monitor.resume()
    eventually(lambda: len(watch.come) == 10)
    watch.end()


def test_a_pause_that_is_over_before_it_has_begun() -> None:
    """It may be resumed in any state, and reads on."""
    watch = Watch()
    watch.log.down = True
    watch.monitor.pause()
    watch.monitor.resume()
    watch.log.down = False
    watch.reads_to(2)
    watch.end()


def test_nothing_is_read_to_a_position_that_was_not_paused_before() -> None:
    """It might be past it."""
    watch = Watch()
    with pytest.raises(BrokenInvariant, match="a monitor is READING"):
        watch.monitor.hold_at(at(1))
    watch.end()


def test_a_source_that_cannot_be_read() -> None:
    """The report is one and the same for whoever reads and whoever asks; each takes back only its own."""
    watch = Watch()
    watch.log.down = True
    eventually(lambda: watch.health.problem("log") is not None)
    asked = SourceUnavailable("a question took too long")
    watch.health.failed("log", Failing.QUERIES, asked)
    watch.health.succeeded("log", Failing.QUERIES)
    assert str(watch.health.problem("log")) == "it is down"
    watch.health.failed("log", Failing.QUERIES, asked)
    watch.log.down = False
    watch.reads_to(1)
    eventually(lambda: watch.health.problem("log") is asked)
    watch.health.succeeded("log", Failing.QUERIES)
    assert watch.health.problem("log") is None and watch.health.problem("other") is None
    watch.end()


class Panic(BaseException):
    """As libraries raise that are written in Rust."""


@pytest.mark.parametrize("error", [ValueError("row 7: secret"), MemoryError(), RecursionError(), KeyError(3), Panic()])
def test_whatever_goes_wrong_in_a_source_is_its_own_problem(error: BaseException) -> None:
    """It is reported by its kind and place, without values, and read again from where it was; the run goes on."""
    watch = Watch()
    watch.reads_to(2)
    watch.log.broken = error
    eventually(lambda: watch.health.problem("log") is not None)
    problem = watch.health.problem("log")
    assert isinstance(problem, SourceUnavailable) and type(error).__name__ in str(problem)
    assert "source log" in str(problem) and "secret" not in str(problem)
    watch.log.broken = None
    watch.reads_to(4)
    assert watch.health.problem("log") is None
    watch.end()


def test_a_guarantee_that_a_source_has_lost_is_lost_to_its_views_alone() -> None:
    failed: list[BaseException] = []
    watch = Watch(failed.append)
    watch.log.broken = LostGuarantee("it is another log", fix="Rebuild.")
    eventually(lambda: bool(failed))
    assert isinstance(failed[0], SourceLost) and failed[0].source == "log" and failed[0].fix == "Rebuild."
    watch.end()


def test_what_goes_wrong_in_strobe_itself_ends_the_run() -> None:
    """Nothing that depends on it may be committed."""
    failed: list[BaseException] = []
    watch = Watch(failed.append)
    watch.room = lambda _: 1 / 0  # type: ignore[assignment,return-value]
    watch.log.end = 1
    eventually(lambda: bool(failed))
    assert isinstance(failed[0], ZeroDivisionError)
    watch.end()
