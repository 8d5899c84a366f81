"""A view's SQL as tokens over the text the user wrote.

Strobe never prints SQL from a syntax tree: printing changes meanings (CAST becomes TRY_CAST, escapes and the suffixes
of literals are rewritten). A tree is only *asked* which columns and constructs an expression has; what Spark runs is
cut out of the user's own text, with names replaced at their places and comments left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass

from sqlglot import Token, TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.expressions import Expr, Select
from sqlglot.parsers.spark import SparkParser

from strobe.errors import UserError, UserErrors

DIALECT = Spark()
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"\d+(\.\d*)?(E[+-]?\d+)?(BD|[LSYDF])?", re.IGNORECASE)
_OPEN = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE)
_CLOSE = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END)
_DEEPEST = 60
_MOST = 20_000
"""Tokens of a view."""
_NUMBERS = (TokenType.NUMBER, TokenType.HEX_STRING, TokenType.BIT_STRING)


class Parser(SparkParser):
    """Spark's grammar, with functions as plain calls that keep all their arguments: what sqlglot knows of functions
    would turn some arguments into something else. Only those with a syntax of their own are read specially."""

    FUNCTIONS = {  # noqa: RUF012  # as sqlglot declares it
        name: SparkParser.FUNCTIONS[name]
        for name in ("TIMESTAMPADD", "TIMESTAMPDIFF", "DATEADD", "DATE_ADD", "DATEDIFF", "DATE_DIFF")
    }
    FUNCTION_PARSERS = {  # noqa: RUF012
        name: SparkParser.FUNCTION_PARSERS[name]
        for name in ("CAST", "TRY_CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "SUBSTR", "TRIM")
    }


@dataclass(frozen=True)
class Span:
    """Tokens `start` to `end`, the latter excluded."""

    start: int
    end: int


@contextmanager
def bounded(where: str) -> Iterator[None]:
    """While SQL is read, whatever is too deep for parsers that call themselves is the user's to change."""
    try:
        yield
    except RecursionError:
        message = "this SQL is nested too deeply, or joins too much, to be read"
        raise UserError(message, where=where, fix="Make several views of it, or write it more simply.") from None


class Consequence(UserError):
    """What may be wrong only because something before it is: nobody is told."""


