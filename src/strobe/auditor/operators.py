"""A tree of operators over contents, from scratch and without Spark, by what SQL says each operator is.

It knows nothing of how views are kept: so it can judge it. `CannotEvaluate` where only Spark can say what a column is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import singledispatch
from typing import Any

import sqlglot
from sqlglot import exp

from strobe.algebra.bag import Bag, Row, canonical, picker
from strobe.algebra.tree import (
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
from strobe.auditor.aggregates import compile_aggregate, compile_window
from strobe.auditor.expressions import compile_expression
from strobe.auditor.verdict import CannotEvaluate

Counts = dict[Row, int]
Relations = Mapping[int, Bag]
"""By occurrence, its rows over its attributes."""
Covered = Mapping[int, Collection[Bag]]
"""By the number of a group or a window, the keys by which those are known that are whole: the others are left out."""


class Tree:
    """A tree that can be evaluated."""

    def __init__(self, tree: Operator) -> None:
        self._top = _compiled(tree)
        self.columns = tree.columns

    @property
    def types(self) -> dict[str, str]:
        """The Spark types of its columns."""
        return dict(self._top.types)

    def over(self, relations: Relations, covered: Covered | None = None) -> Bag:
        """Its rows; without `covered` every group is whole."""
        return Bag(self.columns, self._top.run(relations, covered or {}))


class _Operator:
    """An operator, ready to be run: its columns with their types, in order, and its rows."""

    def __init__(self, types: Mapping[str, str], run: Callable[[Relations, Covered], Counts]) -> None:
        self.types = dict(types)
        self.run = run
        self.columns = tuple(types)

    def pick(self, columns: Iterable[str]) -> Callable[[Row], Row]:
        return picker([self.columns.index(column) for column in columns])


@singledispatch
def _compiled(operator: Operator) -> _Operator:
    raise NotImplementedError(type(operator).__name__)


@_compiled.register
def _(operator: Scan) -> _Operator:
    occurrence = operator.occurrence
    types = {occurrence.attribute(c): occurrence.relation.column(c).type for c in occurrence.columns}

    def run(relations: Relations, _covered: Covered) -> Counts:
        rows = relations.get(occurrence.index)
        return {} if rows is None else dict(rows.project(occurrence.attributes).items())

    return _Operator(types, run)


@_compiled.register
def _(operator: Filter) -> _Operator:
    child = _compiled(operator.child)
    condition = compile_expression(operator.condition, child.types)

    def run(relations: Relations, covered: Covered) -> Counts:
        return {row: n for row, n in child.run(relations, covered).items() if condition.run(row)}

    return _Operator(child.types, run)


@_compiled.register
def _(operator: Project) -> _Operator:
    child = _compiled(operator.child)
    outputs = {output.name: compile_expression(output.expression, child.types) for output in operator.outputs}

    def run(relations: Relations, covered: Covered) -> Counts:
        counts: Counts = defaultdict(int)
        for row, n in child.run(relations, covered).items():
            counts[tuple(canonical(output.run(row)) for output in outputs.values())] += n
        return counts

    return _Operator({name: output.type for name, output in outputs.items()}, run)


@_compiled.register
def _(operator: Join) -> _Operator:
    left, right, matches = _sides(operator)
    types = {**left.types, **right.types}
    for merged in operator.merged:
        types[merged.name] = _one_type([types[merged.left], types[merged.right]], merged.name)
    both = [*left.types, *right.types]
    values = [(both.index(m.left), both.index(m.right)) for m in operator.merged]
    left_missing, right_missing = (None,) * len(left.types), (None,) * len(right.types)

    def whole(row: Row) -> Row:
        return row + tuple(row[j] if row[i] is None else row[i] for i, j in values)

    def run(relations: Relations, covered: Covered) -> Counts:
        counts: Counts = defaultdict(int)
        of_right = right.run(relations, covered)
        unmatched = set(of_right)
        for row, n, partners in matches(left.run(relations, covered), of_right):
            for partner in partners:
                counts[whole(row + partner)] += n * of_right[partner]
            unmatched.difference_update(partners)
            if not partners and operator.kind is not JoinKind.INNER:
                counts[whole(row + right_missing)] += n
        if operator.kind is JoinKind.FULL:
            for row in unmatched:
                counts[whole(left_missing + row)] += of_right[row]
        return counts

    return _Operator(types, run)


@_compiled.register
def _(operator: Exists) -> _Operator:
    left, right, matches = _sides(operator)

    def run(relations: Relations, covered: Covered) -> Counts:
        found = matches(left.run(relations, covered), right.run(relations, covered))
        return {row: n for row, n, partners in found if bool(partners) != operator.negated}

    return _Operator(left.types, run)


_Matches = Callable[[Counts, Counts], Iterator[tuple[Row, int, list[Row]]]]


def _sides(operator: Join | Exists) -> tuple[_Operator, _Operator, _Matches]:
    """Both sides, and how each left row is found with its right ones."""
    left, right = _compiled(operator.left), _compiled(operator.right)
    mine, theirs = left.pick(p.left for p in operator.pairs), right.pick(p.right for p in operator.pairs)
    strict = [i for i, pair in enumerate(operator.pairs) if not pair.null_safe]
    condition = compile_expression(operator.condition or "TRUE", {**left.types, **right.types})

    def matches(of_left: Counts, of_right: Counts) -> Iterator[tuple[Row, int, list[Row]]]:
        by_key: dict[Row, list[Row]] = defaultdict(list)
        for row in of_right:
            by_key[theirs(row)].append(row)
        for row, n in of_left.items():
            key = mine(row)
            partners = by_key.get(key, ()) if all(key[i] is not None for i in strict) else ()
            yield row, n, [partner for partner in partners if condition.run(row + partner)]

    return left, right, matches


@_compiled.register
def _(operator: Union) -> _Operator:
    branches = [_compiled(branch) for branch in operator.branches]
    picks = [branch.pick(of[i] for _, of in operator.outputs) for i, branch in enumerate(branches)]
    types = {
        name: _one_type([branch.types[column] for branch, column in zip(branches, of, strict=True)], name)
        for name, of in operator.outputs
    }

    def run(relations: Relations, covered: Covered) -> Counts:
        counts: Counts = defaultdict(int)
        for branch, pick in zip(branches, picks, strict=True):
            for row, n in branch.run(relations, covered).items():
                counts[pick(row)] += n
        return counts

    return _Operator(types, run)


@_compiled.register
def _(operator: Explode) -> _Operator:
    """Of an array that is written out; what others hold is Spark's to say."""
    child = _compiled(operator.child)
    tree = sqlglot.parse_one(operator.generator, dialect="spark")
    if not isinstance(tree, exp.Explode) or not isinstance(tree.this, exp.Array) or len(operator.made) != 1:
        raise CannotEvaluate(operator.generator)
    elements = [compile_expression(e.sql(dialect="spark"), child.types) for e in tree.this.expressions]
    type_ = _one_type([element.type for element in elements], operator.generator)

    def run(relations: Relations, covered: Covered) -> Counts:
        counts: Counts = defaultdict(int)
        for row, n in child.run(relations, covered).items():
            for element in elements:
                grown = (*row, canonical(element.run(row)))
                counts[grown] += n
        return counts

    return _Operator({**child.types, operator.made[0]: type_}, run)


