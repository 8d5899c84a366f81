"""What the manager of a tree asks, sends and refuses."""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial

import pytest
from stalling import Stalling
from trees import R, S, T, U, tree_plan
from worlds import run

from strobe.algebra.bag import Bag
from strobe.algebra.bounds import Bound
from strobe.algebra.schema import RelationSchema
from strobe.algebra.tree import Exists, Group, Join, JoinKind, Operator, Pair, Scan, Union
from strobe.algebra.view import Occurrence, Output, View
from strobe.engine import recording
from strobe.engine.commits import Commits
from strobe.errors import DefinitionChanged, UserError
from strobe.integrator.integrator import Integrator
from strobe.managers import tree_sweep
from strobe.managers.choice import choose
from strobe.managers.departures import obstacle
from strobe.managers.registry import ALGORITHMS
from strobe.managers.sweep import Sweep
from strobe.managers.tree_sweep import TreeSweep
from strobe.messages import (
    ActionList,
    Answer,
    CommitHeader,
    Covered,
    Cut,
    Departed,
    Fragment,
    Lookup,
    Query,
    Seen,
    Transaction,
    Update,
    WarehouseTransaction,
)
from strobe.simulator.world import position


def occurrence(index: int, of: RelationSchema) -> Occurrence:
    return Occurrence(index, f"o{index}", of, tuple(column.name for column in of.columns))


def of(tree: Operator, *occurrences: Occurrence) -> View:
    return View("v", "", occurrences, (), None, tuple(Output(c, c) for c in tree.columns), tree=tree)


def left_join(left: RelationSchema = R, right: RelationSchema = S, by: tuple[str, str] = ("b", "b")) -> View:
    a, b = occurrence(0, left), occurrence(1, right)
    pair = Pair(a.attribute(by[0]), b.attribute(by[1]))
    return of(Join(Scan(a), Scan(b), (pair,), None, JoinKind.LEFT), a, b)


def update(number: int, source: str = "x", **changes: Bag) -> Update:
    return Update(number, Transaction(source, position(number), changes=changes))


def rows_of(relation: RelationSchema, *rows: tuple[int | None, ...], count: int = 1) -> Bag:
    return Bag.of([column.name for column in relation.columns], rows, count)


# ── What it asks ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_left_row_asks_for_its_partners_and_a_partner_for_all_that_its_left_rows_have() -> None:
    manager = TreeSweep(left_join(), complete=True)
    assert manager.receive([update(1, r=rows_of(R, (1, 7), (2, None)))]) == [
        Query("v", 0, "y", (Lookup(1, "s", ("b", "c", "e"), ("b",), Bag(("r1c0",), {(7,): 1})),))
    ]
    manager = TreeSweep(left_join(), complete=True)
    (first,) = manager.receive([update(1, "y", s=rows_of(S, (7, 1, 1)))])
    assert isinstance(first, Query) and [lookup.relation for lookup in first.lookups] == ["r"]
    (second,) = manager.receive([Answer("v", 0, "x", (rows_of(R, (1, 7)),), Seen(position(0)))])
    assert isinstance(second, Query) and [lookup.relation for lookup in second.lookups] == ["s"]


def test_a_partner_that_nobody_has_costs_one_question_and_changes_nothing() -> None:
    manager = TreeSweep(left_join(), complete=True)
    manager.receive([update(1, "y", s=rows_of(S, (7, 1, 1)))])
    (sent,) = manager.receive([Answer("v", 0, "x", (rows_of(R),), Seen(position(0)))])
    assert isinstance(sent, ActionList) and sent.covers == (1,)


def test_null_is_looked_up_where_null_equals_null() -> None:
    """As a group; not as a partner of a join by `=`."""
    a = occurrence(0, R)
    view = of(Group(Scan(a), 1, (a.attribute("b"),), (Output("n", "COUNT(*)"),)), a)
    (sent,) = TreeSweep(view, complete=True).receive([update(1, r=rows_of(R, (1, None), (1, 2)))])
    assert isinstance(sent, Query)
    assert sent.lookups[0].null_safe and sent.lookups[0].keys == Bag(("r0c1",), {(None,): 1, (2,): 1})


def test_what_a_key_had_before_is_known_where_the_batch_changes_it() -> None:
    """A row that came with its key was not there; one that changed was what it was. Nobody is asked."""
    manager = TreeSweep(left_join(R, U, ("a", "k")), complete=False)
    changed = rows_of(U, (1, 5)).add(rows_of(U, (1, 4), count=-1)).add(rows_of(U, (2, 9)))
    manager.receive([update(1, r=rows_of(R, (1, 1), (2, 2)), u=changed)])
    (asked,) = manager.receive([Cut(1)])
    assert isinstance(asked, Query) and [lookup.relation for lookup in asked.lookups] == ["r"]
    (sent,) = manager.receive([Answer("v", 0, "x", (rows_of(R, (1, 1), (2, 2)),), Seen(position(1)))])
    assert isinstance(sent, ActionList)
    ((fragment,),) = [sent.fragments]
    assert fragment.before == {1: Bag(("r1c0", "r1c1"), {(1, 4): 1})}
    assert fragment.after[1] == Bag(("r1c0", "r1c1"), {(1, 5): 1, (2, 9): 1})