class Text:
    """The SQL of one view, with its tokens and the words for its errors."""

    def __init__(self, sql: str, where: str) -> None:
        self.sql = sql
        self.where = where
        self.problems: list[UserError] = []
        """What is refused, but does not hinder to find out what else is."""
        try:
            self.tokens: list[Token] = DIALECT.tokenize(sql)
        except TokenError as error:
            unclosed = re.search(r"from \d+:(\d+)", str(error.__cause__))
            place = self.place(int(unclosed[1])) if unclosed else where
            fix = "Close every quote, backtick and comment."
            raise UserError("the text cannot be read: a quote or comment does not end", where=place, fix=fix) from error
        self._check_size()
        if "${" in sql:
            fix = "Write the value itself; for the characters, write concat('$', '{…')."
            raise self.refuse_at(sql.index("${"), "${…} would be substituted by Spark, in strings too", fix)
        for i, token in enumerate(self.tokens):
            self.check_token(i, token)

    def _check_size(self) -> None:
        """What a parser, which calls itself for all that is inside something, can be trusted with."""
        depth = 0
        for i, token in enumerate(self.tokens):
            if self.type(i - 1) != TokenType.DOT or not i:
                depth += (token.token_type in _OPEN) - (token.token_type in _CLOSE)
            if depth > _DEEPEST or i >= _MOST:
                what = f"nested more than {_DEEPEST} deep" if depth > _DEEPEST else f"longer than {_MOST:,} words"
                raise self.refuse(i, f"this SQL is {what}", "Make several views of it, or write it more simply.")

    def check_token(self, i: int, token: Token) -> None:
        """Refuses a word or number that Spark reads otherwise."""
        written = self.sql[token.start : token.end + 1]
        if token.token_type == TokenType.VAR and not _NAME.fullmatch(written):
            raise self.refuse(i, f"Spark takes the name {written} in backticks only", f"Write `{written}`.")
        number = token.token_type in _NUMBERS and written[0].isdigit()
        if number and not _NUMBER.fullmatch(written):
            raise self.refuse(i, f"Spark does not read {written} as a number", "Write the number in decimal digits.")

    def place(self, offset: int) -> str:
        line = self.sql.count("\n", 0, offset) + 1
        column = offset - self.sql.rfind("\n", 0, offset)
        return f"{self.where}: line {line}, column {column}"

    def refuse(self, index: int, message: str, fix: str) -> UserError:
        """The error for a construct that begins at a token (or at the end of the text)."""
        offset = self.tokens[index].start if index < len(self.tokens) else len(self.sql.rstrip())
        return UserError(message, where=self.place(offset), fix=fix)

    def unsupported(self, index: int, construct: str, fix: str) -> UserError:
        return self.refuse(index, f"{construct} is not supported in a view", fix)

    def refuse_at(self, offset: int, message: str, fix: str) -> UserError:
        return UserError(message, where=self.place(offset), fix=fix)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """What is refused meanwhile is noted, and others go on."""
        try:
            yield
        except UserError as error:
            if not isinstance(error, Consequence):
                self.problems.append(error)

    def settle(self) -> None:
        """Raises what was noted."""
        found = list({str(error): error for error in self.problems}.values())
        if found:
            raise UserErrors(found) if len(found) > 1 else found[0]

    def type(self, index: int) -> TokenType | None:
        return self.tokens[index].token_type if index < len(self.tokens) else None

    def word(self, index: int) -> str:
        """The first word of a token in upper case; empty for quoted names, literals and the end of the text."""
        if index >= len(self.tokens) or self.type(index) in (TokenType.IDENTIFIER, TokenType.STRING, TokenType.NUMBER):
            return ""
        return self.tokens[index].text.split(maxsplit=1)[0].upper() if self.tokens[index].text.strip() else ""

    def is_name(self, index: int) -> bool:
        """Whether the token can be a name: quoted, or a word."""
        if index >= len(self.tokens):
            return False
        token = self.tokens[index]
        return token.token_type == TokenType.IDENTIFIER or (
            token.token_type not in (TokenType.STRING, TokenType.RAW_STRING, TokenType.HEX_STRING, TokenType.NUMBER)
            and token.text.replace("_", "a").isalnum()
        )

    def masked(self, span: Span, hidden: Sequence[Span]) -> Text:
        """The text of a span alone, with some stretches of it as if each were a column."""
        masked = copy(self)
        masked.tokens, at = [], span.start
        for each in hidden:
            masked.tokens += self.tokens[at : each.start]
            first, last = self.tokens[each.start], self.tokens[each.end - 1]
            masked.tokens.append(Token(TokenType.VAR, "_masked", first.line, first.col, first.start, last.end))
            at = each.end
        masked.tokens += self.tokens[at : span.end]
        return masked

    def render(self, span: Span, replacements: Mapping[int, tuple[int, str]]) -> list[tuple[str, bool]]:
        """The text of a span as pieces (text, whether it is a replacement), without comments.

        `replacements` maps the offset where a replaced stretch begins to its last offset and its new text.
        """
        pieces: list[tuple[str, bool]] = []
        last: int | None = None
        for token in self.tokens[span.start : span.end]:
            if last is not None and token.start <= last:
                continue  # one literal such as 1L is several tokens; or inside a replaced stretch
            gap = self.sql[last + 1 : token.start] if last is not None else ""
            pieces.append((gap if set(gap) <= set(" \n\r\t") else " ", False))
            if token.start in replacements:
                last, new = replacements[token.start]
                pieces.append((new, True))
            else:
                last = token.end
                pieces.append((self.sql[token.start : token.end + 1], False))
        return [(text, replaced) for text, replaced in pieces if text]

    def parse(self, span: Span) -> Expr:
        """The syntax tree of one SELECT item or expression; places in it are places in the text."""
        tokens = [Token(TokenType.SELECT, "SELECT", start=0, end=0), *self.tokens[span.start : span.end]]
        try:
            trees = Parser(dialect=DIALECT).parse(tokens, self.sql)
        except Exception as error:  # sqlglot fails with errors of all kinds on what it does not know
            syntax = isinstance(error, ParseError) and "class" not in str(error)
            fix = "Check its syntax, and quote unusual names with backticks." if syntax else "Check the arguments."
            raise self.refuse(span.start, "this expression cannot be read", fix) from error
        tree = trees[0] if len(trees) == 1 else None
        if not isinstance(tree, Select) or len(tree.expressions) != 1:
            raise self.refuse(span.start, "this expression cannot be read", "Check its syntax.")
        expression: Expr = tree.expressions[0]
        return expression
