"""A statement of the binlog as tokens, read in the way in which its session meant it.

`"x"` is a name or a text, and a backslash escapes or does not, by the SQL mode of the session; the bytes are in its
character set. What is in backticks is a name and never a keyword. Comments that servers of some versions execute
(`/*!80000 … */`, `/*M! … */`) are read both ways, since the log does not say which server wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

ANSI_QUOTES, NO_BACKSLASH_ESCAPES = 4, 1 << 20
"""Bits of the SQL mode, as the binlog has it."""
MOST_COMMENTS = 3
"""Executable comments in one statement that are read in all combinations."""


class Unreadable(Exception):
    """A statement whose words cannot be told apart for certain."""


@dataclass(frozen=True)
class Statement:
    """A statement, and how to read it."""

    text: str
    schema: str
    """In which names are that name no schema."""
    mode: int = 0
    """The SQL mode of its session."""
    problem: str = ""
    """Why its text is not certain."""


@dataclass(frozen=True)
class Token:
    kind: str
    """`word` (a keyword or a name), `name` (quoted), `string` or `sign`."""
    text: str

    @property
    def key(self) -> str:
        """In capitals, if it may be a keyword; else empty."""
        return self.text.upper() if self.kind != "name" and self.kind != "string" else ""

    @property
    def named(self) -> str:
        """The name that it may be; else empty."""
        return self.text if self.kind in ("word", "name") else ""


_SCANNERS: dict[tuple[bool, bool], re.Pattern[str]] = {}


def _scanner(ansi: bool, backslashes: bool) -> re.Pattern[str]:
    if (ansi, backslashes) not in _SCANNERS:
        inside = r"(?:[^{0}\\]|\\.|{0}{0})*" if backslashes else r"(?:[^{0}]|{0}{0})*"
        double = r"(?:[^\"]|\"\")*" if ansi else inside.format('"')
        _SCANNERS[ansi, backslashes] = re.compile(
            rf"""(?P<space>\s+)
            | (?P<begin>/\*M?!(?:\d{{5,6}})?) | (?P<end>\*/)
            | (?P<comment>/\*.*?(?:\*/|\Z) | --(?=[\s\x00-\x1f]|\Z)[^\n]* | \#[^\n]*)
            | (?P<name>`(?:[^`]|``)*`)
            | (?P<{"ansi" if ansi else "text"}>"{double}")
            | (?P<string>'{inside.format("'")}')
            | (?P<word>[\w$\u0080-\U0010ffff]+) | (?P<sign>.)""",
            re.VERBOSE | re.DOTALL,
        )
    return _SCANNERS[ansi, backslashes]


def readings(statement: Statement) -> Iterator[list[Token]]:
    """What the statement may have been to the server that executed it. Raises `Unreadable`."""
    tokens, comments = _scan(statement)
    if comments > MOST_COMMENTS:
        raise Unreadable("it has many comments that servers of some versions execute")
    for executed in product((True, False), repeat=comments):
        yield [token for token, comment in tokens if comment is None or executed[comment]]


def words(text: str) -> list[str]:
    """The words at the beginning of a statement that the server itself wrote, such as BEGIN or SAVEPOINT `s`."""
    try:
        tokens, _ = _scan(Statement(text, ""))
    except Unreadable:
        return []
    return [token.text for token, comment in tokens if comment is None]


def _scan(statement: Statement) -> tuple[list[tuple[Token, int | None]], int]:
    """All tokens, each with the number of the executable comment in which it is, and how many of these there are."""
    scanner = _scanner(bool(statement.mode & ANSI_QUOTES), not statement.mode & NO_BACKSLASH_ESCAPES)
    found: list[tuple[Token, int | None]] = []
    comments, inside = 0, None
    for match in scanner.finditer(statement.text):
        kind, text = match.lastgroup or "", match[0]
        if inside is not None and "*/" in text and kind != "end":
            raise Unreadable("it has an executable comment with another comment or a text in it")
        if kind == "begin":
            if inside is not None:
                raise Unreadable("it has executable comments one in another")
            inside, comments = comments, comments + 1
        elif kind == "end":
            inside = None
        elif kind not in ("space", "comment"):
            found.append((_token(kind, text), inside))
    return found, comments


def _token(kind: str, text: str) -> Token:
    if kind == "sign" and text in "`'\"":
        raise Unreadable("it has a quotation mark without its counterpart")
    if kind in ("name", "ansi"):
        return Token("name", text[1:-1].replace(text[0] * 2, text[0]))
    return Token("string" if kind in ("text", "string") else kind, text)


def spelled(tokens: Sequence[Token]) -> str:
    """Tokens as people write them, for messages."""
    return " ".join(token.text for token in tokens)
