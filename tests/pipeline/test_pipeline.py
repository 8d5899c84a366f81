"""The live pipeline over real SQLite databases under concurrent writers, with a warehouse in memory: no JVM."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timezone
from itertools import cycle
from pathlib import Path

import memory_live
import pytest
from committing import MemorySink, no_spark
from memory_live import PROJECT, Audits, MemoryWarehouse, compare, contents, opened, run
from patience import PATIENCE, Writing, eventually

from strobe.algebra.bag import Bag
from strobe.engine.engine import Submit
from strobe.errors import CommitUnknown, Fenced, SourceLost, StrobeError, UserError
from strobe.managers.base import Inbound, Outbound
from strobe.managers.sweep import Sweep
from strobe.messages import (
    Answer,
    Commit,
    CommitHeader,
    Cut,
    GlobalTransaction,
    Message,
    Position,
    Seen,
    Transaction,
)
from strobe.pipeline import committer
from strobe.pipeline.backpressure import Limits
from strobe.pipeline.pipeline import Pipeline
from strobe.pipeline.run_end import Failure, Stopped
from strobe.pipeline.states import Committing
from strobe.planning.topology import Topology

NEVER = 3600.0
"""Seconds after which a loop takes a turn by itself, which no test waits for."""


def project(folder: Path, level: str = "complete") -> Topology:
    return opened(folder, PROJECT.replace("consistency: complete", f"consistency: {level}"))


@pytest.mark.parametrize(
    ("level", "commit_seconds", "ahead"),
    [("complete", 0.0, ""), ("strong", 0.3, ""), ("strong", 0.0, "pairs"), ("complete", 0.1, "twice")],
)
def test_every_commit_is_a_state_of_the_sources(tmp_path: Path, level: str, commit_seconds: float, ahead: str) -> None:
    """Real threads, real databases, real interleavings: each commit equals a recomputation at its positions."""
    topology = project(tmp_path, level)
    warehouse, past, states = run(topology, tmp_path, seconds=1.2, commit_seconds=commit_seconds, ahead=ahead)
    assert len(warehouse.commits) > 5
    compare(topology, warehouse, past, states)


def test_views_next_to_a_complete_one_are_kept_at_complete(tmp_path: Path) -> None:
    """A strong view's batches would make a complete one that shares a source skip states."""
    levels = {name: planned.level for name, planned in project(tmp_path).views.items()}
    assert levels == {"paid": "complete", "pairs": "complete", "twice": "complete"}


@pytest.mark.parametrize("level", ["strong", "complete"])
def test_audits_under_load_get_exactly_their_vector(tmp_path: Path, level: str) -> None:
    """One audit after the other while everybody writes: each gets a commit at the vector that it read, nobody waits."""
    topology, audits = project(tmp_path, level), Audits()
    warehouse, past, states = run(
        topology, tmp_path, seconds=1.5, commit_seconds=0.02, audits=audits, enough=lambda _: len(audits) > 3
    )
    assert len(audits) > 3
    for vector, positions in audits:
        for reflected in positions.values():
            assert reflected == {source: vector[source] for source in reflected}
    compare(topology, warehouse, past, states)


def _each_with_itself(views: Mapping[str, str], order: str, pace: str = "") -> str:
    """A project with views that join a table with itself."""
    lines = (
        f"  {name}: {{sql: 'SELECT a.* FROM {table} a JOIN {table} b ON a.id = b.id', {pace}freshness: 20ms}}\n"
        for name, table in views.items()
    )
    return PROJECT.partition("views:")[0] + order + "views:\n" + "".join(lines)


@pytest.mark.parametrize(("order", "pace"), [("source", ""), ("source", "every: 2, "), ("views", "")])
def test_audits_of_several_groups_and_blocks(tmp_path: Path, order: str, pace: str) -> None:
    """Cuts that are made behind the barrier, of complete-N or of another group, do not keep an audit waiting."""
    views = {"one": "sales.orders", "other": "billing.payments", "third": "sales.customers"}
    topology, audits = opened(tmp_path, _each_with_itself(views, f"order: {order}\n", pace)), Audits()
    warehouse, past, states = run(
        topology, tmp_path, seconds=1.5, commit_seconds=0.02, audits=audits, enough=lambda _: len(audits) > 3
    )
    assert len(audits) > 3
    for vector, positions in audits:
        for reflected in positions.values():
            assert reflected == {source: vector[source] for source in reflected}
    compare(topology, warehouse, past, states)


