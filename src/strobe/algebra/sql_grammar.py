"""The shape of a view's SQL: WITH, SELECT, FROM, joins and WHERE, read from the tokens as Spark reads them.

What is not of this shape is refused at its token. Expressions stay spans of tokens here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import TokenType

from strobe.algebra.sql_functions import words
from strobe.algebra.sql_text import Span, Text
from strobe.errors import UserError


@dataclass(frozen=True)
class Alias:
    name: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A name in FROM: a relation of a source, or a CTE."""

    parts: tuple[str, ...]
    span: Span
    alias: Alias | None


@dataclass(frozen=True)
class Nested:
    """A subquery or a join in parentheses, with or without an alias."""

    inner: Select | Source
    alias: Alias | None
    at: int


@dataclass(frozen=True)
class Join:
    """An inner join. Comma and JOIN bind alike and to the left, as in Spark."""

    left: Source
    right: Source
    on: Span | None
    using: tuple[tuple[str, int], ...]


Source = Table | Nested | Join


@dataclass(frozen=True)
class Cte:
    name: str
    columns: tuple[str, ...]
    query: Select
    at: int


@dataclass(frozen=True)
class Select:
    ctes: tuple[Cte, ...]
    items: tuple[Span, ...]
    source: Source
    where: Span | None


_AFTERWARDS = "apply it when you read the view."
_OUTER = ("an outer join", "Only inner joins are supported yet: maintain the joined tables as views of their own.")
_SORTING = ("ordering of rows", "A view has no order: write ORDER BY when you read the view.")
_SET = ("a set operation", "Make each SELECT a view of its own, and combine them when you read.")
_SAMPLE = ("a sample", "A sample is not repeatable: take it when you read the view.")
_TRAVEL = ("time travel", "A view follows the present state of its sources: name the table alone.")

REFUSED = {
    "GROUP": ("GROUP BY", f"Aggregates are not supported yet: {_AFTERWARDS}"),
    "HAVING": ("HAVING", f"Aggregates are not supported yet: {_AFTERWARDS}"),
    "QUALIFY": ("QUALIFY", f"Windows are not supported yet: {_AFTERWARDS}"),
    "WINDOW": ("a WINDOW clause", f"Windows are not supported yet: {_AFTERWARDS}"),
    "ORDER": _SORTING,
    "SORT": _SORTING,
    "CLUSTER": _SORTING,
    "DISTRIBUTE": _SORTING,
    "LIMIT": ("LIMIT", "A view holds every row: write LIMIT when you read the view."),
    "OFFSET": ("OFFSET", "A view holds every row: write OFFSET when you read the view."),
    "UNION": _SET,
    "EXCEPT": _SET,
    "MINUS": _SET,
    "INTERSECT": _SET,
    "LATERAL": ("LATERAL", f"Generators and lateral subqueries are not supported: {_AFTERWARDS}"),
    "PIVOT": ("PIVOT", f"Write one CASE expression for each column, or {_AFTERWARDS}"),
    "UNPIVOT": ("UNPIVOT", f"UNPIVOT is not supported: {_AFTERWARDS}"),
    "TABLESAMPLE": _SAMPLE,
    "NATURAL": ("a natural join", "Name the columns: JOIN … USING (column), or JOIN … ON."),
    "LEFT": _OUTER,
    "RIGHT": _OUTER,
    "FULL": _OUTER,
    "OUTER": _OUTER,
    "SEMI": ("a semi join", "Write an inner join with a table that has each key once."),
    "ANTI": ("an anti join", "Anti joins are not supported yet."),
    "ASOF": ("an as-of join", "Write the condition in ON."),
    "FOR": _TRAVEL,
    "VERSION": _TRAVEL,
    "TIMESTAMP": _TRAVEL,
    "SYSTEM_VERSION": _TRAVEL,
    "SYSTEM_TIME": _TRAVEL,
}
_TRAVELS = {"VERSION", "TIMESTAMP", "SYSTEM_VERSION", "SYSTEM_TIME"}
_CLAUSES = frozenset(REFUSED) - _TRAVELS
_ENDS = _CLAUSES | {"FROM", "WHERE", "JOIN", "INNER", "CROSS", "ON", "USING"}
_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END}
_LITERALS = {TokenType.STRING, TokenType.RAW_STRING, TokenType.HEX_STRING, TokenType.NUMBER, TokenType.STAR}