def test_a_column_that_the_source_cannot_search_fetches_everything_once() -> None:
    """And yet a fragment has what is needed of it."""
    manager = TreeSweep(left_join(R, T, ("b", "c")), complete=True)
    (sent,) = manager.receive([update(n, r=rows_of(R, (n, n))) for n in (1, 2, 3)])
    assert isinstance(sent, Query) and [(lookup.on, lookup.keys) for lookup in sent.lookups] == [((), None)]
    lists = manager.receive([Answer("v", 0, "z", (rows_of(T, (1, 1), (2, 2)),), Seen(position(0)))])
    fragments = [message.fragments for message in lists if isinstance(message, ActionList)]
    assert [len(found[0].after.get(1, ())) for found in fragments] == [1, 1, 0]


def test_what_the_warehouse_keeps_a_copy_of_is_asked_there() -> None:
    view = left_join()
    view = replace(view, occurrences=(view.occurrences[0], replace(view.occurrences[1], copied=True)))
    (sent,) = TreeSweep(view, complete=True).receive([update(1, r=rows_of(R, (1, 7)))])
    assert isinstance(sent, Query) and sent.copy


def test_an_answer_to_some_of_the_look_ups_is_taken_and_the_rest_asked_again() -> None:
    a, b, c = occurrence(0, S), occurrence(1, R), occurrence(2, U)
    inner = Join(Scan(a), Scan(b), (Pair("r0c0", "r1c1"),), None, JoinKind.LEFT)
    view = of(Join(inner, Scan(c), (Pair("r0c1", "r2c0"),), None, JoinKind.LEFT), a, b, c)
    manager = TreeSweep(view, complete=True)
    (both,) = manager.receive([update(1, "y", s=rows_of(S, (1, 2, 3)))])
    assert isinstance(both, Query) and [lookup.relation for lookup in both.lookups] == ["r", "u"]
    (rest,) = manager.receive([Answer("v", 0, "x", (rows_of(R, (9, 1)),), Seen(position(0)))])
    assert isinstance(rest, Query) and rest.lookups == both.lookups[1:]


class Counting(TreeSweep):
    """Counts what each batch asks for."""

    def _start_batch(self) -> bool:
        self.asked: Counter[object] = Counter()
        return super()._start_batch()

    def _lookup(self, index: int, columns: tuple[str, ...], keys: set[tuple[object, ...]]) -> Lookup:
        self.asked.update((index, columns, key) for key in keys)
        assert max(self.asked.values()) == 1
        return super()._lookup(index, columns, keys)


def test_a_key_is_asked_for_once_a_batch() -> None:
    """However many units need it, whatever was answered in between."""
    for seed in range(100):
        complete, snapshots = bool(seed % 2), partial(Stalling, rng=random.Random(seed))
        run(tree_plan(seed, transactions=12).world(partial(Counting, complete=complete), source=snapshots), seed)


def test_questions_to_different_sources_are_open_at_the_same_time() -> None:
    a, b, c = occurrence(0, R), occurrence(1, S), occurrence(2, T)
    both = Union((Scan(b), Scan(c)), (("k", ("r1c1", "r2c0")),))
    view = of(Exists(Scan(a), both, (Pair("r0c0", "k"),), None), a, b, c)
    sent = TreeSweep(view, complete=True).receive([update(1, r=rows_of(R, (1, 7)))])
    assert sorted(message.source for message in sent if isinstance(message, Query)) == ["y", "z"]


# ── What is too much, or not enough ──────────────────────────────────────────────────────────────────────────────────


class Elsewhere:
    """Rows that are not in memory."""

    def __init__(self, rows: Bag) -> None:
        self._rows = rows
        self.known_empty = False

    def part(self, sign: int) -> Elsewhere:
        return Elsewhere(self._rows.part(sign))

    def project(self, attributes: Sequence[str]) -> Elsewhere:
        return Elsewhere(self._rows.project(attributes))

    def collect(self) -> Bag:
        return self._rows


def elsewhere(rows: Bag) -> Bag:
    return Elsewhere(rows)  # type: ignore[return-value]  # as much of a relation as is needed


def test_rows_that_are_elsewhere_are_fetched() -> None:
    manager = TreeSweep(left_join(), complete=True)
    (query,) = manager.receive([update(1, r=elsewhere(rows_of(R, (1, 7), (2, 7), (3, None))))])
    assert isinstance(query, Query) and query.lookups[0].keys == Bag(("r1c0",), {(7,): 1})
    (sent,) = manager.receive([Answer("v", 0, "y", (elsewhere(rows_of(S, (7, 1, 1))),), Seen(position(0)))])
    assert isinstance(sent, ActionList)
    assert sent.fragments[0].after[1] == Bag(("r1c0", "r1c1", "r1c2"), {(7, 1, 1): 1})


