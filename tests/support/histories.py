"""Small histories of sources and views for the auditor, and the definitions of the levels taken literally."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from strobe.algebra.bag import Bag
from strobe.auditor.levels import Evaluate, HistoryTransaction, Judge

World = tuple[dict[str, dict[str, Bag]], list[HistoryTransaction]]
State = Mapping[str, Bag]

RELATIONS = {"x": {"r": "a b", "u": "d e"}, "y": {"s": "b c"}, "z": {"t": "c d"}}


def bag(columns: str, *rows: tuple[Any, ...], count: int = 1) -> Bag:
    return Bag.of(columns.split(), rows, count)


def copies(contents: Mapping[str, Mapping[str, Bag]]) -> dict[str, Bag]:
    """One view for every relation: its copy."""
    return {name: rows for relations in contents.values() for name, rows in relations.items()}


def counters(*changes: str, evaluate: Evaluate = copies, limit: int = 20_000) -> Judge:
    """Sources x and y, each with a relation of its own name, into which transactions put numbers: `x1`, `y1`, or `x1y1`
    for a global one."""
    initial = {"x": {"x": bag("n")}, "y": {"y": bag("n")}}
    transactions = []
    for i, text in enumerate(changes, 1):
        parts = {source: {source: bag("n", (int(n),))} for source, n in zip(text[::2], text[1::2], strict=True)}
        transactions.append(HistoryTransaction(f"T{i}", parts))
    return Judge(initial, transactions, evaluate, limit=limit)


def state(x: int, y: int = 0) -> dict[str, Bag]:
    """What copies of x and y are after so many transactions of each, if they put 1, 2, …"""
    return {"x": bag("n", *((n,) for n in range(1, x + 1))), "y": bag("n", *((n,) for n in range(1, y + 1)))}


def evaluate(contents: Mapping[str, Mapping[str, Bag]]) -> dict[str, Bag]:
    """Three views over three sources: a join across all, a join of two relations of one source, and a copy."""
    r, u = contents["x"]["r"].rename({"b": "rb"}), contents["x"]["u"]
    s = contents["y"]["s"].rename({"c": "sc"})
    t = contents["z"]["t"].rename({"c": "tc", "d": "td"})
    chain = r.join(s, [("rb", "b")]).join(t, [("sc", "tc")])
    inner = contents["x"]["r"].join(u, [("b", "d")])
    return {"chain": chain.project(["a", "td"]), "inner": inner.project(["a", "e"]), "copy": contents["y"]["s"]}


def random_world(rng: random.Random) -> World:
    def rows(columns: str, count: int = 1) -> Bag:
        return Bag.of(columns.split(), [(rng.randint(1, 2), rng.randint(1, 2))], count)

    initial = {
        source: {name: rows(columns) if rng.random() < 0.6 else Bag(columns.split()) for name, columns in own.items()}
        for source, own in RELATIONS.items()
    }
    transactions = []
    for number in range(rng.randint(0, 5)):
        parts = {}
        for source in rng.sample(sorted(RELATIONS), rng.choice([1, 1, 1, 2, 3])):
            name = rng.choice(sorted(RELATIONS[source]))
            parts[source] = {name: rows(RELATIONS[source][name], rng.choice([1, 1, -1]))}
        transactions.append(HistoryTransaction(f"T{number}", parts))
    return initial, transactions


class Literal:
    """The definitions, word for word, over one world."""

    def __init__(self, world: World) -> None:
        self.initial, self.transactions = world
        self.queues = {s: [t for t in self.transactions if s in t.parts] for s in self.initial}
        self.schedules = list(self._schedules(dict.fromkeys(self.initial, 0)))

    def _schedules(self, at: dict[str, int]) -> Iterator[list[dict[str, int]]]:
        """Every serial schedule from a vector on, as the vectors it passes through."""
        ready = [t for t in self.transactions if all(self.queues[s][at[s] : at[s] + 1] == [t] for s in t.parts)]
        if not ready:
            yield [at]
        for transaction in ready:
            for rest in self._schedules({s: n + (s in transaction.parts) for s, n in at.items()}):
                yield [at, *rest]

    def views(self, at: Mapping[str, int]) -> dict[str, Bag]:
        contents = {source: dict(relations) for source, relations in self.initial.items()}
        for source, n in at.items():
            for transaction in self.queues[source][:n]:
                for relation, change in transaction.parts[source].items():
                    contents[source][relation] = contents[source][relation].add(change)
        return evaluate(contents)

    def level(self, states: Sequence[State], views: Sequence[str]) -> tuple[str, int | None]:
        def seen(state: State) -> list[Bag]:
            return [state[view] for view in views]

        shown = [seen(state) for state in states]
        passed = [[seen(self.views(at)) for at in schedule] for schedule in self.schedules]
        consistent = any(in_order(shown, values) for values in passed)
        if shown[-1] != passed[0][-1]:
            return ("consistent" if consistent else "inconsistent"), None
        if any(distinct(shown) == distinct(values) for values in passed):
            return "complete", None
        if consistent:
            return "strong", next(
                (n for n in range(2, len(self.transactions) + 1) if self.every(n, shown, passed)), None
            )
        everywhere = [dict(zip(self.queues, at, strict=True)) for at in product(*map(self.positions_of, self.queues))]
        anywhere = [seen(self.views(at)) for at in everywhere]
        return ("weak" if all(state in anywhere for state in shown) else "convergent"), None

    def positions_of(self, source: str) -> range:
        return range(len(self.queues[source]) + 1)

    @staticmethod
    def every(n: int, shown: list[list[Bag]], passed: list[list[list[Bag]]]) -> bool:
        """Whether exactly every n-th state of some schedule, and its last, is shown."""
        blocks = [[*values[:-1:n], values[-1]] for values in passed]
        return any(distinct(shown) == distinct(values) for values in blocks)


def distinct(values: list[list[Bag]]) -> list[list[Bag]]:
    return [value for i, value in enumerate(values) if i == 0 or value != values[i - 1]]


def in_order(shown: list[list[Bag]], values: list[list[Bag]]) -> bool:
    """Whether every state shown is one that a schedule passed through, never going back."""
    place = 0
    for state in shown:
        while place < len(values) and values[place] != state:
            place += 1
        if place == len(values):
            return False
    return True