def read(text: Text) -> Select:
    """The one SELECT statement of the text."""
    return _Reader(text).statement()


class _Reader:
    def __init__(self, text: Text) -> None:
        self.text = text
        self.at = 0

    def statement(self) -> Select:
        if not self.text.tokens:
            raise self.refuse("an empty text", "Write a SELECT statement.")
        if self.word not in ("SELECT", "WITH"):
            shown = self.text.tokens[self.at].text
            raise self.refuse(f"a view is one SELECT statement, not {shown!r}", "Begin with SELECT or WITH.")
        query = self.query()
        end = self.at
        while self.type == TokenType.SEMICOLON:
            self.at += 1
        if self.type is not None:
            if self.at > end:
                raise self.refuse("a second statement begins here", "Make another view of the second SELECT.")
            raise self.unexpected()
        return query

    def query(self) -> Select:
        ctes: list[Cte] = []
        if self.word == "WITH":
            self.at += 1
            if self.word == "RECURSIVE":
                raise self.unsupported("WITH RECURSIVE", "Recursion is not supported: write each step as a join.")
            ctes.append(self.cte())
            while self.take(TokenType.COMMA):
                ctes.append(self.cte())
        if self.word != "SELECT":
            raise self.refuse("not a SELECT statement", "Only SELECT … FROM … WHERE is supported here.")
        return self.select(tuple(ctes))

    def cte(self) -> Cte:
        at = self.at
        name = self.name("a name for the WITH query")
        columns = self.names() if self.type == TokenType.L_PAREN else ()
        if self.word == "AS":
            self.at += 1
        self.expect(TokenType.L_PAREN, "(")
        query = self.query()
        self.expect(TokenType.R_PAREN, ")")
        return Cte(name, columns, query, at)

    def select(self, ctes: tuple[Cte, ...]) -> Select:
        select = self.at
        self.at += 1
        if self.type == TokenType.HINT:
            raise self.unsupported("a hint", "Take the hint away: Strobe and Spark choose how to join.")
        if self.word == "DISTINCT":
            raise self.unsupported("DISTINCT", "Duplicates are kept: write DISTINCT when you read the view.")
        if self.word == "ALL" and self.text.type(self.at + 1) not in (TokenType.COMMA, TokenType.DOT):
            self.at += 1
        items = [self.expression("a column")]
        while self.take(TokenType.COMMA):
            items.append(self.expression("a column"))
        if self.word != "FROM":
            if self.type in (None, TokenType.R_PAREN, TokenType.SEMICOLON) or self.word == "WHERE":
                raise self.text.unsupported(select, "a SELECT without FROM", "Select from a relation source.table.")
            raise self.unexpected()
        self.at += 1
        source = self.relations()
        where = None
        if self.word == "WHERE":
            self.at += 1
            where = self.expression("a condition")
        if self.type not in (None, TokenType.R_PAREN, TokenType.SEMICOLON):
            raise self.unexpected()
        return Select(ctes, tuple(items), source, where)

    def relations(self) -> Source:
        left = self.source()
        while True:
            if self.take(TokenType.COMMA):
                if self.word == "LATERAL":
                    raise self.unexpected()
                left = Join(left, self.source(), None, ())
                continue
            if self.word in ("INNER", "CROSS"):
                self.at += 1
                if self.word != "JOIN":
                    raise self.unexpected()
            if self.word != "JOIN":
                return left
            self.at += 1
            right = self.source()
            on: Span | None = None
            using: tuple[tuple[str, int], ...] = ()
            if self.word == "ON":
                self.at += 1
                on = self.expression("a condition")
            elif self.word == "USING":
                self.at += 1
                first = self.at
                columns = self.names()
                using = tuple((column, first + 1 + 2 * i) for i, column in enumerate(columns))
            left = Join(left, right, on, using)

    def source(self) -> Source:
        at = self.at
        if self.take(TokenType.L_PAREN):
            inner: Select | Source = self.query() if self.word in ("SELECT", "WITH") else self.relations()
            self.expect(TokenType.R_PAREN, ")")
            return Nested(inner, self.alias(), at)
        if self.word == "VALUES":
            raise self.unsupported("an inline table", "Put the rows into a file source, or write a CASE expression.")
        if self.word in REFUSED and self.text.type(at + 1) != TokenType.DOT:
            raise self.unexpected()
        parts = [self.name("a relation")]
        while self.take(TokenType.DOT):
            parts.append(self.name("a relation"))
        span = Span(at, self.at)
        if self.type == TokenType.L_PAREN:
            raise self.text.unsupported(at, "a table-valued function", "Select from relations source.table only.")
        if self.type == TokenType.PARAMETER:
            raise self.unsupported(*_TRAVEL)
        return Table(tuple(parts), span, self.alias())

    def alias(self) -> Alias | None:
        as_of = self.text.word(self.at + 1) == "AS" and self.text.word(self.at + 2) == "OF"
        if self.word == "FOR" or (as_of and self.word in _TRAVELS):
            raise self.unexpected()
        if self.word == "AS":
            self.at += 1
        elif self.word in _ENDS or not self.text.is_name(self.at):
            self.refuse_clause()
            return None
        name = self.name("an alias")
        alias = Alias(name, self.names() if self.type == TokenType.L_PAREN else ())
        self.refuse_clause()
        return alias

    def refuse_clause(self) -> None:
        if self.word in _CLAUSES:
            raise self.unexpected()

    def expression(self, wanted: str) -> Span:
        """Tokens up to the next clause, comma or closing parenthesis of this level."""
        start, depth = self.at, 0
        while self.type is not None:
            if depth == 0 and (self.type in (TokenType.COMMA, TokenType.SEMICOLON) or self.ends_clause(start)):
                break
            if self.type in _OPENING and not self.after_dot():
                depth += 1
            elif self.type in _CLOSING and not self.after_dot():
                if depth == 0:
                    break
                depth -= 1
            self.at += 1
        if self.at == start:
            raise self.refuse(f"{wanted} is missing", "Check the syntax here.")
        return Span(start, self.at)

    def after_dot(self) -> bool:
        return self.text.type(self.at - 1) == TokenType.DOT

    def ends_clause(self, start: int) -> bool:
        """Whether a clause begins here, rather than a column or function of that name."""
        if self.word not in _ENDS or self.at == start:
            return self.word in ("FROM", "WHERE") and self.at == start
        previous = self.text.type(self.at - 1)
        if self.word == "FROM":
            return self.text.word(self.at - 1) != "DISTINCT"
        operand = previous in _CLOSING or previous in _LITERALS or self.text.is_name(self.at - 1)
        return operand and not self.is_operator(self.at - 1)

    def is_operator(self, index: int) -> bool:
        return self.text.word(index) in _OPERATOR_WORDS and self.text.type(index - 1) != TokenType.DOT

    def names(self) -> tuple[str, ...]:
        self.expect(TokenType.L_PAREN, "(")
        names = [self.name("a column name")]
        while self.take(TokenType.COMMA):
            names.append(self.name("a column name"))
        self.expect(TokenType.R_PAREN, ")")
        return tuple(names)

    def name(self, wanted: str) -> str:
        if not self.text.is_name(self.at):
            if self.type is None:
                raise self.refuse(f"the text ends where {wanted} is expected", "Check the syntax here.")
            raise self.refuse(f"{wanted} is expected here", "Quote unusual names with backticks.")
        self.at += 1
        return self.text.tokens[self.at - 1].text

    @property
    def word(self) -> str:
        return self.text.word(self.at)

    @property
    def type(self) -> TokenType | None:
        return self.text.type(self.at)

    def take(self, type_: TokenType) -> bool:
        if self.type != type_:
            return False
        self.at += 1
        return True

    def expect(self, type_: TokenType, shown: str) -> None:
        if not self.take(type_):
            if self.word in REFUSED:
                raise self.unexpected()
            raise self.refuse(f"{shown!r} is expected here", "Check the syntax here.")

    def refuse(self, message: str, fix: str) -> UserError:
        return self.text.refuse(self.at, message, fix)

    def unsupported(self, construct: str, fix: str) -> UserError:
        return self.text.unsupported(self.at, construct, fix)

    def unexpected(self) -> UserError:
        if self.word == "EXCEPT" and self.text.type(self.at - 1) == TokenType.STAR:
            return self.unsupported("a star without some columns", "Write out the columns that you want.")
        if self.word in REFUSED:
            return self.unsupported(*REFUSED[self.word])
        if self.type is None:
            return self.refuse("the text ends too early", "Check the syntax here.")
        shown = self.text.tokens[self.at].text
        return self.refuse(f"{shown!r} is not expected here", "Only SELECT … FROM … [JOIN …] [WHERE …] is supported.")