def test_a_block_that_is_larger_than_the_table_ends(tmp_path: Path) -> None:
    """Rows that only wait for the end of their block do not keep its other rows out."""
    text = PROJECT.replace("consistency: complete", "every: 20")
    topology = opened(tmp_path, text)
    warehouse, past, states = run(
        topology,
        tmp_path,
        seconds=1,
        commit_seconds=0.02,
        enough=lambda w: len(w.commits) > 2,
        step=0.1,
        limits=Limits(updates=3),
    )
    assert len(warehouse.commits) > 2
    compare(topology, warehouse, past, states)


def test_a_full_table_does_not_stand_still(tmp_path: Path) -> None:
    """The bound on the view-update table never keeps back what an answer waits for: else neither would ever move."""
    topology = project(tmp_path, "strong")
    warehouse, past, states = run(topology, tmp_path, seconds=1.2, commit_seconds=0.05, limits=Limits(updates=3))
    compare(topology, warehouse, past, states)


def not_run(
    topology: Topology,
    limits: Limits = Limits(),  # noqa: B008  # frozen
    record: Callable[[Message], None] = lambda _: None,
) -> Pipeline:
    """A pipeline that starts from what the sources hold, and stays there."""
    start = {name: contents(topology, name)[0] for name in topology.sources}
    last = CommitHeader(
        1, datetime.now(timezone.utc), {v: {s: start[s] for s in p.view.sources} for v, p in topology.views.items()}
    )
    return Pipeline(topology, MemorySink(), last, through_spark=no_spark, limits=limits, record=record)


def test_what_comes_while_sources_are_asked_for_their_end_is_waited_for(tmp_path: Path) -> None:
    """A transaction that was read in that moment has been read, and is not in the warehouse yet."""
    topology = project(tmp_path)
    pipeline = not_run(topology)
    assert pipeline.idle()
    with closing(sqlite3.connect(tmp_path / "sales.db")) as connection, connection:
        connection.execute("DELETE FROM orders")
    source, monitor = topology.sources["sales"], pipeline.monitors["sales"]
    now = source.now

    def meanwhile() -> Position:
        pipeline.deliver(Transaction("sales", now()))
        monitor.position = now()
        return now()

    source.now = meanwhile  # type: ignore[method-assign]
    assert not pipeline.idle()


def test_a_full_table_takes_in_the_part_that_its_rows_wait_for(tmp_path: Path) -> None:
    """Else the rows behind half a global transaction would keep the other half out, for ever."""
    pipeline = not_run(project(tmp_path, "strong"), Limits(updates=3))
    half = (GlobalTransaction("g", frozenset({"sales", "billing"})),)
    for number in range(1, 6):
        position = Position(str(number), (10_000 + number,))
        effects = pipeline.engine.receive(Transaction("sales", position, part_of=half if number == 1 else ()), 0.0)
        assert not any(isinstance(effect, Submit) for effect in effects)
    pipeline.turn()
    assert not pipeline.backpressure.room("sales", position)
    assert pipeline.backpressure.room("billing", Position("0", (0,)))


def test_rows_of_an_answer_do_not_wait_for_another_group(tmp_path: Path) -> None:
    """Views that share no source hold nothing back for each other: a block that is open for long, or a slow view, would
    leave what is counted growing, and the sources of all others held back."""
    topology = opened(tmp_path, _each_with_itself({"slow": "sales.orders", "quick": "billing.payments"}, ""))
    pipeline = not_run(topology)
    for source, relation in (("sales", "orders"), ("billing", "payments")):
        row = contents(topology, source)[1][relation]
        pipeline.handle(Transaction(source, Position("1", (10_000,)), changes={relation: row}))
    before = pipeline.backpressure.rows
    asked = Bag.of(("id",), [(1,), (2,)])
    pipeline.handle(Answer("quick", 1, "billing", (asked,), Seen(Position("1", (10_000,)))))
    assert pipeline.backpressure.rows == before + 2
    committed = {"sales": pipeline.vector["sales"], "billing": Position("1", (10_000,))}
    pipeline.backpressure.committed(committed.__getitem__)
    assert pipeline.backpressure.rows == 2, "the two orders"