@_compiled.register
def _(operator: Group) -> _Operator:
    child = _compiled(operator.child)
    outputs = {output.name: compile_aggregate(output.expression, child.types) for output in operator.outputs}
    types = {column: child.types[column] for column in operator.by}

    def run(relations: Relations, covered: Covered) -> Counts:
        groups = _together(operator, child, relations, covered)
        if not operator.by and _is_covered(operator.number, covered):
            groups.setdefault((), [])
        return {
            key + tuple(canonical(output.run(rows)) for output in outputs.values()): 1 for key, rows in groups.items()
        }

    return _Operator({**types, **{name: output.type for name, output in outputs.items()}}, run)


@_compiled.register
def _(operator: Window) -> _Operator:
    child = _compiled(operator.child)
    outputs = {output.name: compile_window(output.expression, child.types, operator.by) for output in operator.outputs}

    def run(relations: Relations, covered: Covered) -> Counts:
        counts: Counts = defaultdict(int)
        for rows in _together(operator, child, relations, covered).values():
            found: dict[Row, list[list[Any]]] = {row: [[] for _ in range(n)] for row, n in Counter(rows).items()}
            for output in outputs.values():
                values: dict[Row, list[Any]] = defaultdict(list)
                for row, value in output.run(rows):
                    values[row].append(value)
                for row, copies in found.items():
                    for copy, value in zip(copies, values[row], strict=True):
                        copy.append(canonical(value))
            for row, copies in found.items():
                for copy in copies:
                    counts[row + tuple(copy)] += 1
        return counts

    return _Operator({**child.types, **{name: output.type for name, output in outputs.items()}}, run)


def _together(
    operator: Group | Window, child: _Operator, relations: Relations, covered: Covered
) -> dict[Row, list[Row]]:
    """The rows of each group that is whole, each as often as it is there."""
    pick = child.pick(operator.by)
    whole = covered.get(operator.number, ())
    tests = [(child.pick(keys.attributes), {key for key, _ in keys.items()}) for keys in whole]
    found: dict[Row, list[Row]] = defaultdict(list)
    for row, n in child.run(relations, covered).items():
        if operator.number not in covered or any(of(row) in keys for of, keys in tests):
            found[pick(row)] += [row] * n
    return found


def _is_covered(number: int, covered: Covered) -> bool:
    """Whether the one group of an aggregate without GROUP BY is whole."""
    return number not in covered or any(not keys.known_empty for keys in covered[number])


def _one_type(types: Sequence[str], what: str) -> str:
    """The type of a column that values of these types go into, where Spark casts none."""
    found = {type_ for type_ in types if type_ != "void"} or {"void"}
    if len(found) > 1:
        raise CannotEvaluate(f"{what} (of {' and '.join(sorted(found))})")
    return found.pop()
