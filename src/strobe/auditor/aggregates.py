"""Aggregates and window functions without Spark, where their meaning is beyond doubt: else `CannotEvaluate`.

COUNT, MIN, MAX, BOOL_AND, BOOL_OR, SUM of exact numbers, each with DISTINCT and FILTER; as window functions these over
a whole partition, up to the row's peers or up to the row itself, and ROW_NUMBER, RANK, DENSE_RANK, LAG and LEAD. Where
the result depends on the order among rows that tie, it is nobody's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from strobe.algebra.bag import Row, canonical
from strobe.algebra.schema import comparison_class
from strobe.algebra.tree import UNIT
from strobe.auditor.expressions import Compiled, compile_expression, digits
from strobe.auditor.verdict import CannotEvaluate

_ORDERED = {"exact number", "string", "boolean", "date", "timestamp", "timestamp_ntz", "binary"}
_AGGREGATES = (exp.Count, exp.Sum, exp.Min, exp.Max, exp.LogicalOr, exp.LogicalAnd)
_LARGEST = 1 << 63
_MOST_DIGITS = 38

Types = Mapping[str, str]


@dataclass(frozen=True)
class Aggregate:
    """An expression with aggregates: its Spark type, and its value for rows, each as often as it is there."""

    type: str
    run: Callable[[Sequence[Row]], Any]


@dataclass(frozen=True)
class WindowFunction:
    """Its Spark type, and the rows of a partition, each as often as it is there, each with its value."""

    type: str
    run: Callable[[Sequence[Row]], list[tuple[Row, Any]]]


def compile_aggregate(text: str, types: Types) -> Aggregate:
    tree = _parsed(text)
    found: list[Aggregate] = []

    def replaced(node: exp.Expr) -> exp.Expr:
        if isinstance(node, (*_AGGREGATES, exp.Filter)):
            found.append(_aggregate(node, types, text))
            return exp.column(f"aggregate{len(found) - 1}")
        return node

    without = _sql(tree.transform(replaced))
    rest = compile_expression(without, {f"aggregate{i}": each.type for i, each in enumerate(found)})
    return Aggregate(rest.type, lambda rows: rest.run(tuple(each.run(rows) for each in found)))


def compile_window(text: str, types: Types, by: Sequence[str]) -> WindowFunction:
    """`by` are the columns of PARTITION BY, by which rows come already, all of one unit."""
    tree = _parsed(text)
    if not isinstance(tree, exp.Window):
        raise CannotEvaluate(text)
    partition = {_name(e, text) for e in tree.args.get("partition_by") or ()}
    if partition - {UNIT} != set(by):
        raise CannotEvaluate(text)
    order = _order(tree.args.get("order"), types, text)
    made = _WINDOW.get(type(tree.this))
    if made is not None:
        return made(tree, types, order, text)
    aggregate = _aggregate(tree.this, types, text)
    spec = tree.args.get("spec")
    if order is None and spec is None:
        return WindowFunction(aggregate.type, lambda rows: _with(rows, aggregate.run(rows)))
    if order is None or (spec is not None and not _up_to_here(spec)):
        raise CannotEvaluate(text)
    by_row = spec is not None

    def run(rows: Sequence[Row]) -> list[tuple[Row, Any]]:
        found: list[tuple[Row, Any]] = []
        before: list[Row] = []
        for peers in order(rows, by_row):
            for together in [[row] for row in peers] if by_row else [peers]:
                before += together
                found += _with(together, aggregate.run(before))
        return found

    return WindowFunction(aggregate.type, run)


def _parsed(text: str) -> exp.Expr:
    try:
        return sqlglot.parse_one(text, dialect="spark")
    except SqlglotError:
        raise CannotEvaluate(text) from None


def _sql(node: exp.Expr) -> str:
    return node.sql(dialect="spark")


def _name(node: exp.Expr, text: str) -> str:
    if not isinstance(node, exp.Column) or node.table:
        raise CannotEvaluate(text)
    return node.name


def _compiled(node: exp.Expr, types: Types) -> Compiled:
    return compile_expression(_sql(node), types)


# ── Aggregates ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _aggregate(node: exp.Expr, types: Types, text: str) -> Aggregate:
    if isinstance(node, exp.Filter):
        return _filtered(node, types, text)
    if not isinstance(node, _AGGREGATES) or node.expressions:
        raise CannotEvaluate(text)
    of = node.this
    if isinstance(of, exp.Star):
        return Aggregate("bigint", len)
    distinct = isinstance(of, exp.Distinct)
    arguments = [_compiled(e, types) for e in (of.expressions if isinstance(of, exp.Distinct) else [of])]
    if len(arguments) != 1 and not isinstance(node, exp.Count):
        raise CannotEvaluate(text)
    type_, over = _of_values(node, [argument.type for argument in arguments], text)

    def run(rows: Sequence[Row]) -> Any:
        values = [tuple(canonical(argument.run(row)) for argument in arguments) for row in rows]
        there = [value for value in values if None not in value]
        return over(list(dict.fromkeys(there)) if distinct else there)

    return Aggregate(type_, run)


def _filtered(node: exp.Filter, types: Types, text: str) -> Aggregate:
    aggregate = _aggregate(node.this, types, text)
    condition = _compiled(node.expression.this, types)
    return Aggregate(aggregate.type, lambda rows: aggregate.run([row for row in rows if condition.run(row)]))


def _of_values(node: exp.Expr, of: Sequence[str], text: str) -> tuple[str, Callable[[list[Row]], Any]]:
    """The type of an aggregate, and what it is of values that are not NULL."""
    if isinstance(node, exp.Count):
        return "bigint", len
    (type_,) = of
    kind = comparison_class(type_)
    if isinstance(node, (exp.LogicalOr, exp.LogicalAnd)):
        if kind != "boolean":
            raise CannotEvaluate(text)
        every = isinstance(node, exp.LogicalAnd)
        return type_, lambda values: (all if every else any)(v for (v,) in values) if values else None
    if isinstance(node, exp.Sum):
        return _sum(type_, text)
    if kind not in _ORDERED:
        raise CannotEvaluate(text)
    least = isinstance(node, exp.Min)
    return type_, lambda values: (min(values) if least else max(values))[0] if values else None


def _sum(type_: str, text: str) -> tuple[str, Callable[[list[Row]], Any]]:
    if comparison_class(type_) != "exact number":
        raise CannotEvaluate(text)
    decimal = type_.startswith("decimal")
    precision, scale = digits(type_)
    precision = min(precision + 10, _MOST_DIGITS)
    bound = 10 ** (precision - scale) if decimal else _LARGEST

    def run(values: list[Row]) -> Any:
        if not values:
            return None
        total = sum(value for (value,) in values)
        if not -bound < total < bound:
            raise CannotEvaluate(f"{text} (it overflows)")
        return total

    return (f"decimal({precision},{scale})" if decimal else "bigint"), run


# ── Window functions ─────────────────────────────────────────────────────────────────────────────────────────────────

_Order = Callable[[Sequence[Row], bool], list[list[Row]]]
"""Rows as peers, one after another; with True no two that differ may be peers."""


def _order(node: exp.Expr | None, types: Types, text: str) -> _Order | None:
    if node is None:
        return None
    keys = [
        (_compiled(e.this, types), bool(e.args.get("desc")), bool(e.args.get("nulls_first"))) for e in node.expressions
    ]
    if any(comparison_class(key.type) not in _ORDERED for key, _, _ in keys):
        raise CannotEvaluate(text)

    def peers(rows: Sequence[Row], alone: bool) -> list[list[Row]]:
        ranked = list(rows)
        for key, descending, nulls_first in reversed(keys):
            ranked.sort(key=lambda row: _place(key.run(row), nulls_first != descending), reverse=descending)
        found = [list(group) for _, group in groupby(ranked, lambda row: [key.run(row) for key, _, _ in keys])]
        if alone and any(len(set(group)) > 1 for group in found):
            raise CannotEvaluate(f"{text} (rows tie in its ORDER BY)")
        return found

    return peers


def _place(value: Any, null_first: bool) -> tuple[int, Any]:
    if value is None:
        return (0, 0) if null_first else (2, 0)
    return 1, value


def _with(rows: Sequence[Row], value: Any) -> list[tuple[Row, Any]]:
    return [(row, value) for row in rows]


def _up_to_here(spec: exp.Expr) -> bool:
    parts = [spec.args.get(name) for name in ("kind", "start", "start_side", "end")]
    return parts == ["ROWS", "UNBOUNDED", "PRECEDING", "CURRENT ROW"]


def _numbered(tree: exp.Window, _types: Types, order: _Order | None, text: str) -> WindowFunction:
    if order is None or tree.args.get("spec"):
        raise CannotEvaluate(text)
    kind = type(tree.this)

    def run(rows: Sequence[Row]) -> list[tuple[Row, Any]]:
        found: list[tuple[Row, Any]] = []
        for dense, peers in enumerate(order(rows, kind is exp.RowNumber), 1):
            first = len(found) + 1
            for i, row in enumerate(peers):
                found.append((row, {exp.RowNumber: first + i, exp.Rank: first, exp.DenseRank: dense}[kind]))
        return found

    return WindowFunction("int", run)


def _neighbour(tree: exp.Window, types: Types, order: _Order | None, text: str) -> WindowFunction:
    node = tree.this
    by = node.args.get("offset")
    offset = int(by.name) if isinstance(by, exp.Literal) and not by.is_string else 1 if by is None else None
    if order is None or offset is None or node.args.get("default") is not None or tree.args.get("spec"):
        raise CannotEvaluate(text)
    step = -offset if isinstance(node, exp.Lag) else offset
    value = _compiled(node.this, types)

    def run(rows: Sequence[Row]) -> list[tuple[Row, Any]]:
        ranked = [row for peers in order(rows, True) for row in peers]
        places = range(len(ranked))
        return [(row, value.run(ranked[i + step]) if i + step in places else None) for i, row in enumerate(ranked)]

    return WindowFunction(value.type, run)


_WINDOW = {
    exp.RowNumber: _numbered,
    exp.Rank: _numbered,
    exp.DenseRank: _numbered,
    exp.Lag: _neighbour,
    exp.Lead: _neighbour,
}
