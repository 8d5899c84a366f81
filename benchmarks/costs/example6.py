"""Example 6 of the ECA paper, built so that its assumptions hold to the tuple: r1(W,X), r2(X,Y), r3(Y,Z) at one source,
and `V = Π_{W,Z}(σ_{W>Z}(r1 ⋈ r2 ⋈ r3))`.

Each relation has C tuples, and each value of a join attribute is in J of them. The paper lets neither change by the
updates (assumption 5). So insertions and deletions of a relation take turns, and the last update of each is an
insertion, after which it has C tuples: three updates are the three insertions of the example. Which tuples they are
decides what compensation costs, and there are three answers:

    apart     updates of different relations join with different tuples, and never with each other
    joining   every two updates of different relations join, and J tuples of the third relation with them: what the
              formulas assume of the worst case
    random    tuples as they come: any values, new tuples inserted and old ones deleted

Where they are built, exactly half of what a term finds has W > Z, except for terms in which an update of r1 meets one
of r3: there both sides are given, and it is all or nothing. `mirrored` exchanges the two values of W that updates of r1
have, so that the mean of the two is exact.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from strobe.algebra.bag import Bag, Row
from strobe.algebra.view import Equality, Occurrence, Output, View
from strobe.simulator.lab import Changes, Plan, Step
from strobe.simulator.plans import relation

SOURCE = "x"
COLUMNS = {"r1": ("W", "X"), "r2": ("X", "Y"), "r3": ("Y", "Z")}
NAMES = tuple(COLUMNS)
LAYOUTS = ("apart", "joining", "random")


@dataclass(frozen=True)
class Example:
    """How Example 6 is carried out."""

    C: int = 100
    J: int = 4
    k: int = 3
    layout: str = "apart"
    mirrored: bool = False
    order: tuple[int, ...] = ()
    """Which relation each update is of; one after another, unless it says otherwise."""
    seed: int = 0

    @property
    def relations(self) -> tuple[int, ...]:
        if self.order or self.layout != "random":
            return self.order or tuple(i % 3 for i in range(self.k))
        rng = random.Random(f"order {self.seed}")
        return tuple(rng.randrange(3) for _ in range(self.k))

    def plan(self) -> Plan:
        if self.J % 2 or self.C % self.J:
            raise ValueError("half of J tuples, and C / J values, have to be whole numbers")
        before, updates = self._random() if self.layout == "random" else self._built()
        contents = {name: Bag(columns, before[name]) for name, columns in COLUMNS.items()}
        steps = tuple(Step(f"T{number}", (update,)) for number, update in enumerate(updates, 1))
        return Plan(view(), {SOURCE: contents}, {SOURCE: steps})

    def _built(self) -> tuple[dict[str, Counter[Row]], list[Changes]]:
        """From the last state, in which everything is as it should be, back to the first."""
        values = self.C // self.J
        x, (x2, y2), y = self._touched(values)
        rows = {
            "r1": Counter(row for v in range(values) for row in self._ends(v, v == x, (0, 10), (4, 6))),
            "r2": self._middle(values),
            "r3": Counter((v, z) for v in range(values) for z, _ in self._ends(v, v == y, (1, 9), (5, 5))),
        }
        updates: list[Changes] = []
        later = Counter[int]()
        for index in reversed(self.relations):
            turn = later[index]
            later[index] += 1
            w = 6 if ((turn + 1) // 2 + self.mirrored) % 2 == 0 else 4
            row = ((w, x), (x2, y2), (y, 5))[index]
            count = 1 if turn % 2 == 0 else -1
            rows[NAMES[index]][row] -= count
            updates.append({NAMES[index]: Bag(COLUMNS[NAMES[index]], {row: count})})
        return rows, updates[::-1]

    def _ends(self, value: int, touched: bool, usual: Row, own: Row) -> Iterator[Row]:
        """The J tuples of r1 with a value of X (or, turned around, of r3 with a value of Y)."""
        each = self.J // 2 - touched
        for end in (*usual * each, *(own if touched else ())):
            yield (end, value)

    def _touched(self, values: int) -> tuple[int, tuple[int, int], int]:
        """The values of X and Y that updates of r1, r2 and r3 have."""
        if self.layout == "joining" or values < 3:
            return 0, (0, 0), 0
        size = self._size(values)
        return 0, (size, size), 2 * size

    def _size(self, values: int) -> int:
        """How many values of X are joined with as many of Y, each with each: J, where there are enough."""
        return max(d for d in range(1, self.J + 1) if self.J % d == 0 and (3 * d <= values or d == 1))

    def _middle(self, values: int) -> Counter[Row]:
        rows = Counter[Row]()
        size = self._size(values)
        start = 0
        while start < values:
            alone = (self.layout == "joining" and start == 0) or start + size > values
            many = 1 if alone else size
            for x in range(start, start + many):
                for y in range(start, start + many):
                    rows[x, y] += self.J // many
            start += many
        return rows

    def _random(self) -> tuple[dict[str, Counter[Row]], list[Changes]]:
        rng = random.Random(self.seed)
        values = self.C // self.J
        every = [v for v in range(values) for _ in range(self.J)]
        tuples: dict[str, list[Row]] = {
            "r1": [(rng.randrange(10**6), v) for v in every],
            "r2": list(zip(every, rng.sample(every, len(every)), strict=True)),
            "r3": [(v, rng.randrange(10**6)) for v in every],
        }
        before = {name: Counter(rows) for name, rows in tuples.items()}
        updates: list[Changes] = []
        for index in self.relations:
            name = NAMES[index]
            some, other, any_ = rng.randrange(values), rng.randrange(values), rng.randrange(10**6)
            row = ((any_, some), (some, other), (some, any_))[index]
            count = 1
            if len(tuples[name]) > self.C or (len(tuples[name]) == self.C and rng.random() < 0.5):
                row, count = rng.choice(tuples[name]), -1
                tuples[name].remove(row)
            else:
                tuples[name].append(row)
            updates.append({name: Bag(COLUMNS[name], {row: count})})
        return before, updates


def view() -> View:
    schemas = [relation(SOURCE, name, columns) for name, columns in COLUMNS.items()]
    occurrences = tuple(Occurrence(i, s.name, s, COLUMNS[s.name]) for i, s in enumerate(schemas))
    w, z = occurrences[0].attribute("W"), occurrences[2].attribute("Z")
    equalities = (Equality(0, "X", 1, "X"), Equality(1, "Y", 2, "Y"))
    return View("v", "", occurrences, equalities, f"{w} > {z}", (Output("W", w), Output("Z", z)))
