"""Small random worlds for simulations: sources, views of different shapes, transactions, schedules."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from bags import expanded

from strobe.algebra.bag import Bag
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.view import Equality, Occurrence, Output, View
from strobe.managers.base import ViewManager
from strobe.simulator.world import MemorySource, Planned, World


def relation(source: str, name: str, columns: str, key: str = "") -> RelationSchema:
    """`relation("x", "r", "a b")`: two integer columns, all indexed."""
    names = columns.split()
    indexes = tuple((name,) for name in names)
    return RelationSchema(source, name, tuple(Column(n, "bigint") for n in names), tuple(key.split()), indexes)


def view(name: str, relations: list[RelationSchema], equalities: list[str]) -> View:
    """`view("v", [r, s], ["0.b=1.b"])`: a natural-join-like view that uses every column."""
    occurrences = tuple(Occurrence(i, f"o{i}", r, tuple(c.name for c in r.columns)) for i, r in enumerate(relations))
    edges = []
    for text in equalities:
        left, right = text.split("=")
        (i, a), (j, b) = left.split("."), right.split(".")
        edges.append(Equality(int(i), a, int(j), b))
    outputs = tuple(Output(a, a) for o in occurrences for a in o.attributes)
    return View(name, "", occurrences, tuple(edges), None, outputs)


R = relation("x", "r", "a b")
S = relation("y", "s", "b c")
T = relation("z", "t", "c d")
U = relation("x", "u", "d e")

VIEWS = {
    "chain": view("chain", [R, S, T], ["0.b=1.b", "1.c=2.c"]),
    "self_join": view("self_join", [R, S, R], ["0.b=1.b", "1.c=2.a"]),
    "two_at_one_source": view("two_at_one_source", [R, U, T], ["0.b=1.d", "1.d=2.c"]),
    "cross": view("cross", [S, U], []),
    "pairs": view("pairs", [R, R], ["0.a=1.a"]),
    "single": view("single", [U], []),
}


def random_world(
    seed: int,
    views: list[str],
    make: Callable[[View], ViewManager],
    transactions: int = 8,
    order: str = "source",
) -> World:
    """Sources with a few rows over a tiny domain, so that everything joins, and transactions over several relations."""
    rng = random.Random(seed)
    relations = {"x": [R, U], "y": [S], "z": [T]}

    def row(_: RelationSchema) -> tuple[int | None, ...]:
        return tuple(rng.choice([1, 2, 3, None] if rng.random() < 0.1 else [1, 2]) for _ in range(2))

    contents = {
        s: {r.name: Bag.of([c.name for c in r.columns], [row(r) for _ in range(rng.randrange(3))]) for r in rs}
        for s, rs in relations.items()
    }
    current = {s: dict(c) for s, c in contents.items()}
    planned: deque[Planned] = deque()
    for _ in range(transactions):
        source = rng.choice(sorted(relations))
        changes: dict[str, Bag] = {}
        for r in rng.sample(relations[source], rng.randint(1, len(relations[source]))):
            attributes = [c.name for c in r.columns]
            change = Bag.of(attributes, [row(r) for _ in range(rng.randrange(3))])
            there = expanded(current[source][r.name])
            gone = rng.sample(there, min(len(there), rng.randrange(3)))
            change = change.add(Bag.of(attributes, gone, -1))
            current[source][r.name] = current[source][r.name].add(change)
            changes[r.name] = change
        planned.append((source, changes, ()))
    sources = {s: MemorySource(s, c) for s, c in contents.items()}
    return World(sources, {name: make(VIEWS[name]) for name in views}, planned, order=order)


def run(world: World, seed: int, steps: int = 100_000) -> None:
    """Do what could happen next, at random, until nothing can."""
    rng = random.Random(seed)
    for _ in range(steps):
        choices = world.choices()
        if not choices:
            return
        world.step(*rng.choice(choices))
    raise RuntimeError("the world did not come to rest")


def wrong_states(world: World) -> list[str]:
    """The states that differ from a recomputation at the vector they claim."""
    return [
        f"{state.numbers} {name} at {state.places[name]}: {rows} instead of {world.expected(name, state.places[name])}"
        for state in world.history
        for name, rows in state.views.items()
        if name not in world.unguaranteed and rows != world.expected(name, state.places[name])
    ]