_OPERATOR_WORDS = words("AND OR NOT IN LIKE ILIKE RLIKE REGEXP BETWEEN IS DIV WHEN THEN ELSE CASE AS SELECT")


def conjuncts(text: Text, span: Span) -> Iterator[Span]:
    """The parts of a condition that AND joins at its top, without the parentheses around them."""
    while _enclosed(text, span):
        span = Span(span.start + 1, span.end - 1)
    cuts: list[int] = []
    depth, between = 0, 0
    for i in range(span.start, span.end):
        type_ = text.type(i)
        if i > span.start and text.type(i - 1) == TokenType.DOT:
            continue
        if type_ in _OPENING:
            depth += 1
        elif type_ in _CLOSING:
            depth -= 1
        elif depth == 0 and type_ == TokenType.OR:
            cuts = []
            break
        elif depth == 0 and type_ == TokenType.BETWEEN:
            between += 1
        elif depth == 0 and type_ == TokenType.AND:
            if between:
                between -= 1
            else:
                cuts.append(i)
    if not cuts:
        yield span
        return
    start = span.start
    for cut in [*cuts, span.end]:
        yield from conjuncts(text, Span(start, cut))
        start = cut + 1


def _enclosed(text: Text, span: Span) -> bool:
    """Whether one pair of parentheses encloses the whole span."""
    if span.end - span.start < 3 or text.type(span.start) != TokenType.L_PAREN:
        return False
    depth = 0
    for i in range(span.start, span.end):
        if text.type(i) == TokenType.L_PAREN:
            depth += 1
        elif text.type(i) == TokenType.R_PAREN:
            depth -= 1
            if depth == 0:
                return i == span.end - 1
    return False


