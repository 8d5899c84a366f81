"""Random trees of operators over a few small relations, and what their sources do."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from bags import expanded
from statements import Statements

from strobe.algebra.bag import Bag, Row
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.sql import compile_view
from strobe.algebra.tree import (
    UNIT,
    Exists,
    Explode,
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
    operators,
)
from strobe.algebra.view import Occurrence, Output, View
from strobe.auditor.operators import Tree
from strobe.auditor.verdict import CannotEvaluate
from strobe.errors import UserError
from strobe.managers.base import ViewManager
from strobe.messages import GlobalTransaction
from strobe.simulator.world import MemorySource, Planned, World


def relation(source: str, name: str, columns: str, key: str = "", hidden: str = "") -> RelationSchema:
    """Integer columns, all found by an index but those that are `hidden`."""
    names = columns.split()
    found = tuple(Column(n, "bigint", searchable=n not in hidden.split()) for n in names)
    return RelationSchema(source, name, found, tuple(key.split()), tuple((n,) for n in names))


R = relation("x", "r", "a b")
U = relation("x", "u", "k d", key="k")
S = relation("y", "s", "b c e")
T = relation("z", "t", "k c", key="k", hidden="c")
RELATIONS = (R, U, S, T)


class TreeMaker:
    """Trees of at most so many occurrences."""

    def __init__(self, rng: random.Random, most: int = 4) -> None:
        self.rng, self.most = rng, most
        self.occurrences: list[Occurrence] = []
        self._names = 0
        self._numbers = 0

    def view(self, name: str = "v", depth: int = 4) -> View:
        tree = self.tree(depth)
        outputs = tuple(Output(column, column) for column in tree.columns)
        return View(name, "", tuple(self.occurrences), (), None, outputs, tree=tree)

    def tree(self, depth: int) -> Operator:
        makers: list[Callable[[int], Operator]] = [self.filter, self.project, self.group, self.window]
        if len(self.occurrences) + 1 < self.most:
            makers += [self.join, self.join, self.join, self.exists, self.union]
        if self.rng.random() < 0.1:
            makers.append(self.explode)
        if depth <= 0 or self.rng.random() < 0.1:
            return self.scan()
        return self.rng.choice(makers)(depth - 1)

    def scan(self) -> Operator:
        chosen = self.rng.choice(RELATIONS)
        index = len(self.occurrences)
        self.occurrences.append(Occurrence(index, f"o{index}", chosen, tuple(c.name for c in chosen.columns)))
        return Scan(self.occurrences[-1])

    def filter(self, depth: int) -> Operator:
        child = self.tree(depth)
        return Filter(child, self.condition(child.columns))

    def project(self, depth: int) -> Operator:
        child = self.tree(depth)
        outputs = []
        for column in self.some(child.columns, 1, 3):
            renamed = self.rng.choice([column, self.name()])
            outputs.append(Output(renamed if all(o.name != renamed for o in outputs) else self.name(), column))
        if self.rng.random() < 0.4:
            outputs.append(Output(self.name(), f"{self.rng.choice(child.columns)} + 1L"))
        return Project(child, tuple(outputs))

    def explode(self, depth: int) -> Operator:
        child = self.tree(depth)
        return Explode(child, f"explode(array({self.rng.choice(child.columns)}, 1L))", (self.name(),))

    def join(self, depth: int) -> Operator:
        left, right = self.tree(depth), self.tree(depth)
        kind = self.rng.choice([JoinKind.INNER, JoinKind.LEFT, JoinKind.LEFT, JoinKind.FULL])
        pairs = self.pairs(left, right)
        merged = ()
        if kind is JoinKind.FULL:
            using = self.some([p for p in pairs if not p.null_safe], 0, 2)
            merged = tuple(Merged(self.name(), p.left, p.right) for p in using)
        return Join(left, right, pairs, self.maybe((*left.columns, *right.columns)), kind, merged)

    def exists(self, depth: int) -> Operator:
        left, right = self.tree(depth), self.tree(depth)
        condition = self.maybe((*left.columns, *right.columns))
        return Exists(left, right, self.pairs(left, right), condition, self.rng.random() < 0.5)

    def union(self, depth: int) -> Operator:
        branches = (self.tree(depth), self.tree(depth))
        outputs = tuple(
            (self.name(), tuple(self.rng.choice(branch.columns) for branch in branches))
            for _ in range(self.rng.randint(1, 3))
        )
        cast = frozenset(name for name, _ in outputs if self.rng.random() < 0.1)
        return Union(branches, outputs, cast)

    def group(self, depth: int) -> Operator:
        child = self.tree(depth)
        by = self.by(child)
        made = ["COUNT(*)", "COUNT({c})", "SUM({c})", "MIN({c})", "MAX({c})", "COUNT(DISTINCT {c})"]
        outputs = tuple(
            Output(self.name(), self.rng.choice(made).format(c=self.rng.choice(child.columns)))
            for _ in range(self.rng.randint(0 if by else 1, 2))
        )
        return Group(child, self.number(), by, outputs)

    def window(self, depth: int) -> Operator:
        child = self.tree(depth)
        by = self.by(child)
        partition = f"PARTITION BY {', '.join([UNIT, *by])} "
        column = self.rng.choice(child.columns)
        total = ", ".join([f"{column} DESC", *(c for c in child.columns if c != column)])
        function, order = self.rng.choice(
            [
                ("ROW_NUMBER()", f"ORDER BY {total}"),
                ("RANK()", f"ORDER BY {column}"),
                (f"LAG({column})", f"ORDER BY {total}"),
                (f"COUNT({column})", ""),
                (f"SUM({column})", f"ORDER BY {self.rng.choice(child.columns)}"),
            ]
        )
        name = self.name()
        if function in ("ROW_NUMBER()", "RANK()"):  # an int: made a bigint like all others
            made = Window(child, self.number(), by, (Output(name, f"{function} OVER ({partition}{order})"),))
            kept = tuple(Output(c, c) for c in child.columns)
            return Project(made, (*kept, Output(self.name(), f"{name} + 0L")))
        return Window(child, self.number(), by, (Output(name, f"{function} OVER ({partition}{order})"),))

    def pairs(self, left: Operator, right: Operator) -> tuple[Pair, ...]:
        number = self.rng.choice([0, 1, 1, 1, 1, 2])
        if self.rng.random() < 0.2:
            mine, theirs = self.some(left.padded or left.raw, 1, 1), self.some(right.padded or right.raw, 1, 1)
            return tuple(Pair(a, b, True) for a, b in zip(mine, theirs, strict=False))
        mine, theirs = self.some(left.raw, 0, number), self.some(right.raw, 0, number)
        return tuple(Pair(a, b, self.rng.random() < 0.2) for a, b in zip(mine, theirs, strict=False))

    def by(self, child: Operator) -> tuple[str, ...]:
        """Columns to group by, often such as are padded."""
        if child.padded and self.rng.random() < 0.4:
            return self.some(child.padded, 1, 2)
        return self.some(child.columns, 0, 2)

    def condition(self, columns: tuple[str, ...]) -> str:
        column = self.rng.choice(columns)
        other = self.rng.choice(columns)
        tests = [f"{column} > 1", f"{column} IS NULL", f"{column} IS NOT NULL", f"{column} = {other}", f"{column} < 3"]
        return self.rng.choice(tests)

    def maybe(self, columns: tuple[str, ...]) -> str | None:
        return self.condition(columns) if self.rng.random() < 0.3 else None

    def some(self, columns: object, least: int, most: int) -> tuple:  # type: ignore[type-arg]  # of whatever they are
        known = sorted(columns, key=repr)  # type: ignore[call-overload]
        return tuple(self.rng.sample(known, min(len(known), self.rng.randint(least, max(least, most)))))

    def name(self) -> str:
        self._names += 1
        return f"m{self._names}"

    def number(self) -> int:
        self._numbers += 1
        return self._numbers


class Rows:
    """Contents of all relations, and changes of them: duplicates and NULLs, but keys that are none."""

    def __init__(self, rng: random.Random, relations: tuple[RelationSchema, ...] = RELATIONS) -> None:
        self.rng = rng
        self.relations = relations
        self.contents = {r.id: Bag(tuple(c.name for c in r.columns)) for r in relations}
        for chosen in relations:
            self.change(chosen, rng.randrange(4), 0)

    def change(self, chosen: RelationSchema, coming: int, going: int) -> Bag:
        """Carries out a change of so many rows, and returns it."""
        before = self.contents[chosen.id]
        gone = self.rng.sample(there := expanded(before), min(len(there), going))
        rows = before.add(Bag.of(before.attributes, gone, -1))
        for _ in range(coming):
            new = self._row(chosen)
            if not chosen.key or all(row[0] != new[0] for row, _ in rows.items()):
                rows = rows.add(Bag.of(before.attributes, [new]))
        self.contents[chosen.id] = rows
        return rows.add(before.negate())

    def transaction(self, source: str) -> dict[str, Bag]:
        here = [r for r in self.relations if r.source == source]
        chosen = self.rng.sample(here, self.rng.randint(1, len(here)))
        changes = {r.name: self.change(r, self.rng.randrange(3), self.rng.randrange(3)) for r in chosen}
        return {name: change for name, change in changes.items() if not change.known_empty}

    def of_sources(self) -> dict[str, dict[str, Bag]]:
        found: dict[str, dict[str, Bag]] = {}
        for r in self.relations:
            found.setdefault(r.source, {})[r.name] = self.contents[r.id]
        return found

    def _row(self, chosen: RelationSchema) -> Row:
        return tuple(self._value(c.name in chosen.key) for c in chosen.columns)

    def _value(self, key: bool) -> int | None:
        if key:
            return self.rng.randint(1, 4)
        return self.rng.choice([1, 2, 3, None]) if self.rng.random() < 0.3 else self.rng.choice([1, 2])


def random_tree(rng: random.Random, name: str = "v") -> View:
    return TreeMaker(rng, rng.randint(1, 5)).view(name, rng.randint(1, 5))


def _ties(operator: Operator) -> bool:
    """Whether rows may tie in a window's order that differ in columns which nothing above looks at: then the compiler
    breaks no ties, and only Spark can say."""
    texts = [output.expression for output in operator.outputs] if isinstance(operator, Window) else []
    numbered = [text for text in texts if not text.startswith(("rank", "dense_rank", "sum", "count"))]
    return any(column not in text for text in numbered for column in operator.children[0].columns)


def compiled_tree(rng: random.Random, name: str = "v") -> View:
    """A view of random SQL that has a tree, and one that can be evaluated in memory."""
    statements = Statements(rng, {r.id: r for r in RELATIONS})
    while True:
        try:
            found = compile_view(name, statements.statement(3), {r.id: r for r in RELATIONS})
            if found.tree is not None and Tree(found.tree) and not any(map(_ties, operators(found.tree))):
                return found
        except (UserError, CannotEvaluate):
            continue


@dataclass(frozen=True)
class TreePlan:
    """Views, what their sources hold, and what will happen there."""

    views: Mapping[str, View]
    contents: Mapping[str, Mapping[str, Bag]]
    planned: tuple[Planned, ...]

    def world(
        self,
        make: Callable[[View], ViewManager],
        *,
        order: str = "source",
        source: Callable[[str, Mapping[str, Bag]], MemorySource] | None = None,
        pace: int = 0,
    ) -> World:
        new = source or (lambda name, contents: MemorySource(name, dict(contents)))
        sources = {name: new(name, contents) for name, contents in self.contents.items()}
        managers = {name: make(view) for name, view in self.views.items()}
        return World(sources, managers, deque(self.planned), order=order, pace=pace)

    @property
    def possible(self) -> bool:
        """Whether nothing goes that is not there."""
        state = {(source, name): rows for source, of in self.contents.items() for name, rows in of.items()}
        for source, changes, _ in self.planned:
            for name, change in changes.items():
                state[source, name] = state[source, name].add(change)
                if not state[source, name].part(-1).known_empty:
                    return False
        return True

    def smaller(self) -> Iterator[TreePlan]:
        """The same without a view, an operator, a transaction, or a relation's first rows."""
        for name, view in self.views.items():
            if len(self.views) > 1:
                yield replace(self, views={n: v for n, v in self.views.items() if n != name})
            for tree in _smaller(view.tree) if view.tree is not None else ():
                less = replace(view, tree=tree, outputs=tuple(Output(c, c) for c in tree.columns))
                yield replace(self, views={**self.views, name: less})
        for i in range(len(self.planned)):
            yield replace(self, planned=(*self.planned[:i], *self.planned[i + 1 :]))
        for source, of in self.contents.items():
            for name, rows in of.items():
                if not rows.known_empty:
                    emptied = {**self.contents, source: {**of, name: Bag(rows.attributes)}}
                    yield replace(self, contents=emptied)


