"""Small random plans: relations over a tiny domain, so that everything joins, and what their sources will do.

The five scenarios of the Strobe paper (3.1 and Figure 7.2), and one that it leaves out:

    centralized      one source that waits until the warehouse is at rest: nothing is concurrent
    single source    one source, single updates
    transactions     one source, transactions of several updates
    single updates   several sources, single updates
    source-local     several sources, transactions at each
    global           several sources, transactions that span them
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from strobe.algebra.bag import Bag, Row
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.view import Equality, Occurrence, Output, View
from strobe.auditor.levels import HistoryTransaction, Judge
from strobe.messages import GlobalTransaction
from strobe.simulator.lab import Changes, Plan, Step
from strobe.simulator.world import Contents, evaluate

SCENARIOS = ("centralized", "single source", "transactions", "single updates", "source-local", "global")


@dataclass(frozen=True)
class Shape:
    """A kind of view to explore: a chain of relations R0 ⋈ R1 ⋈ …, each joined with the next."""

    relations: tuple[int, ...] = (0, 1, 2)
    """Which relation each occurrence is of: (0, 0, 1) is a self-join."""
    keyed: bool = True
    """Whether the relations have keys, all shown by the view; otherwise rows may repeat."""


def relation(source: str, name: str, columns: Sequence[str], key: Sequence[str] = ()) -> RelationSchema:
    """A relation of integers that the source finds by any column."""
    return RelationSchema(
        source, name, tuple(Column(c, "bigint") for c in columns), tuple(key), tuple((c,) for c in columns)
    )


def view(relations: Sequence[RelationSchema], equalities: Sequence[Equality], name: str = "v") -> View:
    """A view that shows every column of its relations."""
    occurrences = tuple(Occurrence(i, f"o{i}", r, tuple(c.name for c in r.columns)) for i, r in enumerate(relations))
    outputs = tuple(Output(a, a) for o in occurrences for a in o.attributes)
    key = tuple(o.attribute(c) for o in occurrences for c in o.relation.key)
    keyed = all(r.key for r in relations)
    return View(name, "", occurrences, tuple(equalities), None, outputs, key if keyed else ())


def random_plan(rng: random.Random, scenario: str, shape: Shape, transactions: int = 4) -> Plan:
    """Sources with a few rows, and a few transactions in which all kinds of updates occur."""
    one = scenario in ("centralized", "single source", "transactions")
    names = sorted(set(shape.relations))
    columns = ["k", "l", "r"] if shape.keyed else ["l", "r"]
    schemas = {n: relation("x" if one else "xyzw"[n], f"r{n}", columns, ["k"] if shape.keyed else []) for n in names}
    edges = [Equality(i, "r", i + 1, "l") for i in range(len(shape.relations) - 1)]
    world = RandomRows(rng, list(schemas.values()), shape.keyed)
    initial = world.contents()
    plan = view([schemas[n] for n in shape.relations], edges)
    steps: dict[str, list[Step]] = {s: [] for s in initial}
    for number in range(1, transactions + 1):
        parts = world.transaction(scenario)
        together = GlobalTransaction(f"T{number}", frozenset(parts))
        for source, updates in parts.items():
            part_of = (together,) if len(parts) > 1 else ()
            steps[source].append(Step(f"T{number}", tuple(updates), part_of))
    return Plan(plan, initial, {s: tuple(done) for s, done in steps.items()})


class RandomRows:
    """Contents that updates are drawn from, so that what is deleted is there and keys stay unique."""

    def __init__(self, rng: random.Random, relations: Sequence[RelationSchema], keyed: bool) -> None:
        self.rng, self.keyed = rng, keyed
        self.relations = list(relations)
        self.rows: dict[str, list[Row]] = {r.id: [] for r in relations}
        for schema in relations:
            for _ in range(rng.randrange(3)):
                self.rows[schema.id].append(self._new(schema))

    def contents(self) -> dict[str, Contents]:
        found: dict[str, Contents] = {}
        for schema in self.relations:
            bag = Bag.of([c.name for c in schema.columns], self.rows[schema.id])
            found.setdefault(schema.source, {})[schema.name] = bag
        return found

    def transaction(self, scenario: str) -> dict[str, list[Changes]]:
        """By source, the updates of the next transaction."""
        sources = sorted({r.source for r in self.relations})
        if scenario in ("centralized", "single source", "single updates"):
            chosen, size = [self.rng.choice(sources)], 1
        elif scenario == "global":
            chosen, size = self.rng.sample(sources, self.rng.randint(1, min(3, len(sources)))), 2
        else:
            chosen, size = [self.rng.choice(sources)], 3
        return {s: self.updates(s, self.rng.randint(1, size)) for s in chosen}

    def updates(self, source: str, number: int) -> list[Changes]:
        """So many updates at a source."""
        return [self._update(source) for _ in range(number)]

    def _update(self, source: str) -> Changes:
        schema = self.rng.choice([r for r in self.relations if r.source == source])
        rows, names = self.rows[schema.id], [c.name for c in schema.columns]
        kind = self.rng.choice(["insert", "insert", "delete", "modify"]) if rows else "insert"
        change = Bag(names)
        if kind != "insert":
            gone = self.rng.choice(rows)
            rows.remove(gone)
            change = Bag.of(names, [gone], -1)
        if kind != "delete":
            new = self._new(schema) if kind == "insert" else self._like(gone)
            rows.append(new)
            change = change.add(Bag.of(names, [new]))
        return {schema.name: change}

    def _new(self, schema: RelationSchema) -> Row:
        values = (self.rng.choice([1, 2]), self.rng.choice([1, 2]))
        if not self.keyed:
            return values
        taken = {row[0] for row in self.rows[schema.id]}
        return (next(k for k in count(1) if k not in taken), *values)

    def _like(self, row: Row) -> Row:
        values = (self.rng.choice([1, 2]), self.rng.choice([1, 2]))
        return (row[0], *values) if self.keyed else values


def judge(plan: Plan) -> Judge:
    """A judge of what a view shows while a plan is carried out."""
    transactions: dict[str, dict[str, Changes]] = {}
    for source, steps in plan.steps.items():
        for number, step in enumerate(steps):
            name = step.id if step.part_of else f"{source}{number}:{step.id}"
            transactions.setdefault(name, {})[source] = step.net
    order = sorted(transactions, key=lambda name: (int(name.rsplit("T", 1)[1]), name))
    history = [HistoryTransaction(name, transactions[name]) for name in order]
    return Judge(plan.initial, history, lambda at: {plan.view.name: evaluate(plan.view, at)})
