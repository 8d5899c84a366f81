"""Things that belong together because they use something in common."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T", str, int)


def connected(uses: Mapping[T, Collection[str]], together: Iterable[Collection[str]] = ()) -> list[frozenset[T]]:
    """Those that use something in common, directly or through others; `together` are things that count as one."""
    found: list[tuple[set[T], set[str]]] = [(set(), set(tied)) for tied in together]
    for name, used in uses.items():
        names, shared = {name}, set(used)
        for other in [each for each in found if each[1] & shared]:
            found.remove(other)
            names |= other[0]
            shared |= other[1]
        found.append((names, shared))
    return sorted((frozenset(names) for names, _ in found if names), key=sorted)