def _nodes(node: Select | Source) -> Iterator[Select | Source]:
    """A query and all that is in it."""
    waiting = [node]
    while waiting:
        yield (found := waiting.pop())
        if isinstance(found, Nested):
            waiting.append(found.inner)
        elif isinstance(found, Join):
            waiting += [found.left, found.right]
        elif isinstance(found, Select):
            waiting += [*(cte.query for cte in found.ctes), found.source]


def selects(query: Select) -> Iterator[Select]:
    """Every SELECT of a query."""
    return (node for node in _nodes(query) if isinstance(node, Select))


def conditions(query: Select) -> Iterator[Span]:
    """Every condition in ON and WHERE."""
    for node in _nodes(query):
        found = node.on if isinstance(node, Join) else node.where if isinstance(node, Select) else None
        if found is not None:
            yield found


def tables(query: Select | Source) -> Iterator[tuple[Table, frozenset[str]]]:
    """Every name in FROM, with the CTE names visible there (in lower case), in the order of the text."""
    yield from _tables(query, frozenset())


def _tables(node: Select | Source, visible: frozenset[str]) -> Iterator[tuple[Table, frozenset[str]]]:
    if isinstance(node, Table):
        yield node, visible
    elif isinstance(node, Nested):
        yield from _tables(node.inner, visible)
    elif isinstance(node, Join):
        yield from _tables(node.left, visible)
        yield from _tables(node.right, visible)
    else:
        for cte in node.ctes:
            yield from _tables(cte.query, visible)
            visible |= {cte.name.lower()}
        yield from _tables(node.source, visible)