def test_more_rows_than_fit_stop_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that is too large does until the view is loaded again; an answer, until the view asks for less."""
    monkeypatch.setattr(tree_sweep, "MOST_ROWS", 2)
    manager = TreeSweep(left_join(), complete=True)
    manager.receive([update(1, r=elsewhere(rows_of(R, (1, 7), (2, 7))))])
    answer = elsewhere(rows_of(S, *((7, n, n) for n in range(3))))
    with pytest.raises(DefinitionChanged, match=r"3 rows of it .* holds at most 2") as stopped:
        manager.receive([Answer("v", 0, "y", (answer,), Seen(position(0)))])
    assert stopped.value.views == {"v"} and "strobe explain v" in stopped.value.fix
    with pytest.raises(DefinitionChanged, match=r"3 rows of it .* holds at most 2") as stopped:
        manager.receive([update(2, r=elsewhere(rows_of(R, (1, 7), (2, 7), (3, None))))])
    assert "strobe rebuild v" in stopped.value.fix


def test_rows_that_left_all_at_once_stop_the_view() -> None:
    left = Transaction("x", position(1), departed={"r": (Departed("partition p was dropped", Bound(())),)})
    relation, why = obstacle(left_join(), left)
    assert relation == "r" and why.startswith("partition p was dropped: the view has more than inner joins")


def test_sweep_and_sc_keep_trees() -> None:
    view = left_join()
    for name in ("sweep", "sc"):
        for level in ("strong", "complete"):
            assert choose(view, name, level).algorithm.name == name
            assert isinstance(ALGORITHMS[name].manager(view, level), TreeSweep)
    assert choose(view, "auto", "complete").algorithm.name == "sweep"
    a = occurrence(0, R)
    assert isinstance(ALGORITHMS["sweep"].manager(replace(of(Scan(a), a), tree=None)), Sweep)


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"sweep", "sc"}))
def test_all_others_keep_inner_joins_only(name: str) -> None:
    with pytest.raises(UserError, match="it keeps inner joins only, and the view has LEFT JOIN") as refused:
        choose(left_join(), name, "convergent")
    assert refused.value.fix == "Or use algorithm: auto."


def test_what_a_tree_has_is_named_once() -> None:
    a, b = occurrence(0, R), occurrence(1, S)
    grouped = Group(Scan(b), 1, ("r1c0",), ())
    tree = Exists(Exists(Scan(a), grouped, (), None, negated=True), grouped, (), None, negated=True)
    with pytest.raises(UserError, match="and the view has NOT EXISTS, DISTINCT"):
        choose(of(tree, a, b), "rv", "strong")


def test_old_rows_are_needed() -> None:
    view = left_join(replace(R, images=False))
    with pytest.raises(
        UserError, match=r"x\.r reports only their keys \(PostgreSQL: ALTER TABLE r REPLICA IDENTITY FULL"
    ):
        choose(view, "auto", "strong")


# ── The way to the warehouse ─────────────────────────────────────────────────────────────────────────────────────────


def fragment(n: int) -> Fragment:
    bag = Bag(("r0c0", "r0c1"), {(n, None): 2})
    return Fragment({}, {0: bag}, {1: (Covered(Bag(("r0c1",), {(None,): 1})),), 2: ()})


def action(n: int, *fragments: Fragment) -> ActionList:
    return ActionList("v", (n,), Bag(("r0c0", "r0c1")), fragments=fragments)


def test_fragments_of_one_commit_follow_each_other() -> None:
    header = CommitHeader(positions={"v": {"x": "0", "y": "0"}})
    floors = {"v": {"x": position(0), "y": position(0)}}
    commits = Commits(header, {"v": left_join()}, floors)
    actions = (action(1, fragment(1)), action(2), action(3, fragment(3), fragment(4)))
    at = {"x": position(3), "y": position(0)}
    found = commits.next(WarehouseTransaction((1, 2, 3), actions, at), datetime.now(timezone.utc))
    assert found.fragments == {"v": (fragment(1), fragment(3), fragment(4))} and not found.changes
    assert action(2).empty and not action(1, fragment(1)).empty
    assert sum(len(rows) for rows in action(1, fragment(1), fragment(2)).relations) == 2  # type: ignore[arg-type]


def test_fragments_survive_being_written_down() -> None:
    file = io.StringIO()
    recording.write(action(1, fragment(1)), file)
    assert list(recording.read(file.getvalue().splitlines())) == [action(1, fragment(1))]


def test_every_changed_row_of_a_used_column_is_relevant() -> None:
    """The rows of an outer join, or of a group, are not to be told from a single relation's."""
    view = left_join()
    a = view.occurrences[0]
    view = replace(view, occurrences=(replace(a, columns=("b",)), view.occurrences[1]))
    integrator = Integrator({"v": view}, {"v": {"x": position(0), "y": position(0)}})
    used = integrator.receive(Transaction("x", position(1), changes={"r": rows_of(R, (1, None))}))
    unused = rows_of(R, (1, 1)).add(rows_of(R, (2, 1), count=-1))
    assert used.rel.views == {"v"}
    assert not integrator.receive(Transaction("x", position(2), changes={"r": unused})).rel.views
