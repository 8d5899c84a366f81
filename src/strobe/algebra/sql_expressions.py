"""Which expressions a view may hold, and which columns they name.

Functions are allowed by the name the user wrote, other constructs by the class of their node in sqlglot's tree; what is
on neither list is refused. Every word of the text must be accounted for: it is part of a column that the tree names, a
function, a type, or one of the grammar's own words.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import TokenType
from sqlglot import expressions as exp

from strobe.algebra.sql_functions import LAMBDAS, VOLATILE_WITHOUT_ARGUMENTS, refusal, words
from strobe.algebra.sql_text import Parser, Span, Text
from strobe.errors import UserError

_NODES = (
    *(exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Tuple, exp.Var),
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.GT, exp.GTE, exp.LT, exp.LTE),
    *(exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Any, exp.All),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe),
    *(exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.BitwiseLeftShift, exp.BitwiseRightShift),
    *(exp.DataType, exp.DataTypeParam, exp.ColumnDef, exp.Interval, exp.IntervalSpan, exp.Bracket),
    *(exp.HexString, exp.RawString),
    exp.Func,  # allowed by its name, at its token
)
_NO_NODES = (exp.AggFunc, exp.Exists, exp.JSONExtract, exp.Collate, exp.Xor)

_NOT_CALLS = words("""
    AND OR NOT IN LIKE ILIKE RLIKE REGEXP BETWEEN ESCAPE WHEN THEN ELSE CASE DIV IS ANY ALL SOME FROM FOR BOTH
    LEADING TRAILING PLACING DISTINCT INTERVAL
""")
_GRAMMAR = words("""
    YEAR YEARS YEAROFWEEK QUARTER QTR MONTH MONTHS MON MONS WEEK WEEKS W DAY DAYS D DAYOFWEEK DOW DAYOFWEEK_ISO
    DOW_ISO DOY DAYOFYEAR HOUR HOURS H HR HRS MINUTE MINUTES M MIN MINS SECOND SECONDS S SEC SECS MILLISECOND
    MILLISECONDS MICROSECOND MICROSECONDS NANOSECOND NANOSECONDS TO BOTH LEADING TRAILING PLACING FOR ESCAPE
    UNKNOWN Y YR YRS DATE TIMESTAMP TIMESTAMP_NTZ TIMESTAMP_LTZ
""")
_PARAMETERS = {TokenType.PARAMETER, TokenType.PLACEHOLDER, TokenType.COLON, TokenType.L_BRACE}
_BEFORE_A_SIGN = words("""
    L_PAREN COMMA PLUS DASH STAR SLASH MOD DIV EQ NEQ LT GT LTE GTE NULLSAFE_EQ AND OR NOT WHEN THEN ELSE CASE BETWEEN
    LIKE ILIKE RLIKE IN DPIPE PIPE AMP CARET TILDE
