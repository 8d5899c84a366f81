"""Keeps secrets and control characters out of everything that this process writes.

Reading a project registers each value that `${…}` resolved, and the passwords inside DSNs (`learn`). Whatever leaves
the process is passed through one of these functions: `redact` for text (tracebacks, what libraries print), `redacted`
for documents (heartbeats, replies, reports), `said` for messages and log lines. Errors pass their texts through `said`
when they are made, so that none can be forgotten later.

A secret is recognized as it is and in the forms that other programs write it in: quoted by Python, JSON or SQL,
percent-encoded, and in base64. What is registered belongs to the process and not to a project: a message may be
about another project than the one whose secret it holds.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"

SHORTEST = 4
"""A shorter value hides nothing, and hiding it would spoil every message that happens to contain it."""

_PLAIN = 8
"""A secret shorter than this is hidden where it stands alone, and not inside a word or a number: other processes rely
on positions, which may hold it by chance, and `pass***` would give `word` away."""

_BEGINS = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2})|(?<=\\x[0-9a-f]{2})|(?<=\\u[0-9a-f]{4}))"
"""Not inside a word, or after a character that is written as an escape."""

_NOTHING = re.compile(r"(?!)")


class _Secrets:
    """What is to be hidden, as patterns that are compiled once."""

    def __init__(self, values: frozenset[str] = frozenset(), names: frozenset[str] = frozenset()) -> None:
        self.values = values
        self.names = names
        found = sorted({form for value in values for form in _forms(value)}, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(_pattern, found))) if found else _NOTHING


_secrets = _Secrets()


def learn(values: Iterable[str], names: Iterable[str] = ()) -> None:
    """Hide these values from now on. `names` are public, whatever else they are: a view may be called like a
    password, and has to be found by its name."""
    global _secrets
    long_enough = {part for value in values for part in (value, *_lines(value)) if len(part) >= SHORTEST}
    _secrets = _Secrets(_secrets.values | long_enough, _secrets.names | set(names))


def forget() -> None:
    """Hide nothing any more; for tests, which read many projects in one process."""
    global _secrets
    _secrets = _Secrets()


def redact(text: str) -> str:
    """The text without any secret."""
    return _secrets.pattern.sub(HIDDEN, text)


def redacted(value: Any) -> Any:
    """A document without any secret in its values. Its keys and names stay."""
    return _each(value, lambda text: text if text in _secrets.names else redact(text))


def _lines(value: str) -> Iterator[str]:
    """A secret of several lines, a key for instance, is often shown line by line."""
    if "\n" in value:
        yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= _PLAIN)


def _pattern(form: str) -> str:
    """A form, with percent codes in capitals or not."""
    pattern = re.sub("%([0-9A-F]{2})", lambda code: f"%(?i:{code[1]})", re.escape(form))
    return pattern if len(form) >= _PLAIN else f"{_BEGINS}{pattern}(?![A-Za-z0-9])"


def _forms(value: str) -> Iterator[str]:
    """The ways in which programs write a value."""
    quoted = {value, repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    quoted |= {value.replace("'", "''"), value.replace("'", "\\'"), value.replace("\\", "\\\\").replace("'", "\\'")}
    quoted |= {value.replace("'", "\\'").replace('"', '\\"'), ascii(value)[1:-1]}
    try:
        raw = value.encode()
    except UnicodeEncodeError:  # bytes of the environment that are not UTF-8
        raw = value.encode(errors="surrogateescape")
    quoted.add(repr(raw)[2:-1])
    quoted |= {json.dumps(form)[1:-1] for form in list(quoted)}  # a message with a quoted value, quoted itself
    quoted |= {printable(form) for form in list(quoted)}
    yield from quoted
    percent = {quote(raw, safe=""), quote(raw), quote_plus(raw), quote(raw, safe="!$&'()*+,;=:@/")}
    yield from percent
    yield from (form for form in (unquote(value),) if len(form) >= SHORTEST)
    if len(raw) >= _PLAIN:
        yield from _base64(raw)


def _base64(raw: bytes) -> Iterator[str]:
    """What a value becomes inside anything that is encoded: it may begin at any of three places of a group."""
    for before in range(3):
        text = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        whole = text[(0, 2, 3)[before] : len(text) - (1 if (before + len(raw)) % 3 else 0)]
        yield whole
        yield whole.replace("+", "-").replace("/", "_")


# Control characters.

_INVISIBLE = "\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""Signs that steer terminals, turn the direction of text or end lines, and halves of characters."""

_IN_A_LINE = re.compile(f"[\x00-\x09{_INVISIBLE}]|\n(?!  )")
"""An indented line may follow, as the advice follows an error: it cannot be taken for a line of its own."""

_IN_LINES = re.compile(f"[\x00-\x08{_INVISIBLE}]")


def printable(text: str, *, lines: bool = False) -> str:
    """The text with control characters escaped; with `lines`, it may have several and tabs in them."""
    return (_IN_LINES if lines else _IN_A_LINE).sub(_escaped, text)


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escaped(found: re.Match[str]) -> str:
    sign = found.group()
    return _SHORT.get(sign) or (f"\\x{ord(sign):02x}" if ord(sign) < 256 else f"\\u{ord(sign):04x}")


def printable_json(text: str) -> str:
    """JSON in which the control characters that it does not escape by itself are escaped, too."""
    return _IN_LINES.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


_LONGEST = 4000
"""Characters of a message: what a server or a file says may be of any length, and is kept in several places."""


def said(text: str) -> str:
    """A message as it may be shown: without secrets, on one line but for indented ones, and not too long."""
    text = printable(redact(text))
    cut = len(text) - _LONGEST
    return text if cut <= 0 else f"{text[: _LONGEST // 2]} … ({cut:,} more characters) … {text[-_LONGEST // 2 :]}"


# What rows hold.

SHOW_VALUES = "STROBE_SHOW_VALUES"
_values_shown = False


def show_values(wanted: bool) -> None:
    """Whether messages may quote what stands in columns that are no keys; off unless somebody asks for it."""
    global _values_shown
    _values_shown = wanted


def content(value: object, name: str = "a value") -> str:
    """A value out of a row, for a message: itself if that was asked for, or else how long it is."""
    shown = value if isinstance(value, str) else repr(value)
    if _values_shown:
        return repr(shown if len(shown) <= _LONGEST_VALUE else f"{shown[:_LONGEST_VALUE]}…")
    return f"{name} of {len(shown)} characters ({SHOW_VALUES}=1 shows it)"


_LONGEST_VALUE = 200


def _each(value: Any, change: Callable[[str], str]) -> Any:
    """A document with each of its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _each(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_each(item, change) for item in value]
    return value
