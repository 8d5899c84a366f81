"""The shape of a view's SQL: WITH, SELECT, FROM, joins, WHERE, GROUP BY and so on, read from the tokens as Spark does.

What is not of this shape is refused at its token. Expressions stay spans of tokens here; the queries inside them are
read and kept beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

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

    inner: Query | Source
    alias: Alias | None
    at: int


@dataclass(frozen=True)
class Join:
    """A join. Comma and JOIN bind alike and to the left, as in Spark."""

    left: Source
    right: Source
    on: Span | None
    using: tuple[tuple[str, int], ...]
    kind: str = "INNER"
    """INNER, LEFT, RIGHT, FULL, SEMI or ANTI."""


Source = Table | Nested | Join


@dataclass(frozen=True)
class Lateral:
    """LATERAL VIEW [OUTER] generator(…) alias AS columns."""

    call: Span
    alias: Alias
    outer: bool
    at: int


@dataclass(frozen=True)
class Cte:
    name: str
    columns: tuple[str, ...]
    query: Query
    at: int


@dataclass(frozen=True)
class Select:
    items: tuple[Span, ...]
    source: Source
    at: int
    ctes: tuple[Cte, ...] = ()
    distinct: bool = False
    laterals: tuple[Lateral, ...] = ()
    where: Span | None = None
    group: tuple[Span, ...] | None = None
    having: Span | None = None
    windows: Mapping[str, Span] = field(default_factory=dict)
    """What a WINDOW clause defines, by names in lower case: what is in the parentheses."""
    qualify: Span | None = None
    subqueries: Mapping[int, Query] = field(default_factory=dict)
    """The queries inside expressions, by the token of the parenthesis before them."""
    end: int = 0
    """The token after it."""


@dataclass(frozen=True)
class Combined:
    """Queries of which UNION ALL makes one; `distinct`, and the rows of all appear once."""

    branches: tuple[Query, ...]
    at: int
    ctes: tuple[Cte, ...] = ()
    distinct: bool = False


Query = Select | Combined


_SORTING = ("ordering of rows", "A view has no order: write ORDER BY when you read the view.")
_SET = ("a set operation", "Write NOT EXISTS instead of EXCEPT, and EXISTS instead of INTERSECT, with DISTINCT.")
_SAMPLE = ("a sample", "A sample is not repeatable: take it when you read the view.")
_TRAVEL = ("time travel", "A view follows the present state of its sources: name the table alone.")
_SETS = ("GROUPING SETS, ROLLUP and CUBE", "Write one GROUP BY for each set, and combine them with UNION ALL.")

REFUSED = {
    "ORDER": _SORTING,
    "SORT": _SORTING,
    "CLUSTER": _SORTING,
    "DISTRIBUTE": _SORTING,
    "LIMIT": ("LIMIT", "A view holds every row: write LIMIT when you read the view, or keep rows by ROW_NUMBER()."),
    "OFFSET": ("OFFSET", "A view holds every row: write OFFSET when you read the view."),
    "EXCEPT": _SET,
    "MINUS": _SET,
    "INTERSECT": _SET,
    "LATERAL": ("a lateral subquery", "Write a join, with the conditions in ON."),
    "PIVOT": ("PIVOT", "Write one aggregate over a CASE expression for each column."),
    "UNPIVOT": ("UNPIVOT", "Write one SELECT for each column, and combine them with UNION ALL."),
    "TABLESAMPLE": _SAMPLE,
    "NATURAL": ("a natural join", "Name the columns: JOIN … USING (column), or JOIN … ON."),
    "OUTER": ("an outer join without a side", "Write LEFT, RIGHT or FULL before OUTER JOIN."),
    "ASOF": ("an as-of join", "Write the condition in ON."),
    "ROLLUP": _SETS,
    "CUBE": _SETS,
    "GROUPING": _SETS,
    "FOR": _TRAVEL,
    "VERSION": _TRAVEL,
    "TIMESTAMP": _TRAVEL,
    "SYSTEM_VERSION": _TRAVEL,
    "SYSTEM_TIME": _TRAVEL,
}
_TRAVELS = {"VERSION", "TIMESTAMP", "SYSTEM_VERSION", "SYSTEM_TIME"}
_AT_THE_END = ("ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET")
_OTHER_SETS = ("EXCEPT", "MINUS", "INTERSECT")
_OUTER_KINDS = ("LEFT", "RIGHT", "FULL")
_KINDS = (*_OUTER_KINDS, "INNER", "CROSS", "SEMI", "ANTI")
_CLAUSES = frozenset(REFUSED) - _TRAVELS - {"ROLLUP", "CUBE", "GROUPING"}
_ENDS = _CLAUSES | words("FROM WHERE JOIN ON USING UNION GROUP HAVING WINDOW QUALIFY WITH") | frozenset(_KINDS)
_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END}
_LITERALS = {TokenType.STRING, TokenType.RAW_STRING, TokenType.HEX_STRING, TokenType.NUMBER, TokenType.STAR}


def read(text: Text) -> Query:
    """The one SELECT statement of the text."""
    return _Reader(text).statement()


class _Reader:
    def __init__(self, text: Text) -> None:
        self.text = text
        self.at = 0
        self.subqueries: dict[int, Query] = {}

    def statement(self) -> Query:
        if not self.text.tokens:
            raise self.refuse("an empty text", "Write a SELECT statement.")
        if not self.begins_query(self.at):
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

    def begins_query(self, at: int) -> bool:
        """Whether a query begins here, perhaps in parentheses."""
        while self.text.type(at) == TokenType.L_PAREN:
            at += 1
        return self.text.word(at) in ("SELECT", "WITH")

    def query(self) -> Query:
        ctes: list[Cte] = []
        if self.word == "WITH":
            self.at += 1
            if self.word == "RECURSIVE":
                raise self.unsupported("WITH RECURSIVE", "Recursion is not supported: write each step as a join.")
            ctes.append(self.cte())
            while self.take(TokenType.COMMA):
                ctes.append(self.cte())
        query = self.combined()
        if ctes and query.ctes:
            return Combined((query,), query.at, tuple(ctes))
        return replace(query, ctes=tuple(ctes)) if ctes else query

    def combined(self) -> Query:
        left = self.term()
        joined = False
        while self.word == "UNION" or self.word in _OTHER_SETS:
            at = self.at
            if self.word in _OTHER_SETS:
                self.text.problems.append(self.unexpected())
            self.at += 1
            whole = self.word == "ALL"
            if self.word in ("ALL", "DISTINCT"):
                self.at += 1
            right = self.term()
            if whole and joined and isinstance(left, Combined) and not left.distinct:
                left = replace(left, branches=(*left.branches, right))
            else:
                left = Combined((left, right), at, distinct=not whole)
            joined = True
        return left

    def term(self) -> Query:
        """A SELECT, or a query in parentheses."""
        if self.type == TokenType.L_PAREN and self.begins_query(self.at):
            self.at += 1
            query = self.query()
            self.expect(TokenType.R_PAREN, ")")
            return query
        if self.word != "SELECT":
            raise self.refuse("not a SELECT statement", "Only SELECT … FROM … is supported here.")
        return self.select()

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

    def select(self) -> Select:
        kept, self.subqueries = self.subqueries, {}
        select = self.at
        self.at += 1
        if self.type == TokenType.HINT:
            hint = self.unsupported("a hint", "Take the hint away: Strobe and Spark choose how to join.")
            self.text.problems.append(hint)
            self.at += 1
        distinct = self.word == "DISTINCT" and self.text.type(self.at + 1) not in (TokenType.COMMA, TokenType.DOT)
        if distinct or (self.word == "ALL" and self.text.type(self.at + 1) not in (TokenType.COMMA, TokenType.DOT)):
            self.at += 1
        items = self.expressions("a column")
        if self.word != "FROM":
            if self.type in (None, TokenType.R_PAREN, TokenType.SEMICOLON) or self.word in ("WHERE", "UNION"):
                raise self.text.unsupported(select, "a SELECT without FROM", "Select from a relation source.table.")
            raise self.unexpected()
        self.at += 1
        source = self.relations()
        laterals = []
        while self.lateral_view:
            laterals.append(self.lateral())
        where = self.expression("a condition") if self.clause("WHERE") else None
        group = self.group() if self.clause("GROUP") else None
        having = self.expression("a condition") if self.clause("HAVING") else None
        windows = self.windows() if self.clause("WINDOW") else {}
        qualify = self.expression("a condition") if self.clause("QUALIFY") else None
        while self.word in _AT_THE_END:
            self.text.problems.append(self.unexpected())
            self.skip()
        ended = self.type in (None, TokenType.R_PAREN, TokenType.SEMICOLON)
        if not ended and self.word != "UNION" and self.word not in _OTHER_SETS:
            raise self.unexpected()
        found, self.subqueries = self.subqueries, kept
        return Select(
            items,
            source,
            select,
            distinct=distinct,
            laterals=tuple(laterals),
            where=where,
            group=group,
            having=having,
            windows=windows,
            qualify=qualify,
            subqueries=found,
            end=self.at,
        )

    def skip(self) -> None:
        """Passes over a clause at the end of a query."""
        self.at += 1
        while self.type not in (None, TokenType.R_PAREN, TokenType.SEMICOLON, TokenType.UNION):
            if self.word in _AT_THE_END or self.word in _OTHER_SETS:
                return
            self.at = closing(self.text, self.at) + 1 if self.type == TokenType.L_PAREN else self.at + 1

    def clause(self, word: str) -> bool:
        if self.word != word:
            return False
        self.at += 1
        return True

    def expressions(self, wanted: str) -> tuple[Span, ...]:
        found = [self.expression(wanted)]
        while self.take(TokenType.COMMA):
            found.append(self.expression(wanted))
        return tuple(found)

    def group(self) -> tuple[Span, ...]:
        if self.word in ("ROLLUP", "CUBE", "GROUPING") and self.text.type(self.at + 1) == TokenType.L_PAREN:
            raise self.unexpected()
        if self.word == "ALL" and self.text.type(self.at + 1) not in (TokenType.COMMA, TokenType.DOT):
            raise self.unsupported("GROUP BY ALL", "Write out the columns, or their numbers.")
        found = self.expressions("a column")
        if self.word in ("WITH", "GROUPING"):
            raise self.unsupported(*_SETS)
        return found

    def windows(self) -> dict[str, Span]:
        found: dict[str, Span] = {}
        while True:
            name = self.name("a name for the window").lower()
            if self.word == "AS":
                self.at += 1
            start = self.at
            self.expect(TokenType.L_PAREN, "(")
            self.at = closing(self.text, start)
            found[name] = Span(start + 1, self.at)
            self.expect(TokenType.R_PAREN, ")")
            if not self.take(TokenType.COMMA):
                return found

    @property
    def lateral_view(self) -> bool:
        return self.word == "LATERAL" and self.text.word(self.at + 1) == "VIEW"

    def lateral(self) -> Lateral:
        at = self.at
        self.at += 2
        outer = self.clause("OUTER")
        start = self.at
        self.name("a generator")
        self.expect(TokenType.L_PAREN, "(")
        self.at = closing(self.text, start + 1) + 1
        call = Span(start, self.at)
        alias = "" if self.word == "AS" or self.word in _ENDS or not self.text.is_name(self.at) else self.name("a name")
        columns: list[str] = []
        if self.clause("AS"):
            columns.append(self.name("a column name"))
            while self.take(TokenType.COMMA):
                columns.append(self.name("a column name"))
        return Lateral(call, Alias(alias, tuple(columns)), outer, at)

    def relations(self) -> Source:
        left = self.source()
        while True:
            if self.take(TokenType.COMMA):
                if self.word == "LATERAL":
                    raise self.unexpected()
                left = Join(left, self.source(), None, ())
                continue
            kind = self.kind()
            if kind is None:
                return left
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
            elif kind != "INNER":
                raise self.refuse("this join needs a condition", "Write ON and the condition, or USING (column).")
            left = Join(left, right, on, using, kind)

    def kind(self) -> str | None:
        """The kind of a join that begins here, whose JOIN is passed."""
        if self.word not in (*_KINDS, "JOIN"):
            return None
        found = "INNER"
        if self.word in _OUTER_KINDS:
            found = self.word
            self.at += 1
            if self.word == "OUTER":
                self.at += 1
            elif found == "LEFT" and self.word in ("SEMI", "ANTI"):
                found = self.word
                self.at += 1
        elif self.word != "JOIN":
            found = self.word if self.word in ("SEMI", "ANTI") else found
            self.at += 1
        if self.word != "JOIN":
            raise self.unexpected()
        self.at += 1
        return found

    def source(self) -> Source:
        at = self.at
        if self.take(TokenType.L_PAREN):
            inner: Query | Source = self.query() if self.is_query() else self.relations()
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

    def is_query(self) -> bool:
        """Whether what is in these parentheses is a query: a join can begin with one in parentheses too."""
        if not self.begins_query(self.at):
            return False
        at = self.at
        while self.text.type(at) == TokenType.L_PAREN:
            at = closing(self.text, at) + 1
            word = self.text.word(at)
            return self.text.type(at) == TokenType.R_PAREN or word in ("UNION", "EXCEPT", "MINUS", "INTERSECT")
        return True

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
        if self.word in _CLAUSES and self.word not in (*_AT_THE_END, *_OTHER_SETS) and not self.lateral_view:
            raise self.unexpected()

    def expression(self, wanted: str) -> Span:
        """Tokens up to the next clause, comma or closing parenthesis of this level."""
        start, depth = self.at, 0
        while self.type is not None:
            if depth == 0 and (self.type in (TokenType.COMMA, TokenType.SEMICOLON) or self.ends_clause(start)):
                break
            if self.type == TokenType.L_PAREN and not self.after_dot() and self.text.word(self.at + 1) in _QUERY:
                opening = self.at
                self.at += 1
                self.subqueries[opening] = self.query()
                if self.text.type(self.at) != TokenType.R_PAREN:
                    raise self.unexpected()
            elif self.type in _OPENING and not self.after_dot():
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
        if self.word == "GROUP" and self.text.word(self.at - 1) == "WITHIN":
            return False
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
        return self.refuse(f"{shown!r} is not expected here", "Check the syntax here (docs/sql.md).")


_QUERY = ("SELECT", "WITH")
_OPERATOR_WORDS = words("AND OR NOT IN LIKE ILIKE RLIKE REGEXP BETWEEN IS DIV WHEN THEN ELSE CASE AS SELECT")


def conjuncts(text: Text, span: Span) -> Iterator[Span]:
    """The parts of a condition that AND joins at its top, without the parentheses around them."""
    while enclosed(text, span):
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


def split(text: Text, span: Span) -> Iterator[Span]:
    """The parts of a list."""
    depth, start = 0, span.start
    for i in range(span.start, span.end):
        if i > span.start and text.type(i - 1) == TokenType.DOT:
            continue
        depth += (text.type(i) in _OPENING) - (text.type(i) in _CLOSING)
        if depth == 0 and text.type(i) == TokenType.COMMA:
            yield Span(start, i)
            start = i + 1
    yield Span(start, span.end)


def top(text: Text, span: Span) -> Iterator[int]:
    """The tokens of a span that are in no parentheses there."""
    depth = 0
    for i in range(span.start, span.end):
        if depth == 0:
            yield i
        depth += (text.type(i) == TokenType.L_PAREN) - (text.type(i) == TokenType.R_PAREN)


def enclosed(text: Text, span: Span) -> bool:
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


def closing(text: Text, opening: int) -> int:
    """The token of the parenthesis that closes the one at a token."""
    depth = 0
    for i in range(opening, len(text.tokens)):
        if text.type(i - 1) == TokenType.DOT and i:
            continue
        depth += (text.type(i) == TokenType.L_PAREN) - (text.type(i) == TokenType.R_PAREN)
        if depth == 0:
            return i
    raise text.refuse(opening, "this parenthesis is not closed", "Check the syntax here.")


def _inside(node: Query | Source) -> tuple[Query | Source, ...]:
    """What is directly in a query or source, without what its CTEs are."""
    if isinstance(node, Nested):
        return (node.inner,)
    if isinstance(node, Join):
        return (node.left, node.right)
    if isinstance(node, Select):
        return (node.source, *node.subqueries.values())
    return node.branches if isinstance(node, Combined) else ()


def selects(query: Query) -> Iterator[Select]:
    """Every SELECT of a query."""
    waiting: list[Query | Source] = [query]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Select):
            yield found
        if isinstance(found, (Select, Combined)):
            waiting += [cte.query for cte in found.ctes]
        waiting += _inside(found)


def conditions(select: Select) -> Iterator[Span]:
    """Every condition of a SELECT, in ON too."""
    yield from (span for span in (select.where, select.having, select.qualify) if span)
    waiting = [select.source]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Join):
            waiting += [found.left, found.right]
            yield from (span for span in (found.on,) if span)
        elif isinstance(found, Nested) and isinstance(found.inner, (Table, Nested, Join)):
            waiting.append(found.inner)


def tables(query: Query | Source) -> Iterator[tuple[Table, frozenset[str]]]:
    """Every name in FROM, with the CTE names visible there (in lower case), in the order of the text."""
    yield from _tables(query, frozenset())


def _tables(node: Query | Source, visible: frozenset[str]) -> Iterator[tuple[Table, frozenset[str]]]:
    if isinstance(node, Table):
        yield node, visible
    if isinstance(node, (Select, Combined)):
        for cte in node.ctes:
            yield from _tables(cte.query, visible)
            visible |= {cte.name.lower()}
    for inner in _inside(node):
        yield from _tables(inner, visible)
