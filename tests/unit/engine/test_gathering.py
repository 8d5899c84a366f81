"""What waits to be appended: in order for each group of views, whatever is held back."""

from __future__ import annotations

import random

import pytest
from committing import V

from strobe.algebra.bag import Bag
from strobe.engine.gathering import AGAIN, Gathering
from strobe.messages import ActionList, Position, WarehouseTransaction

QUIET = 30.0


def transaction(source: str, number: int, *, rows: bool) -> WarehouseTransaction:
    change = Bag(V.attributes, {(number, 1, 1, 1, 1): 1} if rows else {})
    action = ActionList(f"view of {source}", (number,), change)
    return WarehouseTransaction((number,), (action,), {source: Position(str(number), (number,))})


def test_what_is_held_back_is_overtaken_and_tried_again() -> None:
    queue = Gathering(QUIET)
    for number, source in enumerate("aba"):
        queue.add(transaction(source, number, rows=True), 0.0, False, 0.0)
    assert [t.numbers for t in queue.sort_out(queue.take_out(10), {"a"}, 0.0)] == [(1,)]
    assert len(queue) == 2
    assert not queue.due(0.0, 10, flush=True) and queue.due(AGAIN, 10)
    assert [t.numbers for t in queue.take(10, AGAIN)] == [(0,), (2,)]


def test_positions_without_rows_go_with_the_next_commit_or_alone_in_the_end() -> None:
    queue = Gathering(QUIET)
    queue.add(transaction("a", 1, rows=False), 0.0, False, 0.0)
    queue.add(transaction("b", 2, rows=False), 0.0, False, 0.0)
    assert not queue.due(QUIET - 1, 1) and queue.due(QUIET, 1)
    queue.add(transaction("a", 3, rows=True), 0.0, False, 0.0)
    (commit,) = queue.take(10, 0.0)
    assert {s: p.text for s, p in commit.positions.items()} == {"a": "3", "b": "2"}
    assert queue.empty


@pytest.mark.parametrize("seed", range(300))
def test_every_group_goes_on_in_order_and_nothing_is_lost(seed: int) -> None:
    """Whatever comes, is taken, held back and put back: a source's positions never go back, and all its rows are
    committed, once, by the end."""
    rng, queue, now = random.Random(seed), Gathering(QUIET), 0.0
    given: dict[str, list[int]] = {s: [] for s in "abc"}
    last = dict.fromkeys("abc", 0)
    committed: list[WarehouseTransaction] = []

    def step(held: set[str]) -> None:
        taken = queue.take_out(rng.randint(1, 4))
        if rng.random() < 0.5:
            submit(rng.choice("abc"))
        committed.extend(queue.sort_out(taken, held, now))

    def submit(source: str) -> None:
        last[source] += 1
        rows = rng.random() < 0.5
        if rows:
            given[source].append(last[source])
        queue.add(transaction(source, last[source], rows=rows), rng.random(), False, now)

    for _ in range(40):
        now += rng.random()
        if rng.random() < 0.6:
            submit(rng.choice("abc"))
        else:
            step({s for s in "abc" if rng.random() < 0.4})
    while not queue.empty:
        step(set())
    for source in "abc":
        positions = [t.positions[source].order[0] for t in committed if source in t.positions]
        assert positions == sorted(positions) and positions[-1:] == ([last[source]] if last[source] else [])
        rows = [t.numbers[0] for t in committed if t.actions[0].view == f"view of {source}" and not t.actions[0].empty]
        assert rows == given[source]
