"""What a change asks for in a tree of operators, told from the tree alone."""

from __future__ import annotations

import random

import pytest
from trees import RELATIONS, Rows, compiled_tree, random_tree

from strobe.algebra.asking import asked
from strobe.algebra.bag import Bag
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.substitution import substitute
from strobe.algebra.tree import (
    Exists,
    Filter,
    Group,
    Join,
    JoinKind,
    Merged,
    Operator,
    Pair,
    Project,
    Scan,
    Union,
    Window,
)
from strobe.algebra.view import Occurrence, Output, View
from strobe.managers.fragments import Collector, Known, Wanted
from strobe.report.tree import lines

ORDERS = RelationSchema(
    "s", "orders", (Column("id", "bigint"), Column("customer", "bigint"), Column("cents", "bigint")), ("id",)
)
CUSTOMERS = RelationSchema("s", "customers", (Column("id", "bigint"), Column("name", "string")), ("id",))
ORDER, CUSTOMER = Occurrence(0, "o", ORDERS, ("id", "customer", "cents")), Occurrence(1, "c", CUSTOMERS, ("id", "name"))
SO, SC = Scan(ORDER), Scan(CUSTOMER)
ON = (Pair("r0c1", "r1c0"),)
OWNER = (Pair("r1c0", "r0c1"),)
BOTH = Union((Project(SO, (Output("a", "r0c1"),)), SC), (("n", ("a", "r1c0")),))
TOTAL = (Output("total", "sum(r0c2)"),)


def asks(tree: Operator) -> dict[str, list[str]]:
    """By the alias of what changes, the look-ups as text."""
    occurrences = tuple(sorted({s.occurrence for s in scans(tree)}, key=lambda o: o.index))
    view = View("v", "", occurrences, (), None, (), tree=tree)
    found = {}
    for changed in occurrences:
        found[changed.alias] = []
        for step in asked(view, changed):
            by = ", ".join(f"{own}={occurrences[i].alias}.{column}" for own, i, column in step.on)
            found[changed.alias].append(f"{occurrences[step.occurrence].alias} by {by or 'nothing'}")
    return found


def scans(tree: Operator) -> list[Scan]:
    return [tree] if isinstance(tree, Scan) else [scan for child in tree.children for scan in scans(child)]


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (Join(SO, SC, ON, None), {"o": ["c by id=o.customer"], "c": ["o by customer=c.id"]}),
        (
            Join(SO, SC, ON, None, JoinKind.LEFT),
            {"o": ["c by id=o.customer"], "c": ["o by customer=c.id"]},
        ),
        (
            Join(SC, SO, OWNER, None, JoinKind.LEFT),
            {"c": ["o by customer=c.id"], "o": ["c by id=o.customer", "o by customer=c.id"]},
        ),
        (
            Exists(SC, SO, OWNER, None, negated=True),
            {"c": ["o by customer=c.id"], "o": ["c by id=o.customer", "o by customer=c.id"]},
        ),
        (
            Join(SO, SC, ON, None, JoinKind.FULL, (Merged("k", "r0c1", "r1c0"),)),
            {
                "o": ["o by customer=o.customer", "c by id=o.customer"],
                "c": ["o by customer=c.id"],
            },
        ),
        (Group(SO, 0, ("r0c1",), TOTAL), {"o": ["o by customer=o.customer"]}),
        (Group(SO, 0, (), TOTAL), {"o": ["o by nothing"]}),
        (Filter(Window(SO, 0, ("r0c1",), ()), "true"), {"o": ["o by customer=o.customer"]}),
        (
            Join(SC, Group(SO, 0, ("r0c1",), TOTAL), OWNER, None, JoinKind.LEFT),
            {"c": ["o by customer=c.id"], "o": ["o by customer=o.customer", "c by id=o.customer"]},
        ),
        (
            Group(Join(SO, SC, ON, None), 0, ("r1c1",), TOTAL),
            {
                "o": ["c by id=o.customer", "c by name=c.name", "o by customer=c.id"],
                "c": ["o by customer=c.id", "c by name=c.name"],
            },
        ),
        (BOTH, {"o": [], "c": []}),
        (
            Group(BOTH, 0, ("n",), ()),
            {alias: ["o by customer=o.customer", "c by id=o.customer"] for alias in "oc"},
        ),
        (Group(Project(SO, (Output("x", "r0c2 / 100"),)), 0, ("x",), ()), {"o": ["o by nothing"]}),
        (Group(SO, 0, ("r0c0",), TOTAL), {"o": []}),
    ],
)  # fmt: skip
def test_what_a_change_of_each_relation_asks_for(tree: Operator, expected: dict[str, list[str]]) -> None:
    """Partners of joins, all partners of outer ones, the rest of groups and partitions; all rows where no column leads
    there; nothing where the changed row is known."""
    assert asks(tree) == expected


def test_a_tree_as_lines() -> None:
    """Each operator above those it reads, with the user's names and what is read whole."""
    tree = Filter(Group(Join(SO, SC, ON, "r0c2 > 0", JoinKind.LEFT), 0, ("r0c1",), TOTAL), "total > 5")
    names = {"r0c1": "o.customer", "r1c0": "c.id", "r0c2 > 0": "o.cents > 0", "sum(r0c2)": "sum(o.cents)"}
    assert [(x["depth"], x["operator"], x["detail"]) for x in lines(tree, lambda text: names.get(text, text))] == [
        (0, "filter", "total > 5"),
        (1, "GROUP BY o.customer", "sum(o.cents) as total; read whole by o.customer"),
        (2, "LEFT JOIN", "o.customer = c.id and o.cents > 0"),
        (3, "scan", "s.orders as o"),
        (3, "scan", "s.customers as c"),
    ]


def asked_for(view: View, seed: int) -> tuple[set[tuple[int, frozenset[str]]], set[tuple[int, frozenset[str]]]]:
    """The look-ups that a manager makes for a change of one relation, and those that are told from the tree."""
    rng = random.Random(seed)
    rows = Rows(rng)
    changed = rng.choice(view.occurrences).relation
    before = {o.index: substitute(o, rows.contents[o.relation.id]).collect() for o in view.occurrences}
    change = rows.change(next(r for r in RELATIONS if r.id == changed.id), rng.randint(1, 3), rng.randint(1, 3))
    unit = {o.index: substitute(o, change).collect() for o in view.occurrences if o.relation.id == changed.id}
    known, collector, found = Known(view, [unit]), Collector(view), set()
    wanted: Wanted = {}
    while collector.fragment(known, 0, wanted) is None:
        for (index, columns), keys in wanted.items():
            there = before[index]
            places = [there.attributes.index(column) for column in columns]
            rows_of = {row: n for row, n in there.items() if tuple(row[i] for i in places) in keys}
            known.learn((index, columns), keys, Bag(there.attributes, rows_of))
            found.add((index, frozenset(columns)))
        wanted = {}
    told = {
        (step.occurrence, frozenset(view.occurrences[step.occurrence].attribute(own) for own, _, _ in step.on))
        for occurrence in view.occurrences
        if occurrence.relation.id == changed.id
        for step in asked(view, occurrence)
    }
    return found, told


@pytest.mark.parametrize("make", [random_tree, compiled_tree])
def test_managers_ask_for_nothing_else(make: object) -> None:
    """Whatever tree it is, and whatever rows: a manager looks up what is told from the tree, or less."""
    some = 0
    for seed in range(150):
        view = make(random.Random(seed))  # type: ignore[operator]
        found, told = asked_for(view, seed)
        assert found <= told, (seed, view.tree, found - told)
        some += bool(found)
    assert some > 50
