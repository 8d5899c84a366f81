"""How applications name a global transaction: a text that each of its parts leaves in the log of its database.

    order-17 shop,billing
    {"id": "order-17", "sources": ["shop", "billing"]}

First the identifier, then all sources that take part, by their names in strobe.yml: without them nobody would know for
which parts to wait. A text that cannot be read stops the source, since what belongs together could no longer be told.
"""

from __future__ import annotations

import json

from strobe.errors import SourceLost
from strobe.messages import GlobalTransaction


def global_transaction(text: str, source: str) -> GlobalTransaction | None:
    """What a text in the log of a source names; None if it is empty."""
    if not text.strip():
        return None
    identifier, participants = _from_json(text) if text.lstrip().startswith("{") else _from_words(text)
    if not identifier or not participants:
        raise _unreadable(text, source, "it has to name an identifier and the sources that take part")
    if source not in participants:
        raise _unreadable(text, source, f"{source} is not among the sources that it names")
    return GlobalTransaction(identifier, frozenset(participants))


def _from_words(text: str) -> tuple[str, list[str]]:
    identifier, _, rest = text.strip().partition(" ")
    names = [name.strip() for name in rest.split(",")]
    return identifier, names if all(names) else []


def _from_json(text: str) -> tuple[str, list[str]]:
    try:
        found = json.loads(text)
    except ValueError:
        return "", []
    identifier, names = found.get("id"), found.get("sources")
    if not isinstance(identifier, str) or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        return "", []
    return identifier, names


def _unreadable(text: str, source: str, why: str) -> SourceLost:
    shown = text if len(text) <= 100 else f"{text[:100]}…"
    return SourceLost(
        f"the name of a global transaction in the log cannot be used: {shown!r}: {why}",
        source=source,
        where=f"source {source}",
        fix="Let the application write `ID SOURCE,SOURCE,…`, and rebuild the views that use this source.",
    )
