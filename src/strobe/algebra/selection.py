"""What a view demands of the rows of a single relation, as far as that can be told without Spark.

Only comparisons that mean the same to Python and to Spark are looked at: integers with integers, text with text for
(in)equality, and NULL. Whatever else stands in the condition may be true. So a row that is not admitted here can never
be in the view; one that is admitted may still be left out by Spark, who alone decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import exp

from strobe.algebra.bag import Bag
from strobe.algebra.view import Occurrence, View

Test = Callable[[Any], bool]
"""Whether a value can satisfy a comparison; NULL never does."""

_PLAIN = re.compile(r"[A-Za-z0-9 _.,:/+-]*")
_INTEGERS = {"tinyint", "smallint", "int", "bigint"}
_COMPARISONS: dict[type[exp.Expr], Callable[[Any, Any], bool]] = {
    exp.EQ: lambda a, b: bool(a == b),
    exp.NEQ: lambda a, b: bool(a != b),
    exp.LT: lambda a, b: bool(a < b),
    exp.LTE: lambda a, b: bool(a <= b),
    exp.GT: lambda a, b: bool(a > b),
    exp.GTE: lambda a, b: bool(a >= b),
}
_MIRRORED = {exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE, exp.EQ: exp.EQ, exp.NEQ: exp.NEQ}


@dataclass(frozen=True)
class Selection:
    """By attribute, what its values must satisfy."""

    tests: Mapping[str, tuple[Test, ...]]

    @classmethod
    def of(cls, view: View) -> Selection:
        if view.condition is None:
            return cls({})
        types = view.attribute_types()
        tests: dict[str, tuple[Test, ...]] = {}
        tree = sqlglot.parse_one(view.condition, dialect="spark")
        for conjunct in tree.flatten() if isinstance(tree, exp.And) else [tree]:
            found = _test(conjunct.unnest(), types)
            if found is not None:
                attribute, test = found
                tests[attribute] = (*tests.get(attribute, ()), test)
        return cls(tests)

    def admits(self, occurrence: Occurrence, rows: Bag) -> bool:
        """Whether any of these rows of an occurrence can be in the view."""
        places = [
            (rows.attributes.index(attribute), test)
            for attribute in occurrence.attributes
            for test in self.tests.get(attribute, ())
        ]
        return any(all(test(row[place]) for place, test in places) for row, _ in rows.items())


def _test(node: exp.Expr, types: Mapping[str, str]) -> tuple[str, Test] | None:
    """A comparison of one attribute with constants; None for everything else."""
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
        attribute = _attribute(node.this, types)
        return (attribute, lambda value: value is None) if attribute else None
    if isinstance(node, exp.Not) and isinstance(node.this, exp.Is) and isinstance(node.this.expression, exp.Null):
        attribute = _attribute(node.this.this, types)
        return (attribute, lambda value: value is not None) if attribute else None
    if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
        return _among(node, types)
    return _compared(node, types)


def _among(node: exp.In, types: Mapping[str, str]) -> tuple[str, Test] | None:
    attribute = _attribute(node.this, types)
    if attribute is None:
        return None
    values = [_constant(e, types[attribute]) for e in node.expressions]
    if any(value is None for value in values):
        return None
    return attribute, lambda value: value in values


def _compared(node: exp.Expr, types: Mapping[str, str]) -> tuple[str, Test] | None:
    if type(node) not in _COMPARISONS or not isinstance(node, exp.Binary):
        return None
    kind, attribute, other = type(node), _attribute(node.this, types), node.expression
    if attribute is None:
        kind, attribute, other = _MIRRORED[type(node)], _attribute(node.expression, types), node.this
    constant = _constant(other, types[attribute]) if attribute else None
    if attribute is None or constant is None:
        return None
    if isinstance(constant, str) and kind not in (exp.EQ, exp.NEQ):
        return None
    compare = _COMPARISONS[kind]
    return attribute, lambda value: value is not None and compare(value, constant)


def _attribute(node: exp.Expr, types: Mapping[str, str]) -> str | None:
    node = node.unnest()
    if isinstance(node, exp.Column) and not node.table and node.name in types:
        return node.name
    return None


def _constant(node: exp.Expr, type_: str) -> int | str | None:
    """The value of a literal, if it is of the attribute's own kind."""
    node = node.unnest()
    sign = 1
    if isinstance(node, exp.Neg):
        sign, node = -1, node.this
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        plain = _PLAIN.fullmatch(str(node.this)) is not None  # no escapes that could be read in two ways
        return str(node.this) if type_ == "string" and sign > 0 and plain else None
    digits = str(node.this)
    return sign * int(digits) if type_ in _INTEGERS and digits.isdigit() else None
