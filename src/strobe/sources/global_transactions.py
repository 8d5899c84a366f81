"""How applications name a global transaction: a text that each of its parts leaves in the log of its database.

    order-17 shop,billing
    {"id": "order-17", "sources": ["shop", "billing"]}

First the identifier, then all sources that take part, by their names in strobe.yml: without them nobody would know for
which parts to wait. Where such a text may be is what the source's configuration says; without it, nothing in the log
names a global transaction. Whoever may write into the log may write any text there: one that cannot be used is
reported, and its transaction is an ordinary one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable

from strobe.messages import GlobalTransaction

LONGEST = 1000
"""Characters of a text."""
MOST = 100
"""Global transactions that one transaction may be a part of."""


class Unusable(ValueError):
    """A text that names no global transaction, and why."""


class NamedParts:
    """Which global transactions the transactions of one source are parts of."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.warning = ""
        """About the first text that could not be used; the others are not reported."""

    def of(self, texts: Collection[str]) -> tuple[GlobalTransaction, ...]:
        """The global transactions that the texts in one transaction name."""
        if len(texts) > MOST:
            self._warn(f"a transaction in the log names more than {MOST} global transactions")
            return ()
        found: dict[GlobalTransaction, None] = {}
        for text in texts:
            try:
                found |= dict.fromkeys(named_by(text, self._source))
            except Unusable as unusable:
                self._warn(f"the name of a global transaction in the log cannot be used: {_shown(text)}: {unusable}")
        return tuple(found)

    def _warn(self, what: str) -> None:
        self.warning = self.warning or f"{what}. Such transactions are shown as ordinary ones."


def gathered(texts: list[str], more: Iterable[str]) -> None:
    """Add the different texts of a transaction, in bounded memory: one that is too long or too many cannot be used."""
    for text in more:
        known = text[: LONGEST + 1]
        if len(texts) <= MOST and known not in texts:
            texts.append(known)


def named_by(text: str, source: str) -> tuple[GlobalTransaction, ...]:
    """What a text in the log of a source names; nothing if it is empty."""
    if len(text) > LONGEST:
        raise Unusable(f"it is longer than {LONGEST} characters")
    if not text.strip():
        return ()
    identifier, participants = _from_json(text) if text.lstrip().startswith("{") else _from_words(text)
    if not identifier or not participants:
        raise Unusable("it has to name an identifier and the sources that take part, as `ID SOURCE,SOURCE,…`")
    if source not in participants:
        raise Unusable(f"{source} is not among the sources that it names")
    return (GlobalTransaction(identifier, frozenset(participants)),)


def _from_words(text: str) -> tuple[str, list[str]]:
    identifier, _, rest = text.strip().partition(" ")
    names = [name.strip() for name in rest.split(",")]
    return identifier, names if all(names) else []


def _from_json(text: str) -> tuple[str, list[str]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "", []
    identifier, names = found.get("id"), found.get("sources")
    if not isinstance(identifier, str) or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        return "", []
    return identifier, names


def _shown(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:100]}…")
