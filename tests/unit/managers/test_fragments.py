"""The two properties of fragments, over random trees and random rows with NULLs and duplicates."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from trees import RELATIONS, Rows, compiled_tree, random_tree

from strobe.algebra import tree
from strobe.algebra.bag import Bag
from strobe.algebra.substitution import substitute
from strobe.algebra.tree import Exists, Join, JoinKind, Operator, Union, Window, operators
from strobe.algebra.view import View
from strobe.auditor.operators import Tree
from strobe.managers import fragments
from strobe.managers.fragments import Collector, Known, Wanted
from strobe.messages import Fragment

Contents = Mapping[int, Bag]


class Case:
    """A tree, what its relations held before a batch, and the units of the batch."""

    def __init__(self, seed: int, view: Callable[[random.Random], View] = random_tree, units: int = 2) -> None:
        self.rng = random.Random(seed)
        rows = Rows(self.rng)
        self.view = view(self.rng)
        self.states = [self._of_occurrences(rows.contents)]
        self.changes: list[Contents] = []
        for _ in range(units):
            for chosen in self.rng.sample(RELATIONS, self.rng.randint(1, 2)):
                rows.change(chosen, self.rng.randrange(3), self.rng.randrange(3))
            self.states.append(self._of_occurrences(rows.contents))
            moved = {i: self.states[-1][i].add(self.states[-2][i].negate()) for i in self.states[-1]}
            self.changes.append({i: change for i, change in moved.items() if not change.known_empty})

    def _of_occurrences(self, contents: Mapping[str, Bag]) -> Contents:
        return {o.index: substitute(o, contents[o.relation.id]).collect() for o in self.view.occurrences}

    def known(self) -> Known:
        return Known(self.view, self.changes)

    def answer(self, known: Known, wanted: Wanted) -> None:
        """Exactly what is asked for, as it was before the batch."""
        assert wanted
        for (index, columns), keys in wanted.items():
            rows = self.states[0][index]
            places = [rows.attributes.index(column) for column in columns]
            found = {row: n for row, n in rows.items() if tuple(row[i] for i in places) in keys}
            known.learn((index, columns), keys, Bag(rows.attributes, found))


def collected(case: Case, view: View | None = None) -> list[Fragment]:
    """The fragments of all units."""
    collector, known, found = Collector(view or case.view), case.known(), []
    while len(found) < len(case.changes):
        wanted: Wanted = {}
        fragment = collector.fragment(known, len(found), wanted)
        if fragment is None:
            case.answer(known, wanted)
        else:
            found.append(fragment)
    return found


def over(of: Tree, fragment: Fragment) -> tuple[Bag, Bag]:
    covered = {number: [c.keys.collect() for c in found] for number, found in fragment.covered.items()}
    before = of.over({i: rows.collect() for i, rows in fragment.before.items()}, covered)
    return before, of.over({i: rows.collect() for i, rows in fragment.after.items()}, covered)


def changes_exactly(case: Case) -> bool:
    """(B) for each unit of the batch."""
    assert case.view.tree is not None
    whole = Tree(case.view.tree)
    for number, fragment in enumerate(collected(case)):
        before, after = over(whole, fragment)
        truth = whole.over(case.states[number + 1]).add(whole.over(case.states[number]).negate())
        if after.add(before.negate()) != truth:
            return False
    return True


def covers_exactly(case: Case) -> bool:
    """(A) for some raw columns of some operator, and some keys of them."""
    assert case.view.tree is not None
    chosen = case.rng.choice(list(operators(case.view.tree)))
    columns = tuple(case.rng.sample(sorted(chosen.raw), min(len(chosen.raw), case.rng.randint(0, 2))))
    values = [[1, 2, 3] if column in chosen.padded else [1, 2, 3, None] for column in columns]
    keys = {tuple(case.rng.choice(some) for some in values) for _ in range(case.rng.randint(1, 3))}
    part, (fragment,) = Tree(chosen), fragments_of_rows(case, chosen, columns, keys)
    places = [chosen.columns.index(column) for column in columns]
    for found, state in zip(over(part, fragment), case.states[:2], strict=True):
        truth = part.over(state)
        asked = [{row: n for row, n in bag.items() if tuple(row[i] for i in places) in keys} for bag in (found, truth)]
        if asked[0] != asked[1]:
            return False
    return True


def fragments_of_rows(
    case: Case, operator: Operator, columns: tuple[str, ...], keys: set[tuple[object, ...]]
) -> Iterator[Fragment]:
    """What `rows` of an operator makes a fragment of, for the first unit."""
    node, known = fragments._prepared(operator, columns), case.known()
    together = tuple(fragments._together(node))
    searched = {o.index: fragments._searched(o) for o in case.view.occurrences}
    while True:
        collecting = fragments._Collecting(known, 0, searched)
        fragments._rows(node, columns, keys, collecting)
        if not collecting.wanted:
            yield collecting.fragment(case.view, together)
            return
        case.answer(known, collecting.wanted)


def seeds(most: int) -> Sequence[object]:
    return [range(most), pytest.param(range(most, 20_000), marks=pytest.mark.slow)]


@pytest.mark.parametrize("some", seeds(400), ids=["few", "many"])
def test_the_view_over_a_fragment_changes_by_exactly_its_change(some: range) -> None:
    for seed in some:
        assert changes_exactly(Case(seed)), f"seed {seed}"


@pytest.mark.parametrize(
    "some", [range(200), pytest.param(range(200, 6000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_views_of_sql_change_by_exactly_their_change(some: range) -> None:
    """Random statements, as they are compiled."""
    for seed in some:
        case = Case(seed, compiled_tree)
        assert changes_exactly(case), f"seed {seed}: {case.view.sql}"


@pytest.mark.parametrize("some", seeds(400), ids=["few", "many"])
def test_what_was_asked_for_is_in_the_fragment_before_and_after(some: range) -> None:
    for seed in some:
        assert covers_exactly(Case(seed)), f"seed {seed}"


# ── Mistakes, planted one at a time ──────────────────────────────────────────────────────────────────────────────────


def _left_of_changes_only(operator: Join, node: Any, to: Any) -> Any:
    """Left rows that did not change themselves do not see that their partners did."""
    if operator.kind is not JoinKind.LEFT:
        return _touched_join(operator, node, to)
    left, right = node.children
    of_left, of_right = fragments._touched(left, to), fragments._touched(right, to)
    beside = fragments._partners(operator, node, of_left, to)
    return fragments._joined(operator, node, of_left, beside | of_right)


def _partners_of_changed_only(operator: Join, node: Any, to: Any) -> Any:
    """A left row that did not change itself gets those partners alone that did."""
    if operator.kind is not JoinKind.LEFT:
        return _touched_join(operator, node, to)
    left, right = node.children
    of_left, of_right = fragments._touched(left, to), fragments._touched(right, to)
    others = fragments._partners(operator, node, of_right, to, back=True)
    beside = fragments._partners(operator, node, of_left, to)
    return fragments._joined(operator, node, of_left | others, beside | of_right)


def _one_side_of_a_full_join(operator: Join, node: Any, to: Any) -> Any:
    if operator.kind is not JoinKind.FULL:
        return _touched_join(operator, node, to)
    left, right = node.children
    of_left, of_right = fragments._touched(left, to), fragments._touched(right, to)
    beside = fragments._partners(operator, node, of_left, to)
    others = fragments._partners(operator, node, of_right, to, back=True)
    return fragments._joined(operator, node, of_left | others, of_right | beside)


def _one_side_of_an_inner_join(operator: Join, node: Any, to: Any) -> Any:
    if operator.kind is not JoinKind.INNER:
        return _touched_join(operator, node, to)
    left, right = node.children
    of_left, of_right = fragments._touched(left, to), fragments._touched(right, to)
    return fragments._joined(operator, node, of_left, fragments._partners(operator, node, of_left, to) | of_right)


def _not_exists_for_changes_only(operator: Exists, node: Any, to: Any) -> Any:
    left, _ = node.children
    found = fragments._touched(left, to)
    fragments._partners(operator, node, found, to)
    return left.keys(found, node.columns)


def _first_branch_only(operator: Union, node: Any, columns: Any, keys: Any, to: Any) -> Any:
    branch = node.children[0]
    found = fragments._rows(branch, fragments._mapped_into(operator, 0, columns), keys, to)
    return branch.keys(found, fragments._mapped_into(operator, 0, node.columns))


def _partition_cut(operator: Window, node: Any, columns: Any, keys: Any, to: Any) -> Any:
    """Rows of a window are looked up without the rest of their partitions."""
    (child,) = node.children
    found = fragments._rows(child, columns, keys, to)
    to.cover(operator.number, operator.cover, child.keys(found, operator.cover))
    return child.keys(found, node.columns)


def _changed_rows_only(operator: Any, child: Any, rows: Any, to: Any) -> Any:
    to.cover(operator.number, operator.cover, child.keys(rows, operator.cover))
    return rows


def _without_null(operator: Any, child: Any, rows: Any, to: Any) -> Any:
    keys = {key for key in child.keys(rows, operator.cover) if None not in key}
    to.cover(operator.number, operator.cover, keys)
    return fragments._rows(child, operator.cover, keys, to)


def _all_links(operator: Any, **_: bool) -> Any:
    return list(operator.pairs)


def _keys_without_null(node: Any, rows: Any, links: Any, *, back: bool = False) -> Any:
    return {key for key in _keys(node, rows, links, back=back) if None not in key}


def _last_known(self: Known, spot: Any, key: Any) -> Any:
    """The row that the last unit takes out is taken for the first one."""
    found = _first(self, spot, key)
    changed = self._changed(spot).get(key)
    if found is None or key in self._answers[spot] or not changed:
        return found
    return {row: -n for number, row, n in changed if number == changed[-1][0] and n < 0}


def _before_as_after(self: Known, first: Any, spot: Any, key: Any, unit: int) -> Any:
    return ((row, n, n) for row, _, n in _moved(self, first, spot, key, unit))


def _changes_of_the_batch(self: Known, first: Any, spot: Any, key: Any, unit: int) -> Any:
    """A unit sees what later ones of its batch do."""
    return _moved(self, first, spot, key, len(self.units) - 1)


def _answered_only(self: Any, view: Any, together: Any) -> Fragment:
    units, self._known.units = self._known.units, [{} for _ in self._known.units]
    try:
        return _made(self, view, together)
    finally:
        self._known.units = units


_touched_join = fragments._touched_of.dispatch(Join)
_keys, _first, _moved, _made = fragments._keys, Known._first, Known._moved, fragments._Collecting.fragment

MISTAKES: dict[str, tuple[Any, Any, Any, int]] = {
    "a changed partner is not noticed": (fragments._touched_of, Join, _left_of_changes_only, 39),
    "partners only of changed left rows": (fragments._touched_of, Join, _partners_of_changed_only, 250),
    "one side of a FULL JOIN": (fragments._touched_of, Join, _one_side_of_a_full_join, 200),
    "one side of an inner join": (fragments._touched_of, Join, _one_side_of_an_inner_join, 31),
    "EXISTS without changed right rows": (fragments._touched_of, Exists, _not_exists_for_changes_only, 50),
    "one branch of a UNION": (fragments._rows_of, Union, _first_branch_only, 50),
    "partitions cut": (fragments._rows_of, Window, _partition_cut, 2443),
    "groups not read whole": (fragments, "_whole", _changed_rows_only, 6),
    "NULL groups skipped": (fragments, "_whole", _without_null, 9),
    "groups covered by padded columns": (
        tree._Together,
        "cover",
        property(lambda self: tuple(column for column in self.by if column in self.child.raw)),
        744,
    ),
    "NULL looked up in padded columns": (fragments, "_links", _all_links, 3880),
    "NULL never looked up": (fragments, "_keys", _keys_without_null, 1425),
    "the wrong row of a changed key": (Known, "_first", _last_known, 39),
    "before is after": (Known, "_moved", _before_as_after, 5),
    "later units seen": (Known, "_moved", _changes_of_the_batch, 5),
    "changed rows left out": (fragments._Collecting, "fragment", _answered_only, 0),
    "no group whole": (fragments._Collecting, "cover", lambda *_: None, 5),
}
"""Where each is planted, and from which seed on it is looked for."""


@contextmanager
def planted(owner: Any, what: Any, wrong: Any) -> Iterator[None]:
    if isinstance(what, str):
        right = owner.__dict__[what]
        setattr(owner, what, wrong)
    else:
        right = owner.dispatch(what)
        owner.register(what, wrong)
    try:
        yield
    finally:
        if isinstance(what, str):
            setattr(owner, what, right)
        else:
            owner.register(what, right)


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_found(name: str) -> None:
    """Some random tree comes out wrong with the mistake, and right without it."""
    owner, what, mistake, first = MISTAKES[name]
    with planted(owner, what, mistake):
        wrong = next((seed for seed in range(first, first + 4000) if not changes_exactly(Case(seed))), None)
    assert wrong is not None
    assert changes_exactly(Case(wrong))
