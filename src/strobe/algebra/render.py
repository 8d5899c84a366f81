"""A tree of operators as one Spark SQL statement that evaluates many states at once.

Every row belongs to a unit (`UNIT`), which is one state of the relations: joins are within it, and groups and
partitions are its own. So one statement gives what the tree yields before and after each of several changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from strobe.algebra.schema import quoted
from strobe.algebra.tree import (
    UNIT,
    Exists,
    Explode,
    Filter,
    Group,
    Join,
    JoinKind,
    Operator,
    Project,
    Scan,
    Union,
    Window,
)
from strobe.algebra.view import Output

COUNT = "_count"
"""How often a row is there, in the tables of rows."""


@dataclass(frozen=True)
class Keys:
    """A table of the units and keys of which the groups are whole, over some of the columns by which they are formed.
    Without columns: the units of which all groups are."""

    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Tables:
    """Where Spark finds what a tree is evaluated over."""

    rows: Mapping[int, str]
    """By occurrence: a table with its attributes, `UNIT` and `COUNT`."""
    units: str
    """A table of all units, which an aggregate without GROUP BY needs."""
    covered: Mapping[int, Sequence[Keys]] = field(default_factory=dict)
    """By the number of an operator; all groups are whole where it is missing."""
    once: Collection[int] = ()
    """Occurrences of which every row is there once: they need no `COUNT`."""


def render(tree: Operator, outputs: Sequence[Output], tables: Tables) -> str:
    """What the tree yields: `UNIT`, and the outputs under their names."""
    statement = _Statement(tables)
    last = statement.operator(tree)
    columns = [f"{o.expression} AS {quoted(o.name)}" for o in outputs]
    steps = ",\n".join(f"{name} AS ({text})" for name, text in statement.steps)
    return f"WITH {steps}\nSELECT {', '.join((UNIT, *columns))} FROM {last}"


class _Statement:
    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.steps: list[tuple[str, str]] = []

    def step(self, text: str) -> str:
        """Adds a query, which one other selects from; under its name."""
        name = f"_n{len(self.steps)}"
        self.steps.append((name, text))
        return name

    def operator(self, tree: Operator) -> str:
        if isinstance(tree, (Scan, Filter)) and (found := _filters(tree)):
            return self.scan(*found)
        if isinstance(tree, Filter):
            child = self.operator(tree.child)
            return self.step(f"SELECT {_listed(UNIT, *tree.columns)} FROM {child} c WHERE {tree.condition}")
        if isinstance(tree, Project):
            outputs = [f"{o.expression} AS {o.name}" for o in tree.outputs]
            return self.step(f"SELECT {_listed(UNIT, *outputs)} FROM {self.operator(tree.child)}")
        if isinstance(tree, Join):
            return self.join(tree)
        if isinstance(tree, Exists):
            kind = "LEFT ANTI" if tree.negated else "LEFT SEMI"
            return self.step(f"SELECT {_listed(f'l.{UNIT}', *tree.columns)} {self.joined(tree, kind)}")
        if isinstance(tree, Union):
            return self.union(tree)
        if isinstance(tree, Explode):
            view = "LATERAL VIEW OUTER" if tree.outer else "LATERAL VIEW"
            made = ", ".join(tree.made)
            child = self.operator(tree.child)
            columns = _listed(UNIT, *tree.columns)
            return self.step(f"SELECT {columns} FROM {child} {view} {tree.generator} _made AS {made}")
        if isinstance(tree, Group):
            return self.group(tree)
        if isinstance(tree, Window):
            outputs = [f"{o.expression} AS {o.name}" for o in tree.outputs]
            child = self.whole(tree, self.operator(tree.child))
            return self.step(f"SELECT {_listed(UNIT, *tree.child.columns, *outputs)} FROM {child}")
        raise TypeError(tree)

    def scan(self, scan: Scan, conditions: Sequence[str]) -> str:
        """Every row as often as it is there. Only the filters directly on a relation say which are counted: of others
        there may be fewer than none."""
        table = self.tables.rows[scan.occurrence.index]
        where = " AND ".join(f"({c})" for c in conditions)
        kept = f"{table} t WHERE {where}" if where else table  # `table WHERE (flag)` is an alias with a column
        if scan.occurrence.index in self.tables.once:
            return self.step(f"SELECT {_listed(UNIT, *scan.columns)} FROM {kept}")
        kept = self.step(f"SELECT {_listed(UNIT, *scan.columns, COUNT)} FROM {kept}")
        copies = f"LATERAL VIEW explode(array_repeat(0, CAST({COUNT} AS INT))) _copies AS _copy"
        return self.step(f"SELECT {_listed(UNIT, *scan.columns)} FROM {kept} {copies}")

    def joined(self, join: Join | Exists, kind: str) -> str:
        left, right = self.operator(join.left), self.operator(join.right)
        pairs = [f"l.{p.left} {'<=>' if p.null_safe else '='} r.{p.right}" for p in join.pairs]
        conditions = [f"({join.condition})"] if join.condition else []
        on = " AND ".join((f"l.{UNIT} = r.{UNIT}", *pairs, *conditions))
        return f"FROM {left} l {kind} JOIN {right} r ON {on}"

    def join(self, join: Join) -> str:
        unit = f"coalesce(l.{UNIT}, r.{UNIT}) AS {UNIT}" if join.kind is JoinKind.FULL else f"l.{UNIT}"
        merged = [f"coalesce({m.left}, {m.right}) AS {m.name}" for m in join.merged]
        columns = (*join.left.columns, *join.right.columns, *merged)
        return self.step(f"SELECT {_listed(unit, *columns)} {self.joined(join, join.kind.name)}")

    def union(self, union: Union) -> str:
        branches = []
        for i, branch in enumerate(union.branches):
            columns = [f"{of[i]} AS {name}" for name, of in union.outputs]
            branches.append(f"SELECT {_listed(UNIT, *columns)} FROM {self.operator(branch)}")
        return self.step(" UNION ALL ".join(branches))

    def group(self, group: Group) -> str:
        child = self.whole(group, self.operator(group.child))
        outputs = [f"{o.expression} AS {o.name}" for o in group.outputs]
        by = _listed(UNIT, *group.by)
        found = self.step(f"SELECT {_listed(by, *outputs)} FROM {child} GROUP BY {by}")
        return found if group.by else self.one(group, found)

    def one(self, group: Group, found: str) -> str:
        """The one group of an aggregate without GROUP BY: where there is no row it has what it has of nothing.

        What is below is written a second time for that. A query that two others select from is computed once by Spark
        4.1, and its columns may be taken for each other then (`PushdownPredicateAndPruneColumnsForCTEDef`).
        """
        names = [o.name for o in group.outputs]
        again = self.operator(group.child)
        nothing = self.step(
            f"SELECT {_listed(*(f'{o.expression} AS {o.name}' for o in group.outputs))} FROM {again} c WHERE false"
        )
        values = [f"CASE WHEN g.{UNIT} IS NULL THEN e.{n} ELSE g.{n} END AS {n}" for n in names]
        every = f"(SELECT DISTINCT {UNIT} FROM {self.tables.units}) u"
        joins = f"FROM {every} LEFT JOIN {found} g ON u.{UNIT} = g.{UNIT} CROSS JOIN {nothing} e"
        return self.step(f"SELECT {_listed(f'u.{UNIT}', *values)} {joins}")

    def whole(self, operator: Group | Window, child: str) -> str:
        """The rows of groups that are whole: what half a group yields is never asked."""
        covered = self.tables.covered.get(operator.number)
        if covered is None:
            return child
        conditions = []
        for keys in covered:
            equal = [f"k.{UNIT} = c.{UNIT}", *(f"k.{column} <=> c.{column}" for column in keys.columns)]
            conditions.append(f"EXISTS (SELECT 1 FROM {keys.table} k WHERE {' AND '.join(equal)})")
        columns = _listed(*(f"c.{column}" for column in (UNIT, *operator.child.columns)))
        return self.step(f"SELECT {columns} FROM {child} c WHERE {' OR '.join(conditions) or 'false'}")


def _filters(tree: Operator) -> tuple[Scan, list[str]] | None:
    """A relation with the filters that stand directly on it, the lowest first."""
    conditions: list[str] = []
    while isinstance(tree, Filter):
        conditions.insert(0, tree.condition)
        tree = tree.child
    return (tree, conditions) if isinstance(tree, Scan) else None


def _listed(*columns: str) -> str:
    return ", ".join(columns)