""")
"""Names of the kinds of tokens after which a sign belongs to what follows."""
_PARAMETERLESS = frozenset(Parser.NO_PAREN_FUNCTIONS)
_MOMENT = re.compile(r"\s*(now|today|tomorrow|yesterday)(\s+\S+)?\s*", re.IGNORECASE)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.In, exp.Like, exp.ILike)


@dataclass(frozen=True)
class ColumnName:
    """A column as written: its parts, and the first and last offset in the text."""

    parts: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Expression:
    """An allowed expression: where it is, which columns it names, and its tree."""

    span: Span
    columns: tuple[ColumnName, ...]
    tree: exp.Expr

    @property
    def column(self) -> ColumnName | None:
        """The column, if the expression is nothing else."""
        return self.columns[0] if isinstance(self.tree.unnest(), exp.Column) else None

    @property
    def equated(self) -> str:
        """`=` or `<=>`, if it is nothing but this between two columns."""
        if not isinstance(self.tree, (exp.EQ, exp.NullSafeEQ)):
            return ""
        plain = all(isinstance(side.unnest(), exp.Column) for side in (self.tree.this, self.tree.expression))
        return ("=" if isinstance(self.tree, exp.EQ) else "<=>") if plain else ""

    @property
    def not_null(self) -> bool:
        """Whether it is `column IS NOT NULL`."""
        inner = self.tree.this if isinstance(self.tree, exp.Not) else None
        if not isinstance(inner, exp.Is) or not isinstance(inner.expression, exp.Null):
            return False
        return isinstance(inner.this.unnest(), exp.Column)

    def name_of(self, node: exp.Expr) -> ColumnName:
        """The column that a node of the tree is."""
        return _column_name(node)


@dataclass(frozen=True)
class Item:
    """One item of a SELECT list: an expression and its name, or a star with what it is qualified by."""

    span: Span
    alias: str | None
    expression: Expression | None
    star: tuple[str, ...] = ()


def read_item(text: Text, span: Span) -> Item:
    last = span.end - 1
    if text.type(last) == TokenType.STAR and (last == span.start or text.type(last - 1) == TokenType.DOT):
        return Item(span, None, None, tuple(text.tokens[i].text for i in range(span.start, last, 2)))
    _check_tokens(text, span)
    tree = text.parse(span)
    if isinstance(tree, (exp.Star, exp.Aliases)) or isinstance(tree.this, exp.Star):
        raise text.unsupported(span.start, "a star with more than its qualifier", "Write the columns out, or * alone.")
    if not isinstance(tree, exp.Alias):
        return Item(span, None, _expression(text, span, tree))
    end = last - 1 if text.word(last - 1) == "AS" else last
    if not text.is_name(last) or end <= span.start:
        raise text.refuse(last, "this alias is not a name", "Write AS and a name, in backticks if it is unusual.")
    return Item(span, text.tokens[last].text, _expression(text, Span(span.start, end), tree.this))


def read_expression(text: Text, span: Span) -> Expression:
    _check_tokens(text, span)
    tree = text.parse(span)
    if isinstance(tree, (exp.Alias, exp.Star)):
        raise text.refuse(span.start, "this expression cannot be read", "Check its syntax.")
    return _expression(text, span, tree)


def check_moments(text: Text, expression: Expression, type_of: Callable[[ColumnName], str | None]) -> None:
    """Refuses 'now', 'today' and the like, unless compared with a string column: Spark reads them as the present moment
    wherever they become a date or timestamp, by a cast that need not be visible."""
    for literal in expression.tree.find_all(exp.Literal):
        if not literal.is_string or not _MOMENT.fullmatch(literal.name):
            continue
        parent = literal.parent
        if isinstance(parent, _COMPARISONS):
            operands = [parent.this, *([parent.expression] if parent.args.get("expression") else [])]
            columns = [_column_name(o.unnest()) for o in operands if isinstance(o.unnest(), exp.Column)]
            if any(type_of(c) == "string" for c in columns):
                continue
        raise text.refuse_at(
            literal.meta.get("start", text.tokens[expression.span.start].start),
            f"Spark reads the literal {literal.name!r} as the present moment where it becomes a date",
            "Compare it directly with a string column, or use another word.",
        )


def _expression(text: Text, span: Span, tree: exp.Expr) -> Expression:
    for node in tree.walk():
        if not isinstance(node, _NODES) or isinstance(node, _NO_NODES):
            raise _refuse_node(text, span, node)
        if isinstance(node, (exp.Any, exp.All)) and not isinstance(node.parent, (exp.Like, exp.ILike)):
            raise _refuse_node(text, span, node)
        if isinstance(node, exp.Between) and node.args.get("symmetric") is not None:
            raise _refuse_node(text, span, node)
    found = {c.start: c for c in (_column_name(node) for node in tree.find_all(exp.Column))}
    columns = tuple(found[start] for start in sorted(found))
    _account(text, span, columns)
    return Expression(span, columns, tree)


def _column_name(node: exp.Expr) -> ColumnName:
    parts = node.parts  # type: ignore[attr-defined]
    return ColumnName(tuple(p.name for p in parts), parts[0].meta["start"], parts[-1].meta["end"])


def _refuse_node(text: Text, span: Span, node: exp.Expr) -> UserError:
    offsets = [n.meta["start"] for n in node.walk() if "start" in n.meta]
    at = min(offsets, default=text.tokens[span.start].start)
    shown = {"Dot": "a field of a struct", "Star": "a star inside an expression", "Collate": "a collation"}
    kind = type(node).__name__
    fix = "Use columns, literals, operators, CASE, CAST and Spark's deterministic functions (docs/sql.md)."
    return text.refuse_at(at, f"{shown.get(kind, f'an expression of the kind {kind}')} is not supported in a view", fix)


def _check_tokens(text: Text, span: Span) -> None:
    """What is best seen in the text: calls, subqueries, windows, parameters."""
    for i in range(span.start, span.end):
        word, type_, quoted = text.word(i), text.type(i), text.type(i) == TokenType.IDENTIFIER
        after_dot = i > span.start and text.type(i - 1) == TokenType.DOT
        called = text.type(i + 1) == TokenType.L_PAREN and i + 1 < span.end
        if type_ in (TokenType.SELECT, TokenType.WITH) and not after_dot and text.type(i - 1) == TokenType.L_PAREN:
            raise _refuse_subquery(text, i)
        if word == "OVER" and not after_dot and (called or text.is_name(i + 1)) and i > span.start:
            raise text.unsupported(i, "a window", "Apply it when you read the view.")
        if type_ in _PARAMETERS:
            raise text.unsupported(i, "a parameter, variable or path", "Write the value itself as a literal.")
        if type_ in (TokenType.ARROW, TokenType.FARROW):
            raise text.unsupported(i, "a lambda or a named argument", "Apply it when you read the view.")
        before = text.type(i - 1) if i > span.start else None
        signs = before is None or before.name in _BEFORE_A_SIGN
        if type_ == TokenType.PLUS and signs and text.type(i + 1) != TokenType.NUMBER:
            fix = "Leave it out, or write the conversion that is meant, as CAST(… AS DOUBLE)."
            raise text.unsupported(i, "a plus sign before an expression", fix)
        if type_ == TokenType.SEMICOLON:
            raise text.refuse(i, "a second statement begins here", "A view is one SELECT.")
        if type_ in _PARAMETERLESS and not after_dot and text.type(i + 1) != TokenType.DOT:
            raise _refuse_function(text, i, text.tokens[i].text)
        if called and (quoted or (text.is_name(i) and word not in _NOT_CALLS)):
            _check_call(text, span, i, after_dot)


def _check_call(text: Text, span: Span, i: int, after_dot: bool) -> None:
    name = text.tokens[i].text
    if after_dot:
        start = i - 2 if i - 2 >= span.start else i
        shown = f"{text.tokens[start].text}.{name}"
        raise text.refuse(start, f"the function {shown}() is unknown", "Use Spark's own functions.")
    if i > span.start and text.type(i - 1) in (TokenType.ALIAS, TokenType.DCOLON):
        return  # a type with parameters: CAST(x AS decimal(10,2))
    if name.lower() in LAMBDAS and text.type(i + 2) in (TokenType.SELECT, TokenType.WITH):
        raise _refuse_subquery(text, i)
    if refusal(name):
        raise _refuse_function(text, i, name)
    if name.lower() in VOLATILE_WITHOUT_ARGUMENTS and text.type(i + 2) == TokenType.R_PAREN:
        raise text.unsupported(i, f"the volatile function {name.lower()}() without an argument", "Give it a column.")


def _refuse_function(text: Text, i: int, name: str) -> UserError:
    message, fix = refusal(name) or refusal("now") or ("", "")
    return text.unsupported(i, message, fix)


def _refuse_subquery(text: Text, i: int) -> UserError:
    fix = "Write an inner join with a table that has each key once, or with a subquery in FROM."
    return text.unsupported(i, "a subquery inside an expression", fix)


def _account(text: Text, span: Span, columns: tuple[ColumnName, ...]) -> None:
    """Refuses a word that is neither a column of the tree nor known as something else."""
    starts = [column.start for column in columns]
    for i in range(span.start, span.end):
        token = text.tokens[i]
        before = bisect_right(starts, token.start)
        if token.token_type not in (TokenType.VAR, TokenType.IDENTIFIER) or (
            before and token.start <= columns[before - 1].end
        ):
            continue
        dotted = text.type(i + 1) == TokenType.DOT or (i > span.start and text.type(i - 1) == TokenType.DOT)
        called = text.type(i + 1) == TokenType.L_PAREN
        typed = i > span.start and text.type(i - 1) in (TokenType.ALIAS, TokenType.DCOLON)
        if not dotted and (called or typed or text.word(i) in _GRAMMAR):
            continue
        fix = "Write it so that every name is a column, a function or a literal."
        raise text.refuse(i, f"{token.text!r} cannot be understood here", fix)