def test_a_transaction_that_ties_groups_is_not_recorded_before_it_is_taken_in(tmp_path: Path) -> None:
    """The next run, which has them together, reads it again: a replay would get it twice."""
    topology = opened(tmp_path, _each_with_itself({"one": "sales.orders", "other": "billing.payments"}, ""))
    told: list[Message] = []
    pipeline = not_run(topology, record=told.append)
    part = GlobalTransaction("g", frozenset({"sales", "billing"}))
    before = Transaction("sales", Position("1", (10_000,)))
    for transaction in (before, Transaction("sales", Position("2", (10_001,)), part_of=(part,)), before):
        pipeline.handle(transaction)
    assert told == [before] and pipeline.tied == part.participants


ONE_BY_ONE = {
    "sales.orders": "INSERT OR REPLACE INTO orders VALUES (10, 1, :n)",
    "sales.customers": "UPDATE customers SET name = :n WHERE id = 1",
    "billing.payments": "INSERT INTO payments VALUES (:n, 10, :n)",
}


@pytest.mark.parametrize(("order", "table"), [("source", "billing.payments"), ("views", "sales.customers")])
def test_a_slow_manager_delays_only_whom_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, table: str
) -> None:
    """Each manager has a thread and a queue of its own: one that thinks for long holds up nobody who shares no source
    with it, and, in the order of views, nobody who shares no relation."""
    views = {"slow": "sales.orders", "quick": table}
    topology = opened(tmp_path, _each_with_itself(views, f"order: {order}\n"))
    receive, told, shown = Sweep.receive, list[Message](), list[str]()
    cuts: list[list[str]] = []

    class Watched(MemoryWarehouse):
        def append(self, commits: Sequence[Commit]) -> CommitHeader:
            last = super().append(commits)
            shown.extend(view for commit in commits for view in commit.changes)
            return last

    def ponder(self: Sweep, messages: Sequence[Inbound]) -> list[Outbound]:
        if self.view.name == "slow" and not cuts:
            eventually(lambda: shown.count("quick") > 5)
            cuts.append([name for message in list(told) if isinstance(message, Cut) for name in message.views])
            assert "slow" not in shown
        return receive(self, messages)

    def arrived(source: str) -> int:
        return sum(isinstance(m, Transaction) and m.source == source and bool(m.changes) for m in list(told))

    def write(folder: Path, source: str, writing: Writing) -> None:
        """One by one, so that the source never takes two together: those would concern both views."""
        statements = [ONE_BY_ONE[table] for table in views.values() if table.startswith(source)]
        with closing(sqlite3.connect(folder / f"{source}.db", timeout=PATIENCE)) as connection:
            for n, statement in enumerate(cycle(statements)):
                if not writing.goes_on:
                    break
                connection.execute(statement, {"n": 100 + n})
                connection.commit()
                eventually(lambda n=n: arrived(source) > n)  # type: ignore[misc]

    monkeypatch.setattr(Sweep, "receive", ponder)
    monkeypatch.setattr(memory_live, "MemoryWarehouse", Watched)
    warehouse, past, states = run(
        *(topology, tmp_path),
        seconds=1.5,
        commit_seconds=0.01,
        record=told.append,
        enough=lambda _: "slow" in shown,
        write=write,
    )
    compare(topology, warehouse, past, states)
    assert cuts[0].count("quick") > 5
    assert cuts[0].count("slow") <= 2, "a block grows until the one before is done"


def test_complete_n_shows_exactly_every_nth_state(tmp_path: Path) -> None:
    """With `every: 4` for one view and 6 for another that shares sources, a state for every second transaction."""
    text = PROJECT.replace("consistency: complete", "every: 4").rstrip() + "\n    every: 6\n"
    topology = opened(tmp_path, text)
    arrived: list[Transaction] = []

    def record(message: Message) -> None:
        if isinstance(message, Transaction):
            arrived.append(message)

    warehouse, past, states = run(
        topology, tmp_path, seconds=1, commit_seconds=0.02, record=record, enough=lambda w: len(w.commits) > 10
    )
    vector: dict[str, str] = {}
    wanted, count = [], 0
    for transaction in arrived:
        vector = {**vector, transaction.source: transaction.position.text}
        count += bool(transaction.changes)
        if transaction.changes and count % 2 == 0:
            wanted.append(vector)
    wanted.append(vector)
    rest = iter(wanted)
    for commit in warehouse.commits:  # but for blocks that concern no view, and so show nothing new
        assert any(place.items() <= commit.header.positions["paid"].items() for place in rest), commit.header.positions
    assert len(warehouse.commits) > len(wanted) / 2 > 5
    compare(topology, warehouse, past, states)