def _smaller(operator: Operator) -> Iterator[Operator]:
    """The tree without an operator, as far as the columns that are used above are still there."""
    yield from operator.children
    names = {1: ("child",), 2: ("left", "right")}.get(len(operator.children), ())
    for name, child in zip(names, operator.children, strict=not isinstance(operator, Union)):
        for less in _smaller(child):
            if set(child.columns) <= set(less.columns) and not isinstance(operator, Union):
                yield replace(operator, **{name: less})  # type: ignore[type-var]  # all are dataclasses


def smallest(plan: TreePlan, fails: Callable[[TreePlan], bool]) -> TreePlan:
    """A plan that fails, with nothing in it that it could fail without."""
    while (less := next((p for p in plan.smaller() if p.possible and fails(p)), None)) is not None:
        plan = less
    return plan


def tree_plan(
    seed: int,
    *,
    view: Callable[[random.Random, str], View] = random_tree,
    transactions: int = 8,
    views: int = 1,
    together: bool = False,
) -> TreePlan:
    """Views of random trees over a few rows, and transactions, some of them over several sources."""
    rng = random.Random(seed)
    rows = Rows(rng)
    made = {f"v{i}": view(rng, f"v{i}") for i in range(views)}
    contents = rows.of_sources()
    planned: list[Planned] = []
    for number in range(transactions):
        chosen = rng.sample("xyz", 2) if together and rng.random() < 0.3 else [rng.choice("xyz")]
        part_of = (GlobalTransaction(f"T{number}", frozenset(chosen)),) if len(chosen) > 1 else ()
        planned += [(name, rows.transaction(name), part_of) for name in chosen]
    return TreePlan(made, contents, tuple(planned))


def tree_world(seed: int, make: Callable[[View], ViewManager], transactions: int = 8) -> World:
    return tree_plan(seed, transactions=transactions).world(make)


def with_occurrences(view: View, **changes: object) -> View:
    """The view with something else said of each occurrence; its tree knows nothing of it."""
    return replace(view, occurrences=tuple(replace(o, **changes) for o in view.occurrences))  # type: ignore[arg-type]
