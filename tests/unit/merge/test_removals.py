"""Deletes by key and replacements, resolved for whole appends, against action lists applied one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone

import pytest
from committing import KEYS, MemorySink, V
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE

from strobe.algebra.bag import Bag, Row
from strobe.algebra.relation import Relation
from strobe.errors import BrokenInvariant
from strobe.merge.removals import First, Resolved, combined, resolve
from strobe.messages import ActionList, CommitHeader, KeyDelete, Position, Removal, WarehouseTransaction
from strobe.pipeline.committer import Committer


class Far:
    """A relation that is not in memory, as far as those can tell who have it."""

    def __init__(self, bag: Bag) -> None:
        self.bag = bag

    @property
    def attributes(self) -> tuple[str, ...]:
        return self.bag.attributes

    @property
    def known_empty(self) -> bool:
        return False

    def plus(self, other: Relation) -> Far:
        return Far(self.bag.add(near(other)))

    def negate(self) -> Far:
        return Far(self.bag.negate())

    def join(self, other: Relation, on: Sequence[tuple[str, str]]) -> Far:
        return Far(near(self.bag.join(near(other), on)))

    def project(self, attributes: Sequence[str]) -> Far:
        return Far(self.bag.project(attributes))

    def rename(self, names: Mapping[str, str]) -> Far:
        return Far(self.bag.rename(names))

    def keys(self, attributes: Sequence[str]) -> Far:
        return Far(self.bag.keys(attributes))

    def key_delete(self, keys: Relation, on: Sequence[tuple[str, str]]) -> Far:
        return Far(near(self.bag.key_delete(near(keys), on)))

    def part(self, sign: int) -> Far:
        return Far(Bag(self.attributes, {row: abs(n) for row, n in self.bag.items() if n * sign > 0}))

    def lift(self, other: Relation) -> Far:
        return other if isinstance(other, Far) else Far(near(other))


def near(relation: Relation) -> Bag:
    assert isinstance(relation, (Bag, Far))
    return relation if isinstance(relation, Bag) else relation.bag


def one_by_one(state: Bag, action: ActionList) -> Bag:
    """What an action list says, word for word."""
    left = {} if action.replaces else dict(state.items())
    for delete in action.deletes:
        places = [V.attributes.index(a) for a in delete.keys.attributes]
        for key in dict(near(delete.keys).items()):
            left = {row: n for row, n in left.items() if [row[i] for i in places] != list(key)}
    return Bag(V.attributes, left).add(near(action.delta))


def going(rows: Bag, first: First) -> Iterable[tuple[int, Row, int]]:
    """What Spark does with rows that it holds, and with keys that it holds."""
    for row, count in rows.items():
        numbers = [] if first.everything is None else [first.everything]
        for occurrence in first.occurrences:
            own = tuple(row[V.attributes.index(a)] for a in first.key_attributes(occurrence))
            numbers += [n for key, n in first.keys.get(occurrence, {}).items() if key == own]
            numbers += [
                n
                for n, delete in first.large
                if delete.occurrence == occurrence and own in dict(near(delete.keys).items())
            ]
        if numbers:
            yield min(numbers), row, count


def states(stored: Bag, numbers: Iterable[int], resolved: Resolved) -> list[Bag]:
    """The view after each commit of an append, as the log would have it."""
    changes = {number: Bag(V.attributes) for number in numbers}
    for number, change in resolved.changes:
        changes[number] = changes[number].add(near(change))
    for rows, first in [(stored, resolved.stored), *((near(r), f) for r, f in resolved.leaving)]:
        for number, row, count in going(rows, first):
            changes[number] = changes[number].add(Bag(V.attributes, {row: -count}))
    found = []
    for change in changes.values():
        stored = stored.add(change)
        found.append(stored)
    return found


small = st.integers(1, 3)
rows = st.dictionaries(st.tuples(small, small, small, small, small), st.sampled_from([1, 1, 1, 2, -1]), max_size=4)
bags = rows.map(lambda found: Bag(V.attributes, found))


def relations(bag: st.SearchStrategy[Bag]) -> st.SearchStrategy[Relation]:
    """Mostly in memory."""
    return st.tuples(bag, st.sampled_from([False] * 5 + [True])).map(lambda pair: Far(pair[0]) if pair[1] else pair[0])


def deletes(occurrence: int) -> st.SearchStrategy[KeyDelete]:
    names = KEYS[occurrence]
    found = st.sets(st.tuples(*[small] * len(names)), max_size=2)
    keys = found.map(lambda keys: Bag(names, dict.fromkeys(keys, 1)))
    return st.tuples(relations(keys), st.permutations(names)).map(lambda k: KeyDelete(occurrence, k[0].project(k[1])))


actions = st.builds(
    ActionList,
    st.just("v"),
    st.just((1,)),
    relations(bags),
    st.lists(st.one_of(deletes(0), deletes(1)), max_size=2).map(tuple),
    st.sampled_from([False] * 9 + [True]),
)
commits = st.lists(actions, min_size=1, max_size=3)
appends = st.lists(commits, min_size=1, max_size=4)


@given(bags, st.lists(appends, min_size=1, max_size=3))
def test_every_commit_is_what_its_action_lists_say(state: Bag, history: list[list[list[ActionList]]]) -> None:
    """Whatever goes from what is stored, from earlier commits of the append, and from earlier lists of the commit."""
    stored, number = state, 0
    for append in history:
        numbers = range(number + 1, number + 1 + len(append))
        number = numbers[-1]
        together = [combined(lists) for lists in append]
        removals = {n: removed["v"] for n, (removed, _) in zip(numbers, together, strict=True) if "v" in removed}
        changes = {n: changed["v"] for n, (_, changed) in zip(numbers, together, strict=True) if "v" in changed}
        found = states(stored, numbers, resolve(V, removals, changes))
        for lists, after in zip(append, found, strict=True):
            for action in lists:
                state = one_by_one(state, action)
            assert after == state
        stored = found[-1]


@given(appends)
def test_rows_in_memory_are_taken_back_in_memory(append: list[list[ActionList]]) -> None:
    """Spark is asked only about what it holds."""
    removals, changes = {}, {}
    for number, lists in enumerate(append):
        local = [tuple(KeyDelete(d.occurrence, near(d.keys)) for d in action.deletes) for action in lists]
        removals[number] = Removal(tuple(d for deletes in local for d in deletes))
        changes[number] = near(lists[0].delta)
    resolved = resolve(V, removals, changes)
    assert not resolved.leaving and not resolved.stored.large


def test_a_key_that_the_view_does_not_show_is_refused() -> None:
    """It would find the wrong rows, or none."""
    removal = Removal((KeyDelete(1, Bag(["r1c0"], {(1,): 1})),))
    with pytest.raises(BrokenInvariant, match="no key that the view shows"):
        resolve(V, {1: removal}, {})


def test_a_removal_alone_is_a_commit() -> None:
    """Lists that delete or replace change the view, also where they bring no row; lists that do nothing do not."""
    kept, start = MemorySink(), Position("0", (0,))
    begin = CommitHeader(1, datetime.now(timezone.utc), {"v": {"x": "0"}})
    failed: list[BaseException] = []
    committer = Committer(
        kept,
        begin,
        {"v": V},
        {"v": {"x": start}},
        fail=failed.append,
    )
    nothing = Bag(V.attributes)
    delete = KeyDelete(0, Bag(["r0c0"], {(1,): 1}))
    brought = Bag(V.attributes, {(1, 1, 1, 1, 1): 1, (2, 1, 1, 1, 1): 1})
    lists = [
        [ActionList("v", (1,), nothing, (delete,))],
        [ActionList("v", (2,), nothing)],
        [ActionList("v", (3,), brought), ActionList("v", (4,), nothing, (delete,))],
        [ActionList("v", (5,), brought, (delete,)), ActionList("v", (6,), nothing, replaces=True)],
    ]
    for i, actions in enumerate(lists, start=1):
        position = {"x": Position(str(i), (i,))}
        committer.submit(WarehouseTransaction((i,), tuple(actions), position), wait=60, keep=False)
    committer.stop()
    committer.start()
    committer.join(PATIENCE)
    assert not failed
    assert [commit.header.positions["v"]["x"] for commit in kept.commits] == ["1", "3", "4"]
    by_key = {"v": Removal((delete,))}
    assert [commit.removals for commit in kept.commits] == [by_key, by_key, {"v": Removal((), True)}]
    assert [commit.changes for commit in kept.commits] == [{}, {"v": Bag(V.attributes, {(2, 1, 1, 1, 1): 1})}, {}]