UNKNOWN = CommitUnknown("the append may have happened")
LOST = SourceLost("its log is gone", source="billing")
WRONG = UserError("divided by zero")
FENCED = Fenced("another coordinator has taken over")


@pytest.mark.parametrize(
    ("first", "then", "told"),
    [
        (None, UNKNOWN, UNKNOWN),
        (None, WRONG, WRONG),
        (LOST, None, LOST),
        (LOST, UNKNOWN, UNKNOWN),
        (LOST, WRONG, LOST),
        (WRONG, UNKNOWN, WRONG),
        (FENCED, UNKNOWN, FENCED),
    ],
)
def test_which_of_two_errors_a_run_ends_with(
    tmp_path: Path, first: StrobeError | None, then: StrobeError | None, told: StrobeError
) -> None:
    """The first; but an append of unknown outcome counts more than a lost source, which would be found again, while the
    commits might be counted twice. What fails while a run comes to its end is told too."""
    topology = project(tmp_path)
    positions = {n: {s: topology.sources[s].now().text for s in p.view.sources} for n, p in topology.views.items()}
    last = CommitHeader(1, datetime.now(timezone.utc), positions)
    ending = threading.Event()

    class Failing(MemoryWarehouse):
        def append(self, commits: Sequence[Commit]) -> CommitHeader:
            if first is not None:
                pipeline.fail(first)
            ending.set()
            eventually(lambda: pipeline.committer.state is Committing.DRAINING)
            if then is not None:
                raise then

    warehouse = Failing(topology, last, {}, 0)
    pipeline = Pipeline(topology, warehouse, last, through_spark=no_spark)
    with closing(sqlite3.connect(tmp_path / "sales.db")) as connection, connection:
        connection.execute("INSERT INTO orders VALUES (50, 1, 'x')")
    end = pipeline.run(lambda: Stopped() if first is None and ending.is_set() else None)
    assert isinstance(end, Failure) and end.error is told and ending.is_set()


@pytest.mark.parametrize("level", ["complete", "strong"])
def test_a_loop_that_never_looks_by_itself_misses_nothing(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that it has to see wakes it: under load and with little room, and then it comes to rest."""
    monkeypatch.setattr(committer, "IDLE", NEVER)
    topology = project(tmp_path, level)
    positions = {n: {s: topology.sources[s].now().text for s in p.view.sources} for n, p in topology.views.items()}
    last = CommitHeader(1, datetime.now(timezone.utc), positions)
    warehouse = MemoryWarehouse(topology, last, {}, 0.02)
    pipeline = Pipeline(topology, warehouse, last, through_spark=no_spark, limits=Limits(updates=3, rows=5))
    ended = threading.Event()
    kept = threading.Thread(target=pipeline.run, args=(lambda: Stopped() if ended.is_set() else None, lambda: NEVER))
    kept.start()
    writing = Writing(1.0, lambda: len(warehouse.commits) > 5)
    writers = [
        threading.Thread(target=memory_live.write, args=(tmp_path, name, writing)) for name in ("sales", "billing")
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    eventually(lambda: pipeline.idle() and all(pipeline.visible(n) >= s.now() for n, s in topology.sources.items()))
    ended.set()
    pipeline.wake()
    kept.join(PATIENCE)
    assert not kept.is_alive()


def test_at_rest_a_loop_turns_only_for_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing changes that is the proofs of definitions: a turn when one begins, and one when it is over."""
    monkeypatch.setattr(committer, "IDLE", 0.3)
    topology = project(tmp_path)
    pipeline = not_run(topology)
    looks, turns = list[int](), list[int]()
    prove = pipeline.prover.prove

    def proven(sources: Collection[str]) -> Collection[str]:
        looks.append(len(turns))
        return prove(sources)

    def step() -> Stopped | None:
        turns.append(len(looks))
        return Stopped() if len(looks) == 8 else None

    monkeypatch.setattr(pipeline.committer, "_prove", proven)
    pipeline.run(step, lambda: NEVER).check()
    assert looks[-1] - looks[2] <= 2 * 5 + 1, "it turned without a reason"
