"""Spark SQL expressions without Spark, where their meaning is beyond doubt: else the verdict is `unknown`.

Columns, literals, comparisons of values of one kind, AND, OR, NOT, IS, IN, BETWEEN with three-valued logic, and + - *
over exact numbers whose results Spark neither rounds nor refuses. Everything else is Spark's to say, which is not here:
functions, casts, floating point, text with escapes in it, types that Spark would first have to convert.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Context, Decimal
from typing import Any

from sqlglot import TokenType
from sqlglot import expressions as exp

from strobe.algebra.bag import Row
from strobe.algebra.schema import comparison_class
from strobe.algebra.sql_text import Span, Text
from strobe.auditor.verdict import CannotEvaluate

_INTEGERS = {"tinyint": 1 << 7, "smallint": 1 << 15, "int": 1 << 31, "bigint": 1 << 63}
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_MOST_DIGITS = 38
_EXACTLY = Context(prec=100)
_NULL = "void"
_COMPARED = {"exact number", "string", "boolean", "date", "timestamp", "timestamp_ntz", "binary"}
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

_ORDERS: dict[type[exp.Expr], Callable[[Any, Any], bool]] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
}
_SUMS: dict[type[exp.Expr], Callable[[Any, Any], Any]] = {
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
}

Run = Callable[[Row], Any]


@dataclass(frozen=True)
class Compiled:
    """An expression over rows: its Spark type, and its value for a row."""

    type: str
    run: Run


def compile_expression(text: str, types: Mapping[str, str]) -> Compiled:
    """An expression over attributes with these types, in the order in which rows have them."""
    return _Compiler(text, types).compiled


class _Compiler:
    def __init__(self, text: str, types: Mapping[str, str]) -> None:
        self._types = types
        self._places = {attribute: i for i, attribute in enumerate(types)}
        read = Text(text, "expression")
        tree = read.parse(Span(0, len(read.tokens)))
        pluses = sum(token.token_type == TokenType.PLUS for token in read.tokens)
        if "\\" in text or pluses != len(list(tree.find_all(exp.Add))):  # escapes; a sign that is not in the tree
            raise CannotEvaluate(text)
        self._text = text
        self.compiled = self._compile(tree)

    def _compile(self, node: exp.Expr) -> Compiled:
        for kinds, compile_node in self._KINDS:
            if isinstance(node, kinds):
                return compile_node(self, node)
        raise self._beyond()

    def _beyond(self) -> CannotEvaluate:
        return CannotEvaluate(self._text)

    # ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _column(self, node: exp.Expr) -> Compiled:
        if node.name not in self._places or node.args.get("table"):
            raise self._beyond()
        place = self._places[node.name]
        return Compiled(self._types[node.name], operator.itemgetter(place))

    def _literal(self, node: exp.Expr) -> Compiled:
        text = node.name
        if node.is_string:
            if set(text) & {"'", '"'}:  # doubled quotes: Spark has changed its mind about them
                raise self._beyond()
            return _constant("string", text)
        if text.isdigit():
            value = int(text)
            fitting = [name for name in ("int", "bigint") if value < _INTEGERS[name]]
            return _constant(fitting[0], value) if fitting else _constant(*self._decimal(text))
        return _constant(*self._decimal(text))

    def _decimal(self, text: str) -> tuple[str, Decimal]:
        if not re.fullmatch(r"\d*\.?\d*", text):
            raise self._beyond()
        value = Decimal(text)
        scale = len(text.partition(".")[2])
        precision = max(len(value.as_tuple().digits), scale)
        if precision > _MOST_DIGITS:
            raise self._beyond()
        return f"decimal({precision},{scale})", value

    def _typed_literal(self, node: exp.Expr) -> Compiled:
        """`5L`, `5BD`, `DATE '2024-05-01'`: literals with their type."""
        to, literal = node.args["to"].this.value.lower(), node.this
        if not isinstance(literal, exp.Literal):
            raise self._beyond()
        if to in _INTEGERS and literal.name.isdigit() and int(literal.name) < _INTEGERS[to]:
            return _constant(to, int(literal.name))
        if to == "date" and literal.is_string and _ISO_DATE.fullmatch(literal.name):
            try:
                return _constant("date", date.fromisoformat(literal.name))
            except ValueError:
                raise self._beyond() from None
        raise self._beyond()

    def _negative(self, node: exp.Expr) -> Compiled:
        return self._sum(operator.sub, _constant("tinyint", 0), self._compile(node.this))

    def _sum(self, operation: Callable[[Any, Any], Any], left: Compiled, right: Compiled) -> Compiled:
        if {comparison_class(left.type), comparison_class(right.type)} != {"exact number"}:
            raise self._beyond()
        if left.type in _INTEGERS and right.type in _INTEGERS:
            return self._integers(operation, left, right)
        (p, s), (q, t) = digits(left.type), digits(right.type)
        if operation is operator.mul:
            precision, scale = p + q + 1, s + t
        else:
            scale = max(s, t)
            precision = max(p - s, q - t) + scale + 1
        if precision > _MOST_DIGITS:  # Spark rounds from here on
            raise self._beyond()

        def run(row: Row) -> Any:
            a, b = left.run(row), right.run(row)
            if a is None or b is None:
                return None
            exactly = {operator.add: _EXACTLY.add, operator.sub: _EXACTLY.subtract, operator.mul: _EXACTLY.multiply}
            return exactly[operation](Decimal(a), Decimal(b))

        return Compiled(f"decimal({precision},{scale})", run)

    def _integers(self, operation: Callable[[Any, Any], Any], left: Compiled, right: Compiled) -> Compiled:
        wider = max(left.type, right.type, key=_INTEGERS.__getitem__)
        bound = _INTEGERS[wider]

        def run(row: Row) -> Any:
            a, b = left.run(row), right.run(row)
            if a is None or b is None:
                return None
            result = operation(a, b)
            if not -bound <= result < bound:
                raise CannotEvaluate(f"{self._text} (it overflows)")
            return result

        return Compiled(wider, run)

    # ── truth ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _truth(self, node: exp.Expr) -> Compiled:
        found = self._compile(node)
        if found.type not in ("boolean", _NULL):
            raise self._beyond()
        return found

    def _both(self, node: exp.Expr) -> tuple[Compiled, Compiled]:
        return self._compile(node.this), self._compile(node.expression)

    def _comparable(self, operands: Sequence[Compiled]) -> None:
        """Values of one kind, which Spark compares as they are; NULL is of any kind."""
        types = [operand.type for operand in operands if operand.type != _NULL]
        kinds = {comparison_class(type_) for type_ in types}
        if len(kinds) > 1 or not kinds <= _COMPARED:
            raise self._beyond()
        if kinds == {"exact number"}:
            sizes = [digits(type_) for type_ in types]
            if max(p - s for p, s in sizes) + max(s for _, s in sizes) > _MOST_DIGITS:
                raise self._beyond()

    def _ordered(self, order: Callable[[Any, Any], bool], left: Compiled, right: Compiled) -> Compiled:
        self._comparable([left, right])

        def run(row: Row) -> Any:
            a, b = left.run(row), right.run(row)
            return None if a is None or b is None else order(a, b)

        return Compiled("boolean", run)

    def _same(self, left: Compiled, right: Compiled) -> Compiled:
        self._comparable([left, right])

        def run(row: Row) -> bool:
            a, b = left.run(row), right.run(row)
            return (a is None and b is None) or (a is not None and b is not None and bool(a == b))

        return Compiled("boolean", run)

    def _is(self, node: exp.Expr) -> Compiled:
        if not isinstance(node.expression, (exp.Null, exp.Boolean)):
            raise self._beyond()
        left = self._compile(node.this)
        right = self._compile(node.expression)
        if right.type != _NULL:
            return self._same(self._truth(node.this), right)
        return Compiled("boolean", lambda row: left.run(row) is None)

    def _in(self, node: exp.Expr) -> Compiled:
        if not node.expressions or any(node.args.get(name) for name in ("query", "unnest", "field")):
            raise self._beyond()
        this, items = self._compile(node.this), [self._compile(item) for item in node.expressions]
        self._comparable([this, *items])
        return _or([self._ordered(operator.eq, this, item) for item in items])

    def _between(self, node: exp.Expr) -> Compiled:
        this, low, high = (self._compile(node.args[name]) for name in ("this", "low", "high"))
        return _and([self._ordered(operator.ge, this, low), self._ordered(operator.le, this, high)])

    _KINDS: tuple[tuple[tuple[type[exp.Expr], ...], Callable[[_Compiler, exp.Expr], Compiled]], ...] = (
        ((exp.Paren,), lambda self, node: self._compile(node.this)),
        ((exp.Column,), _column),
        ((exp.Literal,), _literal),
        ((exp.Cast, exp.TryCast), _typed_literal),
        ((exp.Boolean,), lambda _, node: _constant("boolean", bool(node.this))),
        ((exp.Null,), lambda _, node: _constant(_NULL, None)),
        ((exp.Neg,), _negative),
        (tuple(_SUMS), lambda self, node: self._sum(_SUMS[type(node)], *self._both(node))),
        (tuple(_ORDERS), lambda self, node: self._ordered(_ORDERS[type(node)], *self._both(node))),
        ((exp.NullSafeEQ,), lambda self, node: self._same(*self._both(node))),
        ((exp.NullSafeNEQ,), lambda self, node: _negated(self._same(*self._both(node)))),
        ((exp.Is,), _is),
        ((exp.In,), _in),
        ((exp.Between,), _between),
        ((exp.And,), lambda self, node: _and([self._truth(node.this), self._truth(node.expression)])),
        ((exp.Or,), lambda self, node: _or([self._truth(node.this), self._truth(node.expression)])),
        ((exp.Not,), lambda self, node: _negated(self._truth(node.this))),
    )


def digits(type_: str) -> tuple[int, int]:
    """Precision and scale of an exact number."""
    if type_ in _DIGITS:
        return _DIGITS[type_], 0
    numbers = [int(number) for number in re.findall(r"\d+", type_)] or [10]
    return numbers[0], numbers[1] if len(numbers) > 1 else 0


def _constant(type_: str, value: Any) -> Compiled:
    return Compiled(type_, lambda _: value)


def _negated(operand: Compiled) -> Compiled:
    def run(row: Row) -> Any:
        value = operand.run(row)
        return None if value is None else not value

    return Compiled("boolean", run)


def _and(operands: Sequence[Compiled]) -> Compiled:
    def run(row: Row) -> Any:
        values = [operand.run(row) for operand in operands]
        return False if False in values else None if None in values else True

    return Compiled("boolean", run)


def _or(operands: Sequence[Compiled]) -> Compiled:
    def run(row: Row) -> Any:
        values = [operand.run(row) for operand in operands]
        return True if True in values else None if None in values else False

    return Compiled("boolean", run)
